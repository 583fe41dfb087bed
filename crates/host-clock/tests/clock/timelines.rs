//! Subset clocks, timelines and ages.

use timevisor_clock_page::{ClockStatus, Counter, NotedBirth, Policy};
use timevisor_estimate::Quality;
use timevisor_host_clock::age::Moment;
use timevisor_host_clock::timelines::Scale;
use timevisor_host_clock::{Age, ClockState, LeapState, SubsetClock, TimelineClocks};
use timevisor_time::{Duration, Instant, LeapSecond, Leaps, Tai};

use crate::world::{HZ, Scripted, Ticker, limits, nominal, truth};

pub fn policy() -> Policy {
    Policy { nominal: nominal(), validity: Duration::from_secs(10) }
}

/// What a clock that is right within 1 us says at a counter value.
pub fn known(at: u64) -> ClockState {
    let (estimate, counter) = (Scripted::new(), Ticker::default());
    counter.value.set(at);
    estimate.say(Quality::Synchronized, 0, 1000);
    SubsetClock::new(vec![0], estimate, policy(), at).publish(&counter)
}

#[test]
fn a_subset_clock_obeys_the_rules_of_the_hosts() {
    let (estimate, counter) = (Scripted::new(), Ticker::default());
    let mut clock =
        SubsetClock::new(vec![2, 5], estimate.clone(), policy(), counter.read_ordered());
    assert!(clock.follows(5) && !clock.follows(0));
    assert_eq!(clock.publish(&counter).status, ClockStatus::Unknown);
    estimate.say(Quality::Synchronized, 0, 1000);
    let first = clock.publish(&counter);
    counter.value.set(HZ);
    estimate.say(Quality::Synchronized, 300, 1500);
    let second = clock.publish(&counter);
    let (old, new) = (first.lines.unwrap().at(HZ), second.lines.unwrap().at(HZ));
    assert!(
        old.earliest <= new.earliest && new.latest <= old.latest && new.estimate >= old.estimate
    );
    assert_eq!((first.disruptions, second.disruptions), (0, 0));
    estimate.say(Quality::Synchronized, 9_000_000, 1000);
    assert_eq!(clock.publish(&counter).disruptions, 1, "a contradiction");
    assert_eq!(clock.publish(&counter).disruptions, 1, "counted once");
    clock.start_over(Scripted::new());
    let over = clock.publish(&counter);
    assert_eq!((over.lines, over.status), (None, ClockStatus::Unknown));
}

#[test]
fn utc_says_nothing_around_a_leap_second_and_steps_with_it() {
    let mut clocks = TimelineClocks::new(nominal());
    let leap = LeapSecond { from: truth(100 * HZ).secs() - 36, before: 36, after: 37 };
    let leaps = |tai: Instant<Tai>| {
        let (last, next) =
            if tai < leap.begins() { (None, Some(leap)) } else { (Some(leap), None) };
        Leaps { offset: if next.is_some() { 36 } else { 37 }, last, next }
    };
    let mut at = |second: u64| {
        let now = second * HZ;
        let lines = known(now).lines.unwrap();
        let leaps = leaps(lines.at(now).estimate);
        let leap = LeapState::new(Some(&leaps), &lines, now, Duration::from_secs(1));
        clocks.update(vec![known(now)], now, now + 10 * HZ, leap);
        (clocks.following(0, Scale::Tai), clocks.following(0, Scale::Utc), clocks.tai_offset())
    };
    let (tai, utc, before) = at(80);
    let (tai, early) = (tai.lines.unwrap().at(0), utc.lines.unwrap().at(0));
    assert_eq!((before, tai.estimate - early.estimate), (Some(36), Duration::from_secs(36)));
    let (tai, near, unsure) = at(98);
    assert!(tai.lines.is_some(), "TAI knows no leap seconds");
    assert_eq!((near.lines, near.status, unsure), (None, ClockStatus::Unreliable, None));
    let (_, late, after) = at(110);
    assert_eq!(after, Some(37));
    assert_ne!(late.disruptions, utc.disruptions, "UTC has stepped");
    assert!(clocks.following(1, Scale::Tai).lines.is_none(), "there is no such clock");
}

#[test]
fn a_local_timeline_counts_from_its_start() {
    let mut clocks = TimelineClocks::new(nominal());
    assert_eq!(clocks.local(7).status, ClockStatus::Unknown);
    clocks.begin(7, 100);
    clocks.begin(7, 900);
    clocks.advance(1100);
    let seven = clocks.local(7);
    let at = seven.lines.unwrap().at(1100);
    assert_eq!((seven.status, seven.disruptions), (ClockStatus::Synchronized, 7));
    assert_eq!(at.estimate, Instant::from_bits(0) + nominal().span(1000), "the first start counts");
    clocks.trust_counter(false);
    assert_eq!(clocks.local(7).status, ClockStatus::Unreliable, "it counts a counter in doubt");
    clocks.trust_counter(true);
    clocks.begin(8, 1000);
    clocks.keep(|life| life == 8);
    assert!(clocks.local(7).lines.is_none() && clocks.local(8).lines.is_some());
    clocks.forget_local();
    assert!(clocks.local(8).lines.is_none());
}

#[test]
fn an_age_outlives_its_counter_and_is_voided_by_an_arrival() {
    let moment = |second: u64| {
        let now = second * HZ;
        Moment::new(&known(now), limits(100), now, now + 10 * HZ)
    };
    let age_at = |age: &Age, second: u64| {
        let (lines, disruptions) = age.lines(&moment(second));
        (lines.map(|l| l.at(second * HZ).estimate.secs()), disruptions)
    };
    let mut age = Age::default();
    assert!(age.update(&moment(50), 0, NotedBirth::Nothing).is_some(), "born now");
    assert!(age.update(&moment(60), 0, NotedBirth::Nothing).is_none(), "told once");
    assert_eq!(age_at(&age, 60), (Some(10), 0));
    age.start_over();
    assert_eq!(age_at(&age, 70), (None, 1));
    age.update(&moment(70), 0, NotedBirth::Nothing);
    assert_eq!(age_at(&age, 71), (Some(21), 1), "from the birth instant");
    let within = Duration::from_micros(5);
    age.update(&moment(80), 1, NotedBirth::At { zero: truth(10 * HZ), within });
    assert_eq!(age_at(&age, 80).1, 2, "another VM's life");
    assert_eq!(age_at(&age, 80).0, Some(70));
}
