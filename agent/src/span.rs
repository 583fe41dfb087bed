//! Time spans: as a user writes them, and converted from the standard library's.

use timevisor_time::Duration;

/// Parses a time span as a user writes it.
pub fn parse(text: &str) -> Result<std::time::Duration, String> {
    humantime_serde::re::humantime::parse_duration(text)
        .map_err(|error| format!("{error}; as in 500us, 1ms, 2min"))
}

/// Converts the standard library's duration to ours.
pub fn of_std(span: std::time::Duration) -> Duration {
    Duration::from_nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
}
