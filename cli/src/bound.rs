//! How every command prints a bound: the distances from the estimate to both ends, `-below +above`.
//! The estimate is not in the middle.

use timevisor_time::Duration;

/// `-below +above`.
pub fn sides(below: Duration, above: Duration) -> String {
    format!("-{below} +{above}")
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
    }
}
