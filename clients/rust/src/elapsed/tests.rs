use std::time::Duration as Span;

use proptest::prelude::*;

use super::*;
use crate::manual::Clock;

const S: i64 = 1_000_000_000;

fn clock() -> Clock {
    let clock = Clock::new(1_700_000_000 * S);
    clock.set_error(Span::from_micros(50));
    // No period can represent a rate without any error exactly.
    clock.set_growth_ppb(10);
    clock
}

/// Reads a clock's timeline while CLOCK_MONOTONIC_RAW has this value.
fn read(state: &mut State, clock: &Clock, blackouts: Blackouts, raw: u64) -> Option<Age> {
    let timeline = clock.timeline();
    let (reading, snapshot) = timeline.look().unwrap();
    let seen = Seen { reading: &reading, snapshot: &snapshot, page: timeline.identity() };
    state.read(&seen, blackouts, (raw, raw + 1_000))
}

fn holds(age: Age, seconds: f64) -> bool {
    age.earliest.as_secs_f64() <= seconds && seconds <= age.latest.as_secs_f64()
}

fn within(age: Age, seconds: f64) -> bool {
    (age.latest - age.earliest).as_secs_f64() <= seconds
}

#[test]
fn an_age_goes_on_where_its_process_is_restored() {
    let (here, there) = (clock(), clock());
    let mut age = State::default();
    read(&mut age, &here, Blackouts::Count, 0).unwrap();
    here.advance(Span::from_secs(3));
    assert!(holds(read(&mut age, &here, Blackouts::Count, 0).unwrap(), 3.0));
    // Another host, another counter, ten seconds later.
    there.advance(Span::from_secs(13));
    let after = read(&mut age, &there, Blackouts::Count, 0).unwrap();
    assert!(holds(after, 13.0) && within(after, 0.000_3), "{after:?}");
}

#[test]
fn a_blackout_can_be_excluded() {
    let (here, there) = (clock(), clock());
    let (mut age, blackouts) = (State::default(), Blackouts::Exclude);
    read(&mut age, &here, blackouts, 0).unwrap();
    here.advance(Span::from_secs(3));
    read(&mut age, &here, blackouts, 3_000_000_000).unwrap();
    // It ran for half a second more, while ten seconds passed.
    there.advance(Span::from_secs(13));
    let after = read(&mut age, &there, blackouts, 3_500_000_000).unwrap();
    assert!(holds(after, 3.5) && within(after, 0.002), "{after:?}");
    // As it continues, nothing more is subtracted.
    there.advance(Span::from_secs(100));
    let later = read(&mut age, &there, blackouts, 103_500_000_000).unwrap();
    assert!(holds(later, 103.5) && within(later, 0.002), "{later:?}");
    // A restore on the same host, which no page shows.
    there.advance(Span::from_secs(20));
    let restored = read(&mut age, &there, blackouts, 104_500_000_000).unwrap();
    assert!(holds(restored, 104.5) && within(restored, 0.05), "{restored:?}");
}

/// An observation of a VM's page with a nominal 1 GHz counter at this value.
fn looked(vm: u64, total: f64, counter: u64, raw: u64) -> Looked {
    let period = timevisor_time::Period::from_hz(1_000_000_000).unwrap();
    let total = Duration::from_secs_f64(total);
    let within = Duration::from_nanos(50_000);
    Looked {
        total: Age { earliest: total, estimate: total, latest: total + within },
        raw: (raw, raw + 1_000),
        counter,
        rate: RateLimits::around(period, timevisor_time::RateError::from_ppb(1_000)),
        page: [1, 2, vm, 4, 5],
    }
}

#[test]
fn a_vms_counter_says_how_long_it_ran() {
    const MS: u64 = 1_000_000;
    // Its kernel assumed a wrong frequency, so it counts only a fifth.
    let mut stopped = Stopped::default();
    stopped.exclude(looked(7, 10.0, 100 * MS, 20_000 * MS), false);
    stopped.exclude(looked(7, 10.5, 600 * MS, 20_100 * MS), false);
    assert_eq!(stopped.raw_is_right, Some(false), "found out, and no blackout");
    let ran = stopped.exclude(looked(7, 12.0, 1_100 * MS, 20_200 * MS), true);
    assert!(holds(ran, 11.0) && within(ran, 0.001), "{ran:?}");
    // A snapshot was loaded, so it is unknown what ran.
    let ran = stopped.exclude(looked(7, 14.0, 50 * MS, 20_300 * MS), true);
    assert!(holds(ran, 11.0) && holds(ran, 13.0), "{ran:?}");
    // Another VM has a different counter.
    let ran = stopped.exclude(looked(8, 15.0, 1_050 * MS, 20_400 * MS), true);
    assert!(holds(ran, 11.0) && holds(ran, 14.0), "{ran:?}");
}

#[test]
fn another_kernels_clock_says_nothing_of_the_time_between() {
    let (here, there) = (clock(), clock());
    let (mut age, blackouts) = (State::default(), Blackouts::Exclude);
    read(&mut age, &here, blackouts, 50_000_000_000).unwrap();
    here.advance(Span::from_secs(3));
    read(&mut age, &here, blackouts, 53_000_000_000).unwrap();
    there.advance(Span::from_secs(13));
    let after = read(&mut age, &there, blackouts, 2_000_000_000).unwrap();
    assert!(holds(after, 3.0) && holds(after, 13.0), "{after:?}");
}

#[test]
fn it_is_unknown_until_the_time_is_known_again() {
    let (here, there) = (clock(), clock());
    let age = Elapsed::begin(&here.timeline(), Blackouts::Count).unwrap();
    here.advance(Span::from_secs(1));
    let saved = age.save().unwrap();
    there.forget();
    let restored = Elapsed::resume(&there.timeline(), &saved);
    let unknown = restored.unwrap().now().unwrap();
    assert!(!unknown.is_known() && unknown.status() == Status::Unknown);
    there.step((1_700_000_000 + 5) * S);
    let restored = Elapsed::resume(&there.timeline(), &saved).unwrap().now().unwrap();
    assert!(restored.earliest_ns() <= 5 * S && 5 * S <= restored.latest_ns());
    assert_eq!(restored.timescale(), TimescaleId::Local);
}

#[test]
fn it_is_begun_only_on_a_known_tai() {
    let unknown = clock();
    unknown.forget();
    let begin = |clock: &Clock| Elapsed::begin(&clock.timeline(), Blackouts::Count).map(drop);
    assert_eq!(begin(&unknown), Err(ElapsedError::Unknown));
    assert_eq!(begin(&Clock::local(0)), Err(ElapsedError::Timescale("local".to_owned())));
}

#[test]
fn saved_ages_are_strict() {
    let clock = clock();
    for blackouts in [Blackouts::Count, Blackouts::Exclude] {
        let age = Elapsed::begin(&clock.timeline(), blackouts).unwrap();
        clock.advance(Span::from_secs(1));
        let saved = age.save().unwrap();
        assert!(saved.is_ascii() && saved.len() < 1024, "{saved}");
        let again = Elapsed::resume(&clock.timeline(), &format!("{saved}\n")).unwrap();
        assert_eq!(again.blackouts, blackouts);
        if blackouts == Blackouts::Count {
            let now = again.now().unwrap();
            assert!(now.earliest_ns() <= S && S <= now.latest_ns(), "{now:?}");
        }
        for bad in [
            String::new(),
            saved.replace("timevisor-elapsed", "elapsed"),
            saved.replace(" 1 ", " 2 "),
            saved.rsplit_once(' ').unwrap().0.to_owned(),
            format!("{saved} 0"),
            saved.replace(' ', " -"),
        ] {
            let refused = Elapsed::resume(&clock.timeline(), &bad).map(drop);
            assert!(matches!(refused, Err(ElapsedError::Saved(_))), "{bad}: {refused:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_text_panics(words in prop::collection::vec("(-?[0-9]{1,40}|count|exclude|1)", 0..20)) {
        let text = format!("timevisor-elapsed 1 {}", words.join(" "));
        if let Ok((blackouts, mut state)) = saved::parse(&text) {
            let age = read(&mut state, &clock(), blackouts, 7);
            prop_assert!(age.is_none_or(|age| age.earliest <= age.estimate && age.estimate <= age.latest));
        }
    }

    /// Whatever happens, an age never goes backwards, and contains the true age or running time.
    #[test]
    fn never_back_and_never_wrong(
        events in prop::collection::vec((0..3u8, 1..5_000_000_000u64), 1..30),
        raw_ppm in -900..900i64,
    ) {
        let (mut counted, mut running) = (State::default(), State::default());
        let mut here = clock();
        let (mut now, mut ran) = (0u64, 0u64);
        let mut last = (Age::ZERO, Age::ZERO);
        // First the age starts.
        for (kind, span) in std::iter::once((0, 0)).chain(events) {
            now += span;
            match kind {
                0 => {
                    here.advance(Span::from_nanos(span));
                    ran += span;
                }
                // It was stopped, and so was its counter; the page shows it.
                1 => here.step(1_700_000_000 * S + i64::try_from(now).unwrap()),
                // Another host.
                _ => {
                    here = clock();
                    here.advance(Span::from_nanos(now));
                }
            }
            let off = i64::try_from(ran).unwrap() / 1_000_000 * raw_ppm;
            let raw = 10_000_000_000u64.checked_add_signed(i64::try_from(ran).unwrap() + off).unwrap();
            let total = read(&mut counted, &here, Blackouts::Count, raw).unwrap();
            let without = read(&mut running, &here, Blackouts::Exclude, raw).unwrap();
            prop_assert!(holds(total, now as f64 / 1e9), "{total:?} at {now}");
            prop_assert!(holds(without, ran as f64 / 1e9), "{without:?} at {ran}");
            prop_assert!(total.estimate >= last.0.estimate && without.estimate >= last.1.estimate);
            last = (total, without);
        }
    }
}
