//! `timevisor now`: reads the page like every other client: no daemon, no root, also in a guest or
//! container.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration as StdDuration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use humantime_serde::re::humantime::{format_duration, format_rfc3339_nanos};
use serde::Serialize;
use timevisor_clock_page::reader::{check, counter_of};
use timevisor_clock_page::{Counter, Page, Reader, Reading};
use timevisor_linux::counter::HostCounter;
use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page::ReadPage;
use timevisor_linux::{page_file, pci};
use timevisor_time::Duration;

use crate::bound::sides;
use crate::exit::{Found, NobodyThere, is_vouched};
use crate::spans::span;

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
    /// Say until when the bound stays within this if nobody renews it, for example 1ms
    #[arg(long, value_name = "SPAN", value_parser = span)]
    within: Option<StdDuration>,
    /// In UTC (POSIX seconds) where the page counts TAI
    #[arg(long)]
    utc: bool,
    /// In UTC as dates: 2026-11-30T17:00:00.123456789Z
    #[arg(long, conflicts_with = "json")]
    iso: bool,
}

/// How far the times that are shown are behind those of the page, and how they are shown.
#[derive(Clone, Copy)]
struct Shown {
    behind: Duration,
    timescale: &'static str,
    as_dates: bool,
}

impl Shown {
    fn of(reading: &Reading, options: &Options) -> Result<Self> {
        let timescale = reading.timescale().name();
        let as_is = Self { behind: Duration::ZERO, timescale, as_dates: options.iso };
        if !options.utc && !options.iso || !reading.has_estimate() || timescale == "utc" {
            return Ok(as_is);
        }
        if timescale != "tai" {
            bail!("the page counts {timescale}, not UTC or TAI; leave --utc and --iso out");
        }
        let Some(offset) = reading.tai_offset() else {
            bail!("TAI - UTC is not known here; `timevisor status` on the host says why");
        };
        Ok(Self { behind: Duration::from_secs(i64::from(offset)), timescale: "utc", ..as_is })
    }

    /// Of nanoseconds that are as far behind already.
    fn text(self, ns: i64) -> String {
        let date = u64::try_from(ns).ok().filter(|_| self.as_dates);
        match date {
            Some(ns) => {
                let date = SystemTime::UNIX_EPOCH + StdDuration::from_nanos(ns);
                format_rfc3339_nanos(date).to_string()
            }
            None => format!(
                "{}.{:09} {}",
                ns.div_euclid(1_000_000_000),
                ns.rem_euclid(1_000_000_000),
                self.timescale
            ),
        }
    }
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
    /// With `--within`: the time until which the bound stays within that; absent if it is wider
    /// already, or never is.
    #[serde(skip_serializing_if = "Option::is_none")]
    within_until_ns: Option<i64>,
}

/// Until when a bound is narrow enough, if nobody renews it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Horizon {
    /// It is wider already.
    Over,
    /// For this long.
    For(Duration),
    /// It does not grow.
    Never,
}

/// Ticks to look ahead at first, which is also how exact a horizon is: a quarter of a millisecond at
/// 4 GHz.
const FIRST_LOOK: u64 = 1 << 20;
/// Decades of any counter.
const LAST_LOOK: u64 = 1 << 62;

/// Where a guest, then a host or container, finds its page.
const DEVICE: &str = "/dev/vmclock0";

pub fn run(directory: &Path, options: &Options) -> Result<Found> {
    let reader = reader(directory, options.page.as_deref())?;
    loop {
        let reading = reader.read()?;
        let within = options.within.filter(|_| reading.has_estimate());
        let horizon = within.map(|within| horizon(&reader, &reading, within)).transpose()?;
        let shown = Shown::of(&reading, options)?;
        if options.json {
            println!("{}", serde_json::to_string(&json(&reading, shown, horizon))?);
        } else {
            print!("{}", text(&reading, shown));
            if let Some((within, horizon)) = options.within.zip(horizon) {
                print!("{}", horizon_text(&reading, within, horizon));
            }
        }
        match options.every {
            Some(seconds) if seconds > 0.0 => {
                std::thread::sleep(StdDuration::try_from_secs_f64(seconds)?);
            }
            _ => {
                let is_over =
                    options.within.is_some() && horizon.is_none_or(|h| h == Horizon::Over);
                return Ok(Found::when(is_vouched(reading.status().name()) && !is_over));
            }
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
            return pci::ivshmem_page()?.ok_or_else(|| anyhow!(NobodyThere(none())));
        }
    };
    ReadPage::new(mapping).context("the page cannot be used")
}

/// Looks at the page's own lines ahead of now, which is what readers will see if it stays as it is.
fn horizon<P: Deref<Target = Page>, C: Counter>(
    reader: &Reader<P, C>,
    reading: &Reading,
    within: StdDuration,
) -> Result<Horizon> {
    let most = Duration::from_nanos(i64::try_from(within.as_nanos()).unwrap_or(i64::MAX));
    let at = |ticks: u64| reader.convert(reading.counter.wrapping_add(ticks));
    if reading.half_width() > most {
        return Ok(Horizon::Over);
    }
    let (mut good, mut bad) = (0, FIRST_LOOK);
    while at(bad)?.half_width() <= most {
        if bad >= LAST_LOOK {
            return Ok(Horizon::Never);
        }
        (good, bad) = (bad, bad * 2);
    }
    while bad - good > FIRST_LOOK.max(good >> 20) {
        let middle = good.midpoint(bad);
        if at(middle)?.half_width() <= most { good = middle } else { bad = middle }
    }
    Ok(Horizon::For(at(good)?.estimate - reading.estimate))
}

fn horizon_text(reading: &Reading, within: StdDuration, horizon: Horizon) -> String {
    let within = format_duration(within);
    let span = match horizon {
        Horizon::Over => return format!("horizon   the bound is wider than {within} already\n"),
        Horizon::Never => {
            return format!("horizon   within {within} for as long as this page is true\n");
        }
        Horizon::For(span) => span,
    };
    let seconds = span.floor_nanos() / 1_000_000_000;
    let long = format_duration(StdDuration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    let of_utc = match (reading.tai_offset(), reading.timescale().name()) {
        (Some(offset), "tai") => reading.estimate - Duration::from_secs(i64::from(offset)),
        (_, "utc") => reading.estimate,
        _ => return format!("horizon   within {within} for {long}\n"),
    };
    let until = (of_utc + span).floor_nanos().div_euclid(1_000_000_000).rem_euclid(86_400);
    let (hours, minutes, seconds) = (until / 3600, until / 60 % 60, until % 60);
    format!(
        "horizon   within {within} until {hours:02}:{minutes:02}:{seconds:02} UTC, for {long}\n"
    )
}

fn json(reading: &Reading, shown: Shown, horizon: Option<Horizon>) -> Json {
    let known = reading.has_estimate();
    let error = reading.estimated_error();
    let Shown { behind, timescale, .. } = shown;
    Json {
        timeline: timescale,
        timescale,
        earliest_ns: known.then(|| (reading.earliest - behind).floor_nanos()),
        estimate_ns: known.then(|| (reading.estimate - behind).floor_nanos()),
        latest_ns: known.then(|| (reading.latest - behind).ceil_nanos()),
        below_ns: known.then(|| (reading.estimate - reading.earliest).ceil_nanos()),
        above_ns: known.then(|| (reading.latest - reading.estimate).ceil_nanos()),
        status: reading.status().name(),
        estimated_error_ns: (known && error != Duration::MAX).then(|| error.ceil_nanos()),
        disruption: reading.disruption,
        counter: reading.counter,
        within_until_ns: match horizon {
            Some(Horizon::For(span)) => Some((reading.estimate - behind + span).floor_nanos()),
            _ => None,
        },
    }
}

fn text(reading: &Reading, shown: Shown) -> String {
    let status = reading.status().name();
    if !reading.has_estimate() {
        return format!("status    {status}: the time is not known; `timevisor status` says why\n");
    }
    let behind = shown.behind;
    let mut out = format!(
        "earliest  {}\nestimate  {}\nlatest    {}\nbound     {}\nstatus    {status}\n",
        shown.text((reading.earliest - behind).floor_nanos()),
        shown.text((reading.estimate - behind).floor_nanos()),
        shown.text((reading.latest - behind).ceil_nanos()),
        sides(reading.estimate - reading.earliest, reading.latest - reading.estimate),
    );
    if let (Some(offset), "tai") = (reading.tai_offset(), shown.timescale) {
        let utc = (reading.estimate - Duration::from_secs(i64::from(offset))).floor_nanos();
        let (seconds, rest) = (utc.div_euclid(1_000_000_000), utc.rem_euclid(1_000_000_000));
        out += &format!("utc       {seconds}.{rest:09} (TAI - {offset} s)\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use timevisor_clock_page::{
        ClockStatus, CounterId, Identity, Line, Lines, PageWriter, Slew, Update,
    };
    use timevisor_linux::page::WritePage;
    use timevisor_linux::page_file::PageSize;
    use timevisor_time::{Instant, Period, RateError, TimescaleId};

    use super::*;

    /// A page of 100 us to each side at `base`, within 15 ppm, on CLOCK_MONOTONIC_RAW.
    fn page(folder: &Path, counter: &HostCounter) -> u64 {
        let mapping = page_file::create(&folder.join("clock"), PageSize::Page).unwrap();
        let identity = Identity {
            counter: CounterId::MonotonicRaw,
            timescale: TimescaleId::Tai,
            host: [1; 16],
            vm: [0; 16],
            timeline: "tai",
            epoch: 1,
        };
        let page = WritePage::new(mapping).unwrap();
        let mut writer = PageWriter::take_over(page, identity, Some(37));
        let (base, period) = (counter.read_ordered(), Period::from_hz(1_000_000_000).unwrap());
        let time = Instant::from_unix_nanos(1_800_000_000_000_000_000);
        let line = |us, period| Line { time: time + Duration::from_micros(us), period };
        let error = RateError::from_ppm(15);
        let update = Update {
            target: Lines {
                base,
                expiry: base + 10_000_000_000,
                earliest: line(-100, period.slowest_time(error)),
                estimate: line(0, period),
                latest: line(100, period.fastest_time(error)),
                holdover: 0,
            },
            status: ClockStatus::Synchronized,
            estimated_error: Duration::from_micros(1),
            as_of: base,
            tai_offset: Some(37),
            slew: Slew { horizon: 8_000_000_000, jump: Duration::from_millis(1) },
        };
        writer.publish(&update, counter);
        base
    }

    #[test]
    fn fifteen_ppm_reach_a_millisecond_after_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let counter = HostCounter::for_reader(CounterId::MonotonicRaw).unwrap();
        let base = page(folder.path(), &counter);
        let reader = reader(folder.path(), None).unwrap();
        let reading = reader.convert(base).unwrap();
        let of = |within| horizon(&reader, &reading, within).unwrap();
        // 900 us at 15 us a second.
        let Horizon::For(span) = of(StdDuration::from_millis(1)) else { panic!() };
        assert!((59.99..60.01).contains(&span.as_secs_f64()), "{span}");
        assert_eq!(of(StdDuration::from_micros(99)), Horizon::Over);
        let said = horizon_text(&reading, StdDuration::from_millis(1), Horizon::For(span));
        assert_eq!(said, "horizon   within 1ms until 08:00:22 UTC, for 59s\n");
        let as_is = Shown { behind: Duration::ZERO, timescale: "tai", as_dates: false };
        let json = json(&reading, as_is, Some(Horizon::For(span)));
        let seconds = json.within_until_ns.unwrap() as f64 * 1e-9 - 1_800_000_000.0;
        assert!((59.99..60.01).contains(&seconds), "{seconds}");
    }

    #[test]
    fn times_are_shown_in_utc_and_as_dates() {
        let folder = tempfile::tempdir().unwrap();
        let counter = HostCounter::for_reader(CounterId::MonotonicRaw).unwrap();
        let base = page(folder.path(), &counter);
        let reading = reader(folder.path(), None).unwrap().convert(base).unwrap();
        let mut options =
            Options { json: false, page: None, every: None, within: None, utc: true, iso: false };
        let utc = text(&reading, Shown::of(&reading, &options).unwrap());
        // 37 s behind TAI; a nanosecond outward, as periods are fractions.
        assert!(utc.starts_with("earliest  1799999962.999899999 utc\n"), "{utc}");
        assert!(!utc.contains("TAI"), "{utc}");
        let said = json(&reading, Shown::of(&reading, &options).unwrap(), None);
        assert_eq!((said.timescale, said.latest_ns), ("utc", Some(1_799_999_963_000_100_001)));
        options.iso = true;
        let iso = text(&reading, Shown::of(&reading, &options).unwrap());
        assert!(iso.contains("estimate  2027-01-15T07:59:22.999999999Z\n"), "{iso}");
    }
}
