//! How strongly late messages indicate a longer minimum.

use super::ring::Ring;

/// A message later than this many mean queueing delays was delayed by something else: the logarithm
/// of the ratio between the ordinary density at its minimum and the slow one, ln(0.949 / (0.05 /
/// 100)).
const ORDINARY: f64 = 7.5;

/// The newest messages of one direction, taken together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lateness {
    /// The smallest residual, s: the largest shift that is compatible with all of them.
    pub least_s: f64,
    /// How many of them would be ordinary after that shift. The others are equally unlikely with
    /// and without it.
    pub support: usize,
    /// Mean queueing, s.
    pub queueing_s: f64,
}

impl Lateness {
    /// Computes it from the newest `exchanges` in `residuals` (s).
    pub fn of<T: Copy + Into<f64>, const N: usize>(
        residuals: &Ring<T, N>,
        exchanges: usize,
        queueing_s: f64,
    ) -> Self {
        let least_s = residuals.smallest_of_newest(exchanges);
        let ordinary = |r: &f64| r - least_s < ORDINARY * queueing_s;
        let newest = residuals.newest().take(exchanges).map(Into::into);
        let support = newest.filter(ordinary).count();
        Self { least_s, support, queueing_s }
    }

    /// Log-likelihood ratio of the messages with and without the shift: a minimum that is longer by
    /// x makes an exponential delay more likely by exp(x / mean), up to the point where, without
    /// the shift, the message would count as delayed by something else.
    pub fn evidence(&self) -> f64 {
        self.support as f64 * (self.least_s / self.queueing_s).clamp(0.0, ORDINARY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAMBDA: f64 = 20e-6;

    fn late(residuals: &[f64]) -> Lateness {
        let mut ring = Ring::<f64, 32>::new(0.0);
        residuals.iter().for_each(|r| ring.push(*r));
        Lateness::of(&ring, residuals.len(), LAMBDA)
    }

    #[test]
    fn all_late_by_the_same_speak_with_one_voice() {
        let found = late(&[3.0 * LAMBDA; 10]);
        assert_eq!(found.support, 10);
        assert!((found.evidence() - 30.0).abs() < 1e-9);
    }

    #[test]
    fn one_early_message_silences_all_and_a_burst_says_nothing_about_small_shifts() {
        let mut residuals = [3.0 * LAMBDA; 10];
        residuals[4] = -LAMBDA;
        assert_eq!(late(&residuals).evidence(), 0.0);
        let mut burst = [1e-3; 12];
        burst[0] = 2.0 * LAMBDA;
        assert_eq!(late(&burst).support, 1);
    }

    #[test]
    fn no_single_message_says_more_than_an_interruption_explains() {
        assert!((late(&[10e-3]).evidence() - ORDINARY).abs() < 1e-9);
    }
}
