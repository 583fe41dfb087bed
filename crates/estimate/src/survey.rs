//! A survey of an oscillator: how its rate has changed over hours, as evidence for what an operator
//! states of it ([`crate::BoundParameters::wander_floor`]).
//!
//! Input are samples of the estimate at counter values. With x the phase against the counter at a
//! constant period, the second difference over a window w, d = x(t + 2w) - 2 x(t + w) + x(t), does
//! not depend on that period. It gives the Allan deviation, sqrt(mean(d^2) / 2) / w (Allan, "Statistics of
//! atomic frequency standards", 1966), and the steepest change of the rate, max abs(d) / w^2.
//!
//! What it does not do: lower a bound. Hours in which the room was quiet say nothing about the day
//! on which its air conditioner fails.

/// A bound should hold on days that are worse than the survey's: by this factor.
pub const RESERVE: f64 = 3.0;
/// Second differences of independent errors of one sigma: sqrt(1 + 4 + 1).
const SECOND_DIFFERENCE: f64 = 2.449_489_742_783_178;
/// A change counts from this many standard deviations on.
const SIGNIFICANT: f64 = 5.0;
/// Windows need this many second differences.
const LEAST_DIFFERENCES: usize = 8;

/// The estimate at one moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// The counter's time at a constant period, s.
    pub counter_s: f64,
    /// The estimate minus that, s: any constant may be added.
    pub phase_s: f64,
    /// One sigma of the estimate, s.
    pub error_s: f64,
}

/// What one window shows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Window {
    /// Length, s.
    pub window_s: f64,
    /// Allan deviation, a ratio.
    pub allan_deviation: f64,
    /// The steepest change of the rate, 1/s.
    pub steepest: f64,
    /// What the estimate's own error explains of it, 1/s.
    pub noise: f64,
}

impl Window {
    /// Whether the oscillator changed more than the estimate's error explains.
    #[must_use]
    pub fn is_significant(&self) -> bool {
        self.steepest > self.noise
    }
}

/// What the samples show about the oscillator.
#[derive(Clone, PartialEq, Debug)]
pub struct Survey {
    /// From the shortest to the longest window.
    pub windows: Vec<Window>,
}

impl Survey {
    /// Of samples at equal intervals of `interval_s` (s), in pieces: the clock stepped in between.
    #[must_use]
    pub fn of(pieces: &[Vec<Sample>], interval_s: f64) -> Self {
        let longest = pieces.iter().map(Vec::len).max().unwrap_or(0);
        let doublings = std::iter::successors(Some(4_usize), |m| m.checked_mul(2));
        let lengths = doublings.take_while(|m| 2 * m + LEAST_DIFFERENCES <= longest);
        let windows = lengths.filter_map(|m| window(pieces, m, interval_s));
        Self { windows: windows.collect() }
    }

    /// The steepest change that the estimate's error does not explain, 1/s, and its window, s.
    #[must_use]
    pub fn steepest(&self) -> Option<(f64, f64)> {
        let significant = self.windows.iter().filter(|w| w.is_significant());
        significant
            .max_by(|a, b| a.steepest.total_cmp(&b.steepest))
            .map(|w| (w.steepest, w.window_s))
    }

    /// What to state: [`RESERVE`] times the steepest change, 1/s. Without a significant one, of
    /// what the quietest window of at most five minutes leaves possible. `None` without any window.
    #[must_use]
    pub fn suggestion(&self) -> Option<f64> {
        let possible = || {
            let short = self.windows.iter().filter(|w| w.window_s <= 300.0);
            short.map(|w| w.steepest.max(w.noise)).min_by(f64::total_cmp)
        };
        let change = self.steepest().map(|(slope, _)| slope).or_else(possible)?;
        Some(RESERVE * change)
    }
}

fn window(pieces: &[Vec<Sample>], samples: usize, interval_s: f64) -> Option<Window> {
    let window_s = samples as f64 * interval_s;
    let (mut count, mut squares, mut largest, mut error) = (0_usize, 0.0, 0.0_f64, 0.0_f64);
    for piece in pieces {
        for three in piece.windows(2 * samples + 1) {
            let [a, b, c] = [three[0], three[samples], three[2 * samples]];
            let d = c.phase_s - 2.0 * b.phase_s + a.phase_s;
            count += 1;
            squares += d * d;
            largest = largest.max(d.abs());
            error = error.max(a.error_s).max(b.error_s).max(c.error_s);
        }
    }
    (count >= LEAST_DIFFERENCES).then(|| Window {
        window_s,
        allan_deviation: (squares / (2.0 * count as f64)).sqrt() / window_s,
        steepest: largest / window_s.powi(2),
        noise: SIGNIFICANT * SECOND_DIFFERENCE * error / window_s.powi(2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Phase of an oscillator whose rate is `rate(t)`, every 4 s for `hours`.
    fn samples(hours: u32, rate: impl Fn(f64) -> f64) -> Vec<Sample> {
        let mut phase_s = 0.0;
        let count = hours * 900;
        let sample = |n: u32| {
            let t = f64::from(n) * 4.0;
            phase_s += rate(t) * 4.0;
            Sample { counter_s: t, phase_s, error_s: 1e-7 }
        };
        (0..count).map(sample).collect()
    }

    #[test]
    fn a_constant_rate_has_no_slope_whatever_it_is() {
        let survey = Survey::of(&[samples(2, |_| 37e-6)], 4.0);
        assert!(survey.windows.len() > 6 && survey.steepest().is_none(), "{survey:?}");
        assert!(survey.windows.iter().all(|w| w.allan_deviation < 1e-12), "{survey:?}");
        assert!(survey.suggestion().is_some_and(|s| s < 1e-9), "{survey:?}");
    }

    #[test]
    fn a_ramp_is_found_with_its_slope_and_evidence() {
        let ramp = |t: f64| if t < 3600.0 { 0.0 } else { ((t - 3600.0) * 2e-9).min(1e-6) };
        let survey = Survey::of(&[samples(3, ramp)], 4.0);
        let (slope, window) = survey.steepest().unwrap();
        assert!((1.9e-9..2.1e-9).contains(&slope), "{slope:e} {window}");
        assert!((5.7e-9..6.3e-9).contains(&survey.suggestion().unwrap()));
    }

    #[test]
    fn a_step_between_two_pieces_is_no_slope() {
        let mut late = samples(1, |_| 1e-6);
        late.iter_mut().for_each(|s| s.phase_s += 0.5);
        let survey = Survey::of(&[samples(1, |_| 1e-6), late], 4.0);
        assert!(survey.steepest().is_none(), "{survey:?}");
        assert_eq!(Survey::of(&[], 4.0).suggestion(), None);
    }
}
