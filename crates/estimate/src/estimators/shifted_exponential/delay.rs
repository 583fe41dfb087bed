//! What one message reveals about its own delay: r >= 0 beyond the minimum, observed with Gaussian
//! noise.
//!
//! Before the message is used, the state and the stamp predict the excess delay as N(delta, s^2).
//! Queueing is exponential, and the product of the two, a truncated Gaussian, has closed-form
//! moments. Robustness comes from a mixture of three distributions: ordinary queueing; rare, much
//! longer delays (interrupted hosts, bursts); and rare arrivals before the minimum (a step, a path
//! that became shorter). No single message can therefore have infinite weight.
//! shorter), so that no single message can have infinite weight.

use super::erfcx::erfcx;
use super::parameters::Delays;

/// Above this truncation point, in sigmas, the exact moments lose digits to cancellation, while
/// their asymptotic series is more than accurate enough (x^-8 = 2e-9).
const ASYMPTOTIC: f64 = 12.0;
/// The slow and early distributions are evaluated only where they could matter: for excesses above
/// this many mean queueing delays ...
const SLOW_FROM: f64 = 3.0;
/// ... and below this many sigmas.
const EARLY_FROM: f64 = -2.0;
const SQRT_2_PI: f64 = 2.506_628_274_631_000_5;
const SQRT_2_FRAC_PI: f64 = 0.797_884_560_802_865_4;

/// Moments of an excess delay given the message, and the likelihood of the message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Excess {
    /// Natural logarithm of the density of the message.
    pub log_evidence: f64,
    /// Posterior mean, s.
    pub mean: f64,
    /// Posterior variance, s^2.
    pub variance: f64,
}

impl Excess {
    /// Moments of the mixture of `self` and `other`, and the probability of `self`.
    fn or(self, other: Self) -> (Self, f64) {
        let top = self.log_evidence.max(other.log_evidence);
        let (a, b) = ((self.log_evidence - top).exp(), (other.log_evidence - top).exp());
        let sum = a + b;
        let (a, b) = (a / sum, b / sum);
        let mean = a * self.mean + b * other.mean;
        let spread = |part: Self| part.variance + (part.mean - mean).powi(2);
        let variance = a * spread(self) + b * spread(other);
        (Self { log_evidence: top + sum.ln(), mean, variance }, a)
    }

    fn weighted(self, log_weight: f64) -> Self {
        Self { log_evidence: self.log_evidence + log_weight, ..self }
    }
}

/// r ~ N(delta, s^2) times the density exp(-r/l)/l on r >= 0.
///
/// With the truncation point x = s/l - delta/s and the inverse Mills ratio M = phi(x)/Q(x): mean
/// s(M - x), variance s^2 (1 - M(M - x)), evidence exp(x^2/2 - delta^2/(2 s^2)) Q(x) / l.
pub fn exponential(delta: f64, s: f64, l: f64) -> Excess {
    let x = s / l - delta / s;
    let gauss = -0.5 * (delta / s).powi(2) - l.ln();
    if x > ASYMPTOTIC {
        let i = 1.0 / (x * x);
        let tail = -i * (1.0 - i * (2.5 - i * 37.0 / 3.0));
        return Excess {
            log_evidence: tail - (x * SQRT_2_PI).ln() + gauss,
            mean: s * (1.0 - i * (2.0 - i * (10.0 - 74.0 * i))) / x,
            variance: s * s * i * (1.0 - i * (6.0 - i * (50.0 - 518.0 * i))),
        };
    }
    let z = x * core::f64::consts::FRAC_1_SQRT_2;
    let (log_evidence, mills) = if x >= 0.0 {
        let scaled = erfcx(z);
        ((0.5 * scaled).ln() + gauss, SQRT_2_FRAC_PI / scaled)
    } else {
        // Here x^2/2 may overflow the range of the exponential while Q(x) is nearly 1, so the two
        // are kept separate.
        let density = (-0.5 * x * x).exp();
        let q = 1.0 - 0.5 * erfcx(-z) * density;
        (q.ln() + 0.5 * (s / l).powi(2) - delta / l - l.ln(), density / (SQRT_2_PI * q))
    };
    let above = mills - x;
    let variance = s * s * (1.0 - mills * above).max(1e-9);
    Excess { log_evidence, mean: s * above, variance }
}

/// Weights and scales of the mixture, from the parameters.
#[derive(Clone, Copy, Debug)]
pub struct DelayLaw {
    log_ordinary: f64,
    log_slow: f64,
    log_early: f64,
    slow_factor: f64,
    early_factor: f64,
}

impl DelayLaw {
    /// Creates the mixture as configured.
    pub fn new(delays: &Delays) -> Self {
        Self {
            log_ordinary: (1.0 - delays.slow_weight - delays.early_weight).ln(),
            log_slow: delays.slow_weight.ln(),
            log_early: delays.early_weight.ln(),
            slow_factor: delays.slow_factor,
            early_factor: delays.early_factor,
        }
    }

    /// Moments of the excess given N(`delta`, `variance`), and the probability that the queueing
    /// was ordinary.
    ///
    /// `queueing` is the mean queueing delay, s. `independence` in (0, 1] stretches it to account
    /// for correlated delays.
    pub fn excess(
        &self,
        delta: f64,
        variance: f64,
        queueing: f64,
        independence: f64,
    ) -> (Excess, f64) {
        let s = variance.sqrt();
        let mut all = exponential(delta, s, queueing / independence).weighted(self.log_ordinary);
        let mut ordinary = 1.0;
        if delta > SLOW_FROM * queueing || s > queueing {
            let slow = exponential(delta, s, self.slow_factor * queueing).weighted(self.log_slow);
            let (both, probability) = all.or(slow);
            (all, ordinary) = (both, ordinary * probability);
        }
        if delta < EARLY_FROM * s {
            let (both, probability) = all.or(self.early(delta, variance, queueing));
            (all, ordinary) = (both, ordinary * probability);
        }
        (all, ordinary)
    }

    /// The arrival was early or late for unknown reasons: N(0, (`early_factor` * `queueing`)^2).
    fn early(&self, delta: f64, variance: f64, queueing: f64) -> Excess {
        let prior = (self.early_factor * queueing).powi(2);
        let total = variance + prior;
        Excess {
            log_evidence: -0.5 * delta * delta / total - (SQRT_2_PI * total.sqrt()).ln(),
            mean: delta * prior / total,
            variance: variance * prior / total,
        }
        .weighted(self.log_early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAMBDA: f64 = 20e-6;

    /// Moments of N(delta, s^2) times `density` from `least` on, by the midpoint rule.
    fn integrated(delta: f64, s: f64, least: f64, density: impl Fn(f64) -> f64) -> Excess {
        let low = (delta - 12.0 * s).max(least);
        let high = (delta + 12.0 * s).max(4.0 * s);
        let steps = 400_000;
        let h = (high - low) / f64::from(steps);
        let (mut sum, mut first, mut second) = (0.0, 0.0, 0.0);
        for i in 0..steps {
            let r = low + (f64::from(i) + 0.5) * h;
            let gauss = (-0.5 * ((r - delta) / s).powi(2)).exp() / (s * SQRT_2_PI);
            let mass = gauss * density(r) * h;
            sum += mass;
            first += mass * r;
            second += mass * r * r;
        }
        let mean = first / sum;
        Excess { log_evidence: sum.ln(), mean, variance: second / sum - mean * mean }
    }

    fn assert_same(found: Excess, expected: Excess, what: &str) {
        let relative = |a: f64, b: f64| (a / b - 1.0).abs();
        assert!(
            (found.log_evidence - expected.log_evidence).abs() < 1e-4,
            "{what}: {found:?} {expected:?}"
        );
        assert!(relative(found.mean, expected.mean) < 1e-3, "{what}: {found:?} {expected:?}");
        assert!(
            relative(found.variance, expected.variance) < 2e-3,
            "{what}: {found:?} {expected:?}"
        );
    }

    fn exp_density(l: f64) -> impl Fn(f64) -> f64 {
        move |r| if r >= 0.0 { (-r / l).exp() / l } else { 0.0 }
    }

    #[test]
    fn one_exponential_matches_numerical_integration() {
        for s in [1e-6, 5e-6, 50e-6] {
            for sigmas in [-4.0, -1.0, 0.0, 0.5, 3.0, 8.0] {
                let delta = sigmas * s;
                let expected = integrated(delta, s, 0.0, exp_density(LAMBDA));
                assert_same(
                    exponential(delta, s, LAMBDA),
                    expected,
                    &format!("s {s:e}, {sigmas} s"),
                );
            }
        }
    }

    #[test]
    fn the_asymptotic_series_continues_the_exact_form() {
        // delta = s (s/l - x), just below and just above the switch to the series.
        let s = 5e-6;
        let at = |x: f64| exponential(s * (s / LAMBDA - x), s, LAMBDA);
        let (exact, series) = (at(ASYMPTOTIC - 1e-6), at(ASYMPTOTIC + 1e-6));
        assert!((exact.log_evidence - series.log_evidence).abs() < 1e-4);
        assert!((exact.mean / series.mean - 1.0).abs() < 1e-5, "{exact:?} {series:?}");
        assert!((exact.variance / series.variance - 1.0).abs() < 1e-3, "{exact:?} {series:?}");
    }

    #[test]
    fn the_whole_law_matches_numerical_integration() {
        let delays = Delays::default();
        let law = DelayLaw::new(&delays);
        let (slow, early) = (delays.slow_weight, delays.early_weight);
        let sigma = delays.early_factor * LAMBDA;
        let density = |r: f64| {
            let ordinary = (1.0 - slow - early) * exp_density(LAMBDA)(r);
            let held_up = slow * exp_density(delays.slow_factor * LAMBDA)(r);
            let too_early = early * (-0.5 * (r / sigma).powi(2)).exp() / (sigma * SQRT_2_PI);
            ordinary + held_up + too_early
        };
        // Cases where all three distributions are evaluated, or the omitted one is negligible.
        for (delta, s) in
            [(-15e-6, 3e-6), (-40e-6, 3e-6), (200e-6, 3e-6), (900e-6, 3e-6), (30e-6, 40e-6)]
        {
            let (found, ordinary) = law.excess(delta, s * s, LAMBDA, 1.0);
            let expected = integrated(delta, s, f64::NEG_INFINITY, density);
            assert!(
                (found.log_evidence - expected.log_evidence).abs() < 0.05,
                "{delta:e}: {found:?} {expected:?}"
            );
            assert!(
                (found.mean - expected.mean).abs() < 0.02 * s,
                "{delta:e}: {found:?} {expected:?}"
            );
            assert!((0.0..=1.0).contains(&ordinary));
        }
        let probability = |delta: f64| law.excess(delta, 9e-12, LAMBDA, 1.0).1;
        assert!(
            probability(20e-6) > 0.99 && probability(900e-6) < 0.01 && probability(-40e-6) < 0.1
        );
    }

    #[test]
    fn correlated_delays_say_less() {
        let law = DelayLaw::new(&Delays::default());
        let variance = |independence| law.excess(0.0, 1e-10, LAMBDA, independence).0.variance;
        assert!(variance(0.1) > variance(1.0));
    }

    #[test]
    fn extreme_residuals_have_finite_moments() {
        let law = DelayLaw::new(&Delays::default());
        for delta in [-1e10, -1.0, 0.0, 1.0, 1e10] {
            for variance in [1e-20, 1e-14, 1e-6, 1e12] {
                let (excess, ordinary) = law.excess(delta, variance, 1e-7, 1.0);
                let numbers = [excess.log_evidence, excess.mean, excess.variance, ordinary];
                assert!(
                    numbers.iter().all(|n| n.is_finite()),
                    "{delta:e} {variance:e}: {excess:?}"
                );
                assert!(excess.variance >= 0.0);
            }
        }
    }
}
