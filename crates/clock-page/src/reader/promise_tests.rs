use timevisor_time::Period;

use super::*;
use crate::CounterId;
use crate::abi::{Meta, entry};

const HZ: u64 = 1_000_000_000;
const BASE: u64 = 1 << 40;

/// An entry on `timescale`, whose bounds are a millisecond on either side at its base, and grow by 100 ppm.
fn words(status: ClockStatus, timescale: TimescaleId, tai_offset: Option<i16>) -> EntryWords {
    let mut words = EntryWords::default();
    let period = Period::from_hz(HZ).unwrap().to_bits();
    let rate = period / 10_000;
    let ends = [
        (entry::EARLIEST, 99_999_000, period - rate),
        (entry::ESTIMATE, 100_000_000, period),
        (entry::LATEST, 100_001_000, period + rate),
    ];
    for (at, nanos, period) in ends {
        let (seconds, fraction) = Instant::<Local>::from_unix_nanos(1_000 * nanos).to_words();
        words[at..at + 3].copy_from_slice(&[seconds, fraction, period]);
    }
    words[entry::BASE] = BASE;
    words[entry::EXPIRY] = BASE + 10 * HZ;
    words[entry::HOLDOVER] = rate;
    words[entry::META] = Meta {
        flags: entry::FLAG_ESTIMATE,
        status,
        timescale: timescale as u8,
        counter: CounterId::X86Tsc as u8,
        tai_offset,
        generation: 1,
    }
    .pack();
    words
}

#[test]
fn the_ends_are_those_of_the_lines_in_utc() {
    let words = words(ClockStatus::Synchronized, TimescaleId::Tai, Some(37));
    let promise = Promise::of(&words, BASE + HZ).unwrap();
    let us = |interval: Interval<Utc>| {
        [interval.earliest().floor_nanos(), interval.latest().ceil_nanos()]
            .map(|ns| (ns - 63_000_000_000 + 500) / 1_000)
    };
    // After a second, and after ten; in us.
    assert_eq!(us(promise.at_from), [998_900, 1_001_100]);
    assert_eq!(us(promise.at_until), [9_998_000, 10_002_000]);
    assert_eq!((promise.from, promise.until), (BASE + HZ, BASE + 10 * HZ));
    assert_eq!(promise.at(promise.until), Some(promise.at_until));
    // 100 ppm on either side, and as much beyond the expiry.
    assert_eq!(promise.rate_spread_ppb() / 1_000, 400);
    let left = promise.left();
    assert!(left < Duration::from_secs(9) && left > Duration::from_millis(8_998), "{left}");
}

#[test]
fn nothing_is_promised_that_is_not_sure() {
    let good = words(ClockStatus::FreeRunning, TimescaleId::Utc, None);
    assert_eq!(Promise::of(&good, BASE).unwrap().status, ClockStatus::FreeRunning);
    assert!(Promise::of(&good, BASE + 10 * HZ).is_some());
    assert!(Promise::of(&good, BASE + 10 * HZ + 1).is_none(), "it has expired");
    let bad = [
        words(ClockStatus::Unreliable, TimescaleId::Utc, None),
        words(ClockStatus::Initializing, TimescaleId::Utc, None),
        words(ClockStatus::Synchronized, TimescaleId::Tai, None),
        words(ClockStatus::Synchronized, TimescaleId::Local, Some(37)),
        EntryWords::default(),
    ];
    for words in bad {
        assert!(Promise::of(&words, BASE).is_none(), "{words:?}");
    }
}
