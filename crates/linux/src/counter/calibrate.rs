//! A counter's nominal frequency, measured against CLOCK_MONOTONIC_RAW.
//!
//! This is a starting point for the estimator and says nothing about true time: CLOCK_MONOTONIC_RAW
//! runs on the same oscillator, off by up to 50 ppm.

use timevisor_clock_page::{Counter, CounterId};
use timevisor_time::{Duration, Period, RateError};

use crate::clock;

/// How long the measurement takes at least. The error is two bracket widths (about 100 ns) over this
/// baseline: about 1 ppm.
pub const BASELINE: std::time::Duration = std::time::Duration::from_millis(100);
/// The baseline is doubled until the period is known this well. Where a read of the counter takes microseconds (it
/// traps, or the machine is busy) brackets are 40 us wide, which is 400 ppm of 0.1 s: an estimate that nobody corrects
/// is 40 ms off after 100 s.
const GOOD_PPM: u32 = 10;
/// So many ends are measured at most, the last one 1.6 s after the first.
const MOST_ENDS: usize = 6;
/// Number of brackets tried at each end; the narrowest is used.
const TRIES: usize = 16;
/// Granularity to which a CLOCK_MONOTONIC_RAW stamp is rounded down.
const GRANULARITY_NS: u64 = 1;

/// A counter's period relative to CLOCK_MONOTONIC_RAW.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calibration {
    /// Length of one tick.
    pub period: Period,
    /// Maximum deviation of the period from that of CLOCK_MONOTONIC_RAW.
    pub error: RateError,
}

/// Why a counter's frequency could not be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The counter or the clock did not advance between the ends.
    #[error("the counter did not advance over {} ms; choose another one with `counter = ...`", BASELINE.as_millis())]
    Stopped,
    /// Slower than 1.05 MHz, which the page's period word cannot hold.
    #[error("the counter runs below 1.05 MHz; choose another one with `counter = ...`")]
    TooSlow,
}

/// One reading of the clock between two readings of the counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawBracket {
    /// The counter before.
    pub before: u64,
    /// CLOCK_MONOTONIC_RAW in nanoseconds.
    pub raw_ns: u64,
    /// The counter after.
    pub after: u64,
}

/// Measures `counter` for 0.1 s, and up to 1.6 s where that does not tell its period within 10 ppm.
/// CLOCK_MONOTONIC_RAW itself is 1 GHz by definition, so for it this returns immediately.
///
/// # Errors
/// When the counter stands still or is too slow for a page.
pub fn calibrate(counter: &impl Counter) -> Result<Calibration, CalibrationError> {
    if counter.id() == CounterId::MonotonicRaw {
        let period = Period::from_hz(1_000_000_000).ok_or(CalibrationError::TooSlow)?;
        return Ok(Calibration { period, error: RateError::ZERO });
    }
    until_good(|| best_bracket(counter), std::thread::sleep)
}

/// Measures one end after the other, each as long after the first as all before together.
fn until_good(
    mut end: impl FnMut() -> RawBracket,
    mut wait: impl FnMut(std::time::Duration),
) -> Result<Calibration, CalibrationError> {
    let (mut ends, mut pause) = (vec![end()], BASELINE);
    loop {
        wait(pause);
        ends.push(end());
        let found = best_pair(&ends);
        let is_good = |found: &Calibration| found.error <= RateError::from_ppm(GOOD_PPM);
        if found.as_ref().is_ok_and(is_good) || ends.len() >= MOST_ENDS {
            return found;
        }
        if ends.len() > 2 {
            pause *= 2;
        }
    }
}

/// What the two ends tell that tell most: one that was measured on a busy processor is left out.
fn best_pair(ends: &[RawBracket]) -> Result<Calibration, CalibrationError> {
    let mut best: Result<Calibration, _> = Err(CalibrationError::Stopped);
    for (at, last) in ends.iter().enumerate() {
        for first in &ends[..at] {
            let found = from_brackets(*first, *last);
            best = match (best, found) {
                (Ok(best), Ok(found)) => Ok(if best.error <= found.error { best } else { found }),
                (Ok(best), Err(_)) => Ok(best),
                (Err(_), found) => found,
            };
        }
    }
    best
}

/// The narrowest of several readings.
pub fn best_bracket(counter: &impl Counter) -> RawBracket {
    let one = || {
        let before = counter.read_ordered();
        let raw_ns = clock::monotonic_raw_nanos();
        RawBracket { before, raw_ns, after: counter.read_ordered() }
    };
    let mut best = one();
    for _ in 1..TRIES {
        let next = one();
        if next.after.wrapping_sub(next.before) < best.after.wrapping_sub(best.before) {
            best = next;
        }
    }
    best
}

/// The pure part: the period between two brackets, with the error that their widths allow.
///
/// # Errors
/// As [`calibrate`].
pub fn from_brackets(first: RawBracket, last: RawBracket) -> Result<Calibration, CalibrationError> {
    let elapsed_ns = last
        .raw_ns
        .checked_sub(first.raw_ns)
        .filter(|ns| *ns > 0)
        .ok_or(CalibrationError::Stopped)?;
    // The clock was read somewhere in each bracket, so the ticks in between are known to within
    // both widths, plus the tick by which each reading was rounded down.
    let fewest = last
        .before
        .checked_sub(first.after)
        .and_then(|ticks| ticks.checked_sub(1))
        .filter(|ticks| *ticks > 0)
        .ok_or(CalibrationError::Stopped)?;
    let most = last.after.wrapping_sub(first.before).wrapping_add(1);
    let middle = fewest.midpoint(most);
    let elapsed = Duration::from_nanos(i64::try_from(elapsed_ns).unwrap_or(i64::MAX));
    let period = Period::from_ratio(elapsed, middle).ok_or(CalibrationError::TooSlow)?;

    // |1/true - 1/middle| <= half the spread / fewest, plus one granule at either end of the elapsed time.
    let half_spread = (most - fewest).div_ceil(2);
    let bits = (u128::from(half_spread) << 64).div_ceil(u128::from(fewest))
        + (u128::from(2 * GRANULARITY_NS) << 64).div_ceil(u128::from(elapsed_ns))
        + 1;
    Ok(Calibration { period, error: RateError::from_bits(u64::try_from(bits).unwrap_or(u64::MAX)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The true period is always within the stated error, wherever in the bracket the clock was
        /// read.
        #[test]
        fn the_error_covers_the_truth(
            hz in 10_000_000u64..5_000_000_000, elapsed_ns in 50_000_000u64..500_000_000, start in 0u64..1 << 60,
            widths in [1u64..5_000, 1u64..5_000], places in [0u64..=100, 0u64..=100],
        ) {
            let ticks = u64::try_from(u128::from(hz) * u128::from(elapsed_ns) / 1_000_000_000).unwrap();
            let end = |at: u64, width: u64, place: u64, raw_ns| {
                let early = width * place / 100;
                RawBracket { before: at - early, raw_ns, after: at - early + width }
            };
            let first = end(start + 5_000, widths[0], places[0], 1_000);
            let last = end(start + 5_000 + ticks, widths[1], places[1], 1_000 + elapsed_ns);
            let found = from_brackets(first, last).unwrap();
            let truth = Period::from_hz(hz).unwrap();
            prop_assert!(found.period.slowest_time(found.error) <= truth, "{:?} {:?}", found, truth);
            prop_assert!(found.period.fastest_time(found.error) >= truth, "{:?} {:?}", found, truth);
        }
    }

    #[test]
    fn a_counter_that_stands_still_is_refused() {
        let bracket = RawBracket { before: 7, raw_ns: 100, after: 7 };
        assert_eq!(from_brackets(bracket, bracket), Err(CalibrationError::Stopped));
        let later = RawBracket { raw_ns: 100_000_100, ..bracket };
        assert_eq!(from_brackets(bracket, later), Err(CalibrationError::Stopped));
        let slow = RawBracket { before: 1_007, raw_ns: 100_000_100, after: 1_007 };
        assert_eq!(from_brackets(bracket, slow), Err(CalibrationError::TooSlow));
    }

    /// A counter of 1 GHz whose reads are `widths` ticks apart, one width for each end. Returns what is found, and
    /// after how long.
    fn measured(widths: &[u64]) -> (Calibration, std::time::Duration) {
        let now = std::cell::Cell::new(std::time::Duration::from_secs(1));
        let mut widths = widths.iter();
        let end = || {
            let raw_ns = u64::try_from(now.get().as_nanos()).unwrap();
            // The clock was read at the end of the bracket: the worst of cases.
            let width = widths.next().unwrap();
            RawBracket { before: raw_ns - width, raw_ns, after: raw_ns }
        };
        let found = until_good(end, |pause| now.set(now.get() + pause)).unwrap();
        (found, now.get() - std::time::Duration::from_secs(1))
    }

    #[test]
    fn where_reads_are_slow_it_takes_longer() {
        let (found, took) = measured(&[100, 100]);
        assert!(found.error <= RateError::from_ppm(2) && took == BASELINE, "{found:?}");
        let (found, took) = measured(&[40_000; 6]);
        assert!(found.error <= RateError::from_ppm(26) && took == BASELINE * 16, "{found:?}");
        // Two ends on a busy processor: the others tell more.
        let (found, took) = measured(&[3_000_000, 1_000, 400_000, 1_000]);
        assert!(
            found.error <= RateError::from_ppm(10) && took == BASELINE * 4,
            "{found:?}, {took:?}"
        );
    }

    #[test]
    fn this_machine_calibrates_within_ten_ppm() {
        let (counter, _) = crate::counter::select(crate::counter::Choice::Auto).unwrap();
        let found = calibrate(&counter).unwrap();
        assert!(found.error <= RateError::from_ppm(10), "{found:?}");
        let again = calibrate(&counter).unwrap();
        let apart = found.period.relative_to(again.period).abs() * 1e9;
        assert!(
            apart <= found.error.plus(again.error).ppb() + 1.0,
            "{apart} ppb: {found:?} {again:?}"
        );
    }
}
