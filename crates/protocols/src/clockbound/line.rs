//! Layout 3: time as a line over the counter, with a bound that grows.
//!
//! A client computes, at a counter value `c` (`ClockErrorBoundV3::compute_bound_at_tsc`):
//!
//! ```text
//! elapsed = (c - as_of_tsc) * period            now   = as_of + elapsed
//! bound   = bound_nsec + elapsed * (max_drift_ppb + period_err)
//! answer  = now - bound .. now + bound          unknown where now > void_after
//! ```
//!
//! Our bounds are two straight lines until the page expires. The client's interval is symmetric, so its
//! middle follows the middle of ours from now to the expiry, and its bound covers the larger half at both
//! ends. Both intervals end in straight lines (ours possibly in a bent one that stays inside of the
//! straight one: where the estimate leaves its own bounds, the page's interval holds it), so what holds
//! at both ends holds between them. All growth is put into `period_err`, because it is finer than
//! `max_drift_ppb`.
//!
//! `void_after` is the page's own expiry on the client's line. Readers of a page go on beyond it, with
//! bounds that grow faster; a client of ClockBound has no such second rate, and says "unknown".

use timevisor_time::{Duration, Instant, Interval, Period, Utc};

use super::{ROUNDING_NS, Status, WORDS_3, last_words, timespec};

/// Precision of the clients' floats.
const FLOAT_BITS: u32 = 53;
/// So much earlier than the expiry a client says "unknown", in ns: its own rounding, and our own.
const VOID_MARGIN_NS: i64 = 2;

/// A clock's bounds in UTC at two counter values. Between these, they are at most as wide as straight
/// lines between them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounded {
    /// From this counter value on; earlier ones are read as this one.
    pub from: u64,
    /// The bounds at [`Self::from`].
    pub at_from: Interval<Utc>,
    /// Up to this counter value.
    pub until: u64,
    /// The bounds at [`Self::until`].
    pub at_until: Interval<Utc>,
}

/// The body of layout 3 whose clients' interval contains these bounds at every counter value from
/// `from` to `until`, and whose clients say "unknown" later.
///
/// `marker`: the disruption marker of the machine's vmclock device as it was before the bounds were read.
/// With one, clients read that device too, and say "disrupted" where its marker differs; without one they
/// read no device.
///
/// `None` where no line does that: nothing is known, the counter is slower than 1.05 MHz, or `until` is
/// not after `from`.
#[must_use]
pub fn line(bounded: &Bounded, status: Status, marker: Option<u64>) -> Option<[u64; WORDS_3]> {
    let Bounded { from, at_from, until, at_until } = *bounded;
    let ticks = until.wrapping_sub(from);
    if ticks == 0 || ticks >= 1 << FLOAT_BITS {
        return None;
    }
    let as_of_ns = known(&at_from)?.floor_nanos();
    let as_of = Instant::from_unix_nanos(i128::from(as_of_ns));
    let period = as_float(Period::from_ratio(known(&at_until)? - as_of, ticks)?);
    let elapsed = period.span(ticks);
    let end = as_of + elapsed;

    let bound_ns = larger_half(&at_from, as_of).ceil_nanos();
    let growth = larger_half(&at_until, end) - Duration::from_nanos(bound_ns);
    let growth = ratio(growth.max(Duration::ZERO), elapsed)?;
    // The sum is a float in the client: it may lose a 2^53rd part of itself.
    let bound_ns = bound_ns.checked_add(ROUNDING_NS + (bound_ns >> (FLOAT_BITS - 3)))?;
    let void_after = end.floor_nanos() - VOID_MARGIN_NS;

    let [as_of_s, as_of_rest] = timespec(as_of_ns);
    let [void_s, void_rest] = timespec(void_after);
    let [rates, flags] = last_words(0, status, marker, [shift_of_a_period(), 0]);
    Some([
        from,
        as_of_s,
        as_of_rest,
        void_s,
        void_rest,
        period.to_bits(),
        growth,
        bound_ns.cast_unsigned(),
        marker.unwrap_or(0),
        rates,
        flags,
    ])
}

/// The middle of what is known; `None` for bounds so wide that a client's arithmetic would overflow.
fn known(interval: &Interval<Utc>) -> Option<Instant<Utc>> {
    const WIDEST: Duration = Duration::from_secs(1 << 31);
    let width = interval.width();
    (width < WIDEST).then(|| interval.earliest() + width.half())
}

fn larger_half(interval: &Interval<Utc>, middle: Instant<Utc>) -> Duration {
    (interval.latest() - middle).max(middle - interval.earliest())
}

/// A client's period is `frac / 2^(64 + shift)` seconds.
fn shift_of_a_period() -> u8 {
    const _: () = assert!(Period::SHIFT < 256);
    Period::SHIFT.to_le_bytes()[0]
}

/// The next shorter period that a client's float holds exactly.
fn as_float(period: Period) -> Period {
    let bits = period.to_bits();
    let surplus = (u64::BITS - bits.leading_zeros()).saturating_sub(FLOAT_BITS);
    Period::from_bits(bits >> surplus << surplus)
}

/// `part / whole` in units of 2^-64, rounded up, and exact in a client's float; `None` unless it is below
/// one, as clients require.
fn ratio(part: Duration, whole: Duration) -> Option<u64> {
    let (part, whole) = (part.to_bits().unsigned_abs(), whole.to_bits().unsigned_abs());
    if part >= whole || part.leading_zeros() < FLOAT_BITS {
        return None;
    }
    let units = (part << FLOAT_BITS).div_ceil(whole);
    // One more for the client's own multiplications.
    let units = u64::try_from(if part == 0 { 0 } else { units + 1 }).ok()?;
    (units < 1 << FLOAT_BITS).then_some(units << (u64::BITS - FLOAT_BITS))
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
