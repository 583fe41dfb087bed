//! What the round trips alone reveal about queueing: this does not require either clock to be
//! correct.

use super::parameters::RoundTripStatistics;
use super::ring::Ring;

/// Number of round trips that are evaluated: enough for a lower quartile, but few enough to follow
/// a busy hour.
const MEMORY: usize = 256;
/// The lower quartile of the sum of two unit exponentials, the solution of (1 + x) exp(-x) = 3/4.
const LOWER_QUARTILE: f64 = 0.961_278_8;
/// Number of round trips in a block: few enough for a path that wanders by a mean queueing delay in
/// ten minutes, and enough for a quartile.
const BLOCK: usize = 16;
/// Number of blocks from which on their median is more accurate than the quartile of all round
/// trips.
const ENOUGH_BLOCKS: usize = 4;
/// The median of (lower quartile - minimum) over many blocks of sums of two unit exponentials, by
/// simulation: within 2 % from four blocks on.
const BLOCK_SPREAD: f64 = 0.702;
/// Number of neighbouring pairs that an autocorrelation needs for the normal approximation of its
/// error to hold.
const ENOUGH_PAIRS: f64 = 32.0;

/// Standard deviations below this share of the mean queueing are attributed to rounding.
const HARDLY: f64 = 0.01;

/// Recent round trips, and the statistics derived from them.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    recent: Ring<f64, MEMORY>,
    /// Mean queueing per direction, s.
    pub queueing_s: f64,
    /// The information in one delay relative to an independent one, up to 1: (1 - rho)/(1 + rho)
    /// for autocorrelation rho, the ratio of effective to actual samples in a first-order
    /// autoregression.
    pub independence: f64,
}

impl RoundTrips {
    /// No round trips yet, or none since `queueing_s` and `independence` were learned.
    pub const fn new(queueing_s: f64, independence: f64) -> Self {
        Self { recent: Ring::new(0.0), queueing_s, independence }
    }

    /// Adds a round trip (without residence time, s). The statistics are updated at once only
    /// during the start.
    pub fn observe(&mut self, path_s: f64, starting: bool, limits: &RoundTripStatistics) {
        self.recent.push(path_s);
        if starting {
            self.renew(true, limits);
        }
    }

    /// Called after exchange number `count`, once it is known whether it took another path: renews
    /// the statistics when that is due.
    pub fn conclude(&mut self, count: u64, limits: &RoundTripStatistics) {
        if count.is_multiple_of(limits.renew_every) && self.recent.len() >= limits.enough {
            self.renew(false, limits);
        }
    }

    /// Removes all but the newest `count`, because the path has changed.
    pub fn keep_newest(&mut self, count: usize) {
        self.recent.keep_newest(count);
    }

    /// Uses the lower quartile, because a quarter of the round trips is undisturbed on any usable
    /// path. With many round trips, it uses the quartiles of short blocks, because the path may
    /// change or wander from one block to the next.
    fn renew(&mut self, starting: bool, limits: &RoundTripStatistics) {
        let (mut recent, len) = ([0.0; MEMORY], self.recent.len());
        for (slot, value) in recent.iter_mut().zip(self.recent.newest()) {
            *slot = value;
        }
        let recent = &mut recent[..len];
        let least = recent.iter().copied().fold(f64::INFINITY, f64::min);
        let queueing = if len < ENOUGH_BLOCKS * BLOCK {
            recent.sort_unstable_by(f64::total_cmp);
            (recent[len / 4] - least) / (LOWER_QUARTILE - expected_least(len))
        } else {
            let mut spreads = [0.0; MEMORY / BLOCK];
            let blocks = recent.chunks_exact_mut(BLOCK).zip(&mut spreads).map(|(block, spread)| {
                block.sort_unstable_by(f64::total_cmp);
                *spread = block[BLOCK / 4] - block[0];
            });
            let count = blocks.count();
            let spreads = &mut spreads[..count];
            spreads.sort_unstable_by(f64::total_cmp);
            (spreads[(count - 1) / 2] + spreads[count / 2]) / 2.0 / BLOCK_SPREAD
        };
        let share =
            if len < limits.few { limits.few_share / len as f64 } else { limits.least_share };
        self.queueing_s = queueing.max(least * share).max(limits.least_queueing_s);
        if !starting {
            let cap = least + limits.outlier_queueing * self.queueing_s;
            self.independence = self.measure_independence(cap, limits);
        }
    }

    fn measure_independence(&self, cap: f64, limits: &RoundTripStatistics) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for value in self.recent.newest().filter(|v| *v < cap) {
            sum += value;
            count += 1.0;
        }
        let mean: f64 = sum / count;
        let (mut variance, mut covariance, mut pairs) = (0.0, 0.0, 0.0);
        for (a, b) in self.recent.newest().zip(self.recent.newest().skip(1)) {
            if a < cap && b < cap {
                covariance += (a - mean) * (b - mean);
                variance += 0.5 * ((a - mean).powi(2) + (b - mean).powi(2));
                pairs += 1.0;
            }
        }
        // If a path hardly varies, its only correlation is due to rounding.
        let varies = variance > pairs * (HARDLY * self.queueing_s).powi(2);
        let correlation = covariance / variance;
        let significant = correlation > limits.significance / f64::sqrt(pairs);
        if varies && significant && pairs > ENOUGH_PAIRS {
            ((1.0 - correlation) / (1.0 + correlation)).max(limits.least_independence)
        } else {
            1.0
        }
    }
}

/// Expected minimum of `len` sums of two unit exponentials, whose distribution begins as x^2/2:
/// sqrt(pi / (2 len)). It is kept below half the quartile, because too few samples cannot tell the
/// two apart.
fn expected_least(len: usize) -> f64 {
    (core::f64::consts::FRAC_PI_2 / len as f64).sqrt().min(LOWER_QUARTILE / 2.0)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Random;
    use super::*;

    fn statistics(delays: impl Iterator<Item = f64>) -> RoundTrips {
        let limits = RoundTripStatistics::default();
        let mut round_trips = RoundTrips::new(1.0, 1.0);
        for (count, delay) in (1..).zip(delays) {
            round_trips.observe(delay, false, &limits);
            round_trips.conclude(count, &limits);
        }
        round_trips
    }

    #[test]
    fn independent_exponential_queueing_is_recognized_through_outliers() {
        let mut random = Random::new(1);
        let found = statistics((0..256).map(|n| {
            let held_up = if n % 10 == 0 { 5e-3 } else { 0.0 };
            60e-6 + 20e-6 * (random.exponential() + random.exponential()) + held_up
        }));
        assert!((16e-6..26e-6).contains(&found.queueing_s), "{}", found.queueing_s);
        assert_eq!(found.independence, 1.0);
    }

    #[test]
    fn queueing_is_recognized_on_a_path_that_wanders_and_jumps() {
        let mut random = Random::new(4);
        let found = statistics((0..256).map(|n| {
            let wander = 20e-6 * (f64::from(n) / 8.0).sin() + if n < 150 { 3e-3 } else { 0.0 };
            10e-3 + wander + 20e-6 * (random.exponential() + random.exponential())
        }));
        assert!((14e-6..35e-6).contains(&found.queueing_s), "{}", found.queueing_s);
    }

    #[test]
    fn few_round_trips_are_not_mistaken_for_little_queueing() {
        let (limits, mut random) = (RoundTripStatistics::default(), Random::new(3));
        for count in [8, 32] {
            let mut sum = 0.0;
            for _ in 0..400 {
                let mut found = RoundTrips::new(1.0, 1.0);
                for _ in 0..count {
                    let queueing = random.exponential() + random.exponential();
                    found.observe(60e-6 + 20e-6 * queueing, true, &limits);
                }
                sum += found.queueing_s / 400.0;
            }
            assert!((18e-6..27e-6).contains(&sum), "{count}: {sum:e}");
        }
    }

    #[test]
    fn correlated_queueing_is_worth_less() {
        let mut random = Random::new(2);
        let mut walks = [0.0; 4];
        let found = statistics((0..256).map(|_| {
            walks = walks.map(|w| 0.95 * w + 0.312 * random.normal());
            // The sum of two squares is exponential, and represents both directions.
            60e-6 + 10e-6 * walks.iter().map(|w| w * w).sum::<f64>()
        }));
        // For the square of a normal autoregression, rho is 0.95^2, so (1 - rho)/(1 + rho) is 0.05;
        // with few samples the estimate is higher.
        assert!((0.02..0.3).contains(&found.independence), "{}", found.independence);
    }

    #[test]
    fn identical_round_trips_have_the_least_queueing_and_no_correlation() {
        let found = statistics(core::iter::repeat_n(60e-6, 256));
        assert_eq!((found.queueing_s, found.independence), (1e-7, 1.0));
    }
}
