//! Pages around a leap second, and after a daemon that died before it.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use timevisor_clock_page::{
    ClockStatus, CounterId, Identity, LeapIndicator, PageWriter, Reader, Reading,
};
use timevisor_estimate::Quality;
use timevisor_host_clock::Publication;
use timevisor_time::{Duration, Instant, LeapTable, Local, TimescaleId};

use crate::world::{Clocked, EPOCH, HZ, Machine, Scripted, SharedPage, Ticker, truth};

/// The leap second happens when the counter has run for this long, s.
const LEAP: i64 = 1000;

/// A VM's page, as crates/guests writes it for a counter that equals the host's.
struct VmPage {
    writer: PageWriter<SharedPage>,
    page: SharedPage,
}

impl VmPage {
    fn new(timescale: TimescaleId) -> Self {
        let page = SharedPage::default();
        let identity = Identity {
            counter: CounterId::MonotonicRaw,
            timescale,
            host: [1; 16],
            vm: [2; 16],
            timeline: "clock",
            epoch: 1,
        };
        Self { writer: PageWriter::take_over(page.clone(), identity, Some(37)), page }
    }

    fn publish(&mut self, publication: &Publication, counter: &Ticker) {
        let utc = self.writer.identity().timescale == TimescaleId::Utc;
        let told = if utc { publication.utc() } else { publication.tai() };
        self.writer.announce(publication.leap.indicator);
        self.writer.follow(told.disruptions, &told.update, publication.leap.tai_offset, counter);
    }

    fn reader(&self, counter: &Ticker) -> Reader<SharedPage, Ticker> {
        Reader::open(self.page.clone(), counter.clone(), 0).unwrap()
    }
}

/// A host whose table inserts or deletes a second.
struct World {
    machine: Machine,
    clock: Clocked,
    after: i16,
}

impl World {
    fn new(after: i16) -> Self {
        let ntp = |tai: i64, offset: i16| EPOCH + tai - i64::from(offset) + 2_208_988_800;
        let from = ntp(LEAP, after.min(37));
        let text = format!("#@ {}\n{} 37\n{from} {after}\n", from + 90_000_000, from - 90_000_000);
        let machine =
            Machine { leap: Some(LeapTable::parse(&text).unwrap()), ..Machine::default() };
        let estimate = Scripted::new();
        estimate.say(Quality::Synchronized, 0, 20_000);
        let clock = machine.boot(&estimate);
        Self { machine, clock, after }
    }

    /// True UTC; `None` within an inserted second, which has no number of its own.
    fn utc(&self, counter: u64) -> Option<Instant<Local>> {
        let leap = u64::try_from(LEAP).unwrap() * HZ;
        let inserted = u64::try_from(self.after - 37).unwrap_or(0) * HZ;
        let offset = match counter {
            c if c < leap => 37,
            c if c < leap + inserted => return None,
            _ => self.after,
        };
        Some((truth(counter) - Duration::from_secs(i64::from(offset))).relabel())
    }

    fn publish(&mut self, second: f64) -> Publication {
        self.machine.at(ticks(second));
        self.machine.publish(&mut self.clock)
    }
}

fn vouches(reading: &Reading) -> bool {
    use ClockStatus::{FreeRunning, Initializing, Synchronized};
    reading.has_estimate() && matches!(reading.status(), Initializing | Synchronized | FreeRunning)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "tests name times within a few days of the start"
)]
fn ticks(second: f64) -> u64 {
    (second * HZ as f64) as u64
}

/// Counter values from `second` on, dense around the leap second and up to a day after it.
fn later(second: f64) -> impl Iterator<Item = u64> {
    let near = (0..160u32).map(|step| -20.0 + f64::from(step) * 0.25).map(|s| LEAP as f64 + s);
    let far = [60.0, 3600.0, 86_400.0].into_iter().map(|s| LEAP as f64 + s);
    near.chain(far).filter(move |s| *s >= second).map(ticks)
}

/// Every published page, read at any later time: what it vouches for is true. Its daemon may have
/// died right after the publication.
#[test]
fn a_utc_page_never_vouches_for_a_wrong_second() {
    for after in [38, 36] {
        let mut world = World::new(after);
        let mut page = VmPage::new(TimescaleId::Utc);
        let seconds = [1.0, 900.0].into_iter().chain((960..1040).map(|s| f64::from(s) + 0.1));
        let (mut vouched, mut markers) = (0, Vec::new());
        for second in seconds {
            let publication = world.publish(second);
            page.publish(&publication, &world.machine.counter);
            // Also while the page says nothing else.
            assert_eq!(page.page.bytes()[0x26], publication.leap.indicator as u8, "at {second}");
            let reader = page.reader(&world.machine.counter);
            if let Ok(now) = reader.read()
                && vouches(&now)
            {
                vouched += 1;
                assert_eq!(now.status(), ClockStatus::Synchronized);
                let (half, truth) = (now.half_width(), world.utc(now.counter).unwrap());
                assert!((now.estimate - truth).abs() < Duration::from_micros(25), "at {second}");
                assert!(half < Duration::from_micros(30), "{half} at {second}");
                if markers.last() != Some(&now.disruption) {
                    markers.push(now.disruption);
                }
            }
            for counter in later(second) {
                let reading = reader.convert(counter).unwrap();
                let Some(truth) = world.utc(counter).filter(|_| vouches(&reading)) else {
                    continue;
                };
                assert!(
                    reading.earliest <= truth && truth <= reading.latest,
                    "offset {after}: published at {second}, read at {}: {} to {}",
                    counter as f64 / HZ as f64,
                    reading.earliest - truth,
                    reading.latest - truth,
                );
            }
        }
        assert!(vouched > 60, "only near the leap second nothing is said: {vouched}");
        assert_eq!(markers.len(), 2, "one disruption");
    }
}

/// A daemon that is stopped across the leap second and goes on: the step is a disruption.
#[test]
fn a_publisher_that_slept_over_the_leap_second_disrupts_too() {
    let mut world = World::new(38);
    let mut page = VmPage::new(TimescaleId::Utc);
    let mut read = |second| {
        let publication = world.publish(second);
        page.publish(&publication, &world.machine.counter);
        page.reader(&world.machine.counter).read().unwrap()
    };
    let (before, after) = (read(900.0), read(1100.0));
    assert_ne!(before.disruption, after.disruption);
    let span = after.estimate - before.estimate;
    assert!((span - Duration::from_secs(199)).abs() < Duration::from_micros(1), "{span}");
}

/// TAI knows no leap seconds, but the page's TAI - UTC does.
#[test]
fn a_tai_page_goes_on_and_its_offset_never_misleads() {
    for after in [38, 36] {
        let mut world = World::new(after);
        let mut page = VmPage::new(TimescaleId::Tai);
        let mut marker = None;
        for second in (960..1040).map(|s| f64::from(s) + 0.1) {
            let publication = world.publish(second);
            page.publish(&publication, &world.machine.counter);
            let reader = page.reader(&world.machine.counter);
            let now = reader.read().unwrap();
            assert_eq!(now.status(), ClockStatus::Synchronized, "at {second}");
            assert!(now.half_width() < Duration::from_micros(30));
            assert_eq!(*marker.get_or_insert(now.disruption), now.disruption, "no disruption");
            let bytes = page.page.bytes();
            let offset = i16::from_le_bytes([bytes[0x24], bytes[0x25]]);
            let stock_refuses = bytes[0x22] == ClockStatus::Unreliable as u8;
            assert_ne!(bytes[0x18] & 1, 0, "a driver that probes now finds an offset");
            for counter in later(second).filter(|c| *c < now.counter + HZ) {
                let Some(truth) = world.utc(counter) else { continue };
                let reading = reader.convert(counter).unwrap();
                let utc = |offset: i16| {
                    let utc = reading.estimate - Duration::from_secs(i64::from(offset));
                    (utc - truth).abs() < Duration::from_millis(1)
                };
                assert!(reading.tai_offset().is_none_or(utc), "published at {second}");
                assert!(stock_refuses || utc(offset), "published at {second}");
            }
        }
    }
}

#[test]
fn the_leap_indicator_says_what_lies_ahead_and_behind() {
    use LeapIndicator::{HasDeleted, HasInserted, Inserted, None, WillDelete, WillInsert};
    // 2017-01-01 is 1,483,228,800 in POSIX seconds.
    let january = |offset: i16| {
        let text = format!("#@ 4000000000\n3644697600 37\n3692217600 {offset}\n");
        LeapTable::parse(&text).unwrap()
    };
    let at = |table: &LeapTable, tai: i64| {
        let instant = Instant::from_bits(i128::from(tai) << 64);
        let mut machine = Machine { leap: Some(table.clone()), ..Machine::default() };
        let estimate = Scripted::new();
        let ahead = (instant - truth(0)).floor_nanos();
        estimate.say(Quality::Synchronized, ahead, 1000);
        let mut clock = machine.boot(&estimate);
        let publication = machine.publish(&mut clock);
        assert_eq!(machine.page.0.bytes()[0x26], publication.leap.indicator as u8);
        publication.leap.indicator
    };
    const JANUARY: i64 = 1_483_228_800 + 37;
    let insert = january(38);
    let seconds = [-32 * 86_400, -30 * 86_400, -1, 0, 2, 86_000, 90_000];
    let said = seconds.map(|second| at(&insert, JANUARY + second));
    assert_eq!(said, [None, WillInsert, WillInsert, Inserted, HasInserted, HasInserted, None]);
    let delete = january(36);
    let said = seconds.map(|second| at(&delete, JANUARY + second));
    assert_eq!(said, [None, WillDelete, HasDeleted, HasDeleted, HasDeleted, HasDeleted, None]);
}
