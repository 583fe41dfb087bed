//! Breaks each rule on purpose, on a real page.

use timevisor_clock_page::{Counter, Identity, Line, PageWriter, Slew, Update};
use timevisor_time::{Period, RateError, TimescaleId};

use super::*;
use crate::machine::{SharedPage, SimulatedCounter, reader};

const HZ: u64 = 1_000_000_000;

/// A page on which a test writes any lines, with a counter that is true time in nanoseconds.
struct Desk {
    page: SharedPage,
    counter: SimulatedCounter,
    checks: Checks,
}

impl Desk {
    fn new(fault_s: Option<f64>) -> Self {
        let (page, counter) = (SharedPage::default(), SimulatedCounter::default());
        Self { page, counter, checks: Checks::new(Instant::from_bits(0), 0.0, fault_s) }
    }

    fn look(&self) -> Option<(Reading, Lines<Local>)> {
        let reader = reader(&self.page, &self.counter).ok()?;
        Some((reader.read().ok()?, reader.lines().ok()?))
    }

    /// A daemon that starts at second `t` and resumes from arbitrary lines, which are not forced to
    /// nest. Errors in us.
    fn publish(&mut self, t: i64, [earliest, estimate, latest]: [i64; 3], status: ClockStatus) {
        let now = t.cast_unsigned() * HZ;
        self.counter.set(now);
        let before = self.look();
        let period = Period::from_hz(HZ).unwrap();
        let at = |us| Instant::from_bits(0) + Duration::from_secs(t) + Duration::from_micros(us);
        let rho = RateError::from_ppm(15);
        let target = Lines {
            base: now,
            expiry: now + 10 * HZ,
            earliest: Line { time: at(earliest), period: period.slowest_time(rho) },
            estimate: Line { time: at(estimate), period },
            latest: Line { time: at(latest), period: period.fastest_time(rho) },
            holdover: 0,
        };
        let slew = Slew { horizon: HZ, jump: Duration::from_secs(1) };
        let update = Update {
            target,
            status,
            estimated_error: Duration::ZERO,
            as_of: now,
            tai_offset: None,
            slew,
        };
        let identity = Identity {
            counter: self.counter.id(),
            timescale: TimescaleId::Tai,
            host: [0; 16],
            vm: [0; 16],
            timeline: "tai",
            epoch: 0,
        };
        let _writer = PageWriter::recover(self.page.clone(), identity, &update, &self.counter);
        let t = Duration::from_secs(t);
        if let (Some(before), Some(after)) = (before, self.look()) {
            self.checks.publication(t, &before, &after);
        }
    }

    fn second(&mut self, t: i64) {
        self.counter.set(t.cast_unsigned() * HZ);
        let (reading, _) = self.look().unwrap();
        self.checks.second(Duration::from_secs(t), &reading);
    }
}

#[test]
fn truth_inside_nested_bounds_that_go_forward_is_fine() {
    let mut desk = Desk::new(None);
    desk.publish(1, [-50, 0, 50], ClockStatus::Synchronized);
    desk.second(2);
    desk.publish(3, [-49, 10, 49], ClockStatus::Synchronized);
    desk.second(4);
    let checks = &desk.checks;
    assert_eq!((checks.vouched, checks.uncovered, checks.unnested, checks.backward), (4, 0, 0, 0));
    assert_eq!((checks.coverage(), checks.alarms, checks.disruptions), (1.0, 0, 0));
    assert!((checks.max_jump_ns - 10_000.0).abs() < 0.1, "{}", checks.max_jump_ns);
    let last = checks.points[1];
    assert!((last.t_s - 4.0).abs() < 1e-9 && (last.offset_us - 10.0).abs() < 1e-3);
    // A second at 15 ppm is 15 us.
    assert!((last.latest_us - 64.0).abs() < 0.1, "{last:?}");
}

#[test]
fn truth_outside_is_counted_unless_the_status_says_so() {
    let mut desk = Desk::new(None);
    desk.publish(1, [5, 20, 50], ClockStatus::Synchronized);
    desk.second(1);
    assert_eq!((desk.checks.vouched, desk.checks.uncovered), (1, 1));
    assert!((desk.checks.worst_excess_us - 5.0).abs() < 0.01);
    let mut desk = Desk::new(None);
    desk.publish(1, [5, 20, 50], ClockStatus::Unreliable);
    desk.second(1);
    desk.second(2);
    assert_eq!((desk.checks.vouched, desk.checks.coverage(), desk.checks.alarms), (0, 1.0, 1));
}

#[test]
fn wider_bounds_do_not_nest_until_the_old_ones_expire() {
    let mut desk = Desk::new(None);
    desk.publish(1, [-50, 0, 50], ClockStatus::Synchronized);
    desk.publish(2, [-50, 0, 67], ClockStatus::Synchronized);
    assert_eq!(desk.checks.unnested, 1);
    // Inside now, outside at the expiry of what was published before.
    let mut desk = Desk::new(None);
    desk.publish(1, [-50, 0, 50], ClockStatus::Synchronized);
    desk.publish(5, [-111, 0, 50], ClockStatus::Synchronized);
    assert_eq!(desk.checks.unnested, 1);
}

#[test]
fn an_estimate_that_goes_back_is_counted() {
    let mut desk = Desk::new(None);
    desk.publish(1, [-50, 20, 50], ClockStatus::Synchronized);
    desk.publish(1, [-50, 10, 50], ClockStatus::Synchronized);
    assert_eq!(desk.checks.backward, 1);
}

#[test]
fn an_alarm_is_in_time_or_late_by_so_much() {
    let mut late = Desk::new(Some(10.0));
    late.publish(8, [-50, 0, 50], ClockStatus::Unreliable);
    late.publish(9, [-50, 0, 50], ClockStatus::Synchronized);
    late.publish(12, [7, 20, 50], ClockStatus::Synchronized);
    late.publish(13, [7, 20, 50], ClockStatus::Unreliable);
    let found = late.checks.detection;
    assert_eq!((found.exit_s, found.alarm_s), (Some(12.0), Some(13.0)));
    assert_eq!((late.checks.alarms, late.checks.false_alarms), (2, 1));
    // A second later the bound had grown by 15 us; what counts is the worst value before the alarm.
    assert!(found.residual_us > 6.9 && found.residual_us < 7.1, "{found:?}");

    let mut timely = Desk::new(Some(10.0));
    timely.publish(11, [-50, 0, 50], ClockStatus::Unreliable);
    timely.second(11);
    timely.publish(12, [7, 20, 50], ClockStatus::Synchronized);
    timely.second(12);
    assert_eq!(
        (timely.checks.detection.exit_s, timely.checks.detection.alarm_s),
        (None, Some(11.0))
    );
    assert!(timely.checks.uncovered > 0);
}
