use proptest::prelude::*;
use timevisor_clock_page::{ClockStatus, Line, Lines};
use timevisor_time::{Instant, Local, Period};

use super::*;
use crate::testing::published;

/// 2^-84 s in a tick of a nominal nanosecond.
const NOMINAL: i128 = (1 << 84) / 1_000_000_000;
/// Maximum deviation of the rate from nominal, 2^-84 s per tick: 50 ppm.
const TOLERANCE: i128 = NOMINAL / 20_000;

/// True time in 2^-84 s at counter values: the rate changes at every step, within the tolerance.
struct Truth(Vec<(u64, i128)>);

impl Truth {
    /// Steps: ticks, and the rate's offset in thousandths of the tolerance.
    fn new(steps: &[(u64, i128)]) -> Self {
        let mut at = (1_000_000u64, 1i128 << 100);
        let mut ends = vec![at];
        for (ticks, offset) in steps {
            let rate = NOMINAL + TOLERANCE * offset / 1000;
            at = (at.0 + ticks, at.1 + i128::from(*ticks) * rate);
            ends.push(at);
        }
        Self(ends)
    }

    fn at(&self, counter: u64) -> i128 {
        let after = self.0.iter().position(|(end, _)| *end > counter).unwrap_or(self.0.len() - 1);
        let ((c0, t0), (c1, t1)) = (self.0[after.max(1) - 1], self.0[after.max(1)]);
        t0 + i128::from(counter - c0) * ((t1 - t0) / i128::from(c1 - c0))
    }
}

/// Sound lines from `base` on: `margins` in 2^-64 s beyond what the slopes need, which are
/// `steeper` (of the tolerance, in thousandths) than the limits of the rate until the expiry.
fn sound(
    truth: &Truth,
    base: u64,
    margins: (i128, i128),
    steeper: i128,
    valid: u64,
) -> Lines<Local> {
    let now = truth.at(base);
    let holdover = TOLERANCE * steeper / 1000;
    let slack = (holdover * i128::from(valid)) >> 20;
    let line = |bits: i128, period: i128| Line {
        time: Instant::from_bits(bits),
        period: Period::from_bits(u64::try_from(period).unwrap()),
    };
    let units = now >> 20;
    Lines {
        base,
        expiry: base + valid,
        earliest: line(units - margins.0 - slack, NOMINAL - TOLERANCE + holdover),
        estimate: line(units, NOMINAL),
        latest: line(units + 1 + margins.1 + slack, NOMINAL + TOLERANCE - holdover),
        holdover: u64::try_from(holdover).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// For any rate within its limits, any sound publications and any stamp: true time lies in the
    /// intersection, and the intersection lies in every single publication.
    #[test]
    fn the_intersection_is_sound_and_never_wider(
        steps in prop::collection::vec((1_000u64..1 << 34, -1000i128..=1000), 2..90),
        margins in prop::collection::vec((0i128..1 << 50, 0i128..1 << 50, 1u64..1 << 34), 90),
        // The same for all, because a single publication's rate limits are not used far away.
        steeper in 0i128..900,
        place in 0u64..=1000,
    ) {
        let truth = Truth::new(&steps);
        let mut history = History::default();
        let mut all = Vec::new();
        for ((base, _), (below, above, valid)) in truth.0.iter().zip(margins) {
            let lines = sound(&truth, *base, (below, above), steeper, valid);
            let snapshot = published(&lines, ClockStatus::Synchronized, 0);
            history.note(snapshot);
            all.push(snapshot);
        }
        let (first, last) = (truth.0[0].0, truth.0[truth.0.len() - 1].0);
        let stamp = first + u64::try_from(u128::from(last - first) * u128::from(place) / 1000).unwrap();
        let found = history.convert(stamp).unwrap();
        let true_time = truth.at(stamp);
        prop_assert!(found.at.earliest.to_bits() << 20 <= true_time);
        prop_assert!(found.at.latest.to_bits() << 20 >= true_time);
        prop_assert!(found.at.estimate >= found.at.earliest && found.at.estimate <= found.at.latest);
        let index = all.iter().position(|snapshot| snapshot == found.in_force).unwrap();
        // Bounds passed from publication to publication are rounded outward at each step.
        let rounding = timevisor_time::Duration::from_bits(128);
        for snapshot in &all[index.saturating_sub(60)..all.len().min(index + 60)] {
            let single = snapshot.lines.at(stamp);
            prop_assert!(found.at.earliest + rounding >= single.earliest);
            prop_assert!(found.at.latest - rounding <= single.latest);
        }
        let too_old = history.convert(first - 1).err();
        prop_assert_eq!(too_old, Some(ConvertError::TooOld { since: first }));
    }
}

fn steady(base: u64, half_width: i128) -> Lines<Local> {
    sound(&Truth::new(&[(1 << 40, 0)]), base, (half_width, half_width), 0, 1 << 30)
}

#[test]
fn what_was_before_a_disruption_is_not_known() {
    let mut history = History::default();
    assert!(matches!(history.convert(0), Err(ConvertError::Unknown)));
    history.note(published(&steady(2_000_000, 100), ClockStatus::Synchronized, 0));
    history.note(published(&steady(3_000_000, 100), ClockStatus::Synchronized, 1));
    assert!(matches!(history.convert(2_999_999), Err(ConvertError::TooOld { since: 3_000_000 })));
    assert!(history.convert(3_000_000).is_ok());
}

#[test]
fn a_span_across_a_disruption_is_not_known() {
    let mut history = History::default();
    history.note(published(&steady(2_000_000, 100), ClockStatus::Synchronized, 0));
    assert!(history.between(2_000_000, 2_500_000).is_ok());
    let too_old = ConvertError::TooOld { since: 2_000_000 };
    assert_eq!(history.between(1, 2_500_000).err(), Some(too_old), "not opened yet");
    history.note(published(&steady(3_000_000, 100), ClockStatus::Synchronized, 1));
    let disrupted = ConvertError::Disrupted { since: 3_000_000 };
    assert_eq!(history.between(2_500_000, 3_500_000).err(), Some(disrupted));
    let too_old = ConvertError::TooOld { since: 3_000_000 };
    assert_eq!(history.between(2_000_000, 2_500_000).err(), Some(too_old));
}

#[test]
fn the_same_publication_counts_once_and_old_ones_leave() {
    let mut history = History::default();
    for step in 0..3 * DEPTH as u64 {
        let snapshot = published(&steady(2_000_000 + step, 100), ClockStatus::Synchronized, 0);
        history.note(snapshot);
        history.note(snapshot);
    }
    assert_eq!(history.kept.len(), 2 * DEPTH);
    assert_eq!(history.kept[0].lines.base, 2_000_000 + DEPTH as u64);
    // Current rate limits say nothing about stamps from before the kept publications.
    let since = 2_000_000 + DEPTH as u64;
    let too_old = Some(ConvertError::TooOld { since });
    assert_eq!(history.convert(since - 1).err(), too_old);
    assert_eq!(history.between(2_000_000, since + 1).err(), too_old);
    assert!(history.between(since, since + 1).is_ok());
}

#[test]
fn what_was_forgotten_is_not_called_disrupted() {
    let mut history = History::default();
    history.note(published(&steady(1_000_000, 100), ClockStatus::Synchronized, 0));
    for step in 0..3 * DEPTH as u64 {
        history.note(published(&steady(2_000_000 + step, 100), ClockStatus::Synchronized, 1));
    }
    let since = history.kept[0].lines.base;
    let too_old = Some(ConvertError::TooOld { since });
    assert_eq!(history.between(2_000_000, since + 1).err(), too_old);
}

#[test]
fn bounds_that_exclude_each_other_are_not_averaged() {
    let mut history = History::default();
    history.note(published(&steady(2_000_000, 100), ClockStatus::Synchronized, 0));
    let mut later = steady(3_000_000, 100);
    for line in [&mut later.earliest, &mut later.estimate, &mut later.latest] {
        line.time = Instant::from_bits(line.time.to_bits() + (1 << 60));
    }
    history.note(published(&later, ClockStatus::Synchronized, 0));
    assert!(matches!(history.convert(3_000_000), Err(ConvertError::Contradiction)));
}

#[test]
fn a_stamp_beyond_the_expiry_is_free_running() {
    let mut history = History::default();
    history.note(published(&steady(2_000_000, 100), ClockStatus::Synchronized, 0));
    let status = |stamp| history.convert(stamp).unwrap().status;
    assert_eq!(status(2_000_000 + (1 << 30)), ClockStatus::Synchronized);
    assert_eq!(status(2_000_001 + (1 << 30)), ClockStatus::FreeRunning);
}
