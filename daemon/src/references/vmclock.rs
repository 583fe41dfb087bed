//! The reference of a guest: the host's page gives the time and its bounds.
//!
//! A page written by timevisord has hard bounds, and its lines hold even after the host has stopped
//! writing. Any other hypervisor's page is accepted if it states a maximum error for its time and
//! its period; both are then as good as that hypervisor's claim. The disruption marker is checked
//! between polls as well: when it changes, this machine's counter may have jumped (live migration),
//! and everything known before is void.

use std::path::PathBuf;

use timevisor_clock_page::page::Page;
use timevisor_clock_page::reader::{Vmclock, check, counter_of, marker};
use timevisor_clock_page::{ClockStatus, Counter, CounterId, Reader};
use timevisor_estimate::Exchange;
use timevisor_linux::counter::HostCounter;
use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page::ReadPage;
use timevisor_time::{Duration, Instant, Tai, TimescaleId};

use super::Surroundings;
use super::phc::to_tai;
use super::sampled::Source;
use super::tally::Refused;
use crate::config::{Scale, VmclockConfig};

/// How often the marker is checked. Until then, this guest's own page states what was true on the
/// host from which the guest came.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

pub struct VmclockSource {
    path: PathBuf,
    page: Option<ReadPage>,
    marker: Option<u64>,
    disrupted: bool,
}

/// The page's contents at one counter value.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Said {
    scale: TimescaleId,
    earliest: Instant<Tai>,
    latest: Instant<Tai>,
    marker: u64,
}

impl VmclockSource {
    pub fn new(config: &VmclockConfig) -> Self {
        Self { path: config.device.clone(), page: None, marker: None, disrupted: false }
    }

    fn map(&self) -> Result<ReadPage, Refused> {
        let mapping = SharedMapping::of_device(&self.path).and_then(ReadPage::new);
        mapping.map_err(|error| {
            let cause =
                std::error::Error::source(&error).map(|s| format!(": {s}")).unwrap_or_default();
            Refused::new("no-device", format!("{error}{cause}"))
        })
    }

    /// Notices a disruption without reading the time.
    fn heed(&mut self, page: &Page) {
        let now = marker(page);
        if self.marker.is_some_and(|before| before != now) {
            self.marker = Some(now);
            self.disrupted = true;
        }
    }

    fn read(&mut self, page: &Page, around: &Surroundings<'_>) -> Result<Exchange, Refused> {
        let ta = around.counter.read_ordered();
        let said = read(page)?;
        let tf = around.counter.read_ordered();
        let before = self.marker.replace(said.marker);
        if before.is_some_and(|marker| marker != said.marker) {
            self.disrupted = true;
            let text =
                "the host disrupted this guest's time (it was migrated or restored); starting over";
            return Err(Refused::new("disrupted", text));
        }
        let scale = match said.scale {
            TimescaleId::Tai => Scale::Tai,
            TimescaleId::Utc => Scale::Utc,
            TimescaleId::Local => {
                return Err(Refused::new("timescale", "the host's page is neither TAI nor UTC"));
            }
        };
        let half = (said.latest - said.earliest).half() + Duration::EPSILON;
        let time = to_tai(said.earliest + half, scale, around)?;
        Ok(Exchange::of_reading(ta, time, tf, half))
    }
}

impl Source for VmclockSource {
    fn kind(&self) -> &'static str {
        "vmclock"
    }

    fn detail(&self) -> String {
        match self.page.as_deref().map(check) {
            Some(Ok(_)) => "the host's Timevisor page, with its bounds".to_owned(),
            Some(Err(_)) => {
                "the hypervisor's page, with the maximum error that it states".to_owned()
            }
            None => "not open".to_owned(),
        }
    }

    fn sample(&mut self, around: &Surroundings<'_>) -> Result<Exchange, Refused> {
        let page = match self.page.take() {
            Some(page) => page,
            None => self.map()?,
        };
        let outcome = self.read(&page, around);
        self.page = Some(page);
        outcome
    }

    fn watch_interval(&self) -> Option<Duration> {
        Some(WATCH_INTERVAL)
    }

    fn take_disruption(&mut self) -> bool {
        if let Some(page) = self.page.take() {
            self.heed(&page);
            self.page = Some(page);
        }
        std::mem::take(&mut self.disrupted)
    }
}

/// Reads a page on its own counter, now.
fn read(page: &Page) -> Result<Said, Refused> {
    if check(page).is_ok() { read_lines(page) } else { read_abi(page) }
}

fn counter(id: CounterId) -> Result<HostCounter, Refused> {
    HostCounter::for_reader(id).ok_or_else(|| {
        let text = format!("the page counts {}, which this machine does not have", id.name());
        Refused::new("counter", text)
    })
}

fn judge(status: ClockStatus) -> Result<(), Refused> {
    match status {
        ClockStatus::Initializing | ClockStatus::Synchronized | ClockStatus::FreeRunning => Ok(()),
        ClockStatus::Unknown => Err(Refused::new("unknown", "the host does not know the time yet")),
        ClockStatus::Unreliable => {
            Err(Refused::new("unreliable", "the host calls its own time unreliable"))
        }
    }
}

/// Reads a Timevisor page with its bounds.
fn read_lines(page: &Page) -> Result<Said, Refused> {
    let counter = counter(counter_of(page, 0))?;
    let reader = Reader::open(page, counter, 0).map_err(|e| Refused::new("page", e))?;
    let reading = reader.read().map_err(|e| Refused::new("stalled", e))?;
    judge(reading.status())?;
    if !reading.has_estimate() {
        judge(ClockStatus::Unknown)?;
    }
    Ok(Said {
        scale: reading.timescale(),
        earliest: reading.earliest.relabel(),
        latest: reading.latest.relabel(),
        marker: reading.disruption,
    })
}

/// Reads any vmclock page with the vmclock ABI's arithmetic: its time, the stated maximum errors,
/// its counter.
fn read_abi(page: &Page) -> Result<Said, Refused> {
    let block = Vmclock::read(page).map_err(|e| Refused::new("page", e))?;
    let block = block.map_err(|e| Refused::new("stalled", e))?;
    let now = counter(block.counter)?.read_ordered();
    said_by(&block, now)
}

fn said_by(block: &Vmclock, now: u64) -> Result<Said, Refused> {
    use timevisor_clock_page::abi::vmclock::{
        FLAG_PERIOD_MAXERROR_VALID, FLAG_TIME_MAXERROR_VALID,
    };
    judge(block.status)?;
    let needed = FLAG_PERIOD_MAXERROR_VALID | FLAG_TIME_MAXERROR_VALID;
    if block.flags & needed != needed {
        let text = "the hypervisor's page states no maximum error of its time and period; there is no bound to carry on";
        return Err(Refused::new("no-bound", text));
    }
    let ticks = now.wrapping_sub(block.base);
    if ticks >> 63 != 0 {
        let text = "the page's counter value lies in the future; is it this machine's page?";
        return Err(Refused::new("counter", text));
    }
    let span = |period: u64| shifted(ticks, period, block.shift);
    let time: Instant<Tai> = block.time.relabel();
    let error = Duration::from_nanos(i64::try_from(block.maxerror_ns).unwrap_or(i64::MAX));
    let middle = time + span(block.period);
    let error = error + span(block.period_maxerror) + Duration::from_nanos(1);
    let scale = block
        .timescale
        .ok_or_else(|| Refused::new("timescale", "the page's timescale is unknown"))?;
    Ok(Said { scale, earliest: middle - error, latest: middle + error, marker: block.disruption })
}

/// `ticks * period / 2^shift` in 2^-64 s, the product in 128 bits.
fn shifted(ticks: u64, period: u64, shift: u8) -> Duration {
    let exact = u128::from(ticks) * u128::from(period);
    Duration::from_bits(i128::try_from(exact >> shift.min(127)).unwrap_or(i128::MAX))
}

#[cfg(test)]
#[path = "vmclock_tests.rs"]
mod tests;
