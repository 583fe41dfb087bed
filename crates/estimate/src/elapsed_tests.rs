use proptest::prelude::*;

use super::*;

fn rate(hz: u64, off_ppm: i32, within_ppm: u32) -> Rate {
    let nominal = Period::from_hz(hz).unwrap();
    let error = timevisor_time::RateError::from_ppm(within_ppm);
    let limits = RateLimits::around(nominal, error);
    let period = nominal.scaled(f64::from(off_ppm) * 1e-6);
    Rate::new(period.max(limits.shortest).min(limits.longest), limits).unwrap()
}

#[test]
fn stretches_add_up() {
    let ghz = |n: u64| rate(n * 1_000_000_000, 0, 0);
    let mut clock = ElapsedClock::new(1_000, Age::ZERO, ghz(2));
    assert_eq!(clock.at(1_000), Age::ZERO);
    // 3 s at 2 GHz; half the frequency for 2 s; another core, whose counter is behind, for 1 s at 4
    // GHz.
    clock.change_rate(6_000_001_000, ghz(1));
    clock.change_counter(8_000_001_000, 5, ghz(4));
    let age = clock.at(4_000_000_005);
    assert_eq!((age.estimate - Duration::from_secs(6)).abs().ceil_nanos(), 1);
    // A blackout between 90 and 110 ms, thought to be 100.
    let ms = Duration::from_millis;
    clock.skip(Age::new(ms(90), ms(100), ms(110)).unwrap());
    let later = clock.at(4_000_000_005);
    assert_eq!(later.estimate - age.estimate, ms(100));
    assert_eq!((later.latest - later.earliest) - (age.latest - age.earliest), ms(20));
}

#[test]
fn what_is_no_rate_or_age_is_refused() {
    let period = Period::from_hz(1_000_000_000).unwrap();
    let exact = RateLimits { shortest: period, longest: period };
    assert!(Rate::new(Period::from_bits(period.to_bits() + 1), exact).is_err());
    assert!(Rate::new(Period::from_bits(period.to_bits() - 1), exact).is_err());
    // Less than 2^-64 s a tick: no counter is that fast, but two readings would be equal.
    let still = Period::from_bits((1 << 20) - 1);
    assert!(Rate::new(still, RateLimits { shortest: still, longest: still }).is_err());
    let (no, one) = (Duration::ZERO, Duration::from_secs(1));
    assert!(Age::new(one, no, one).is_err() && Age::new(no, one, no).is_err());
    assert!(Age::new(no - one, no, one).is_err());
}

/// Something that happens to a clock; true time goes on by `ticks` of the counter in force before
/// it.
#[derive(Clone, Debug)]
enum Event {
    Read,
    Rate {
        hz: u64,
        off_ppm: i32,
    },
    Counter {
        to: u64,
        hz: u64,
        off_ppm: i32,
    },
    Blackout {
        ns: i64,
        error_ns: i64,
        thought_ns: i64,
    },
    /// Known from elsewhere: at most so much less and more than what is true.
    Confine {
        less_ns: i64,
        more_ns: i64,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let hz = || 2_000_000u64..5_000_000_000;
    prop_oneof![
        3 => Just(Event::Read),
        1 => (hz(), -50..=50i32).prop_map(|(hz, off_ppm)| Event::Rate { hz, off_ppm }),
        1 => (any::<u64>(), hz(), -50..=50i32)
            .prop_map(|(to, hz, off_ppm)| Event::Counter { to, hz, off_ppm }),
        1 => (0i64..100_000_000, 0i64..100_000_000)
            .prop_map(|(less_ns, more_ns)| Event::Confine { less_ns, more_ns }),
        1 => (0i64..10_000_000_000, 0i64..1_000_000, -1_000_000i64..=1_000_000)
            .prop_map(|(ns, error_ns, thought_ns)| Event::Blackout { ns, error_ns, thought_ns }),
    ]
}

proptest! {
    /// SIP: strictly increasing over any sequence of events, and the limits hold what is true, for
    /// oscillators that are anywhere within their stated limits.
    #[test]
    fn readings_grow_strictly_and_hold_the_truth(
        start in any::<u64>(),
        events in prop::collection::vec((1u64..1 << 40, -50..=50i32, event()), 1..60),
    ) {
        const WITHIN_PPM: u32 = 50;
        let mut counter = start;
        let mut hz = 2_600_000_000;
        let mut clock = ElapsedClock::new(start, Age::ZERO, rate(hz, 0, WITHIN_PPM));
        let mut truth = Duration::ZERO;
        let mut last = clock.at(counter).estimate;
        for (ticks, true_ppm, event) in events {
            // The oscillator's own choice, within the limits: what the clock believes is another.
            let oscillator = rate(hz, true_ppm, WITHIN_PPM).period;
            counter = counter.wrapping_add(ticks);
            truth += oscillator.span(ticks);
            match event {
                Event::Read => {}
                Event::Rate { hz: new, off_ppm } => {
                    hz = new;
                    clock.change_rate(counter, rate(hz, off_ppm, WITHIN_PPM));
                }
                Event::Counter { to, hz: new, off_ppm } => {
                    hz = new;
                    clock.change_counter(counter, to, rate(hz, off_ppm, WITHIN_PPM));
                    counter = to;
                }
                Event::Confine { less_ns, more_ns } => {
                    let ns = Duration::from_nanos;
                    let before = clock.at(counter);
                    clock.confine(counter, truth - ns(less_ns), truth + ns(more_ns) + Duration::from_nanos(1));
                    let after = clock.at(counter);
                    prop_assert!(before.earliest <= after.earliest && after.latest <= before.latest, "{after:?}");
                }
                Event::Blackout { ns, error_ns, thought_ns } => {
                    let ns_of = |ns: i64| Duration::from_nanos(ns.max(0));
                    let (low, high) = (ns_of(ns - error_ns), ns_of(ns + error_ns));
                    let thought = ns_of(ns + thought_ns).max(low).min(high);
                    clock.skip(Age::new(low, thought, high).unwrap());
                    truth += ns_of(ns);
                }
            }
            let age = clock.at(counter);
            prop_assert!(age.estimate > last, "{age:?} after {last:?}");
            prop_assert!(age.earliest <= age.estimate && age.estimate <= age.latest, "{age:?}");
            // The oscillator's own span is rounded down once per event.
            let slack = Duration::from_bits(100);
            prop_assert!(age.earliest <= truth + slack && truth <= age.latest + slack, "{age:?} {truth:?}");
            // The very next tick is later, too.
            prop_assert!(clock.at(counter.wrapping_add(1)).estimate > age.estimate);
            last = age.estimate;
        }
    }

    /// A reader that still holds a value from before an event never reads more than whoever reads
    /// after it.
    #[test]
    fn values_from_before_an_event_are_not_later_than_the_event(
        base in any::<u64>(), ticks in 1u64..1 << 40, before in 0u64..1 << 40, hz in 2_000_000u64..5_000_000_000,
    ) {
        let mut clock = ElapsedClock::new(base, Age::ZERO, rate(1_000_000_000, 0, 10));
        let at = base.wrapping_add(ticks);
        clock.change_rate(at, rate(hz, 0, 10));
        prop_assert!(clock.at(at.wrapping_sub(before)) == clock.at(at));
    }
}
