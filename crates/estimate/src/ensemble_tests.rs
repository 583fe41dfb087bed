//! Votes and statuses.

use super::*;

const HZ: u64 = 1_000_000_000;

fn ensemble(n: usize) -> Ensemble {
    let names: Vec<_> = (0..n).map(|i| format!("server{i}")).collect();
    Ensemble::new(&Parameters::default(), &names, Period::from_hz(HZ).unwrap(), RateError::ZERO)
}

fn exchange(second: u64, offset_ns: i128) -> Exchange {
    let ta = second * HZ;
    let t = Instant::from_unix_nanos(i128::from(ta) + 30_000 + offset_ns);
    Exchange { ta, tb: t, te: t, tf: ta + 60_000, error: Duration::ZERO }
}

#[test]
fn nothing_is_known_before_the_first_answer() {
    let known = ensemble(1).at(0);
    assert_eq!((known.quality, known.clock), (Quality::Nothing, None));
}

#[test]
fn a_liar_is_outvoted_and_named() {
    let mut e = ensemble(3);
    for second in 1..20 {
        for (index, offset) in [(0, 0), (1, 5_000), (2, 50_000_000)] {
            e.observe(index, &exchange(second, offset));
        }
    }
    let known = e.at(20 * HZ);
    assert_eq!(known.falsetickers.len(), 1);
    assert_eq!(known.falsetickers[0].name, "server2");
    assert!(known.falsetickers[0].reason.contains("later"), "{:?}", known.falsetickers);
    assert_eq!(known.quality, Quality::Synchronized);
    assert!(known.clock.unwrap().interval.contains(Instant::from_unix_nanos(20_000_000_000)));
}

#[test]
fn two_that_disagree_are_unreliable_and_the_hull_holds_both() {
    let mut e = ensemble(2);
    e.observe(0, &exchange(1, 0));
    e.observe(1, &exchange(1, 50_000_000));
    let known = e.at(2 * HZ);
    assert_eq!(known.quality, Quality::Unreliable);
    let interval = known.clock.unwrap().interval;
    assert!(interval.contains(Instant::from_unix_nanos(2_000_000_000)));
    assert!(interval.contains(Instant::from_unix_nanos(2_050_000_000)));
    e.at(3 * HZ);
    assert_eq!(e.disruptions(), 1, "one disagreement, however often it is looked at");
}

#[test]
fn silence_makes_it_free_running_with_growing_bounds() {
    let mut e = ensemble(1);
    e.observe(0, &exchange(1, 0));
    let fresh = e.at(2 * HZ);
    let stale = e.at(500 * HZ);
    assert_eq!((fresh.quality, stale.quality), (Quality::Synchronized, Quality::FreeRunning));
    assert!(stale.reason.unwrap().contains("no exchange"));
    let width = |k: Knowledge| k.clock.unwrap().interval.width();
    let grown = width(e.at(500 * HZ)) - width(e.at(2 * HZ));
    // 498 s at +-100 ppm.
    assert!(grown > Duration::from_millis(99) && grown < Duration::from_millis(100), "{grown}");
}

#[test]
fn a_reference_that_contradicts_itself_makes_a_single_reference_clock_unreliable() {
    let mut e = ensemble(1);
    for second in 1..10 {
        e.observe(0, &exchange(second, 0));
    }
    e.observe(0, &exchange(10, 5_000_000));
    assert_eq!(e.at(11 * HZ).quality, Quality::Unreliable);
    assert_eq!(e.disruptions(), 1);
    for second in 11..20 {
        e.observe(0, &exchange(second, 5_000_000));
    }
    assert_eq!(e.at(20 * HZ).quality, Quality::Synchronized);
}

#[test]
fn whoever_answers_first_is_not_a_majority() {
    let mut e = ensemble(3);
    e.observe(2, &exchange(1, 50_000_000));
    let known = e.at(2 * HZ);
    assert_eq!((known.quality, known.clock), (Quality::Nothing, None));
    assert!(known.reason.unwrap().contains("1 of 3 references"));
    e.observe(0, &exchange(1, 0));
    assert_eq!(e.at(2 * HZ).quality, Quality::Unreliable);
    e.observe(1, &exchange(1, 5_000));
    let known = e.at(2 * HZ);
    assert_eq!((known.quality, known.falsetickers.len()), (Quality::Synchronized, 1));
    assert_eq!(e.disruptions(), 2, "the disagreement began and ended");
}

#[test]
fn with_one_of_three_missing_the_other_two_may_each_be_the_wrong_one() {
    let mut e = ensemble(3);
    e.observe(0, &exchange(1, 0));
    e.observe(1, &exchange(1, 40_000));
    let known = e.at(2 * HZ);
    assert_eq!(known.quality, Quality::Synchronized);
    let interval = known.clock.unwrap().interval;
    for index in [0, 1] {
        let own = e.reference(index).at(2 * HZ).unwrap().interval;
        assert!(interval.contains(own.earliest()) && interval.contains(own.latest()));
    }
}

#[test]
fn a_step_of_an_outvoted_reference_voids_nothing() {
    let mut e = ensemble(3);
    for second in 1..20 {
        let step = if second < 10 { 0 } else { 1_000_000_000 };
        for (index, offset) in [(0, step), (1, 5_000), (2, 10_000)] {
            e.observe(index, &exchange(second, offset));
        }
        assert_eq!(e.at(second * HZ + 60_000).quality, Quality::Synchronized, "{second}");
    }
    assert_eq!((e.contradictions(), e.disruptions()), (1, 0));
    assert_eq!(e.at(20 * HZ).falsetickers[0].name, "server0");
}

fn slots(all: &[(&str, Option<usize>)]) -> Vec<Slot> {
    let slot =
        |(name, continues): &(&str, _)| Slot { name: (*name).to_owned(), continues: *continues };
    all.iter().map(slot).collect()
}

#[test]
fn references_that_stay_keep_what_they_said_whatever_their_number() {
    let mut e = ensemble(3);
    for second in 1..20 {
        for (index, offset) in [(0, 0), (1, 5_000), (2, 50_000_000)] {
            e.observe(index, &exchange(second, offset));
        }
    }
    let before = e.at(20 * HZ).clock.unwrap();
    let views = [0, 1].map(|index| e.reference(index).at(20 * HZ).unwrap());
    // The falseticker goes, the others change places, and a new one comes.
    let now = slots(&[("server1", Some(1)), ("server0", Some(0)), ("new", None)]);
    e.rearrange(&now, Parameters::default().stale_after);
    let known = e.at(20 * HZ);
    assert_eq!([1, 0].map(|index| e.reference(index).at(20 * HZ).unwrap()), views);
    assert_eq!((e.reference(2).used(), known.falsetickers.len()), (0, 0));
    assert_eq!(known.quality, Quality::Synchronized);
    // The estimate goes on, and the new one's silence excludes nothing.
    let after = known.clock.unwrap();
    assert!((after.estimate - before.estimate).abs() < Duration::from_nanos(2));
    let hull = views[0].interval.hull(&views[1].interval);
    assert_eq!(after.interval, hull);
    assert_eq!(e.disruptions(), 0);
    e.observe(2, &exchange(21, 1_000));
    assert_eq!(e.at(22 * HZ).quality, Quality::Synchronized);
    assert_eq!(e.disruptions(), 0);
}

#[test]
fn a_contradiction_that_went_with_its_reference_is_no_news() {
    let mut e = ensemble(2);
    for second in 1..9 {
        let step = if second == 8 { 1_000_000_000 } else { 0 };
        e.observe(0, &exchange(second, 0));
        e.observe(1, &exchange(second, step));
    }
    e.rearrange(&slots(&[("server0", Some(0))]), Parameters::default().stale_after);
    assert_eq!(e.at(9 * HZ).quality, Quality::Synchronized);
    assert_eq!((e.contradictions(), e.disruptions()), (0, 0));
}

/// Truth is 0, the error of each reference is 5 us or more, and the third is wrong by 5.5 us or more.
#[test]
fn a_claim_to_an_honest_ones_source_cuts_off_no_truth() {
    // Its own claim; two honest ones with one source; nobody's.
    for witnesses in [[0, 1, 0], [0, 0, 2], [0, 1, 2]] {
        let mut e = ensemble(3);
        e.set_witnesses(&witnesses);
        for second in 1..20 {
            for (index, offset) in [(0, 0), (1, 0), (2, 31_000)] {
                e.observe(index, &exchange(second, offset));
            }
        }
        let known = e.at(20 * HZ);
        let interval = known.clock.unwrap().interval;
        assert!(interval.contains(Instant::from_unix_nanos(20_000_000_000)), "{witnesses:?}");
        // The exchanges are exact to 30 us: without the liar's, that is all that is known.
        assert!(interval.width() >= Duration::from_micros(59), "{witnesses:?}: {interval:?}");
    }
}

/// A PHC: right to 1 us by the operator's word, read within 2 us.
fn hardware(second: u64, offset_ns: i128) -> Exchange {
    let ta = second * HZ;
    let t = Instant::from_unix_nanos(i128::from(ta) + 1_000 + offset_ns);
    Exchange { ta, tb: t, te: t, tf: ta + 2_000, error: Duration::from_micros(1) }
}

#[test]
fn a_hardware_clock_that_jumps_is_unreliable_alone_and_both_its_times_are_inside() {
    for jump in [2_000_000, -2_000_000, 1_000_000_000, -37_000_000_000] {
        let mut e = ensemble(1);
        for second in 100..120 {
            e.observe(0, &hardware(second, 0));
        }
        e.observe(0, &hardware(120, jump));
        let known = e.at(120 * HZ + 500_000_000);
        assert_eq!(known.quality, Quality::Unreliable, "{jump}");
        let interval = known.clock.unwrap().interval;
        for offset in [0, jump] {
            let time = Instant::from_unix_nanos(120_500_000_000 + offset);
            assert!(interval.contains(time), "{jump}: {interval:?}");
        }
    }
}

#[test]
fn a_hardware_clock_that_jumps_beside_two_servers_is_outvoted_and_named() {
    let mut e = ensemble(3);
    for second in 100..140 {
        let jump = if second < 120 { 0 } else { -37_000_000_000 };
        e.observe(0, &hardware(second, jump));
        e.observe(1, &exchange(second, 5_000));
        e.observe(2, &exchange(second, 10_000));
        let known = e.at(second * HZ + 60_000);
        assert_eq!(known.quality, Quality::Synchronized, "{second}");
        let truth = Instant::from_unix_nanos(i128::from(second) * 1_000_000_000 + 60_000);
        assert!(known.clock.unwrap().interval.contains(truth), "{second}");
    }
    assert_eq!(e.at(140 * HZ).falsetickers[0].name, "server0");
}
