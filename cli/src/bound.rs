//! How every command prints a bound: the distances from the estimate to both ends, `-below +above`.
//! The estimate is not in the middle. The last digit is rounded up, away from the estimate.

use timevisor_time::Duration;

/// `-below +above`.
pub fn sides(below: Duration, above: Duration) -> String {
    format!("-{} +{}", outward(below), outward(above))
}

fn outward(side: Duration) -> String {
    let ns = side.ceil_nanos();
    let (thousandth, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1, "us"),
        1_000_000..1_000_000_000 => (1_000, "ms"),
        i64::MAX | ..0 => return side.to_string(),
        1_000_000_000.. => (1_000_000, "s"),
    };
    let thousandths = ns.unsigned_abs().div_ceil(thousandth);
    format!("{}.{:03} {unit}", thousandths / 1000, thousandths % 1000)
}

/// The same of nanoseconds; `unknown` where one of them is.
pub fn sides_ns(below: Option<u64>, above: Option<u64>) -> String {
    let span = |ns| Duration::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX));
    match below.zip(above) {
        Some((below, above)) => sides(span(below), span(above)),
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_has_two_sides() {
        assert_eq!(sides_ns(Some(1_500), Some(20)), "-1.500 us +20 ns");
        assert_eq!(sides_ns(None, Some(20)), "unknown");
        assert_eq!(sides(Duration::ZERO, Duration::from_secs(1)), "-0 ns +1.000 s");
        assert_eq!(sides_ns(Some(2_500_001), Some(3_000_000)), "-2.501 ms +3.000 ms");
        assert_eq!(sides_ns(Some(999_999_001), Some(1_000_000_001)), "-1000.000 ms +1.001 s");
        assert_eq!(sides(Duration::EPSILON, Duration::MAX), "-1 ns +unbounded");
    }
}
