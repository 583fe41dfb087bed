//! Tests conversions of stamps and spans, with a wandering true rate and publications that are
//! sound for it.

use proptest::prelude::*;
use timevisor_clock_page::Line;

use super::*;
use crate::testing::published;

/// 2^-84 s in a tick of a nominal nanosecond.
const NOMINAL: i128 = (1 << 84) / 1_000_000_000;
/// 1 ppm of it.
const PPM: i128 = NOMINAL / 1_000_000;
const START: u64 = 1 << 40;

/// True time in 2^-84 s at counter values; between two of them the rate is constant.
#[derive(Debug)]
struct Truth {
    /// Where each rate begins.
    ends: Vec<(u64, i128)>,
    rates: Vec<i128>,
}

impl Truth {
    /// Steps: ticks, and the rate's offset in thousandths of 1 ppm.
    fn new(steps: impl IntoIterator<Item = (u64, i128)>) -> Self {
        let mut truth = Self { ends: vec![(START, 1 << 110)], rates: vec![] };
        for (ticks, offset) in steps {
            let rate = NOMINAL + PPM * offset / 1000;
            let (counter, time) = truth.ends[truth.ends.len() - 1];
            truth.ends.push((counter + ticks, time + i128::from(ticks) * rate));
            truth.rates.push(rate);
        }
        truth
    }

    /// The first rate also applies before the start, and the last one after the end.
    fn at(&self, counter: u64) -> i128 {
        let step = self.ends.partition_point(|(end, _)| *end <= counter).saturating_sub(1);
        let step = step.min(self.rates.len() - 1);
        let (base, time) = self.ends[step];
        time + (i128::from(counter) - i128::from(base)) * self.rates[step]
    }

    /// The extremes of truth - line over some ticks, for a line through truth at `base`: where the
    /// rate changes, or at the ends.
    fn apart(&self, base: u64, expiry: u64, period: i128) -> (i128, i128) {
        let inner =
            self.ends.iter().map(|(end, _)| *end).filter(|end| base < *end && *end < expiry);
        let gaps = inner
            .chain([base, expiry])
            .map(|at| self.at(at) - self.at(base) - (i128::from(at) - i128::from(base)) * period);
        gaps.fold((0, 0), |(low, high), gap| (low.min(gap), high.max(gap)))
    }

    /// A sound publication at the `index`th change of the rate. It only knows the rate limits just
    /// before and after. Its slopes hold until its expiry, and are not rate limits.
    fn publication(&self, index: usize, kind: &Kind) -> Snapshot {
        let base = self.ends[index].0;
        let expiry = base + kind.valid;
        let near =
            [index.saturating_sub(1), index.min(self.rates.len() - 1)].map(|i| self.rates[i]);
        let limits = (
            near[0].min(near[1]) - kind.slack.0 * PPM / 1000,
            near[0].max(near[1]) + kind.slack.1 * PPM / 1000,
        );
        let holdover = kind.holdover * PPM / 1000;
        let slopes = (limits.0 + holdover, limits.1 - holdover);
        let room = (self.apart(base, expiry, slopes.0).0, self.apart(base, expiry, slopes.1).1);
        let units = |bits: i128| Instant::from_bits(bits >> 20);
        let line = |bits: i128, period: i128| Line {
            time: units(bits),
            period: Period::from_bits(u64::try_from(period).unwrap()),
        };
        let now = self.at(base);
        let latest = line(now + room.1 + (kind.margins.1 << 20), slopes.1);
        let lines = Lines {
            base,
            expiry,
            earliest: line(now + room.0 - (kind.margins.0 << 20), slopes.0),
            estimate: line(now, NOMINAL),
            // Compensates for rounding by the shift by 20 and in evaluation.
            latest: Line { time: latest.time + Duration::from_bits(2), ..latest },
            holdover: u64::try_from(holdover).unwrap(),
        };
        published(&lines, kind.status, 0)
    }
}

/// The margins of a publication beyond what soundness requires.
#[derive(Clone, Debug)]
struct Kind {
    /// Of the bounds, 2^-64 s.
    margins: (i128, i128),
    /// Of the limits of the rate, thousandths of 1 ppm.
    slack: (i128, i128),
    /// Thousandths of 1 ppm; more than the slack: slopes that cross.
    holdover: i128,
    valid: u64,
    status: ClockStatus,
}

fn kind() -> impl Strategy<Value = Kind> {
    let status = prop_oneof![
        6 => Just(ClockStatus::Synchronized),
        1 => Just(ClockStatus::Unreliable)
    ];
    let margins = (0i128..1 << 50, 0i128..1 << 50);
    let slack = (0i128..20_000, 0i128..20_000);
    (margins, slack, 0i128..20_000, 1_000u64..20_000_000_000, status).prop_map(
        |(margins, slack, holdover, valid, status)| Kind {
            margins,
            slack,
            holdover,
            valid,
            status,
        },
    )
}

/// The rate is anywhere within 50 ppm, and changes after each publication.
fn world() -> impl Strategy<Value = (Truth, Vec<Snapshot>)> {
    prop::collection::vec((1_000u64..20_000_000_000, -50_000i128..50_000, kind()), 2..150).prop_map(
        |steps| {
            let truth = Truth::new(steps.iter().map(|(ticks, offset, _)| (*ticks, *offset)));
            let kinds = steps.iter().map(|(_, _, kind)| kind);
            let all = kinds.enumerate().map(|(i, kind)| truth.publication(i, kind)).collect();
            (truth, all)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever the rate does within the limits of each publication's neighbourhood: conversions of
    /// stamps contain true time, spans contain the true span, and spans are never wider than two
    /// conversions.
    #[test]
    fn truth_is_inside((truth, all) in world(), places in [0u64..=1000, 0u64..=1000], near in 0u64..2000) {
        let stretch = Stretch::new(&all).unwrap();
        let last = truth.ends[truth.ends.len() - 1].0;
        let place = |thousandths: u64| {
            START + u64::try_from(u128::from(last - START) * u128::from(thousandths) / 1000).unwrap()
        };
        let from = place(places[0]);
        for to in [place(places[1]), from + near, from] {
            let (from, to) = (from.min(to), from.max(to));
            let (a, b) = (stretch.at(from).unwrap(), stretch.at(to).unwrap());
            for (stamp, found) in [(from, &a), (to, &b)] {
                prop_assert!(found.at.earliest.to_bits() << 20 <= truth.at(stamp));
                prop_assert!(found.at.latest.to_bits() << 20 >= truth.at(stamp));
                prop_assert!(found.at.earliest <= found.at.estimate && found.at.estimate <= found.at.latest);
                let single = found.in_force.lines.at(stamp);
                prop_assert!(found.at.earliest >= single.earliest || found.in_force.lines.is_expired(stamp));
            }
            let between = stretch.between(from, to).unwrap();
            let span = truth.at(to) - truth.at(from);
            prop_assert!(between.shortest.to_bits() << 20 <= span, "{} {}", between.shortest.to_bits(), span >> 20);
            prop_assert!(between.longest.to_bits() << 20 >= span);
            prop_assert!(between.shortest <= between.estimate && between.estimate <= between.longest);
            prop_assert!(between.shortest >= b.at.earliest - a.at.latest);
            prop_assert!(between.longest <= b.at.latest - a.at.earliest);
        }
    }

    /// Records are missing, for up to an hour at a time, while the rate changes as fast as the
    /// default floor allows: the remaining records say less or nothing, but stay correct.
    #[test]
    fn missing_publications_only_widen(
        slopes in prop::collection::vec(-1i128..=1, 8),
        missing in prop::collection::vec((0usize..1800, 1usize..900), 1..4),
        places in prop::collection::vec(0u64..=1000, 12),
    ) {
        // 15 minutes per slope, with a publication every 4 s.
        let mut offset = 0;
        let steps: Vec<_> = (0..1800usize).map(|step| {
            offset += slopes[step / 225] * 120;
            (4 * SECOND, offset)
        }).collect();
        let truth = Truth::new(steps);
        let kind = watchful();
        let lost = |index: usize| missing.iter().any(|(at, count)| (*at..at + count).contains(&index));
        let all: Vec<_> = (0..1800)
            .filter(|index| *index == 0 || *index == 1799 || !lost(*index))
            .map(|index| truth.publication(index, &kind))
            .collect();
        let stretch = Stretch::new(&all).unwrap();
        let place = |thousandths: u64| START + 1799 * 4 * SECOND / 1000 * thousandths;
        for ends in places.windows(2) {
            let (from, to) = (place(ends[0].min(ends[1])), place(ends[0].max(ends[1])));
            let span = truth.at(to) - truth.at(from);
            match stretch.between(from, to) {
                Ok(found) => {
                    prop_assert!(found.shortest.to_bits() << 20 <= span);
                    prop_assert!(found.longest.to_bits() << 20 >= span);
                    let at = stretch.at(from).unwrap().at;
                    prop_assert!(at.earliest.to_bits() << 20 <= truth.at(from));
                    prop_assert!(at.latest.to_bits() << 20 >= truth.at(from));
                }
                Err(refusal) => {
                    let Refusal::Unobserved { from: since, until } = refusal else { panic!("{refusal:?}") };
                    let inside = |stamp| since + 60 * SECOND < stamp + 10_000 && stamp < until - 59 * SECOND;
                    prop_assert!(inside(from) || inside(to));
                }
            }
        }
    }
}

/// Ticks of the nominal counter.
const SECOND: u64 = 1_000_000_000;

/// Publications of a daemon on a LAN: within 15 ppm of the rate, for 8 s.
fn watchful() -> Kind {
    Kind {
        margins: ((50i128 << 64) / 1_000_000, (50i128 << 64) / 1_000_000),
        slack: (15_000, 15_000),
        holdover: 14_000,
        valid: 8 * SECOND,
        status: ClockStatus::Synchronized,
    }
}

/// The recorder was stopped for an hour, while the oscillator went up by 54 ppm and came back. Both
/// ends state the same limits, and the true mean rate is outside them.
#[test]
fn no_rate_is_used_across_a_gap() {
    let ramp = (1..=450).chain((0..450).rev()).map(|step| (4 * SECOND, step * 120));
    let quiet = |count| (0..count).map(|_| (4 * SECOND, 0));
    let truth = Truth::new(quiet(20).chain(ramp).chain(quiet(20)));
    let kind = watchful();
    let all: Vec<_> =
        (0..20).chain(921..940).map(|index| truth.publication(index, &kind)).collect();
    let stretch = Stretch::new(&all).unwrap();
    let (last, next) = (truth.ends[19].0, truth.ends[921].0);
    let (expiry, end) = (last + 8 * SECOND, truth.ends[939].0);
    let within = |from, to| {
        let span = truth.at(to) - truth.at(from);
        let found = stretch.between(from, to).unwrap();
        assert!(found.shortest.to_bits() << 20 <= span && span <= found.longest.to_bits() << 20);
        found
    };
    let across = within(START, end);
    assert_eq!(across.status, ClockStatus::FreeRunning);
    let (a, b) = (stretch.at(START).unwrap().at, stretch.at(end).unwrap().at);
    assert_eq!((across.shortest, across.longest), (b.earliest - a.latest, b.latest - a.earliest));
    within(expiry, next);
    within(expiry + 59 * SECOND, next - 59 * SECOND);
    within(next - 59 * SECOND, next - 58 * SECOND);
    let early = stretch.at(next - SECOND).unwrap();
    assert_eq!(early.status, ClockStatus::FreeRunning);
    let refusal = Refusal::Unobserved { from: expiry, until: next };
    for stamp in [expiry + 61 * SECOND, next - 61 * SECOND, last + 1800 * SECOND] {
        assert_eq!(stretch.at(stamp).err(), Some(refusal));
        assert_eq!(stretch.between(START, stamp).err(), Some(refusal));
        assert_eq!(stretch.between(stamp, end).err(), Some(refusal));
    }
}

/// Bounds of 40 us on either side, give or take 10 us, every 4 s; lines that are valid for 10 s
/// with slopes of 1 ppm; a rate within 15 ppm.
fn ordinary_hours() -> (Truth, Vec<Snapshot>) {
    let us = |us: i128| (us << 64) / 1_000_000;
    let kinds = (0..1800).map(|i| Kind {
        margins: (us(35 + i * 7 % 11), us(35 + i * 5 % 11)),
        slack: (15_000, 15_000),
        holdover: 14_000,
        valid: 10_000_000_000,
        status: ClockStatus::Synchronized,
    });
    let truth = Truth::new((0..1800).map(|_| (4_000_000_000, 3_000)));
    let all = kinds.enumerate().map(|(i, kind)| truth.publication(i, &kind)).collect();
    (truth, all)
}

/// How much narrower a span is than the difference of two readings that were taken at the time.
#[test]
fn short_spans_are_much_narrower_than_differences_of_readings() {
    let (_, all) = ordinary_hours();
    let stretch = Stretch::new(&all).unwrap();
    let from = START + 1_801_500_000_000;
    let ms = 1_000_000u64;
    for (ticks, at_least) in
        [(10 * ms, 200.0), (1_000 * ms, 2.5), (60_000 * ms, 1.0), (3_600_000 * ms, 1.0)]
    {
        let reading = |stamp| {
            let lines = &all[stretch.in_force(stamp)].lines;
            (lines.at(stamp).latest - lines.at(stamp).earliest).as_secs_f64()
        };
        let readings = reading(from) + reading(from + ticks);
        let (a, b) = (stretch.at(from).unwrap().at, stretch.at(from + ticks).unwrap().at);
        let conversions = ((a.latest - a.earliest) + (b.latest - b.earliest)).as_secs_f64();
        let span = stretch.between(from, from + ticks).unwrap();
        let width = (span.longest - span.shortest).as_secs_f64();
        println!(
            "span of {:>7} ms: {:>10.3} us wide; two readings {:.1} us (ratio {:.2}), two conversions {:.1} us (ratio {:.2})",
            ticks / ms,
            width * 1e6,
            readings * 1e6,
            readings / width,
            conversions * 1e6,
            conversions / width,
        );
        assert!(readings / width >= at_least, "{ticks}");
    }
}

/// A chord's slope is not a rate limit. The clock was late, within its bounds, and runs faster than
/// the upper line rises; the actual rate limit is that of the holdover.
#[test]
fn slopes_of_the_lines_are_not_limits_of_the_rate() {
    let period = |ppm: i128| Period::from_bits(u64::try_from(NOMINAL + ppm * PPM).unwrap());
    let line = |us: i128, ppm: i128| Line {
        time: Instant::from_bits((1 << 90) + (us << 64) / 1_000_000),
        period: period(ppm),
    };
    let lines = Lines {
        base: START,
        expiry: START + 10_000_000_000,
        earliest: line(-40, -1),
        estimate: line(0, 0),
        latest: line(40, 1),
        holdover: u64::try_from(14 * PPM).unwrap(),
    };
    let all = [0, 5, 10].map(|seconds| {
        let later = lines.rebased(START + seconds * 1_000_000_000);
        published(&later, ClockStatus::Synchronized, 0)
    });
    // 40 us late at the base, 7 ppm fast: 30 us early after 10 s, always within the bounds.
    let span = (10_000_000_000 * (NOMINAL + 7 * PPM)) >> 20;
    let found = Stretch::new(&all).unwrap().between(START, START + 10_000_000_000).unwrap();
    assert!(found.shortest.to_bits() <= span && span <= found.longest.to_bits());
    let by_slopes = period(1).span_ceil(10_000_000_000).to_bits();
    assert!(span > by_slopes, "the slope would have excluded the truth");
}

/// Each publication's rate limits hold nearby. In an unobserved interval of less than a minute, the
/// rate may have been one that only one neighbour allows.
#[test]
fn in_a_short_gap_only_what_either_limit_allows_is_relied_on() {
    let s = 1_000_000_000;
    let truth = Truth::new([(s, 0), (50 * s, 8_000), (s, 8_000)]);
    let kind = |slack| Kind {
        margins: (1 << 50, 1 << 50),
        slack,
        holdover: 0,
        valid: s / 2,
        status: ClockStatus::Synchronized,
    };
    // -10 to 5 ppm, and -5 to 10 ppm.
    let before = truth.publication(0, &kind((10_000, 5_000)));
    let after = truth.publication(2, &kind((13_000, 2_000)));
    let (from, to) = (truth.ends[0].0, truth.ends[2].0);
    let span = truth.at(to) - truth.at(from);
    let all = [before, after];
    let found = Stretch::new(&all).unwrap().between(from + 10, to - 10).unwrap();
    assert!(found.longest.to_bits() << 20 >= span - 20 * (NOMINAL + 8 * PPM));
    assert_eq!(found.status, ClockStatus::FreeRunning);
}

/// The published estimate closes a gap of 10 us within 8 s. The span of 1 s does not show it.
#[test]
fn slews_are_not_in_a_spans_estimate() {
    let (truth, mut all) = ordinary_hours();
    let (index, gap) = (400, (10i128 << 64) / 1_000_000);
    for (later, share) in [(index, 8), (index + 1, 4)] {
        let lines = &mut all[later].lines;
        lines.estimate.time = Instant::from_bits(lines.estimate.time.to_bits() - gap * share / 8);
        let faster = gap / 8_000_000_000;
        let bits = lines.estimate.period.to_bits();
        lines.estimate.period = Period::from_bits(bits + u64::try_from(faster << 20).unwrap());
    }
    let stretch = Stretch::new(&all).unwrap();
    let from = all[index].lines.base + 500_000_000;
    let error = |estimate: Duration| {
        let span = (truth.at(from + 1_000_000_000) - truth.at(from)) >> 20;
        (estimate - Duration::from_bits(span)).abs().as_secs_f64() * 1e9
    };
    let between = stretch.between(from, from + 1_000_000_000).unwrap();
    let (a, b) = (stretch.at(from).unwrap().at, stretch.at(from + 1_000_000_000).unwrap().at);
    println!(
        "error of a 1 s span's estimate: {:.1} ns; of two readings: {:.1} ns",
        error(between.estimate),
        error(b.estimate - a.estimate)
    );
    assert!(error(between.estimate) < 40.0);
    assert!(error(b.estimate - a.estimate) > 500.0);
}

#[test]
fn a_doubtful_publication_narrows_no_trusted_one() {
    let (_, mut all) = ordinary_hours();
    all.truncate(3);
    // It claims an error of a microsecond, and is wrong by 20.
    let us = Duration::from_micros;
    let doubtful = &mut all[0].lines;
    doubtful.earliest.time = doubtful.estimate.time + us(20);
    doubtful.latest.time = doubtful.estimate.time + us(22);
    doubtful.estimate.time = doubtful.estimate.time + us(21);
    all[0] = published(&all[0].lines, ClockStatus::Unreliable, 0);
    let stretch = Stretch::new(&all).unwrap();
    let (base, end) = (all[1].lines.base, all[2].lines.base);
    let found = stretch.at(base).unwrap();
    assert!(found.at.latest - found.at.earliest > us(60), "as before");
    assert_eq!(stretch.between(base, end).unwrap().status, ClockStatus::Synchronized);
    let across = stretch.between(START + 5, end).unwrap();
    assert_eq!(across.status, ClockStatus::Unreliable);
}
