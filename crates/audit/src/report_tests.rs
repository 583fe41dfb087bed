use proptest::prelude::*;

use super::*;

const SECOND: i64 = 1_000_000_000;
/// How well a stamp is known, each way, ns.
const BOUND: i64 = 20_000;

fn stamp(second: i64) -> Stamp {
    let ns = second * SECOND;
    Stamp { earliest_ns: ns - BOUND, latest_ns: ns + BOUND, vouched: true }
}

fn line(stamp: Stamp, event: Event) -> Line {
    Line { seq: 1, prev: String::new(), stamp, event }
}

fn bound(from: i64, to: i64, status: &str, worst_ns: Option<i64>) -> Line {
    let since = stamp(from).interval();
    let status = status.to_owned();
    let (reference, reference_error_ns) = (None, None);
    line(
        stamp(to),
        Event::Bound {
            since,
            since_vouched: true,
            status,
            worst_ns,
            reference,
            reference_error_ns,
        },
    )
}

fn report(lines: &[Line], to: i64, limit_ns: i64) -> Report {
    let mut reporter = Reporter::new(0, to * SECOND, limit_ns);
    lines.iter().for_each(|line| reporter.take(line));
    reporter.report()
}

#[test]
fn an_unbroken_record_is_all_within() {
    let lines: Vec<Line> =
        (-1..11).map(|n| bound(n * 60, n * 60 + 60, "synchronized", Some(50_000))).collect();
    let report = report(&lines, 600, 100_000);
    assert!(report.is_met() && report.gaps.is_empty(), "{report:?}");
    assert_eq!((report.share(), report.worst_ns), (1.0, Some(50_000)));
}

#[test]
fn gaps_are_named_and_unknown_time_is_never_within() {
    let lines = [
        bound(0, 60, "synchronized", Some(50_000)),
        bound(60, 120, "synchronized", Some(150_000)),
        bound(120, 180, "unreliable", Some(50_000)),
        // Killed; the next one starts 20 s later.
        bound(200, 260, "synchronized", Some(50_000)),
        bound(260, 300, "freerunning", None),
    ];
    let report = report(&lines, 400, 100_000);
    let seconds =
        |gap: &Gap| (gap.from_ns + SECOND / 2) / SECOND..(gap.to_ns + SECOND / 2) / SECOND;
    let gaps: Vec<_> = report.gaps.iter().map(|gap| (seconds(gap), gap.why.clone())).collect();
    assert_eq!(
        gaps,
        [
            (0..0, Why::NoRecord),
            (60..120, Why::Above(150_000)),
            (120..180, Why::NotVouched("unreliable".into())),
            (180..200, Why::NoRecord),
            (260..300, Why::NotVouched("freerunning".into())),
            (300..400, Why::NoRecord),
        ]
    );
    // The ends' own uncertainty is not within.
    assert_eq!(report.within_ns, 120 * SECOND - 4 * BOUND);
    assert!(!report.is_met());
}

#[test]
fn what_one_record_calls_within_and_another_not_is_not() {
    let lines = [
        bound(0, 100, "synchronized", Some(1)),
        bound(50, 60, "unreliable", Some(1)),
        bound(0, 100, "synchronized", Some(1)),
    ];
    let report = report(&lines, 100, 100);
    assert_eq!(report.within_ns, 90 * SECOND - 4 * BOUND);
}

#[test]
fn a_span_between_ends_that_nobody_vouches_for_does_not_count() {
    let mut unvouched = bound(0, 100, "synchronized", Some(1));
    unvouched.stamp.vouched = false;
    assert_eq!(report(&[unvouched], 100, 100).within_ns, 0);
}

#[test]
fn a_share_just_below_1_does_not_read_1() {
    let report = Report {
        total_ns: i64::MAX,
        within_ns: i64::MAX - 1,
        worst_ns: None,
        gaps: Vec::new(),
        starts: 0,
        contradictions: 0,
    };
    assert!(report.share() < 1.0 && !report.is_met());
}

proptest! {
    /// Within and the gaps are the whole, whatever was recorded; and no moment counts that is outside of all
    /// vouched records.
    #[test]
    fn within_and_gaps_are_the_whole(
        spans in prop::collection::vec((0_i64..500, 1_i64..100, any::<bool>(), prop::option::of(0_i64..200)), 0..20),
    ) {
        let status = |good: bool| if good { "synchronized" } else { "unreliable" };
        let lines: Vec<Line> = spans
            .iter()
            .map(|(from, long, good, worst)| bound(*from, from + long, status(*good), *worst))
            .collect();
        let report = report(&lines, 400, 100);
        let gaps: i64 = report.gaps.iter().map(|gap| gap.to_ns - gap.from_ns).sum();
        prop_assert_eq!(gaps + report.within_ns, report.total_ns);
        let covered = (0..400).filter(|second| {
            let covers = |(from, long, good, worst): &(i64, i64, bool, Option<i64>)| {
                *from <= *second && *second < from + long && *good && worst.is_some_and(|worst| worst <= 100)
            };
            spans.iter().any(covers)
        });
        prop_assert!(report.within_ns <= covered.count() as i64 * SECOND);
    }
}
