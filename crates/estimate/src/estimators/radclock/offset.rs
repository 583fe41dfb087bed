//! The offset: a weighted mean of the stamps' own offsets over the offset window.

use timevisor_time::Period;

use super::history::{Stamp, seconds};
use super::windows::Thresholds;

/// The offset in force.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offset {
    /// Uncorrected clock minus true time, s.
    pub(super) value: f64,
    /// RADclock's measure of its error at the time when it was found, s.
    pub(super) error: f64,
    /// The counter value of the stamp at which it was found.
    pub(super) at: u64,
}

/// How the offset is weighted before and after the minimum round trip is known.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Every stamp is compared with the current minimum, because the earlier ones were less
    /// accurate.
    Warmup {
        /// The current minimum, in ticks.
        minimum: u64,
    },
    /// Every stamp is compared with the minimum in force when it arrived, and corrected for drift
    /// with the local period.
    Steady {
        /// The recent period of the oscillator; `None` while it is unknown.
        local: Option<Period>,
    },
}

/// A candidate: weighted mean, best and second best error in the window, and its longest gap.
struct Candidate {
    mean: Option<f64>,
    best: f64,
    second: f64,
    gap: f64,
}

fn candidate<'a>(
    window: impl Iterator<Item = &'a Stamp>,
    newest: &Stamp,
    period: Period,
    phase: Phase,
    t: &Thresholds,
) -> Candidate {
    let drift = match phase {
        Phase::Steady { local: Some(local) } => local.relative_to(period),
        Phase::Steady { local: None } | Phase::Warmup { .. } => 0.0,
    };
    let (mut sum, mut weights) = (0.0, 0.0);
    let (mut best, mut second) = (f64::INFINITY, f64::INFINITY);
    let (mut gap, mut previous) = (0.0_f64, None);
    for stamp in window {
        let age = stamp.age(newest, period);
        let point_error = match phase {
            Phase::Warmup { minimum } => stamp.excess(minimum, period),
            Phase::Steady { .. } => stamp.point_error(period),
        };
        let error = point_error + age * t.ageing;
        (best, second) = (best.min(error), second.min(error.max(best)));
        let weight = (-(error / t.offset_width).powi(2)).exp();
        weights += weight;
        sum += weight * (stamp.naive_offset - drift * age);
        gap = gap.max(previous.map_or(0.0, |before: f64| before - age));
        previous = Some(age);
    }
    Candidate { mean: (weights > 0.0).then(|| sum / weights), best, second, gap }
}

impl Offset {
    /// Evaluates the window that ends with `newest` and updates itself, unless the window is poor
    /// or the result fails the sanity check.
    pub(super) fn observe<'a>(
        &mut self,
        window: impl Iterator<Item = &'a Stamp>,
        newest: &Stamp,
        period: Period,
        phase: Phase,
        t: &Thresholds,
    ) {
        let found = candidate(window, newest, period, phase, t);
        let Some(value) = found.mean.filter(|_| found.best < t.offset_quality) else { return };
        let since = seconds(self.at, newest.tf, period);
        let limit = t.offset_sanity + t.offset_sanity_rate * found.gap.max(since);
        // During the warmup the period still changes too much for a sanity check.
        let judged = matches!(phase, Phase::Steady { .. });
        if judged && (value - self.value).abs() > limit {
            return;
        }
        let error = if found.second.is_finite() { found.second } else { found.best };
        *self = Self { value, error, at: newest.tf };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimators::radclock::RadclockParameters;
    use timevisor_time::Instant;

    const HZ: u64 = 1_000_000_000;

    /// A stamp at second `at`, with `excess_ns` of queueing above a minimum of 60 us, and with this
    /// offset according to the stamp alone.
    fn stamp(at: u64, excess_ns: u64, naive_offset: f64) -> Stamp {
        let (ta, t) = (at * HZ, Instant::from_unix_nanos(0));
        let tf = ta + 60_000 + excess_ns;
        Stamp { ta, tb: t, te: t, tf, minimum: 60_000, naive_offset }
    }

    fn good() -> (Thresholds, Period) {
        (Thresholds::new(&RadclockParameters::good()), Period::from_hz(HZ).unwrap())
    }

    #[test]
    fn weights_fall_with_queueing_and_age_and_old_offsets_drift() {
        let (t, period) = good();
        // The oscillator's recent ticks were 1e-7 longer: 10 us in 100 s.
        let local = Some(Period::from_bits(period.to_bits() + period.to_bits() / 10_000_000));
        let window = [stamp(0, 0, 100e-6), stamp(84, 75_000, 40e-6), stamp(100, 0, 0.0)];
        let found = candidate(window.iter(), &window[2], period, Phase::Steady { local }, &t);
        // Errors are queueing + 2e-7 of the age: 20 us, 78.2 us, 0; the width is 150 us.
        let weight = |error: f64| (-(error / 150e-6) * (error / 150e-6)).exp();
        let (old, slow) = (weight(20e-6), weight(75e-6 + 2e-7 * 15.999_925));
        let expected = (old * 90e-6 + slow * (40e-6 - 1.6e-6)) / (old + slow + 1.0);
        assert!((found.mean.unwrap() - expected).abs() < 1e-9, "{:?} {expected}", found.mean);
        assert!(found.best.abs() < 1e-15 && (found.second - 20e-6).abs() < 1e-9);
        assert!((found.gap - 84.0).abs() < 1e-3, "{}", found.gap);
    }

    #[test]
    fn in_the_warmup_the_minimum_of_today_counts_and_nothing_drifts() {
        let (t, period) = good();
        let early = Stamp { minimum: 210_000, ..stamp(0, 150_000, 30e-6) };
        let window = [early, stamp(16, 0, 0.0)];
        let phase = Phase::Warmup { minimum: 60_000 };
        let found = candidate(window.iter(), &window[1], period, phase, &t);
        let error: f64 = 150e-6 + 2e-7 * 15.999_85;
        let weight = (-(error / 150e-6).powi(2)).exp();
        let expected = weight * 30e-6 / (1.0 + weight);
        assert!((found.mean.unwrap() - expected).abs() < 1e-9, "{:?}", found.mean);
    }

    #[test]
    fn the_second_best_may_be_the_newest() {
        let (t, period) = good();
        let phase = Phase::Steady { local: None };
        let window = [stamp(0, 50_000, 0.0), stamp(16, 0, 0.0), stamp(32, 9_000, 0.0)];
        let found = candidate(window.iter(), &window[2], period, phase, &t);
        assert!((found.best - 3.2e-6).abs() < 1e-8 && (found.second - 9e-6).abs() < 1e-8);
    }

    #[test]
    fn a_poor_window_holds_the_offset() {
        let (t, period) = good();
        let before = Offset { value: 1e-3, error: 5e-6, at: 0 };
        let phase = Phase::Steady { local: None };
        let mut offset = before;
        // The quality limit is three widths of 150 us.
        let poor = stamp(16, 451_000, 0.9e-3);
        offset.observe([poor].iter(), &poor, period, phase, &t);
        assert!((offset.value - 1e-3).abs() < 1e-15 && offset.at == 0);
        let good = stamp(16, 449_000, 0.9e-3);
        offset.observe([good].iter(), &good, period, phase, &t);
        assert!((offset.value - 0.9e-3).abs() < 1e-15 && offset.at == good.tf);
    }
}
