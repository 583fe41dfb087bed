//! lab-reader: a guest application as a third party would write it: it maps /dev/vmclock0, or else
//! an ivshmem device's memory, read-only and reads the time.
//!
//! `lab-reader PORT` answers each line on a virtio-serial port with a line of JSON, so that the
//! host can ask at a known moment. Without a port, `lab-reader` prints one reading. The commands:
//!
//! - `read`: one reading of the page and of /dev/ptp0.
//! - `run SECONDS`: reads as fast as it can and checks that time never goes back and that the
//!   bounds contain the estimate.
//! - `updates SECONDS`: how old each publication of the page is when it is first seen.
//! - `journey MILLISECONDS [SECONDS]`: the same across a migration, until this long after the arrival, which
//!   is when the page has another marker or says that the time is unknown. Whatever the disruption
//!   marker says, no known time may be before another. Reports the readings on both sides of the
//!   marker's change.
//! - `resumes COUNT SECONDS`: how long the guest runs after each resume until its page vouches again.
//! - `watch THOUSANDS`: this many thousand reads across a snapshot, which sets the guest itself
//!   back and changes its clocks arbitrarily. Reports the first and the last reading of every
//!   stretch in which the time was known without a break.
//! - `record SECONDS`: a stream of readings for the host to judge, see `record.rs`.
#![forbid(unsafe_code)]

mod record;
mod resumes;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use timevisor_clock_page::abi::header;
use timevisor_clock_page::reader::{Vmclock, counter_of};
use timevisor_clock_page::{Counter, Reader, Reading};
use timevisor_linux::counter::HostCounter;
use timevisor_linux::mapping::SharedMapping;
use timevisor_linux::page::ReadPage;
use timevisor_linux::pci;
use timevisor_linux::phc::Phc;

type GuestReader = Reader<ReadPage, HostCounter>;

fn main() -> Result<()> {
    let reader = open().context("the guest cannot read its page")?;
    let phc = Phc::open(Path::new("/dev/ptp0")).ok();
    let Some(port) = std::env::args().nth(1) else {
        println!("{}", answer("read", &reader, phc.as_ref()));
        return Ok(());
    };
    // A virtio-serial port can be opened only once at a time.
    let mut writer = File::options()
        .read(true)
        .write(true)
        .open(&port)
        .with_context(|| format!("cannot open {port}"))?;
    let mut lines = BufReader::new(writer.try_clone()?);
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            // Nobody is connected on the host's side.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        if ["journey", "watch", "resumes"].iter().any(|word| line.starts_with(word)) {
            // From here on, the host may migrate or stop the guest.
            writer.write_all(b"{\"begun\":true}\n")?;
        }
        if let Some(seconds) = line.strip_prefix("record ") {
            let seconds = seconds.trim().parse().unwrap_or(1.0);
            record::record(&reader, phc.as_ref(), seconds, &mut writer)?;
            continue;
        }
        let mut reply = answer(line.trim(), &reader, phc.as_ref()).to_string();
        reply.push('\n');
        writer.write_all(reply.as_bytes())?;
    }
}

fn open() -> Result<GuestReader> {
    let device = Path::new("/dev/vmclock0");
    let page = if device.exists() {
        ReadPage::new(SharedMapping::of_device(device)?)?
    } else {
        pci::ivshmem_page()?.context("neither /dev/vmclock0 nor an ivshmem device with a page")?
    };
    let counter = HostCounter::for_reader(counter_of(&page, 0))
        .context("the page wants a counter this guest lacks")?;
    Ok(Reader::open(page, counter, 0)?)
}

fn answer(request: &str, reader: &GuestReader, phc: Option<&Phc>) -> Value {
    let mut words = request.split_whitespace();
    match (words.next(), words.next()) {
        (Some("read"), _) => read(reader, phc),
        (Some("journey"), Some(millis)) => {
            let longest = words.next().and_then(|seconds| seconds.parse().ok());
            let longest = longest.map_or(LONGEST_JOURNEY, Duration::from_secs);
            journey(reader, millis.parse().unwrap_or(1000), longest)
        }
        (Some("resumes"), Some(count)) => {
            let longest = words.next().and_then(|seconds| seconds.parse().ok());
            let longest = longest.map_or(LONGEST_JOURNEY, Duration::from_secs);
            resumes::resumes(reader, count.parse().unwrap_or(1), longest)
        }
        (Some("watch"), Some(thousands)) => watch(reader, thousands.parse().unwrap_or(1000)),
        (Some("updates"), Some(seconds)) => updates(reader, seconds.parse().unwrap_or(1)),
        (Some("run"), Some(seconds)) => run(reader, seconds.parse().unwrap_or(1.0)),
        _ => json!({"error": format!("unknown request {request:?}")}),
    }
}

fn read(reader: &GuestReader, phc: Option<&Phc>) -> Value {
    let reading = match reader.read() {
        Ok(reading) => reading,
        Err(error) => return json!({"error": error.to_string()}),
    };
    let mut out = fields(&reading);
    if let Some(phc) = phc {
        let before = reader.counter().read_ordered();
        let time = phc.read();
        let after = reader.counter().read_ordered();
        match time {
            Ok(time) => {
                out["ptp"] = json!({"ns": time.floor_nanos(), "before": before, "after": after});
            }
            Err(error) => out["ptp_error"] = json!(error.raw_os_error()),
        }
    }
    if let Ok(Ok(abi)) = Vmclock::read(reader.page()) {
        out["required_ns"] = json!(reader.required_ns());
        out["epoch"] = json!(reader.epoch());
        out["vm"] = json!(vm_id(&reader.page().bytes()));
        out["vmclock"] = json!({"status": abi.status.name(), "maxerror_ns": abi.maxerror_ns, "disruption": abi.disruption});
    }
    out
}

/// The VM's id on the page, which is its name on the host.
fn vm_id(page: &[u8]) -> String {
    let id = &page[header::AT_VM_ID..header::AT_VM_ID + 16];
    String::from_utf8_lossy(id).trim_end_matches('\0').to_owned()
}

fn fields(reading: &Reading) -> Value {
    json!({
        "counter": reading.counter,
        "earliest_ns": reading.earliest.floor_nanos(),
        "estimate_ns": reading.estimate.floor_nanos(),
        "latest_ns": reading.latest.ceil_nanos(),
        "known": reading.has_estimate(),
        "status": reading.status().name(),
        "timescale": reading.timescale().name(),
        "tai_offset": reading.tai_offset(),
        "disruption": reading.disruption,
    })
}

/// Looks without pause for publications, and tells how old each was when it was first seen, us.
fn updates(reader: &GuestReader, seconds: u64) -> Value {
    let (began, first) = (StdInstant::now(), reader.counter().read_ordered());
    let (mut last, mut ages) = (None, Vec::new());
    while began.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..1000 {
            let Ok(lines) = reader.lines() else { continue };
            let now = reader.counter().read_ordered();
            if last.is_some_and(|last| last != lines.base) {
                ages.push(now.wrapping_sub(lines.base));
            }
            last = Some(lines.base);
        }
    }
    let ticks = reader.counter().read_ordered().wrapping_sub(first);
    let per_us = ticks as f64 / began.elapsed().as_secs_f64() / 1e6;
    json!({"us": ages.iter().map(|age| *age as f64 / per_us).collect::<Vec<_>>()})
}

/// Reads without pause; only a disruption permits a step.
fn run(reader: &GuestReader, seconds: f64) -> Value {
    let end = StdInstant::now() + Duration::from_secs_f64(seconds);
    let (mut reads, mut backward, mut outside, mut errors, mut unknown, mut disruptions) =
        (0u64, 0, 0, 0, 0, 0);
    let mut last: Option<Reading> = None;
    while StdInstant::now() < end {
        for _ in 0..1000 {
            reads += 1;
            let Ok(now) = reader.read() else {
                errors += 1;
                continue;
            };
            if !now.has_estimate() {
                unknown += 1;
                last = None;
                continue;
            }
            outside += u64::from(now.estimate < now.earliest || now.estimate > now.latest);
            if let Some(before) = last {
                disruptions += u64::from(before.disruption != now.disruption);
                backward += u64::from(
                    before.disruption == now.disruption && now.estimate < before.estimate,
                );
            }
            last = Some(now);
        }
    }
    json!({"reads": reads, "backward": backward, "outside": outside, "errors": errors, "unknown": unknown,
           "disruptions": disruptions})
}

/// A guest that has not arrived anywhere by then reports from where it is.
const LONGEST_JOURNEY: Duration = Duration::from_secs(30);

/// Reads without pause while the guest migrates, until `millis` after its arrival: how long a
/// migration takes is up to the hosts' load.
fn journey(reader: &GuestReader, millis: u64, longest: Duration) -> Value {
    let began = StdInstant::now();
    let home = reader.read().ok().map(|reading| reading.disruption);
    let mut arrived: Option<StdInstant> = None;
    let over = |arrived: Option<StdInstant>| {
        began.elapsed() > longest
            || arrived.is_some_and(|at| at.elapsed() > Duration::from_millis(millis))
    };
    let first = reader.counter().read_ordered();
    let (mut reads, mut backward, mut outside, mut errors, mut unknown) =
        (0u64, 0u64, 0u64, 0, 0u64);
    let mut last: Option<Reading> = None;
    let mut gap: Option<(Reading, Reading)> = None;
    let length = |(before, after): &(Reading, Reading)| after.estimate - before.estimate;
    while !over(arrived) {
        for _ in 0..100 {
            reads += 1;
            let Ok(now) = reader.read() else {
                errors += 1;
                continue;
            };
            if arrived.is_none() && (!now.has_estimate() || home != Some(now.disruption)) {
                arrived = Some(StdInstant::now());
            }
            if !now.has_estimate() {
                unknown += 1;
                continue;
            }
            outside += u64::from(now.estimate < now.earliest || now.estimate > now.latest);
            if let Some(before) = last {
                // Bounds that exclude each other would be worse than a step.
                let back = now.estimate < before.estimate || now.latest < before.earliest;
                backward += u64::from(back);
                let step = (before, now);
                // The gap of the migration or, until there is one, the longest.
                let moved =
                    |(before, after): &(Reading, Reading)| before.disruption != after.disruption;
                let longer = |than: &(Reading, Reading)| {
                    (moved(&step), length(&step)) > (moved(than), length(than))
                };
                if gap.as_ref().is_none_or(longer) {
                    gap = Some(step);
                }
            }
            last = Some(now);
        }
    }
    let ticks = reader.counter().read_ordered().wrapping_sub(first);
    let per_second = ticks as f64 / began.elapsed().as_secs_f64();
    let gap = gap.map(|(before, after)| {
        let ticks = after.counter.wrapping_sub(before.counter);
        json!({"before": fields(&before), "after": fields(&after), "guest_us": ticks as f64 / per_second * 1e6})
    });
    json!({"reads": reads, "backward": backward, "outside": outside, "errors": errors, "unknown": unknown, "gap": gap,
        "last": last.as_ref().map(fields)})
}

/// Maximum number of reported stretches; a page that changes more often is broken.
const STRETCHES: usize = 64;

/// Reads without pause and reports the stretches in which the time was known; the host, which knows
/// the true time, judges each stretch by its ends.
fn watch(reader: &GuestReader, thousands: u64) -> Value {
    let (mut reads, mut backward, mut outside, mut errors, mut unknown) =
        (0u64, 0u64, 0u64, 0u64, 0u64);
    let mut stretches: Vec<(Reading, Reading)> = Vec::new();
    let mut broken = true;
    while reads < 1000 * thousands {
        reads += 1;
        let Ok(now) = reader.read() else {
            errors += 1;
            continue;
        };
        if !now.has_estimate() {
            (unknown, broken) = (unknown + 1, true);
            continue;
        }
        outside += u64::from(now.estimate < now.earliest || now.estimate > now.latest);
        let full = stretches.len() == STRETCHES;
        match stretches.last_mut() {
            Some((first, last)) if !broken && first.disruption == now.disruption => {
                backward += u64::from(now.estimate < last.estimate);
                *last = now;
            }
            _ if !full => stretches.push((now, now)),
            _ => errors += 1,
        }
        broken = false;
    }
    let stretches: Vec<Value> = stretches
        .iter()
        .map(|(first, last)| json!({"first": fields(first), "last": fields(last)}))
        .collect();
    json!({"reads": reads, "backward": backward, "outside": outside, "errors": errors, "unknown": unknown,
           "stretches": stretches})
}
