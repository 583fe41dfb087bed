use proptest::prelude::*;
use timevisor_clock_page::{ClockStatus, Line};

use super::*;
use crate::testing::published;

const NOMINAL: u64 = 19_342_813_113_834_066;

fn lines(widths: (i64, i64), slopes: (i64, i64), holdover: u64, valid: u64) -> Lines<Local> {
    let middle = Instant::from_bits(1 << 90);
    let line = |time, period| Line { time, period: Period::from_bits(period) };
    Lines {
        base: 1_000,
        expiry: 1_000 + valid,
        earliest: line(
            middle - Duration::from_nanos(widths.0),
            NOMINAL.saturating_add_signed(-slopes.0),
        ),
        estimate: line(middle, NOMINAL),
        latest: line(
            middle + Duration::from_nanos(widths.1),
            NOMINAL.saturating_add_signed(slopes.1),
        ),
        holdover,
    }
}

proptest! {
    /// At the returned counter value the requirement is met; a few ticks later it is not, up to the
    /// rounding of the lines.
    #[test]
    fn the_end_is_the_last_moment(
        widths in (0i64..100_000, 0i64..100_000), slopes in (-1i64 << 36..1 << 40, -1i64 << 36..1 << 40),
        holdover in 1u64 << 36..1 << 41, valid in 0u64..1 << 33, late in 0u64..1 << 34,
        limits in (1u64..1_000_000, 1u64..1_000_000),
    ) {
        // Only sound lines: earliest does not overtake the estimate before the expiry.
        let shrunk = |width: i64, slope: i64| i128::from(width) * (1 << 34) + ((i128::from(slope) * i128::from(valid)) >> 20);
        prop_assume!(shrunk(widths.0, slopes.0) >= 0 && shrunk(widths.1, slopes.1) >= 0);
        let snapshot = Snapshot { lines: lines(widths, slopes, holdover, valid), ..plain() };
        let need = Need { below_ns: limits.0, above_ns: limits.1, ..Need::NONE };
        let now = 1_000 + late;
        let short = |counter: u64| {
            let at = snapshot.lines.at(counter);
            let (below, above) = (at.estimate - at.earliest, at.latest - at.estimate);
            (span(limits.0) - below).min(span(limits.1) - above)
        };
        match snapshot.valid_until(&need, now) {
            Err(()) => prop_assert!(short(now).is_negative()),
            Ok(None) => prop_assert!(false, "with a holdover the bounds grow for ever"),
            Ok(Some(end)) => {
                prop_assert!(!short(end).is_negative(), "{} {:?}", end, short(end).to_bits());
                prop_assert!(short(end + 4).to_bits() <= 4, "{} {:?}", end, short(end + 4).to_bits());
            }
        }
    }
}

fn plain() -> Snapshot {
    published(&lines((1_000, 1_000), (0, 0), 0, 1 << 30), ClockStatus::Synchronized, 0)
}

#[test]
fn bounds_that_do_not_grow_hold_for_ever() {
    let within = |ns| Need { below_ns: ns, above_ns: ns, ..Need::NONE };
    assert_eq!(plain().valid_until(&within(1_001), 5_000), Ok(None));
    assert_eq!(plain().valid_until(&within(999), 5_000), Err(()));
    assert_eq!(plain().valid_until(&Need::NONE, 5_000), Ok(None));
}

#[test]
fn an_estimated_error_is_claimed_until_the_expiry() {
    let probable = Need { below_ns: 1, above_ns: 1, sigma_ns: 10, ..Need::NONE };
    let expiry = plain().lines.expiry;
    assert_eq!(plain().valid_until(&probable, expiry - 1), Ok(Some(expiry)));
    assert_eq!(plain().valid_until(&probable, expiry + 1), Err(()));
}

#[test]
fn a_tick_is_rounded_up() {
    let tick = |hz: u64, ppm: i64| {
        let nominal = Period::from_hz(hz).unwrap().to_bits();
        let mut lines = lines((1_000, 1_000), (0, 0), 0, 1 << 30);
        let bits = i64::try_from(nominal).unwrap();
        lines.estimate.period =
            Period::from_bits(nominal.saturating_add_signed(bits / 1_000_000 * ppm));
        Snapshot { lines, ..plain() }.tick_ns()
    };
    assert_eq!((tick(1_000_000_000, 100), tick(1_000_000_000, -100)), (1, 1));
    assert_eq!((tick(62_500_000, 100), tick(2_600_000_000, 100), tick(900_000_000, 0)), (16, 1, 2));
}
