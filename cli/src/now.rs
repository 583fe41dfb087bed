//! `timevisor now`: reads the page like every other client: no daemon, no root, also in a guest or
//! container.

use std::path::{Path, PathBuf};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use timevisor_clock_page::reader::{check, counter_of};
use timevisor_clock_page::{Reader, Reading};
use timevisor_linux::counter::HostCounter;
use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page::ReadPage;
use timevisor_linux::{page_file, pci};
use timevisor_time::Duration;

use crate::bound::sides;

#[derive(Args)]
pub struct Options {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Read this page instead of the host's, /dev/vmclock0 or an ivshmem device's
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Read again every this many seconds until interrupted
    #[arg(long, value_name = "SECONDS")]
    every: Option<f64>,
}

/// design.md, "Results are machine-readable".
#[derive(Serialize)]
struct Json {
    timeline: &'static str,
    timescale: &'static str,
    earliest_ns: Option<i64>,
    estimate_ns: Option<i64>,
    latest_ns: Option<i64>,
    below_ns: Option<i64>,
    above_ns: Option<i64>,
    status: &'static str,
    estimated_error_ns: Option<i64>,
    disruption: u64,
    counter: u64,
}

/// Where a guest, then a host or container, finds its page.
const DEVICE: &str = "/dev/vmclock0";

pub fn run(directory: &Path, options: &Options) -> Result<()> {
    let reader = reader(directory, options.page.as_deref())?;
    loop {
        let reading = reader.read()?;
        if options.json {
            println!("{}", serde_json::to_string(&json(&reading))?);
        } else {
            print!("{}", text(&reading));
        }
        match options.every {
            Some(seconds) if seconds > 0.0 => {
                std::thread::sleep(StdDuration::try_from_secs_f64(seconds)?);
            }
            _ => return Ok(()),
        }
    }
}

/// A reader of the given page, or of the first that there is.
pub fn reader(directory: &Path, page: Option<&Path>) -> Result<Reader<ReadPage, HostCounter>> {
    let page = open(directory, page)?;
    // First: the counter of something else than a page is nonsense.
    check(&page)?;
    let id = counter_of(&page, 0);
    let Some(counter) = HostCounter::for_reader(id) else {
        bail!("the page counts {}, which this machine does not have", id.name());
    };
    Ok(Reader::open(page, counter, 0)?)
}

fn open(directory: &Path, page: Option<&Path>) -> Result<ReadPage> {
    let host = directory.join("clock");
    let mapping = match page {
        Some(path) if path.starts_with("/dev") => SharedMapping::of_device(path)
            .with_context(|| format!("{} cannot be read", path.display()))?,
        Some(path) if path.starts_with("/sys") => SharedMapping::of_pci_resource(path)?,
        Some(path) => page_file::open(path)?,
        // On a host that is itself somebody's guest, its own daemon's page is the better one: it
        // carries the bounds on.
        None if host.exists() => page_file::open(&host)?,
        None if Path::new(DEVICE).exists() => SharedMapping::of_device(Path::new(DEVICE))?,
        None => {
            let none = || {
                format!(
                    "there is no clock page: neither {}, {DEVICE} nor an ivshmem device; start timevisord here, or on the host of this guest",
                    host.display()
                )
            };
            return pci::ivshmem_page()?.with_context(none);
        }
    };
    ReadPage::new(mapping).context("the page cannot be used")
}

fn json(reading: &Reading) -> Json {
    let known = reading.has_estimate();
    let error = reading.estimated_error();
    let timescale = reading.timescale().name();
    Json {
        timeline: timescale,
        timescale,
        earliest_ns: known.then(|| reading.earliest.floor_nanos()),
        estimate_ns: known.then(|| reading.estimate.floor_nanos()),
        latest_ns: known.then(|| reading.latest.ceil_nanos()),
        below_ns: known.then(|| (reading.estimate - reading.earliest).ceil_nanos()),
        above_ns: known.then(|| (reading.latest - reading.estimate).ceil_nanos()),
        status: reading.status().name(),
        estimated_error_ns: (known && error != Duration::MAX).then(|| error.ceil_nanos()),
        disruption: reading.disruption,
        counter: reading.counter,
    }
}

fn text(reading: &Reading) -> String {
    let status = reading.status().name();
    if !reading.has_estimate() {
        return format!("status    {status}: the time is not known; `timevisor status` says why\n");
    }
    let seconds =
        |ns: i64| format!("{}.{:09}", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    let scale = reading.timescale().name();
    let mut out = format!(
        "earliest  {} {scale}\nestimate  {} {scale}\nlatest    {} {scale}\nbound     {}\nstatus    {status}\n",
        seconds(reading.earliest.floor_nanos()),
        seconds(reading.estimate.floor_nanos()),
        seconds(reading.latest.ceil_nanos()),
        sides(reading.estimate - reading.earliest, reading.latest - reading.estimate),
    );
    if let (Some(offset), "tai") = (reading.tai_offset(), scale) {
        let utc = reading.estimate - Duration::from_secs(i64::from(offset));
        out += &format!("utc       {} (TAI - {offset} s)\n", seconds(utc.floor_nanos()));
    }
    out
}
