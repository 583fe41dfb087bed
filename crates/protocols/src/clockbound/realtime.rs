//! Layout 2: a bound on the error of CLOCK_REALTIME, which grows with CLOCK_MONOTONIC.
//!
//! A client reads CLOCK_REALTIME and CLOCK_MONOTONIC_COARSE (`ClockErrorBound::compute_bound_at`) and
//! answers `realtime +- (bound_nsec + max_drift_ppb * (monotonic - as_of))`. This holds only while somebody
//! knows how far CLOCK_REALTIME may run away, so it is said only while Timevisor steers that clock itself.
//!
//! Clients of 2.0.3 do not look at `void_after` in the first 5 s after `as_of`, so `as_of` is put back
//! until these are over at `void_after`. The bound is smaller by what it grows in that time.
//!
//! CLOCK_MONOTONIC_COARSE is CLOCK_MONOTONIC at the last tick, so clients measure ages that are too short.
//! `as_of` and `void_after` are earlier by the most that the tick may be late.

use timevisor_time::{Duration, Instant, Utc};

use super::{ROUNDING_NS, Status, WORDS_2, last_words, timespec};

/// `CLOCKBOUND_RESTART_GRACE_PERIOD` of clock-bound-shm 2.0.3.
const GRACE: Duration = Duration::from_secs(5);
/// CLOCK_MONOTONIC_COARSE is behind by less than this. A tick takes 10 ms at most (HZ=100), and the rest is for a vCPU that
/// keeps the time and has to wait for its processor. A client that is behind by more refuses the segment, unless that is old.
const LAG: Duration = Duration::from_millis(100);
/// CLOCK_MONOTONIC is faster than true time by less than one part in so many, and so is
/// CLOCK_REALTIME; faster drifts are refused.
const RATE_PARTS: u32 = 250;
const FASTEST_PPB: u32 = 3_000_000;

/// CLOCK_REALTIME compared with a clock of known bounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Disciplined {
    /// CLOCK_MONOTONIC before the comparison.
    pub monotonic: Duration,
    /// What CLOCK_REALTIME said.
    pub realtime: Instant<Utc>,
    /// The earliest true time when it was read.
    pub earliest: Instant<Utc>,
    /// The latest true time when it was read.
    pub latest: Instant<Utc>,
    /// How much true time is left until the clock's bounds expire.
    pub left: Duration,
    /// CLOCK_REALTIME runs away from true time by no more than this until then, ppb.
    pub drift_ppb: u32,
}

/// The body of layout 2; `marker` as in [`super::line()`].
///
/// `None` where layout 2 cannot say it: the bounds are too wide or have expired, CLOCK_REALTIME is slewed
/// by more than 3000 ppm, or the machine started less than five seconds ago.
#[must_use]
pub fn realtime(seen: &Disciplined, status: Status, marker: Option<u64>) -> Option<[u64; WORDS_2]> {
    const WIDEST: Duration = Duration::from_secs(1 << 31);
    let error = (seen.latest - seen.realtime).max(seen.realtime - seen.earliest);
    if seen.left <= Duration::ZERO || error >= WIDEST || seen.drift_ppb > FASTEST_PPB {
        return None;
    }
    // CLOCK_MONOTONIC measures the time since then, and may be slow itself.
    let drift_ppb = seen.drift_ppb + seen.drift_ppb / RATE_PARTS + 1;
    let left_ns = seen.left.min(Duration::from_secs(1 << 20)).floor_nanos();
    let coarse_ns = (seen.monotonic - LAG).floor_nanos();
    let void_ns = coarse_ns + left_ns - left_ns / i64::from(RATE_PARTS) - 1;
    let as_of_ns = coarse_ns.min(void_ns - GRACE.floor_nanos());
    if as_of_ns < 0 {
        return None;
    }
    let back_ns = coarse_ns - as_of_ns;
    let grown = i128::from(back_ns) * i128::from(drift_ppb) / 1_000_000_000;
    let bound_ns = error.ceil_nanos() + ROUNDING_NS - i64::try_from(grown).ok()?;
    let [as_of_s, as_of_rest] = timespec(as_of_ns);
    let [void_s, void_rest] = timespec(void_ns);
    let [rates, flags] = last_words(drift_ppb, status, marker, [0, 0]);
    let bound = bound_ns.cast_unsigned();
    Some([as_of_s, as_of_rest, void_s, void_rest, bound, marker.unwrap_or(0), rates, flags])
}

#[cfg(test)]
#[path = "realtime_tests.rs"]
mod tests;
