//! The meaning of one sigma of an estimate: the distribution by which `confidence = probability` is
//! judged, on the host and in every client.
//!
//! The errors of an estimate are not normally distributed. The filter's sigma is right as long as
//! its model of the oscillator is; when a crystal warms up quickly, the estimate lags for minutes
//! by several of the earlier sigmas. Over the scenarios (docs/explanation/estimation.md, "How sure
//! is it") the errors have the tails of Student's t distribution with 3 degrees of freedom or
//! thinner ones. Its quantiles are 2.35, 5.84 and 12.9 sigmas at 0.9, 0.99 and 0.999, where a
//! normal distribution has 1.64, 2.58, 3.29.
//!
//! What it does not do: account for anything that no exchange shows, such as a path that is longer
//! in one direction, or a server that is wrong. The hard bounds cover these.

/// A sigma counts as this many, as a margin for worlds that no scenario covers. In the worst of the
/// scenarios, ramps at a poll of 64 s, 0.99897 of the errors are within 0.999 without it.
const MARGIN: f64 = 1.2;

/// The probability that an error lies between `-below` and `above`, both in sigmas, 0 or more.
///
/// Student's t distribution with 3 degrees of freedom has a closed form (Abramowitz and Stegun,
/// Handbook of Mathematical Functions, 26.7.3).
#[must_use]
pub fn probability_within(below: f64, above: f64) -> f64 {
    one_side(below) + one_side(above)
}

/// P(0 <= x <= sigmas).
fn one_side(sigmas: f64) -> f64 {
    let u = sigmas / MARGIN / 3.0f64.sqrt();
    // For large u the first term is 1 / u; u^2 could overflow.
    let first = if u > 1e100 { 0.0 } else { u / (1.0 + u * u) };
    (first + u.atan()) / core::f64::consts::PI
}

/// The largest sigma, ns, that keeps an error between `-below_ns` and `above_ns` with probability
/// `p` (0.5 up to but not including 1); rounded down.
#[must_use]
pub fn largest_sigma_ns(below_ns: u64, above_ns: u64, p: f64) -> u64 {
    let inside = |sigma: u64| {
        probability_within(below_ns as f64 / sigma as f64, above_ns as f64 / sigma as f64)
    };
    // At p >= 0.5 sigma is below 1.5 times the larger side; a bit of the integer at a time.
    let mut sigma = 0u64;
    for bit in (0..u64::BITS - 1).rev() {
        let wider = sigma | 1 << bit;
        if inside(wider) >= p {
            sigma = wider;
        }
    }
    sigma
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, row 3: two-sided p and t.
    const TABLE: [(f64, f64); 6] = [
        (0.5, 0.764_892),
        (0.8, 1.637_744),
        (0.9, 2.353_363),
        (0.95, 3.182_446),
        (0.99, 5.840_909),
        (0.999, 12.923_979),
    ];

    #[test]
    fn the_quantiles_are_those_of_the_tables() {
        for (p, t) in TABLE {
            let expected = 1e9 / t / MARGIN;
            let found = largest_sigma_ns(1_000_000_000, 1_000_000_000, p) as f64;
            assert!((found - expected).abs() < expected * 1e-6, "{p}: {found} {expected}");
        }
        // With one side far away, the result is the one-sided quantile, 2.353363 at 95 %.
        let found = largest_sigma_ns(1_000_000_000, 1 << 60, 0.95) as f64;
        assert!((found - 1e9 / 2.353_363 / MARGIN).abs() < 1e4, "{found}");
    }

    /// The density, by Simpson's rule in u = atan(x / sqrt 3), where it is 2/pi cos^2 u.
    fn integral(sigmas: f64) -> f64 {
        let (end, steps) = ((sigmas / MARGIN / 3.0f64.sqrt()).atan(), 200);
        let h = end / f64::from(steps);
        let density = |i: u32| (h * f64::from(i)).cos().powi(2);
        let inner: f64 = (1..steps).map(|i| density(i) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
        (density(0) + inner + density(steps)) * h / 3.0 * 2.0 / core::f64::consts::PI
    }

    proptest! {
        #[test]
        fn the_closed_form_is_the_integral(below in 0.0..1e3, above in 0.0..1e3) {
            let expected = integral(below) + integral(above);
            prop_assert!((probability_within(below, above) - expected).abs() < 1e-9);
        }

        #[test]
        fn the_largest_sigma_is_enough_and_one_more_is_not(
            below in 1u64..1 << 50, above in 1u64..1 << 50, p in 0.5..0.999_999,
        ) {
            let sigma = largest_sigma_ns(below, above, p);
            let within = |s: u64| {
                probability_within(below as f64 / s as f64, above as f64 / s as f64)
            };
            prop_assert!(sigma == 0 || within(sigma) >= p);
            prop_assert!(within(sigma + 1) < p);
        }
    }

    #[test]
    fn the_ends_of_the_range_have_a_sigma() {
        assert_eq!(largest_sigma_ns(1, 1, 0.999), 0, "no sigma of a whole ns is that small");
        assert_eq!(
            largest_sigma_ns(u64::MAX, u64::MAX, 0.5),
            u64::MAX / 2,
            "no more is looked for"
        );
        assert!(largest_sigma_ns(u64::MAX, u64::MAX, 1.0 - f64::EPSILON / 2.0) > 0);
    }
}
