//! Hand-made worlds with known correct results.

use super::*;

const HZ: u64 = 1_000_000_000;
const START_NS: i128 = 1_700_000_000_000_000_000;
const POLL: u64 = 16;
const SECOND_NS: i64 = 1_000_000_000;

/// A 1 GHz counter whose true period is longer by `slow_ppb`, and a path of `forward_ns` and
/// `backward_ns`.
struct World {
    clock: Radclock,
    counter: u64,
    slow_ppb: i128,
    forward_ns: u64,
    backward_ns: u64,
}

impl World {
    fn new(parameters: &RadclockParameters) -> Self {
        let clock = Radclock::new(parameters, Period::from_hz(HZ).unwrap());
        Self { clock, counter: 5 * HZ, slow_ppb: 20_000, forward_ns: 30_000, backward_ns: 30_000 }
    }

    fn truth(&self, counter: u64) -> Instant<Tai> {
        let ticks = i128::from(counter);
        Instant::from_unix_nanos(START_NS + ticks + ticks * self.slow_ppb / 1_000_000_000)
    }

    /// One exchange with queueing in each direction; the next one is a poll interval later.
    fn exchange(&mut self, forward_queue: u64, backward_queue: u64) {
        let ta = self.counter;
        let at_server = ta + self.forward_ns + forward_queue;
        let tf = at_server + self.backward_ns + backward_queue;
        let t = self.truth(at_server);
        self.clock.observe(&Exchange { ta, tb: t, te: t, tf, error: Duration::ZERO });
        self.counter += POLL * HZ;
    }

    /// `n` exchanges, some of which are delayed by queueing.
    fn run(&mut self, n: u64) {
        for i in 0..n {
            self.exchange(if i % 3 == 0 { 0 } else { 20_000 * (i % 7) }, 10_000 * (i % 4));
        }
    }

    /// Clock minus truth now, ns.
    fn error_ns(&self) -> i64 {
        (self.clock.at(self.counter).unwrap().time - self.truth(self.counter)).floor_nanos()
    }

    fn minimum(&self) -> u64 {
        self.clock.running.as_ref().unwrap().round_trip.minimum()
    }
}

#[test]
fn profiles_are_valid_and_nonsense_is_named() {
    for profile in
        [RadclockParameters::excellent(), RadclockParameters::good(), RadclockParameters::poor()]
    {
        assert_eq!(profile.validate(), Ok(()));
    }
    let bad = RadclockParameters { poll: Duration::ZERO, ..RadclockParameters::default() };
    assert_eq!(bad.validate().unwrap_err().name, "poll");
}

#[test]
fn windows_are_the_published_ones() {
    // docs/explanation/estimation.md, "RADclock", at a poll of 16 s.
    let good = Windows::new(&RadclockParameters::good());
    let published = Windows {
        history: 37_800,
        shift: 100,
        offset: 64,
        local: 320,
        local_ends: 64,
        warmup: 480,
    };
    assert_eq!(good, published);
    let poor = Windows::new(&RadclockParameters::poor());
    assert_eq!((poor.offset, poor.local, poor.warmup), (32, 160, 240));
}

#[test]
fn thresholds_are_the_published_ones() {
    let near = Thresholds::new(&RadclockParameters::good());
    assert!((near.offset_width - 150e-6).abs() < 1e-12);
    assert!((near.offset_quality - 450e-6).abs() < 1e-12);
    assert!((near.period_quality - 1e-7).abs() < 1e-18);
    assert_eq!(near.shift.ceil_nanos(), 150_000);
    let mut far = near;
    far.calibrate(Duration::from_millis(20), &RadclockParameters::good());
    assert_eq!(far.shift.ceil_nanos(), 450_000);
    assert!((far.offset_quality - 900e-6).abs() < 1e-12);
    let mut close = near;
    close.calibrate(Duration::from_micros(60), &RadclockParameters::good());
    assert_eq!(close, near);
}

#[test]
fn the_first_exchange_is_enough_to_read() {
    let mut w = World::new(&RadclockParameters::good());
    assert!(w.clock.at(0).is_none());
    assert!(w.clock.difference(0, HZ).is_none());
    w.exchange(0, 0);
    // 16 s at the nominal rate, which is wrong by 20 ppm, from a first stamp that is off by one
    // one-way delay.
    assert!((w.error_ns() + 320_000).abs() < 31_000, "{}", w.error_ns());
    let error = w.clock.at(w.counter).unwrap().error;
    assert!(error > Duration::from_micros(1600), "100 ppm over 16 s: {error}");
}

#[test]
fn warmup_ends_with_the_windows_full_and_a_measured_rate() {
    let mut w = World::new(&RadclockParameters::good());
    w.run(479);
    assert!(w.clock.is_warming_up());
    w.run(1);
    assert!(!w.clock.is_warming_up());
    let ppm = w.clock.at(w.counter).unwrap().period.relative_to(Period::from_hz(HZ).unwrap()) * 1e6;
    assert!((ppm - 20.0).abs() < 0.01, "{ppm}");
    assert_eq!(w.minimum(), 60_000);
    w.run(200);
    // The average queueing is 60 us forward and 15 us backward; half of the difference is 22 us.
    // The weights remove most of it.
    assert!(w.error_ns().abs() < 22_000, "{}", w.error_ns());
    assert!(w.clock.at(w.counter).unwrap().error < Duration::from_micros(50));
}

#[test]
fn without_queueing_the_clock_is_exact() {
    let mut w = World::new(&RadclockParameters::good());
    for _ in 0..600 {
        w.exchange(0, 0);
    }
    assert!(w.error_ns().abs() <= 2, "{}", w.error_ns());
    let measured = w.clock.difference(w.counter, w.counter + 100 * HZ).unwrap();
    let truth = w.truth(w.counter + 100 * HZ) - w.truth(w.counter);
    assert!((measured - truth).abs() < Duration::from_nanos(10), "{measured} {truth}");
}

#[test]
fn an_upward_shift_is_adopted_from_its_start_on() {
    let mut w = World::new(&RadclockParameters::good());
    w.run(700);
    w.backward_ns += 400_000;
    w.run(99);
    assert_eq!(w.minimum(), 60_000, "a shift window is not full yet");
    w.run(1);
    assert_eq!(w.minimum(), 460_000);
    let history = &w.clock.history;
    assert!(history.last(100).all(|stamp| stamp.minimum == 460_000));
    let older = history.range(0, history.count() - 101);
    assert!(older.into_iter().all(|stamp| stamp.minimum == 60_000));
    // A symmetric estimator cannot see the asymmetry of the new route: half of 400 us remains, and
    // nothing else.
    w.run(200);
    assert!((w.error_ns() + 200_000).abs() < 25_000, "{}", w.error_ns());
}

#[test]
fn an_upward_shift_below_the_threshold_is_queueing() {
    let mut w = World::new(&RadclockParameters::good());
    w.run(700);
    w.backward_ns += 140_000;
    w.run(300);
    assert_eq!(w.minimum(), 60_000);
}

#[test]
fn a_downward_shift_is_adopted_at_once() {
    let mut w = World::new(&RadclockParameters::good());
    w.forward_ns = 500_000;
    w.run(700);
    assert_eq!(w.minimum(), 530_000);
    w.forward_ns = 30_000;
    w.exchange(0, 0);
    assert_eq!(w.minimum(), 60_000);
}

#[test]
fn the_local_rate_follows_a_rate_change() {
    let mut w = World::new(&RadclockParameters::good());
    w.run(700);
    let relative = |w: &World| {
        let local = w.clock.running.as_ref().unwrap().local.unwrap();
        local.relative_to(Period::from_hz(HZ).unwrap()) * 1e9
    };
    assert!((relative(&w) - 20_000.0).abs() < 15.0, "{}", relative(&w));
    // The rate is 300 ppb higher from here on. The truth stays continuous because the counter's
    // origin moves instead.
    let turn = w.counter;
    let before = w.truth(turn);
    w.slow_ppb += 300;
    let jump = w.truth(turn) - before;
    let shift = jump.floor_nanos();
    for i in 0..450 {
        let ta = w.counter;
        let at_server = ta + w.forward_ns;
        let t = w.truth(at_server) - Duration::from_nanos(shift);
        let tf = at_server + w.backward_ns + if i % 2 == 0 { 0 } else { 30_000 };
        w.clock.observe(&Exchange { ta, tb: t, te: t, tf, error: Duration::ZERO });
        w.counter += POLL * HZ;
    }
    assert!((relative(&w) - 20_300.0).abs() < 15.0, "{}", relative(&w));
}

#[test]
fn a_step_of_the_reference_is_not_believed() {
    let mut w = World::new(&RadclockParameters::good());
    w.run(700);
    let before = w.error_ns();
    // One of 64 stamps moves the mean by 8 ms; 100 TSLIMIT and the allowance for the gap are 1.7
    // ms.
    for _ in 0..16 {
        let ta = w.counter;
        let t = w.truth(ta + 30_000) + Duration::from_millis(500);
        w.clock.observe(&Exchange { ta, tb: t, te: t, tf: ta + 60_000, error: Duration::ZERO });
        w.counter += POLL * HZ;
    }
    assert!((w.error_ns() - before).abs() < 10_000, "{} {before}", w.error_ns());
}

#[test]
fn a_period_that_jumps_is_not_believed() {
    let mut w = World::new(&RadclockParameters::good());
    w.run(700);
    let ticks = 100_000 * HZ;
    let newest = *w.clock.history.newest().unwrap();
    let candidate = |w: &World, off_ppb: i64| {
        let mut global = w.clock.running.as_ref().unwrap().global.clone().unwrap();
        let mut stamp = Stamp { ta: newest.ta + ticks, tf: newest.ta + ticks + 60_000, ..newest };
        let off = Duration::from_nanos(100_000 * off_ppb);
        (stamp.tb, stamp.te) = (w.truth(stamp.ta + 30_000) + off, w.truth(stamp.ta + 30_000) + off);
        global.observe(&stamp, w.clock.at(w.counter).unwrap().period, &w.clock.thresholds)
    };
    // Three rate error bounds of 500 ppb. The baseline is some 10 % longer than the 100000 s with
    // the wrong rate.
    assert!(candidate(&w, 0).is_some());
    assert!(candidate(&w, 1400).is_some());
    assert!(candidate(&w, 1800).is_none());
    assert!(candidate(&w, -1800).is_none());
}

#[test]
fn the_history_slides_and_the_anchor_with_it() {
    let parameters = RadclockParameters {
        history: Duration::from_secs(16 * 3600),
        ..RadclockParameters::poor()
    };
    let windows = Windows::new(&parameters);
    assert_eq!(windows.history, 3600);
    let mut w = World::new(&parameters);
    w.forward_ns = 25_000;
    w.run(windows.warmup);
    w.forward_ns = 30_000;
    w.run(windows.history - windows.warmup - 1);
    assert_eq!(w.minimum(), 55_000, "the fastest of the whole history");
    w.run(1);
    assert_eq!(w.minimum(), 60_000, "what is older than half a history is forgotten");
    w.run(50);
    let ppm = w.clock.at(w.counter).unwrap().period.relative_to(Period::from_hz(HZ).unwrap()) * 1e6;
    assert!((ppm - 20.0).abs() < 0.005, "{ppm}");
}

#[test]
fn a_wrapping_counter_is_no_disturbance() {
    let mut w = World::new(&RadclockParameters::poor());
    let wrap = |c: u64| c.wrapping_sub(700 * POLL * HZ);
    for i in 0..1000_u64 {
        let ta = w.counter;
        let t = w.truth(ta + 30_000);
        let exchange =
            Exchange { ta: wrap(ta), tb: t, te: t, tf: wrap(ta + 60_000), error: Duration::ZERO };
        w.clock.observe(&exchange);
        w.counter += POLL * HZ;
        let error = w.clock.at(wrap(w.counter)).unwrap().time - w.truth(w.counter);
        assert!(i < 10 || error.abs() < Duration::from_nanos(50), "{i}: {error}");
    }
}

#[test]
fn the_uncorrected_clock_is_continuous_when_its_period_changes() {
    let mut w = World::new(&RadclockParameters::good());
    let mut changes = [0, 0];
    for n in 0..700 {
        let before = w.clock.history.newest().map(|stamp| stamp.ta);
        let running = w.clock.running.as_ref();
        let was = running.zip(before).map(|(r, ta)| (ta, r.clock.at(ta), r.clock.period));
        let phase = usize::from(!w.clock.is_warming_up());
        w.exchange(7_000 * (n * 5 % 11), 11_000 * (n * 3 % 7));
        let Some((ta, time, period)) = was else { continue };
        let clock = w.clock.running.as_ref().unwrap().clock;
        assert_eq!(clock.at(ta), time, "at exchange {n}");
        changes[phase] += u64::from(clock.period != period);
    }
    assert!(changes[0] > 20 && changes[1] > 20, "{changes:?}");
}

#[test]
fn the_uncorrected_clock_counts_in_both_directions() {
    let period = Period::from_hz(HZ).unwrap();
    let time = Instant::from_unix_nanos(START_NS);
    let clock = Uncorrected { counter: 100 * HZ, time, period };
    assert_eq!((clock.at(101 * HZ) - time).ceil_nanos(), SECOND_NS);
    assert_eq!((clock.at(99 * HZ) - time).floor_nanos(), -SECOND_NS);
}
