//! The guard: notices that an assumption failed while the truth is still inside the bounds.
//!
//! The bounds assume nothing about delays, so a clock has to move through the whole minimum one-way
//! delay before facts contradict each other, and by then the truth may be outside. The guard keeps
//! a second, narrow polygon from the same facts and the *learned* minimum round trip: half of it
//! each way. The true split may be any other; the polygon then holds the truth plus a constant,
//! which changes nothing about whether it becomes empty. It empties as soon as a clock moves by a
//! few times the queueing, that is, long before the bounds are wrong, wherever the minimum delay is
//! large against the queueing.
//!
//! Its facts are no facts: a path whose two directions change by opposite amounts empties it as
//! well. Therefore it never narrows anything; it only takes trust away. A round trip below the
//! learned minimum, or a new minimum after a longer path, makes it begin anew without a word.

use super::level2::Step;
use super::polygon::Polygon;
use crate::parameters::BoundParameters;

/// The narrow polygon, and the minimum that it believes in.
#[derive(Clone, Debug)]
pub struct Guard {
    polygon: Option<Polygon>,
    /// The wander bound of its polygon, 1/s.
    wander: f64,
    minimum: RollingMinimum,
    /// Round trips that the minimum is of.
    noted: u64,
    /// The minimum that the polygon's facts were made with, s.
    believed: f64,
}

/// The minimum of the last one to two windows of exchanges.
#[derive(Clone, Copy, Debug)]
struct RollingMinimum {
    before: f64,
    current: f64,
    count: u32,
}

impl RollingMinimum {
    const fn new() -> Self {
        Self { before: f64::INFINITY, current: f64::INFINITY, count: 0 }
    }

    fn push(&mut self, value: f64, window: u32) {
        if self.count == window {
            *self = Self { before: self.current, current: f64::INFINITY, count: 0 };
        }
        self.current = self.current.min(value);
        self.count += 1;
    }

    fn get(&self) -> f64 {
        self.before.min(self.current)
    }
}

/// What the guard sees of one exchange.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// The same as the bounds'.
    pub step: &'a Step,
    /// Round trip without the reference's residence, s.
    pub round_trip: f64,
    /// The reference's own error, s.
    pub error: f64,
    /// The minimum round trip as the estimator sees it now, s.
    pub estimated: f64,
    /// Mean queueing beyond the minimum, s, of both directions together.
    pub queueing: f64,
    /// The wander bound in force, 1/s.
    pub wander: f64,
    /// The bounds' polygon before the exchange, to begin from: for this wander or a larger one.
    pub start: &'a Polygon,
}

impl Sight<'_> {
    /// Whether the round trip is as short as those of the path with this minimum, s. One that is
    /// much longer may have come on another path, whose directions are split differently.
    fn is_near(&self, minimum: f64, parameters: &BoundParameters) -> bool {
        self.round_trip <= minimum + parameters.guard_near * self.queueing
    }
}

impl Guard {
    /// No polygon yet: the minimum is not known.
    #[must_use]
    pub const fn new() -> Self {
        Self { polygon: None, wander: 0.0, minimum: RollingMinimum::new(), noted: 0, believed: 0.0 }
    }

    /// Forgets the polygon, not the minimum.
    pub fn start_over(&mut self) {
        self.polygon = None;
    }

    /// Learns the minimum (s), from the first exchange on.
    pub fn note_round_trip(&mut self, round_trip: f64, parameters: &BoundParameters) {
        self.minimum.push(round_trip, parameters.guard_window);
        self.noted += 1;
    }

    /// How much less than the learned minimum a round trip may take, s, with this mean queueing of
    /// both directions, s.
    fn margin(minimum: f64, queueing: f64, parameters: &BoundParameters) -> f64 {
        let noise = parameters.guard_noise_s.min(parameters.guard_share * minimum.max(0.0));
        parameters.guard_margin * queueing + noise
    }

    /// The minimum is known well enough.
    #[must_use]
    pub fn is_ready(&self, parameters: &BoundParameters) -> bool {
        self.noted >= parameters.guard_after
    }

    /// Takes an exchange in, after its round trip was noted. `Some(us)`: no path of this minimum
    /// and no oscillator of this wander explains it, by that much; the guard begins anew.
    pub fn observe(&mut self, sight: &Sight<'_>, parameters: &BoundParameters) -> Option<f64> {
        let minimum = self.minimum.get();
        let margin = Self::margin(minimum, sight.queueing, parameters);
        // Earlier facts were made with a minimum that has turned out to be too large, or the path
        // became longer.
        if sight.round_trip < self.believed - margin || minimum > self.believed + margin {
            self.polygon = None;
        }
        // The minimum itself moves, as a satellite's does, or it is rarely seen.
        if (sight.estimated - minimum).abs() > margin / 4.0 {
            self.polygon = None;
            return None;
        }
        self.follow(sight.wander);
        let polygon = match &mut self.polygon {
            Some(polygon) => polygon,
            None => {
                self.believed = minimum;
                self.polygon.insert(sight.start.clone())
            }
        };
        let wander = self.wander * 1e9;
        let least = (self.believed - margin).max(0.0) / 2.0 * 1e6;
        // What a reference may be wrong by is less than what it may move by: most of its stated
        // error is constant.
        let constant = sight.error * (1.0 - parameters.guard_error) * 1e6;
        let facts = sight.step.facts.with_minimum_delay(least + constant);
        sight.step.propagate(polygon, wander);
        let missed = facts.missed_by(polygon);
        let mut cut = polygon.clone();
        facts.apply(&mut cut, wander);
        let agrees = !cut.is_empty();
        if agrees {
            *polygon = cut;
        }
        polygon.prune();
        polygon.shift(sight.step.shift);
        if agrees || !sight.is_near(self.believed + margin, parameters) {
            return None;
        }
        self.polygon = None;
        Some(missed)
    }

    /// What is possible with less wander is possible with more, so the polygon can stay when the
    /// bound falls. When it rises, the polygon starts over.
    fn follow(&mut self, wander: f64) {
        if wander > self.wander {
            self.polygon = None;
        }
        self.wander = wander;
    }
}

impl Default for Guard {
    fn default() -> Self {
        Self::new()
    }
}
