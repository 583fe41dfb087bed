//! The page to read: the one given, the guest's device, the host's file, or one in memory that is
//! filled here.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use timevisor_clock_page::page::WritablePage;
use timevisor_clock_page::{
    ClockStatus, CounterId, Identity, Line, Lines, Page, PageWriter, Reader, Slew, Update,
};
use timevisor_linux::counter::{Calibration, Tsc};
use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page::ReadPage;
use timevisor_linux::{clock, page_file};
use timevisor_time::{Duration, RateError, TimescaleId};

const DEVICE: &str = "/dev/vmclock0";
const HOST_FILE: &str = "/run/timevisor/clock";

/// A page and where it is from.
pub(crate) struct Source {
    pub(crate) page: &'static Page,
    pub(crate) name: String,
}

/// Finds the page: `given` must work, the usual places are tried in the readers' order, memory
/// always works.
pub(crate) fn find(given: Option<PathBuf>, calibration: &Calibration) -> Result<Source> {
    if let Some(path) = given {
        let page = open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        return Ok(Source { page, name: path.display().to_string() });
    }
    for path in [DEVICE, HOST_FILE] {
        if let Ok(page) = open(Path::new(path)) {
            return Ok(Source { page, name: path.to_owned() });
        }
    }
    let page: &'static Page = Box::leak(Box::default());
    publish(page, calibration);
    let name = format!("in memory, filled by PageWriter (no {DEVICE}, no {HOST_FILE}, no --page)");
    Ok(Source { page, name })
}

/// Maps a page for the rest of the process, if this reader can read it.
fn open(path: &Path) -> Result<&'static Page> {
    let mapping = if path.starts_with("/dev") {
        SharedMapping::of_device(path)?
    } else {
        page_file::open(path)?
    };
    let page = Box::leak(Box::new(ReadPage::new(mapping)?));
    Reader::open(&**page, Tsc::unchecked(), 0)?;
    Ok(page)
}

/// Publishes the kernel's time on a page of our own; returns the disruption marker.
pub(crate) fn publish(page: impl WritablePage, calibration: &Calibration) -> u64 {
    let identity = Identity {
        counter: CounterId::X86Tsc,
        timescale: TimescaleId::Utc,
        host: [0; 16],
        vm: [0; 16],
        timeline: "utc",
        epoch: 1,
    };
    let counter = Tsc::unchecked();
    let now = clock::bracket(&counter, 16);
    let rate = RateError::from_ppm(15).plus(calibration.error);
    let (time, radius) = (now.realtime.relabel(), Duration::from_micros(1));
    let line = |time, period| Line { time, period };
    let target = Lines {
        base: now.before,
        expiry: now.before + calibration.period.ticks_in(Duration::from_secs(3600)),
        earliest: line(time - radius, calibration.period.slowest_time(rate)),
        estimate: line(time, calibration.period),
        latest: line(time + radius, calibration.period.fastest_time(rate)),
        holdover: 0,
    };
    let update = Update {
        target,
        status: ClockStatus::Synchronized,
        estimated_error: Duration::from_nanos(100),
        as_of: now.before,
        tai_offset: Some(37),
        slew: Slew { horizon: 1 << 33, jump: Duration::from_millis(1) },
    };
    let mut writer = PageWriter::take_over(page, identity, Some(37));
    writer.publish(&update, &counter);
    writer.disruption()
}
