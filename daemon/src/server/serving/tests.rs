//! Tests of the served clock with pages written here, and of the whole thread over loopback.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use tempfile::TempDir;
use timevisor_clock_page::{CounterId, Identity, Line, Lines, PageWriter, Slew, Update};
use timevisor_linux::counter::HostMonotonicRaw;
use timevisor_linux::page::WritePage;
use timevisor_linux::page_file::PageSize;
use timevisor_protocols::ntp::server::{Config, Tally};
use timevisor_protocols::ntp::{
    Client, Config as ClientConfig, Exchange, LeapIndicator, Outcome, Packet,
};
use timevisor_time::{Period, RateError, TimescaleId};

use super::super::clients::ClientList;
use super::*;
use crate::references::Upstream;

const COUNTER: HostCounter = HostCounter::MonotonicRaw(HostMonotonicRaw::INITIAL);
/// 2027-01-15T08:00:00 TAI.
pub(in crate::server) const TAI: i64 = 1_800_000_000;
const RHO: RateError = RateError::from_ppm(15);

pub(in crate::server) struct Bench {
    folder: TempDir,
    writer: PageWriter<WritePage>,
    /// The counter value at which the lines start.
    base: u64,
}

impl Bench {
    pub(in crate::server) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let page = page_file::create(&folder.path().join("clock"), PageSize::Page).unwrap();
        let identity = Identity {
            counter: CounterId::MonotonicRaw,
            timescale: TimescaleId::Tai,
            host: [1; 16],
            vm: [0; 16],
            timeline: "tai",
            epoch: 1,
        };
        let writer = PageWriter::take_over(WritePage::new(page).unwrap(), identity, Some(37));
        Self { folder, writer, base: 0 }
    }

    /// 200 us above, 100 us below, within 15 ppm, valid from now on and for 10 s.
    pub(in crate::server) fn publish(&mut self, status: ClockStatus) {
        self.base = COUNTER.read_ordered();
        let period = Period::from_hz(1_000_000_000).unwrap();
        let time = Instant::from_unix_nanos(i128::from(TAI) * 1_000_000_000);
        let line = |off, period| Line { time: time + Duration::from_micros(off), period };
        let update = Update {
            target: Lines {
                base: self.base,
                expiry: self.base + 10_000_000_000,
                earliest: line(-100, period.slowest_time(RHO)),
                estimate: line(0, period),
                latest: line(200, period.fastest_time(RHO)),
                holdover: 0,
            },
            status,
            estimated_error: Duration::from_micros(1),
            as_of: self.base,
            tai_offset: Some(37),
            slew: Slew { horizon: 8_000_000_000, jump: Duration::from_millis(1) },
        };
        self.writer.publish(&update, &COUNTER);
    }

    /// The thread's part, for this page.
    pub(in crate::server) fn serving(
        &self,
        socket: UdpServer,
        server: Server,
        keys: Option<nts::Keys>,
    ) -> Serving {
        let calibration = self.clock(None).calibration;
        let page = self.folder.path().join("clock");
        Serving::new(vec![socket], server, &page, calibration, 10, keys).unwrap()
    }

    fn clock(&self, facts: Option<Facts>) -> PageClock {
        let period = Period::from_hz(1_000_000_000).unwrap();
        let calibration = Calibration { period, error: RateError::ZERO };
        let mut clock =
            PageClock::open(&self.folder.path().join("clock"), calibration, 10).unwrap();
        clock.facts = facts;
        clock
    }
}

pub(in crate::server) fn facts() -> Facts {
    Facts {
        upstream: Some(Upstream { stratum: 2, id: [192, 0, 2, 1] }),
        as_of: 0,
        leap: Some(LeapPlan { offset: 37, change: None }),
    }
}

fn known(clock: &PageClock, arrived: u64) -> (ServedTime, Instant<Utc>) {
    match clock.at(arrived) {
        (ServedClock::Known(time), received, _) => (time, received),
        (other, ..) => panic!("{other:?}"),
    }
}

fn unknown(clock: &PageClock) -> Unsynchronized {
    match clock.at(COUNTER.read_ordered()) {
        (ServedClock::Unknown(why), ..) => why,
        (other, ..) => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_known_is_not_served() {
    let mut bench = Bench::new();
    assert_eq!(unknown(&bench.clock(Some(facts()))), Unsynchronized::Starting);
    bench.publish(ClockStatus::Synchronized);
    assert_eq!(unknown(&bench.clock(None)), Unsynchronized::Starting, "nothing told yet");
    let no_utc = Facts { leap: None, ..facts() };
    assert_eq!(unknown(&bench.clock(Some(no_utc))), Unsynchronized::Starting);
    bench.publish(ClockStatus::Unreliable);
    assert_eq!(unknown(&bench.clock(Some(facts()))), Unsynchronized::Contradicted);
}

#[test]
fn the_error_covers_the_half_width_from_arrival_to_departure() {
    for status in [ClockStatus::Synchronized, ClockStatus::Initializing, ClockStatus::FreeRunning] {
        let mut bench = Bench::new();
        bench.publish(status);
        let clock = bench.clock(Some(facts()));
        let arrived = bench.base + 1000;
        let (time, received) = known(&clock, arrived);
        let at = |counter| clock.reader.convert(counter).unwrap();
        let departure = at(COUNTER.read_ordered() + 1_000_000);
        assert!(time.error >= departure.half_width() && time.error >= at(arrived).half_width());
        assert!(time.error <= departure.half_width() + Duration::from_micros(1));
        assert!(received <= time.transmit && received.secs() == TAI - 37);
        assert_eq!((time.stratum, time.reference_id), (3, [192, 0, 2, 1]));
        assert_eq!(time.leap, LeapIndicator::NoWarning);
        assert!((-30..0).contains(&time.precision), "{}", time.precision);
    }
}

#[test]
fn free_running_time_is_served_with_its_growing_error() {
    let mut bench = Bench::new();
    bench.publish(ClockStatus::Synchronized);
    let clock = bench.clock(Some(facts()));
    let at = |seconds: u64| clock.reader.convert(bench.base + seconds * 1_000_000_000).unwrap();
    let (hour, later) = (at(3600), at(3601));
    assert_eq!(hour.status(), ClockStatus::FreeRunning);
    let (ServedClock::Known(time), _) = clock.served(&hour, &hour, &later) else { panic!() };
    // 200 us, plus 15 ppm of an hour.
    assert!(time.error >= Duration::from_millis(54) && time.error >= later.half_width());
}

#[test]
fn without_an_ntp_server_behind_it_the_stratum_is_configured() {
    let mut bench = Bench::new();
    bench.publish(ClockStatus::Synchronized);
    let clock = bench.clock(Some(Facts { upstream: None, ..facts() }));
    let (time, _) = known(&clock, COUNTER.read_ordered());
    assert_eq!((time.stratum, time.reference_id), (10, LOCAL_ID));
    let deepest = Upstream { stratum: 15, id: [1, 1, 1, 1] };
    let clock = bench.clock(Some(Facts { upstream: Some(deepest), ..facts() }));
    assert!(!known(&clock, COUNTER.read_ordered()).0.is_usable(), "stratum 16");
}

#[test]
fn around_a_leap_second_nothing_is_said_and_before_it_is_announced() {
    let mut bench = Bench::new();
    bench.publish(ClockStatus::Synchronized);
    let with = |at: i64| {
        let leap = Some(LeapPlan { offset: 37, change: Some((at, 38)) });
        bench.clock(Some(Facts { leap, ..facts() }))
    };
    let mute = with(TAI - 37 + 1).at(COUNTER.read_ordered()).0;
    assert_eq!(mute, ServedClock::Mute);
    let (time, _) = known(&with(TAI - 37 + 3600), COUNTER.read_ordered());
    assert_eq!(time.leap, LeapIndicator::Insert);
    let (time, _) = known(&with(TAI - 37 - 3600), COUNTER.read_ordered());
    assert_eq!((time.leap, time.transmit.secs()), (LeapIndicator::NoWarning, TAI - 38));
}

#[test]
fn precision_is_rounded_up_to_a_power_of_two() {
    for (nanos, exponent) in [(1, -29), (30, -24), (59, -24), (60, -23), (1_000_000_000, 0)] {
        assert_eq!(log2_ceil(Duration::from_nanos(nanos)), exponent, "{nanos} ns");
    }
    assert_eq!(log2_ceil(Duration::EPSILON), -32);
    assert_eq!(log2_ceil(Duration::MAX), 0);
}

#[test]
fn precise_bounds_are_the_pages_own() {
    let mut bench = Bench::new();
    bench.publish(ClockStatus::Synchronized);
    let clock = bench.clock(Some(facts()));
    let (time, _) = known(&clock, bench.base + 1000);
    let precise = time.precise.unwrap();
    let Bounds { receive, transmit } = precise.bounds;
    // 100 us below, 200 us above, and 15 ppm of the few milliseconds of a test.
    let near = |span: Duration, micros| {
        span >= Duration::from_micros(micros) && span < Duration::from_micros(micros + 50)
    };
    assert!(near(receive.below, 100) && near(receive.above, 200), "{receive:?}");
    assert!(near(transmit.below, 100) && near(transmit.above, 200), "{transmit:?}");
    assert!(transmit.above > receive.above, "it grows until the reply has left");
    assert_eq!(precise.bounds.largest(), time.error);
    assert_eq!(precise.status, Status::Synchronized);
    assert_eq!(precise.epoch, clock.reader.read().unwrap().disruption);
}

#[test]
fn a_client_of_the_thread_gets_the_pages_time() {
    clients_get_the_pages_time(false);
}

#[test]
fn a_client_of_the_thread_gets_the_pages_bounds() {
    clients_get_the_pages_time(true);
}

/// The thread, with a client of ours in interleaved mode: the client's result must contain the
/// page's own time.
fn clients_get_the_pages_time(precise: bool) {
    let mut bench = Bench::new();
    bench.publish(ClockStatus::Synchronized);
    let reference = bench.clock(Some(facts()));
    let socket = UdpServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.address();
    let config = Config { rate_interval: Duration::ZERO, ..Config::default() };
    let server = Server::new(config, 1).unwrap();
    let serving = bench.serving(socket, server, None);
    let counts = Arc::new(Counts::default());
    let (tell, told) = sync_channel(1);
    tell.send(Told { facts: facts(), timelines: Vec::new() }).unwrap();
    let shared = Arc::clone(&counts);
    let thread = std::thread::spawn(move || serving.run(&told, &shared, &ClientList::default()));

    let client_config = ClientConfig { interleaved: true, precise, ..ClientConfig::default() };
    let mut client = Client::new(client_config, Duration::ZERO).unwrap();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    let near = Instant::from_unix_nanos(i128::from(TAI) * 1_000_000_000);
    let mut seen: Vec<Exchange> = Vec::new();
    let mut now = Duration::ZERO;
    for n in 1..=8u64 {
        now = now.max(client.poll_at());
        let request = client.on_timer(now, n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
        client.sent(COUNTER.read_ordered());
        socket.send(&request.bytes).unwrap();
        let mut buffer = [0; 256];
        let len = socket.recv(&mut buffer).unwrap();
        let stamps = |ta| (ta, COUNTER.read_ordered());
        if let Outcome::Exchange(exchange) = client.on_datagram(now, &buffer[..len], near, stamps) {
            seen.push(exchange);
        }
        assert_eq!(Packet::parse(&buffer[..len]).unwrap().0.stratum, 3);
    }
    drop(tell);
    thread.join().unwrap();
    assert!(seen.len() >= 6, "{seen:?}");
    assert!(seen.iter().filter(|x| x.response.is_interleaved()).count() >= 4, "{seen:?}");
    for Exchange { ta, tf, response } in seen {
        let page = |counter| {
            let reading = reference.reader.convert(counter).unwrap();
            (reading.estimate.relabel() - Duration::from_secs(37), reading.half_width())
        };
        let ((sent, _), (received, width)) = (page(ta), page(tf));
        // The time stamps lie within the exchange and on the page's own estimate, except for
        // rounding.
        let rounding = Duration::from_nanos(2);
        assert!(sent <= response.tb + rounding && response.te <= received + rounding);
        assert!(response.tb <= response.te + rounding, "{response:?}");
        assert!(response.root_dispersion >= width, "{response:?} {width}");
        let Some(Bounds { receive, transmit }) = response.precise else {
            assert!(!precise, "{response:?}");
            continue;
        };
        // The page's bounds at the two ends of the exchange are those of the stamps but for the
        // growth, 15 ppm of less than a second, and the rounding.
        let growth = Duration::from_micros(15);
        for errors in [receive, transmit] {
            assert!(errors.below >= Duration::from_micros(100) && errors.above >= width - growth);
            assert!(errors.below < Duration::from_micros(100) + growth, "{response:?}");
            assert!(errors.above < width + growth, "{response:?}");
        }
        assert!(response.error_budget() + Duration::from_micros(8) < response.stated_error());
    }
    let count = |tally: Tally| counts[tally as usize].load(Ordering::Relaxed);
    assert_eq!((count(Tally::Received), count(Tally::Answered)), (8, 8));
    assert!(count(Tally::Interleaved) >= 4);
    assert_eq!(count(Tally::Precise), if precise { 8 } else { 0 });
}
