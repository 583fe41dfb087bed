//! Waits on a real page in a file, with this machine's counter and a writer that keeps publishing.
//! What waits report is checked against the clock that they wait for.

#![expect(clippy::unwrap_used, reason = "every line here is a test")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use timevisor::{
    Change, Client, MissedTicks, Notice, Options, ReadError, Requirement, Status, Timeline,
    TimelineError, WaitError, WaitOptions, When,
};
use timevisor_clock_page::{
    ClockStatus, Counter, EntryIdentity, Identity, Line, Lines, PageWriter, Slew, Update,
};
use timevisor_linux::counter::{self, Choice, HostCounter};
use timevisor_linux::page::WritePage;
use timevisor_linux::page_file::{self, PageSize};
use timevisor_linux::udp::UdpClient;
use timevisor_time::{Duration as Span, Instant, Local, Period, RateError, TimescaleId};

/// About 2026-01-01 00:00:00 TAI.
const EPOCH_NS: i64 = 1_767_225_637_000_000_000;

/// A daemon in a test: what it publishes is right by definition, its bounds grow by 15 ppm and are
/// renewed every 20 ms.
struct Daemon {
    _folder: tempfile::TempDir,
    path: PathBuf,
    counter: HostCounter,
    period: Period,
    started: u64,
    writer: PageWriter<WritePage>,
    half_width: Span,
}

impl Daemon {
    fn new(half_width: Span) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clock");
        let (counter, _) = counter::select(Choice::Auto).unwrap();
        let period = counter::calibrate(&counter).unwrap().period;
        let identity = Identity {
            counter: counter.id(),
            timescale: TimescaleId::Tai,
            host: [7; 16],
            vm: [0; 16],
            timeline: "tai",
            epoch: 1,
        };
        let page = WritePage::new(page_file::create(&path, PageSize::Page).unwrap()).unwrap();
        let writer = PageWriter::take_over(page, identity, Some(37));
        let started = counter.read_ordered();
        let mut daemon =
            Self { _folder: folder, path, counter, period, started, writer, half_width };
        daemon.publish();
        daemon
    }

    fn update(&self) -> Update {
        let base = self.counter.read_ordered();
        let now: Instant<Local> = Instant::from_unix_nanos(i128::from(EPOCH_NS))
            + self.period.span(base.wrapping_sub(self.started));
        let line = |time, period| Line { time, period };
        let drift = RateError::from_ppm(15);
        Update {
            target: Lines {
                base,
                expiry: base.wrapping_add(self.period.ticks_in(Span::from_secs(1))),
                earliest: line(now - self.half_width, self.period.slowest_time(drift)),
                estimate: line(now, self.period),
                latest: line(now + self.half_width, self.period.fastest_time(drift)),
                holdover: 0,
            },
            status: ClockStatus::Synchronized,
            estimated_error: Span::from_nanos(100),
            as_of: base,
            tai_offset: Some(37),
            slew: Slew {
                horizon: self.period.ticks_in(Span::from_secs(4)),
                jump: Span::from_millis(1),
            },
        }
    }

    fn publish(&mut self) {
        let update = self.update();
        self.writer.publish(&update, &self.counter);
    }

    /// Publishes every 20 ms while `test` runs.
    fn running<T: Send>(mut self, test: impl FnOnce(&Path) -> T + Send) -> T {
        let over = AtomicBool::new(false);
        let path = self.path.clone();
        std::thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    self.publish();
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&path)));
            over.store(true, Ordering::Relaxed);
            publisher.join().unwrap();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

fn tai(path: &Path) -> Timeline {
    Options::new().page(path).connect().unwrap().timeline("tai").unwrap()
}

#[test]
fn waits_are_never_early_and_say_how_late_they_are() {
    Daemon::new(Span::from_millis(3)).running(|path| {
        let tai = tai(path);
        let mut lateness = Vec::new();
        for step in 0..40 {
            let before = tai.now().unwrap();
            // Below, at and above the length of one piece and of a nap.
            let target =
                before.estimate_ns() + [200_000, 1_000_000, 7_000_000, 130_000_000][step % 4];
            let waited = tai.wait_until(target).unwrap();
            let after = tai.now().unwrap();
            assert!(waited.reading.estimate_ns() >= target);
            assert_eq!(waited.lateness_ns, waited.reading.estimate_ns() - target);
            assert!(waited.lateness_ns >= 0);
            // The clock itself, read before and after, has the lateness between.
            assert!(after.estimate_ns() - target >= waited.lateness_ns);
            assert!(waited.reading.estimate_ns() > before.estimate_ns());
            lateness.push(waited.lateness_ns);
        }
        lateness.sort_unstable();
        println!("lateness of wait_until: median {} ns, max {} ns", lateness[20], lateness[39]);
    });
}

#[test]
fn a_commit_wait_takes_until_the_earliest_has_passed() {
    Daemon::new(Span::from_millis(3)).running(|path| {
        let tai = tai(path);
        for _ in 0..20 {
            let commit = tai.now().unwrap();
            let waited = tai.wait_past(commit.latest_ns()).unwrap();
            assert!(waited.reading.earliest_ns() > commit.latest_ns());
            assert_eq!(waited.lateness_ns, waited.reading.earliest_ns() - commit.latest_ns());
            // Both bounds are about 3 ms away: the wait takes about 6.
            let took = waited.reading.estimate_ns() - commit.estimate_ns();
            assert!(took > 5_900_000, "{took}");
            assert!(tai.is_surely_past(commit.latest_ns()).unwrap());
            assert_eq!(commit.compare(&waited.reading), timevisor::Comparison::Before);
        }
    });
}

/// The best of many: on a busy machine either may lose its processor at any time.
#[test]
fn spinning_is_more_exact_than_sleeping() {
    Daemon::new(Span::from_micros(50)).running(|path| {
        let tai = tai(path);
        let best = |spin: Duration| {
            let one = |_| {
                let options = WaitOptions::default().spin(spin);
                let target = tai.now().unwrap().estimate_ns() + 2_000_000;
                tai.wait(When::Until(target), &options).unwrap().lateness_ns
            };
            (0..50).map(one).min().unwrap()
        };
        let (asleep, spinning) = (best(Duration::ZERO), best(Duration::from_micros(300)));
        println!("least lateness: {asleep} ns asleep, {spinning} ns spinning");
        assert!(spinning < asleep, "{spinning} {asleep}");
    });
}

#[test]
fn ticks_come_on_the_timelines_grid() {
    Daemon::new(Span::from_micros(50)).running(|path| {
        let period = Duration::from_millis(5);
        let ticks = tai(path).periodic(period, 1_000_000, MissedTicks::Coalesce).unwrap();
        let mut last = None;
        for tick in ticks.take(30) {
            let tick = tick.unwrap();
            assert_eq!(tick.scheduled_ns.rem_euclid(5_000_000), 1_000_000);
            assert_eq!(tick.lateness_ns, tick.reading.estimate_ns() - tick.scheduled_ns);
            assert!(tick.lateness_ns >= 0);
            if let Some(last) = last {
                let steps = (tick.scheduled_ns - last) / 5_000_000;
                assert_eq!(u64::try_from(steps).unwrap(), tick.missed + 1);
            }
            last = Some(tick.scheduled_ns);
        }
    });
}

#[test]
fn stamps_convert_to_what_was_read_then_or_better() {
    Daemon::new(Span::from_micros(50)).running(|path| {
        let tai = tai(path);
        let mut taken = Vec::new();
        for _ in 0..30 {
            let before = tai.now().unwrap();
            let stamp = tai.stamp();
            taken.push((before, stamp, tai.now().unwrap()));
            tai.sleep(Duration::from_millis(7)).unwrap();
        }
        for (before, stamp, after) in taken {
            let then = tai.convert(stamp).unwrap();
            assert_eq!(then.counter(), stamp);
            // Give or take what two publications 20 ms apart differ by at 15 ppm. The newest alone
            // is wider by 6 us by now.
            let slack = Span::from_nanos(1_000);
            assert!(then.earliest() >= before.earliest() - slack);
            assert!(then.latest() <= after.latest() + slack);
            let same = tai.convert(before.counter()).unwrap();
            assert!(same.earliest() >= before.earliest() - slack);
            assert!(same.latest() <= before.latest() + slack);
        }
    });
}

#[test]
fn many_threads_read_one_handle() {
    Daemon::new(Span::from_micros(50)).running(|path| {
        let tai = tai(path);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = tai.now().unwrap();
                    for _ in 0..200_000 {
                        let now = tai.now().unwrap();
                        assert!(now.estimate() >= last.estimate());
                        assert_eq!(now.status(), Status::Synchronized);
                        last = now;
                    }
                });
            }
        });
    });
}

/// After the last publication the status and the watch notice by themselves.
#[test]
fn a_dead_daemon_is_noticed() {
    let daemon = Daemon::new(Span::from_micros(50));
    let need = Requirement::within(Duration::from_micros(60));
    let tai = tai(&daemon.path).with_requirement(&need).unwrap();
    let mut watch = tai.watch().unwrap();
    assert_eq!(watch.event().unwrap().change, Change::Met);
    let options = WaitOptions::default().timeout(Duration::from_secs(60));
    // 15 ppm: 10 us of room are used up after 0.67 s, and the validity ends after 1 s.
    let violated = watch.event_with(&options).unwrap();
    assert_eq!(violated.change, Change::Violated);
    assert!(violated.reading.half_width_ns().is_some_and(|ns| ns > 60_000));
    let holdover = watch.event_with(&options).unwrap();
    assert_eq!(
        (holdover.change, holdover.reading.status()),
        (Change::Holdover, Status::FreeRunning)
    );
}

#[test]
fn a_timeline_that_ends_is_gone_and_not_another() {
    let mut daemon = Daemon::new(Span::from_micros(50));
    let client = Options::new().page(&daemon.path).connect().unwrap();
    assert!(
        matches!(client.timeline("group"), Err(TimelineError::NotFound(name)) if name == "group")
    );
    let update = daemon.update();
    let entry = |id, name, generation| EntryIdentity::new(id, name, TimescaleId::Local, generation);
    daemon.writer.open_entry(3, entry(9, "group", 1));
    daemon.writer.publish_entry(3, &update, &daemon.counter);
    let group = client.timeline("group").unwrap();
    assert_eq!(group.now().unwrap().timescale(), TimescaleId::Local);
    daemon.writer.close_entry(3);
    assert!(!group.now().unwrap().is_known());
    daemon.writer.open_entry(3, entry(10, "other", 2));
    daemon.writer.publish_entry(3, &update, &daemon.counter);
    assert_eq!(group.now(), Err(ReadError::Gone));
    assert!(client.timeline("other").unwrap().now().unwrap().is_known());
}

/// Whoever copies another file over a page truncates it first.
#[test]
fn a_truncated_page_is_an_error_and_others_go_on() {
    let other = Daemon::new(Span::from_micros(50));
    let other = tai(&other.path);
    for left in [0, 100, 0x200] {
        let daemon = Daemon::new(Span::from_micros(50));
        let tai = tai(&daemon.path);
        assert!(tai.now().unwrap().is_known());
        let file = std::fs::File::options().write(true).open(&daemon.path).unwrap();
        file.set_len(left).unwrap();
        for _ in 0..3 {
            assert_eq!(tai.now().map(|_| ()), Err(ReadError::Truncated), "{left} bytes left");
            assert_eq!(tai.observe(), Err(ReadError::Truncated));
        }
        let waited = tai.wait_until(0);
        assert!(matches!(waited, Err(WaitError::Read(ReadError::Truncated))), "{waited:?}");
        assert!(other.now().unwrap().is_known());
    }
}

#[test]
fn a_client_says_which_page_it_reads() {
    let daemon = Daemon::new(Span::from_micros(50));
    let client: Client = Options::new().page(&daemon.path).connect().unwrap();
    assert_eq!(client.page().path, daemon.path);
    assert!(client.page().passed_over.is_empty() && client.channel().is_none());
}

/// One packet there and back over loopback, with SO_TIMESTAMPING. The kernel stamps it between the
/// counter values before the send and after the receive.
#[test]
fn the_kernels_stamps_of_packets_lie_where_the_packets_were() {
    Daemon::new(Span::from_micros(50)).running(|path| {
        let tai = tai(path);
        let stamps = tai.packet_stamps().unwrap();
        let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut client = UdpClient::connect(server.local_addr().unwrap()).unwrap();
        let mut widths = Vec::new();
        for round in 0..200 {
            let mut buffer = [0; 64];
            let before = tai.stamp();
            client.send(b"there").unwrap();
            let sent = client.recv_tx_stamp().unwrap();
            let (_, peer) = server.recv_from(&mut buffer).unwrap();
            server.send_to(b"back", peer).unwrap();
            let received = client.recv(&mut buffer).unwrap().expect("loopback delivers at once");
            let after = tai.stamp();
            // Programs look at their packets late, too.
            std::thread::sleep(Duration::from_millis(if round % 20 == 0 { 5 } else { 0 }));
            for stamp in [sent, received.stamp].into_iter().flatten() {
                let (first, last) = stamps.stamp_of(stamp.floor_nanos()).unwrap();
                assert!(before <= last && first <= after, "{before} {first} {last} {after}");
                let then = tai.convert_between(first, last).unwrap();
                let (begin, end) = (tai.convert(before).unwrap(), tai.convert(after).unwrap());
                assert!(then.earliest_ns() <= end.latest_ns());
                assert!(then.latest_ns() >= begin.earliest_ns());
                widths.push(tai.span(first, last).unwrap().longest_ns());
            }
        }
        assert!(widths.len() >= 200, "this kernel stamps at least what is received");
        widths.sort_unstable();
        println!(
            "packets placed within: median {} ns, max {} ns",
            widths[widths.len() / 2],
            widths[widths.len() - 1]
        );
        assert!(widths[widths.len() / 2] < 200_000);
    });
}

/// A recording of a real page, made while it is written, and stamps converted from it.
#[test]
fn a_recording_converts_what_the_page_has_forgotten() {
    Daemon::new(Span::from_micros(50)).running(|path| {
        let tai = tai(path);
        let file = path.with_file_name("tai.rec");
        let mut recorder = tai.record_to(&file).unwrap();
        let mut taken = Vec::new();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(20));
            recorder.observe().unwrap();
            taken.push(tai.now().unwrap());
        }
        recorder.close().unwrap();
        let recording = timevisor::Recording::open(&file).unwrap();
        for reading in &taken {
            let then = recording.convert(reading.counter()).unwrap();
            assert!(then.earliest() <= reading.latest() && then.latest() >= reading.earliest());
            assert!(then.half_width_ns() < Some(60_000), "{then:?}");
        }
        let span = recording.span(taken[0].counter(), taken[19].counter()).unwrap();
        let readings = taken[19].estimate_ns() - taken[0].estimate_ns();
        assert!(span.shortest_ns() <= readings && readings <= span.longest_ns() + 100_000);
        assert!(span.width_ns() < 40_000, "0.4 s at 15 ppm: {} ns", span.width_ns());
    });
}

#[test]
fn notices_and_generations_are_handed_on() {
    let daemon = Daemon::new(Span::from_micros(50));
    let client = Options::new().page(&daemon.path).connect().unwrap();
    assert_eq!(client.notice().unwrap(), Notice::None);
    assert_eq!(client.vm_generation().unwrap(), None, "nobody counts here");
    for notice in [Notice::Soon, Notice::Imminent, Notice::None] {
        daemon.writer.set_notice(notice);
        assert_eq!(client.notice().unwrap(), notice);
    }
    daemon.writer.count_generations();
    assert_eq!(client.vm_generation().unwrap(), daemon.writer.vm_generation());
    assert!(client.vm_generation().unwrap().is_some());
}
