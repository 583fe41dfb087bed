use timevisor_clock_page::Line;
use timevisor_cluster::node::Origin;
use timevisor_cluster::wire::time_of;
use timevisor_protocols::ntp::precise::{Name, RateLimits};
use timevisor_time::{Period, RateError};

use super::*;

const AT: Moments = Moments { arrived: 1_000, composed: 2_000, left: 10_002_000 };

/// A timeline of 7 s at counter 0, a tick a nanosecond, known to `half_us`.
fn facts(half_us: i64) -> TimelineFacts {
    let period = Period::from_hz(1_000_000_000).unwrap();
    let error = RateError::from_ppm(if half_us == 0 { 0 } else { 30 });
    let line = |us: i64, period| Line {
        time: Instant::from_bits(0) + Duration::from_secs(7) + Duration::from_micros(us),
        period,
    };
    let lines = Lines {
        base: 0,
        expiry: 10_000_000_000,
        earliest: line(-half_us, period.slowest_time(error)),
        estimate: line(0, period),
        latest: line(half_us, period.fastest_time(error)),
        holdover: 0,
    };
    TimelineFacts {
        name: Name::new("cell").unwrap(),
        lines: Some(lines),
        status: ClockStatus::Synchronized,
        origin: Origin { generation: 3, epoch: 9 },
        level: 1,
        rate: RateLimits::within(RateError::from_ppm(100)),
        heard: Some(Duration::from_secs(40)),
    }
}

fn known(facts: &TimelineFacts) -> (ServedTime, Instant<Utc>) {
    match served(facts, AT, -24, Duration::from_secs(42)) {
        (ServedClock::Known(time), received) => (time, received),
        (other, _) => panic!("{other:?}"),
    }
}

#[test]
fn a_master_serves_its_counter_without_an_error() {
    let master = TimelineFacts { level: 0, heard: Some(Duration::MAX), ..facts(0) };
    let (time, received) = known(&master);
    assert_eq!(time_of(received).ceil_nanos(), 7_000_001_000);
    assert_eq!(time_of(time.transmit).ceil_nanos(), 7_000_002_000);
    assert!(time.error <= Duration::from_nanos(1) && time.stratum == 1, "{time:?}");
    let timeline = time.precise.unwrap().timeline.unwrap();
    assert_eq!((timeline.level, timeline.silence), (0, Some(Duration::ZERO)));
}

#[test]
fn a_member_serves_its_bounds_and_when_the_master_was_heard() {
    let (time, _) = known(&facts(50));
    let precise = time.precise.unwrap();
    let Bounds { receive, transmit } = precise.bounds;
    assert!(receive.largest() >= Duration::from_micros(50));
    // 30 ppm of the 10 ms until the answer has left.
    assert!(transmit.largest() >= Duration::from_nanos(50_300), "{transmit:?}");
    assert_eq!((precise.epoch, precise.generation, time.stratum), (9, 3, 2));
    let timeline = precise.timeline.unwrap();
    assert_eq!((timeline.level, timeline.silence), (1, Some(Duration::from_secs(2))));
}

#[test]
fn what_is_not_known_is_not_served_and_what_is_old_is_free_running() {
    let unknown = |facts: &TimelineFacts| match served(facts, AT, -24, Duration::ZERO) {
        (ServedClock::Unknown(why), _) => why,
        (other, _) => panic!("{other:?}"),
    };
    let nothing = TimelineFacts { lines: None, ..facts(50) };
    assert_eq!(unknown(&nothing), Unsynchronized::Starting);
    let doubted = TimelineFacts { status: ClockStatus::Unreliable, ..facts(50) };
    assert_eq!(unknown(&doubted), Unsynchronized::Contradicted);
    let mut old = facts(50);
    old.lines.as_mut().unwrap().expiry = 1;
    assert_eq!(known(&old).0.precise.unwrap().status, Status::FreeRunning);
}
