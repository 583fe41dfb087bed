//! lab-clocks: all clocks of a guest, each beside the guest's TSC, so that the host can say what was true at that value.
//!
//! `lab-clocks PORT [NAME=PAGE ...]` answers every line on a virtio-serial port with a line of JSON: each page, CLOCK_REALTIME,
//! and what chronyd says of CLOCK_REALTIME (`chronyc -c tracking`, where it runs). Times are ns of UTC. It judges nothing.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use timevisor_clock_page::reader::counter_of;
use timevisor_clock_page::{Counter as _, CounterId, Reader, Reading};
use timevisor_linux::clock::bracket;
use timevisor_linux::counter::{HostCounter, Tsc};
use timevisor_linux::page::ReadPage;
use timevisor_time::TimescaleId;

#[path = "../pages.rs"]
mod pages;

/// The narrowest bracket of so many is kept.
const TRIES: usize = 8;

type PageReader = Reader<ReadPage, HostCounter>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().context("usage: lab-clocks PORT [NAME=PAGE ...]")?;
    let pages = arguments.map(|text| open(&text)).collect::<Result<Vec<_>>>()?;
    // A virtio-serial port has one opener at a time.
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
        let mut reply = answer(&pages).to_string();
        reply.push('\n');
        writer.write_all(reply.as_bytes())?;
    }
}

fn open(text: &str) -> Result<(String, PageReader)> {
    let (name, path) = text.split_once('=').context("a page is given as NAME=PATH")?;
    let page = pages::open(Path::new(path))?;
    let counter = HostCounter::for_reader(counter_of(&page, 0)).context("a foreign counter")?;
    Ok((name.to_owned(), Reader::open(page, counter, 0)?))
}

fn answer(pages: &[(String, PageReader)]) -> Value {
    // Before the clocks: what it says must hold when they are read.
    let tracking = tracking();
    let mut all = serde_json::Map::new();
    for (name, reader) in pages {
        all.insert(
            name.clone(),
            page(reader).unwrap_or_else(|error| json!({"error": error.to_string()})),
        );
    }
    let real = bracket(&Tsc::unchecked(), TRIES);
    json!({
        "pages": all,
        "realtime": {"before": real.before, "ns": real.realtime.ceil_nanos(), "after": real.after},
        "tracking": tracking,
    })
}

/// A page that counts the TSC names the value itself; another is read between two.
fn page(reader: &PageReader) -> Result<Value> {
    let tsc = Tsc::unchecked();
    let mut best: Option<(u64, Reading, u64)> = None;
    for _ in 0..TRIES {
        let before = tsc.read_ordered();
        let reading = reader.read()?;
        let after = tsc.read_ordered();
        if best.is_none_or(|(from, _, to)| after.wrapping_sub(before) < to.wrapping_sub(from)) {
            best = Some((before, reading, after));
        }
    }
    let (mut before, reading, mut after) = best.context("no reading")?;
    if reader.counter().id() == CounterId::X86Tsc {
        (before, after) = (reading.counter, reading.counter);
    }
    let shift = match reading.timescale() {
        TimescaleId::Tai => i64::from(reading.tai_offset().context("TAI without TAI - UTC")?),
        _ => 0,
    } * 1_000_000_000;
    Ok(json!({
        "before": before,
        "after": after,
        "earliest_ns": reading.earliest.floor_nanos().saturating_sub(shift),
        "estimate_ns": reading.estimate.floor_nanos().saturating_sub(shift),
        "latest_ns": reading.latest.ceil_nanos().saturating_sub(shift),
        "known": reading.has_estimate(),
        "status": reading.status().name(),
    }))
}

/// The line of `chronyc -c tracking`; null where chronyd does not answer.
fn tracking() -> Option<String> {
    let out = Command::new("chronyc").args(["-c", "-n", "tracking"]).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
