//! A simulated reference that steps, lies and wanders.

use super::*;

const HZ: u64 = 1_000_000_000;
const START: i128 = 1_700_000_000_000_000_000;

/// A counter 20 ppm slow, a path of 30 us each way plus deterministic queueing, a reference off by
/// `step_ns`, requests that take `upload_ns` longer.
struct Lab {
    clock: ReferenceClock,
    n: u64,
    step_ns: i128,
    upload_ns: u64,
}

fn true_ns(counter: u64) -> i128 {
    START + i128::from(counter) + i128::from(counter) / 50_000
}

impl Lab {
    fn new() -> Self {
        let nominal = Period::from_hz(HZ).unwrap();
        Self {
            clock: ReferenceClock::new(&Parameters::default(), nominal, RateError::ZERO),
            n: 0,
            step_ns: 0,
            upload_ns: 0,
        }
    }

    fn exchange(&mut self) -> Observation {
        self.n += 1;
        let ta = self.n * 16 * HZ;
        let queue = |k: u64| (self.n * k) % 97 * 1000;
        let tm = ta + 30_000 + queue(31) + self.upload_ns;
        let tf = tm + 30_000 + queue(57);
        let t = Instant::from_unix_nanos(true_ns(tm) + self.step_ns);
        self.clock.observe(&Exchange { ta, tb: t, te: t, tf, error: Duration::from_nanos(100) })
    }

    fn now(&self) -> (u64, Instant<Tai>) {
        let counter = (self.n * 16 + 1) * HZ;
        (counter, Instant::from_unix_nanos(true_ns(counter)))
    }
}

#[test]
fn converges_learns_the_rate_and_holds_truth() {
    let mut lab = Lab::new();
    for _ in 0..200 {
        assert_eq!(lab.exchange(), Observation::Used);
        let (counter, truth) = lab.now();
        let view = lab.clock.at(counter).unwrap();
        assert!(view.interval.contains(truth), "truth excluded");
    }
    let (counter, truth) = lab.now();
    let view = lab.clock.at(counter).unwrap();
    assert!((view.limits.half_width().ppb() / 1000.0) < 19.0, "15 ppm around the measured rate");
    // Level 1 at 16 s: the 30 us path, at most 16 s * 18 ppm of ageing.
    assert!(view.interval.width() < Duration::from_micros(400), "{}", view.interval.width());
    assert!((view.estimate - truth).abs() < Duration::from_micros(10), "{}", view.estimate - truth);
}

/// What a cluster, or the page of a host, says: intervals that somebody has concluded. Each has the truth,
/// anywhere, so its middle moves by as much as it is wide, and nothing follows from that.
#[test]
fn the_middle_of_an_interval_says_nothing() {
    let mut lab = Lab::new();
    let mut random = 1_u64;
    for n in 1..2_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Narrow for a while, then wide, as with other servers.
        let half = if n / 200 % 2 == 0 { 5_000 } else { 50_000 };
        let off = i128::from(random >> 33) % (2 * half) - half;
        let counter = n * HZ;
        let t = Instant::from_unix_nanos(true_ns(counter) + off);
        let error = Duration::from_nanos(i64::try_from(half).unwrap());
        let exchange = Exchange { ta: counter, tb: t, te: t, tf: counter, error };
        assert_eq!(lab.clock.observe(&exchange), Observation::Used, "after {n}");
        let view = lab.clock.at(counter).unwrap();
        let truth = Instant::from_unix_nanos(true_ns(counter));
        assert!(view.interval.contains(truth), "after {n}");
        assert!(view.trusted, "after {n}");
        assert_eq!(lab.clock.beyond_floor(), None, "after {n}");
    }
}

#[test]
fn a_stepping_reference_is_a_contradiction_and_the_bounds_keep_the_truth_meanwhile() {
    let mut lab = Lab::new();
    for _ in 0..50 {
        lab.exchange();
    }
    lab.step_ns = 1_000_000;
    assert!(
        matches!(lab.exchange(), Observation::Contradiction(gap) if gap > Duration::from_micros(300))
    );
    for left in (0..8).rev() {
        let (counter, truth) = lab.now();
        let view = lab.clock.at(counter).unwrap();
        assert!(!view.trusted, "{left} exchanges before the end");
        assert!(view.interval.contains(truth), "the old bounds are part of the hull");
        assert_eq!(lab.exchange(), Observation::Used);
    }
    let (counter, _) = lab.now();
    assert!(lab.clock.at(counter).unwrap().trusted, "eight exchanges agree with each other");
    assert_eq!(lab.clock.contradictions(), 1);
}

/// A step of the reference says nothing about the counter's rate: starting over at the nominal one
/// would be 20 us wrong each second, with an error that says much less.
#[test]
fn after_a_contradiction_the_estimate_keeps_the_rate() {
    let mut lab = Lab::new();
    for _ in 0..50 {
        lab.exchange();
    }
    lab.step_ns = 1_000_000;
    assert!(matches!(lab.exchange(), Observation::Contradiction(_)));
    let truth = Period::from_hz(HZ).unwrap().scaled(20e-6);
    for _ in 0..8 {
        let view = lab.clock.at(lab.now().0).unwrap();
        let error = view.period.relative_to(truth);
        assert!(error.abs() < 6e-6, "{error:e}");
        lab.exchange();
    }
}

#[test]
fn an_impossible_exchange_changes_nothing() {
    let mut lab = Lab::new();
    lab.exchange();
    let before = lab.clock.at(lab.now().0);
    let ta = lab.now().0;
    let at = |ns| Instant::from_unix_nanos(ns);
    // The reference says that 1 ms went by between its stamps; our counter saw 60 us in all.
    let x = Exchange {
        ta,
        tb: at(START),
        te: at(START + 1_000_000),
        tf: ta + 60_000,
        error: Duration::ZERO,
    };
    assert_eq!(lab.clock.observe(&x), Observation::Discarded(Discard::ImpossibleResidence));
    assert_eq!(lab.clock.at(lab.now().0), before);
    assert_eq!(lab.clock.discarded()[&Discard::ImpossibleResidence], 1);
}

#[test]
fn a_rate_measured_before_a_restart_is_used_at_once() {
    let mut before = Lab::new();
    for _ in 0..50 {
        before.exchange();
    }
    let measured = before.clock.at(before.now().0).unwrap().limits;
    let mut after = Lab::new();
    after.n = 60;
    after.clock.adopt_rate(&measured);
    after.exchange();
    let (counter, truth) = after.now();
    let view = after.clock.at(counter).unwrap();
    assert_eq!(view.limits, measured);
    assert!(view.interval.contains(truth));
    // Limits of another oscillator are no use.
    let other = RateLimits::around(Period::from_hz(2 * HZ).unwrap(), RateError::from_ppm(15));
    after.clock.adopt_rate(&other);
    assert_eq!(after.clock.at(counter).unwrap().limits, measured);
}

/// A mobile uplink: the estimator begins within an upload and takes the delay for both ways'.
#[test]
fn an_upload_at_the_start_is_forgotten_when_it_ends() {
    let mut lab = Lab::new();
    lab.upload_ns = 400_000_000;
    for _ in 0..20 {
        lab.exchange();
    }
    let off = |lab: &Lab| {
        let (counter, truth) = lab.now();
        (lab.clock.at(counter).unwrap().estimate - truth).abs()
    };
    assert!(off(&lab) > Duration::from_millis(150), "no exchange shows it: {}", off(&lab));
    lab.upload_ns = 0;
    for _ in 0..20 {
        assert_eq!(lab.exchange(), Observation::Used);
    }
    assert!(off(&lab) < Duration::from_micros(50), "{}", off(&lab));
    lab.upload_ns = 400_000_000;
    for _ in 0..20 {
        lab.exchange();
    }
    assert!(off(&lab) < Duration::from_micros(500), "the next one: {}", off(&lab));
}

/// A daemon that stopped before it had measured the rate journals the nominal limits, as its own
/// calibration has them.
#[test]
fn a_rate_that_nobody_measured_is_measured_after_a_restart() {
    let mut lab = Lab::new();
    lab.exchange();
    let unmeasured = lab.clock.at(lab.now().0).unwrap().limits;
    let hair = Period::from_bits(unmeasured.shortest.to_bits() + 1);
    lab.clock.adopt_rate(&RateLimits { shortest: hair, ..unmeasured });
    for _ in 0..50 {
        lab.exchange();
    }
    let limits = lab.clock.at(lab.now().0).unwrap().limits;
    assert!(limits.half_width() < RateError::from_ppm(20), "{limits:?}");
}

/// Found by fuzzing: an end of the bounds met the end of what an instant holds, and their slopes
/// crossed.
#[test]
fn an_absurd_error_makes_no_absurd_slopes() {
    let nominal = Period::from_hz(62_500_000).unwrap();
    let mut clock = ReferenceClock::new(&Parameters::default(), nominal, RateError::ZERO);
    // 158 billion years, give or take as much.
    let secs = 4_991_471_925_827_290_437;
    let (far, error) = (Instant::from_words(secs, 0), Duration::from_secs(secs.cast_signed()));
    clock.observe(&Exchange { ta: 1000, tb: far, te: far, tf: 7000, error });
    for ticks in [0, 4_000_000_000] {
        let view = clock.at(7000 + ticks).unwrap();
        assert!(view.interval.contains(far));
        assert!(view.slopes.shortest <= view.slopes.longest, "{view:?}");
    }
}

/// Intervals at one value of the counter, ten minutes apart, and nothing for an hour.
#[test]
fn two_visits_give_the_rate() {
    for ppm in [0.3, 3.0, 30.0] {
        let nominal = Period::from_hz(HZ).unwrap();
        let mut clock = ReferenceClock::new(&Parameters::default(), nominal, RateError::ZERO);
        let truth = |seconds: u64| {
            let slower = Duration::from_secs_f64(seconds as f64 * (1.0 - ppm * 1e-6));
            Instant::from_unix_nanos(START) + slower
        };
        for seconds in [1, 601] {
            let (ticks, time) = (seconds * HZ, truth(seconds));
            let error = Duration::from_micros(50);
            clock.observe(&Exchange { ta: ticks, tb: time, te: time, tf: ticks, error });
        }
        let view = clock.at(4201 * HZ).unwrap();
        let error_us = (view.estimate - truth(4201)).as_secs_f64() * 1e6;
        assert!(view.interval.contains(truth(4201)));
        // What the wander that is possible takes off the rate; without the second one 30 ppm would be 108 ms.
        assert!(error_us.abs() < 5.0 * ppm, "{ppm} ppm: {error_us} us");
    }
}
