//! Decides whether late or early messages were caused by a change of the path, and if so, since
//! when and by how much.

use super::direction::Direction;
use super::filter::Filter;
use super::gaussian::{ARRIVAL, RATE, ROUND_TRIP};
use super::history::History;
use super::lateness::Lateness;
use super::parameters::{ChangeDetection, Parameters, WINDOW};
use super::ring::Ring;

/// A shift.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shift {
    /// Size of the shift per direction, s; negative for a shorter path, `None` if there is none.
    pub by_s: [Option<f64>; 2],
    /// Number of exchanges since it began.
    pub exchanges: usize,
}

impl Shift {
    /// Whether there is a shift in any direction.
    pub fn any(&self) -> bool {
        self.by_s.iter().any(Option::is_some)
    }

    /// The suspicion that `filter`'s recent residuals raise. `sigma_s` is their uncertainty, and
    /// `independence` the information in a message.
    pub fn suspected(
        filter: &Filter,
        sigma_s: [f64; 2],
        independence: f64,
        parameters: &Parameters,
    ) -> Option<Self> {
        let enough = parameters.changes.shift_exchanges;
        if filter.count() <= (parameters.start.exchanges + enough) as u64 {
            return None;
        }
        let mut shift = Self { by_s: [None; 2], exchanges: 0 };
        for (k, direction) in filter.directions.iter().enumerate() {
            let found = if direction.late_run >= enough {
                Some((direction.least(enough), direction.late_run))
            } else {
                suspect_small(direction, sigma_s[k], independence, &parameters.changes)
            };
            if let Some((by, exchanges)) = found {
                shift.by_s[k] = Some(by);
                shift.exchanges = shift.exchanges.max(exchanges);
            }
        }
        shift.any().then_some(shift)
    }

    /// Re-evaluates the suspicion in hindsight. The residuals so far are relative to a filter that
    /// the shift was already pulling along. Here they are relative to predictions from before the
    /// suspected beginning, without learning, or from further back if the filter had already been
    /// pulled along by then.
    pub fn confirmed(&self, history: &History, parameters: &Parameters) -> Self {
        let suspected = Self { exchanges: self.exchanges.min(history.len()), ..*self };
        let windows = parameters.changes.shift_windows.into_iter();
        let further = windows.filter(|n| *n > suspected.exchanges && *n <= history.len());
        core::iter::once(suspected.exchanges)
            .chain(further)
            .find_map(|exchanges| {
                let (shift, clear) = Self { exchanges, ..suspected }.judged(history, parameters);
                clear.then_some(shift)
            })
            .unwrap_or_else(|| suspected.judged(history, parameters).0)
    }

    /// Evaluates whether the path changed in both directions, based on the newest `exchanges`, the
    /// first of which had a message that arrived too early. `shortened` lists the minima that were
    /// reopened for it; none if its round trip was not shorter.
    pub fn of_both(
        exchanges: usize,
        shortened: [bool; 2],
        history: &History,
        parameters: &Parameters,
    ) -> Option<Self> {
        let limits = &parameters.changes;
        let before = history.before(exchanges);
        let hindsight = Hindsight::new(before, exchanges, history, parameters);
        let queueing = before.directions.map(|d| d.queueing_s);
        let late = [0, 1].map(|k| Lateness::of(&hindsight.residuals_s[k], exchanges, queueing[k]));
        let sigma = hindsight.sigma_s.map(|s| limits.shortened_sigma * s);
        let is_longer =
            |l: &Lateness| l.evidence() > limits.exchanged_evidence && 2 * l.support > exchanges;
        // A clock step makes one direction early by as much as the other is late. A clock cannot
        // explain additional lateness of the other direction, nor shorter round trips.
        let early = usize::from(late[1].least_s < late[0].least_s);
        let beyond = Lateness { least_s: late[0].least_s + late[1].least_s, ..late[1 - early] };
        let known = before.bank.mixture().project(ROUND_TRIP).1.sqrt();
        let margin = limits.early_sigma * known
            + limits.confirmed_queueing * (queueing[0] + queueing[1]) / 2.0;
        let no_step = is_longer(&beyond) || hindsight.least_round_trip_s() < -margin;
        let changed = if shortened == [false; 2] {
            late[early].least_s < -sigma[early] && no_step
        } else {
            // The other direction became longer, or it is shorter and its first message was late.
            (0..2).filter(|k| !shortened[*k]).any(|k| {
                let longer = is_longer(&late[k]) && late[k].least_s > sigma[k] && no_step;
                let margin = sigma[k] + limits.confirmed_queueing * queueing[k];
                longer || late[k].least_s < -margin
            })
        };
        let by = |k: usize| (late[k].least_s.abs() > sigma[k]).then_some(late[k].least_s);
        changed.then(|| Self { by_s: [by(0), by(1)], exchanges })
    }

    /// Messages that are early relative to the prediction do not indicate a shift. Late ones do,
    /// whether or not a shift was suspected. Returns whether some direction is clearly late.
    fn judged(&self, history: &History, parameters: &Parameters) -> (Self, bool) {
        let limits = &parameters.changes;
        let before = history.before(self.exchanges);
        let hindsight = Hindsight::new(before, self.exchanges, history, parameters);
        let queueing = before.directions.map(|d| d.queueing_s);
        let exchanges = hindsight.beginning(queueing);
        let least_evidence = 0.5 * limits.shift_evidence / exchanges as f64;
        let mut shift = Self { exchanges, ..*self };
        let mut clear = false;
        for (k, queueing) in queueing.into_iter().enumerate() {
            let late = Lateness::of(&hindsight.residuals_s[k], exchanges, queueing);
            let sigma = limits.confirmed_sigma * hindsight.sigma_s[k];
            let supported = late.support >= limits.shift_support;
            let large = late.least_s > least_evidence.max(limits.confirmed_queueing) * queueing;
            shift.by_s[k] = if supported && large && late.least_s > sigma {
                clear = true;
                Some(late.least_s)
            } else if supported && late.least_s >= -sigma {
                self.by_s[k].map(|by| by.min(late.least_s.max(0.0)))
            } else {
                None
            };
        }
        (shift, clear)
    }
}

/// A shift of a few mean queueing delays makes no message an outlier, but the smallest residual of
/// many should be near 0.
fn suspect_small(
    direction: &Direction,
    sigma_s: f64,
    independence: f64,
    limits: &ChangeDetection,
) -> Option<(f64, usize)> {
    // Until the usual level is known, the mean queueing delay is used instead.
    let record = direction.record_minimum().unwrap_or(direction.queueing_s);
    limits.shift_windows.into_iter().take_while(|n| direction.len() >= *n).find_map(|n| {
        let late = Lateness::of(direction.residuals(), n, direction.queueing_s);
        let unexpected = late.evidence() * independence > limits.shift_evidence;
        let unprecedented = late.least_s > limits.shift_record * record;
        let certain = late.least_s > limits.shift_sigma * sigma_s;
        (unexpected && unprecedented && certain).then_some((late.least_s, n))
    })
}

/// Residuals relative to predictions without learning.
struct Hindsight {
    residuals_s: [Ring<f64, { WINDOW + 1 }>; 2],
    /// Standard deviation of the newest prediction.
    sigma_s: [f64; 2],
}

impl Hindsight {
    fn new(before: &Filter, exchanges: usize, history: &History, parameters: &Parameters) -> Self {
        let mut bank = before.bank;
        let mut hindsight = Self { residuals_s: [Ring::new(0.0); 2], sigma_s: [0.0; 2] };
        for back in (1..=exchanges).rev() {
            let sighting = history.sighting(back);
            bank.predict(sighting.since_s, &parameters.oscillator);
            let predicted = bank.mixture();
            let measured = sighting.at_epoch(predicted.mean[RATE]);
            for k in 0..2 {
                let (mean, variance) = predicted.project(ARRIVAL[k]);
                hindsight.residuals_s[k].push(measured[k] - mean);
                hindsight.sigma_s[k] = variance.sqrt();
            }
        }
        hindsight
    }

    /// The smallest residual of a round trip, s; it does not depend on the clock.
    fn least_round_trip_s(&self) -> f64 {
        let [forward, backward] = &self.residuals_s;
        forward.newest().zip(backward.newest()).map(|(f, b)| f + b).fold(f64::INFINITY, f64::min)
    }

    /// How many exchanges ago the shift began: where the evidence, summed over both directions, is
    /// largest. A message that happened to be late just before the shift does not hide it.
    fn beginning(&self, queueing_s: [f64; 2]) -> usize {
        let evidence = |n: usize| -> f64 {
            (0..2).map(|k| Lateness::of(&self.residuals_s[k], n, queueing_s[k]).evidence()).sum()
        };
        let all = self.residuals_s[0].len();
        (1..all).fold(all, |best, n| if evidence(n) > evidence(best) { n } else { best })
    }
}
