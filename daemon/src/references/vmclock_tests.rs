use timevisor_clock_page::{Identity, Line, Lines, PageWriter, Slew, Update};
use timevisor_linux::counter::HostMonotonicRaw;
use timevisor_linux::udp::Sockets;
use timevisor_time::{Period, RateError};

use super::*;
use crate::config::{ClockConfig, ServerConfig};
use crate::leap::Leap;

const COUNTER: HostCounter = HostCounter::MonotonicRaw(HostMonotonicRaw::INITIAL);

fn identity(timescale: TimescaleId) -> Identity {
    Identity {
        counter: CounterId::MonotonicRaw,
        timescale,
        host: [1; 16],
        vm: [2; 16],
        timeline: "tai",
        epoch: 1,
    }
}

/// 200 us above, 100 us below, within 15 ppm, valid from now on.
fn update(status: ClockStatus, seconds: i64) -> Update {
    let base = COUNTER.read_ordered();
    let period = Period::from_hz(1_000_000_000).unwrap();
    let time = Instant::from_unix_nanos(i128::from(seconds) * 1_000_000_000);
    let rho = RateError::from_ppm(15);
    let line = |off, period| Line { time: time + Duration::from_micros(off), period };
    Update {
        target: Lines {
            base,
            expiry: base + 10_000_000_000,
            earliest: line(-100, period.slowest_time(rho)),
            estimate: line(0, period),
            latest: line(200, period.fastest_time(rho)),
            holdover: 0,
        },
        status,
        estimated_error: Duration::from_micros(1),
        as_of: base,
        tai_offset: Some(37),
        slew: Slew { horizon: 8_000_000_000, jump: Duration::from_millis(1) },
    }
}

fn sample(source: &mut VmclockSource, page: &Page) -> Result<Exchange, Refused> {
    let leap = Leap::load(&ClockConfig { tai_offset: Some(37), ..ClockConfig::default() });
    let calibration = (Period::from_hz(1_000_000_000).unwrap(), RateError::ZERO);
    let around = Surroundings {
        counter: &COUNTER,
        calibration,
        leap: &leap,
        known: None,
        sockets: Sockets::Stamped,
        taken: &[],
        own_server: &ServerConfig::default(),
        parser: &crate::parser::Parser::without_thread(),
    };
    source.read(page, &around)
}

fn source() -> VmclockSource {
    VmclockSource::new(&VmclockConfig::default())
}

const SOME_TIME: i64 = 1_700_000_000;

#[test]
fn the_hosts_bounds_are_carried_on() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(TimescaleId::Tai), Some(37));
    writer.publish(&update(ClockStatus::Synchronized, SOME_TIME), &COUNTER);
    let exchange = sample(&mut source(), &page).unwrap();
    assert!(exchange.ta <= exchange.tf);
    // 150 us, plus what 15 ppm add in the time since.
    let grown = exchange.error - Duration::from_micros(150);
    assert!(!grown.is_negative() && grown < Duration::from_micros(150), "{exchange:?}");
    // Both ends of the host's interval, read at the same counter value, lie inside.
    let reader = Reader::open(&page, COUNTER, 0).unwrap();
    let (early, late) =
        (reader.convert(exchange.ta).unwrap(), reader.convert(exchange.tf).unwrap());
    assert!(exchange.tb - exchange.error <= late.earliest.relabel());
    assert!(exchange.te + exchange.error >= early.latest.relabel());
}

#[test]
fn utc_pages_are_converted() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(TimescaleId::Utc), Some(37));
    writer.publish(&update(ClockStatus::FreeRunning, SOME_TIME), &COUNTER);
    let exchange = sample(&mut source(), &page).unwrap();
    assert_eq!(exchange.tb.secs(), SOME_TIME + 37);
}

#[test]
fn a_host_that_does_not_know_is_refused() {
    let page = Page::new();
    assert_eq!(sample(&mut source(), &page).unwrap_err().word, "page");
    let mut writer = PageWriter::take_over(&page, identity(TimescaleId::Tai), Some(37));
    let refused = |page: &Page| sample(&mut source(), page).unwrap_err().word;
    assert_eq!(refused(&page), "unknown");
    writer.publish(&update(ClockStatus::Unreliable, SOME_TIME), &COUNTER);
    assert_eq!(refused(&page), "unreliable");
    writer.publish(&update(ClockStatus::Initializing, SOME_TIME), &COUNTER);
    assert!(sample(&mut source(), &page).is_ok());
    writer.withdraw(ClockStatus::Unknown, Some(37));
    assert_eq!(refused(&page), "unknown");
}

#[test]
fn a_disruption_voids_everything_once() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(TimescaleId::Tai), Some(37));
    writer.publish(&update(ClockStatus::Synchronized, SOME_TIME), &COUNTER);
    let mut source = source();
    sample(&mut source, &page).unwrap();
    assert!(!source.take_disruption());
    writer.disrupt();
    writer.publish(&update(ClockStatus::Synchronized, SOME_TIME + 5), &COUNTER);
    assert_eq!(sample(&mut source, &page).unwrap_err().word, "disrupted");
    assert!(source.take_disruption() && !source.take_disruption());
    assert_eq!(sample(&mut source, &page).unwrap().tb.secs(), SOME_TIME + 5);
}

#[test]
fn a_disruption_is_noticed_before_the_next_poll() {
    let page = Page::new();
    let mut writer = PageWriter::take_over(&page, identity(TimescaleId::Tai), Some(37));
    writer.publish(&update(ClockStatus::Synchronized, SOME_TIME), &COUNTER);
    let mut source = source();
    source.heed(&page);
    sample(&mut source, &page).unwrap();
    source.heed(&page);
    assert!(!source.take_disruption());
    writer.withdraw(ClockStatus::Unknown, Some(37));
    source.heed(&page);
    assert!(source.take_disruption() && !source.take_disruption(), "the time was not read");
    writer.publish(&update(ClockStatus::Synchronized, SOME_TIME + 5), &COUNTER);
    assert_eq!(sample(&mut source, &page).unwrap().tb.secs(), SOME_TIME + 5, "told once");
}

/// Another hypervisor's page, computed with the ABI's own arithmetic.
fn block() -> Vmclock {
    use timevisor_clock_page::abi::vmclock as abi;
    Vmclock {
        counter: CounterId::MonotonicRaw,
        timescale: Some(TimescaleId::Tai),
        status: ClockStatus::Synchronized,
        disruption: 7,
        flags: abi::FLAG_TIME_MAXERROR_VALID | abi::FLAG_PERIOD_MAXERROR_VALID,
        base: 1_000,
        // 1 GHz with a shift of 4, within 50 ppm.
        shift: 4,
        period: u64::try_from((1_u128 << 68) / 1_000_000_000).unwrap(),
        period_maxerror: u64::try_from((1_u128 << 68) / 20_000_000_000_000).unwrap(),
        time: Instant::from_unix_nanos(1_700_000_000_000_000_000),
        maxerror_ns: 2_000,
    }
}

#[test]
fn other_hypervisors_pages_count_by_the_errors_that_they_state() {
    let said = said_by(&block(), 1_000 + 1_000_000_000).unwrap();
    let middle = said.earliest + (said.latest - said.earliest).half();
    assert_eq!((middle + Duration::from_nanos(500)).secs(), SOME_TIME + 1);
    // 2 us, plus 50 us per second at 50 ppm.
    let half = (said.latest - said.earliest).half() - Duration::from_nanos(52_000);
    assert!(!half.is_negative() && half < Duration::from_nanos(3), "{half}");
    assert_eq!(said.marker, 7);
}

#[test]
fn other_hypervisors_pages_without_a_bound_are_refused() {
    let refused = |change: fn(&mut Vmclock)| {
        let mut block = block();
        change(&mut block);
        said_by(&block, 2_000).unwrap_err().word
    };
    assert_eq!(refused(|b| b.flags = 0), "no-bound");
    assert_eq!(refused(|b| b.flags = 1 << 6), "no-bound");
    assert_eq!(refused(|b| b.status = ClockStatus::Unreliable), "unreliable");
    assert_eq!(refused(|b| b.base = 3_000), "counter");
    assert_eq!(refused(|b| b.timescale = None), "timescale");
}
