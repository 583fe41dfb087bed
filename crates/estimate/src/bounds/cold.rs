//! Until a rate is proven, the bounds rest on the stated limits alone. An oscillator beyond them takes
//! the truth out of the bounds before facts contradict each other; the estimate can tell with the
//! second exchange.
//!
//! A young estimate is easily wrong, though: it does not know the path yet, and takes a stall in one
//! direction for the path's length. So an alarm needs three witnesses:
//!
//! 1. the estimated rate is outside by more than one standard error;
//! 2. that has moved the clock by a share of the bounds' width. Where paths are poor, first estimates
//!    are off by hundreds of ppm, but bounds are wide, and nothing leaves them soon;
//! 3. two exchanges show it by themselves: their middles differ by more than the limits and everything
//!    that the two took beyond the shortest round trip can explain.

use std::collections::VecDeque;

use timevisor_time::{Duration, Instant, Period, Tai};

use super::lookback::Opinion;
use crate::exchange::Exchange;
use crate::rate::RateLimits;

/// A rate beyond the limits matters when it has moved the clock by this share of the bounds' width.
const LEAST_OF_BOUNDS: f64 = 0.15;

/// Exchanges that are compared with the newest one.
const KEPT: usize = 8;

/// An exchange, as far as rates need it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Counter value in the middle.
    at: u64,
    /// The reference's time in its middle.
    time: Instant<Tai>,
    /// Without the reference's residence, s.
    round_trip: f64,
    /// How wrong the reference may be, s.
    error: f64,
}

/// Watches the first exchanges for a counter beyond the stated limits.
#[derive(Clone, Debug, Default)]
pub struct ColdGuard {
    /// Oldest first.
    seen: VecDeque<Seen>,
    /// Counter value of the first exchange since everything began, or started over.
    began: u64,
    beyond: Option<f64>,
}

impl ColdGuard {
    /// Nothing was seen; `began` is the counter value of the exchange to come or just taken.
    pub fn new(began: u64) -> Self {
        Self { began, ..Self::default() }
    }

    /// By how much the counter is fast, relative, while that is beyond the limits.
    pub fn beyond(&self) -> Option<f64> {
        self.beyond
    }

    /// A rate was proven, and the limits with it.
    pub fn end(&mut self) {
        self.seen.clear();
        self.beyond = None;
    }

    /// Takes in an exchange with `round_trip` (s), the opinion after it, and the `width` (s) of the
    /// bounds. Returns how far beyond the limits the rate is when this exchange is the first to tell,
    /// relative.
    pub fn observe(
        &mut self,
        exchange: &Exchange,
        round_trip: f64,
        opinion: Option<&Opinion>,
        width: f64,
        limits: &RateLimits,
        nominal: Period,
    ) -> Option<f64> {
        let centre = limits.middle().relative_to(nominal);
        let most = limits.half_width().ppb() * 1e-9;
        let excess = |rate: f64| (rate - centre).abs() - most;
        let shown = self.is_shown(exchange, round_trip, nominal, excess);
        let opinion = opinion?;
        let rate = opinion.estimate.period.relative_to(nominal);
        let sigma = opinion.error_later.as_secs_f64() / opinion.later.as_secs_f64();
        let age = nominal.span(opinion.at.wrapping_sub(self.began)).as_secs_f64();
        let beyond = excess(rate);
        let believed = beyond > sigma && beyond * age > LEAST_OF_BOUNDS * width;
        let was = self.beyond.is_some();
        self.beyond = (believed && (shown || was)).then_some(-rate);
        (self.beyond.is_some() && !was).then_some(beyond)
    }

    /// Whether this exchange and an earlier one show a rate beyond the limits, whatever kept them
    /// longer than the shortest took.
    fn is_shown(
        &mut self,
        exchange: &Exchange,
        round_trip: f64,
        nominal: Period,
        excess: impl Fn(f64) -> f64,
    ) -> bool {
        let residence = exchange.te - exchange.tb;
        let time = exchange.tb + residence.half();
        let error = exchange.error.as_secs_f64();
        let new = Seen { at: exchange.middle(), time, round_trip, error };
        let shortest = self.seen.iter().map(|seen| seen.round_trip).fold(round_trip, f64::min);
        let shown = self.seen.iter().any(|old| {
            let span = nominal.span(new.at.wrapping_sub(old.at));
            let moved: Duration = (new.time - old.time) - span;
            let span = span.as_secs_f64();
            let late = (new.round_trip - shortest + old.round_trip - shortest) / 2.0;
            span > 0.0 && excess(moved.as_secs_f64() / span) * span > late + new.error + old.error
        });
        if self.seen.len() == KEPT {
            self.seen.pop_front();
        }
        self.seen.push_back(new);
        shown
    }
}
