//! lab-clocks: all clocks of a guest, each read together with the guest's TSC, so that the host can
//! compute the true time at that value.
//!
//! `lab-clocks PORT [NAME=PAGE ...]` answers every line on a virtio-serial port with a line of
//! JSON: each page, CLOCK_REALTIME, and what chronyd says of CLOCK_REALTIME (`chronyc -c tracking`,
//! if it runs). Times are in ns of UTC. It judges nothing.
//!
//! Two commands have other answers. `watch MILLISECONDS` says that it has begun, reads
//! CLOCK_REALTIME many times, and reports how often it went back (also since the previous watch)
//! and its largest jump relative to CLOCK_MONOTONIC_RAW. `shift MICROSECONDS` adds that to
//! CLOCK_REALTIME.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use timevisor_clock_page::reader::counter_of;
use timevisor_clock_page::{Counter as _, Reader};
use timevisor_linux::adjust;
use timevisor_linux::clock::{bracket, monotonic, monotonic_raw_nanos, realtime};
use timevisor_linux::counter::{HostCounter, Tsc};
use timevisor_time::{Duration as Span, Instant, Utc};

#[path = "../beside.rs"]
mod beside;
#[path = "../pages.rs"]
mod pages;

/// The narrowest of this many brackets is kept.
const TRIES: usize = 8;
/// Readings between two pauses of a watch.
const BURST: u32 = 200;
const PAUSE: Duration = Duration::from_micros(200);

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().context("usage: lab-clocks PORT [NAME=PAGE ...]")?;
    let pages = arguments.map(|text| open(&text)).collect::<Result<Vec<_>>>()?;
    // A virtio-serial port can be opened only once at a time.
    let mut writer = File::options()
        .read(true)
        .write(true)
        .open(&port)
        .with_context(|| format!("cannot open {port}"))?;
    let mut lines = BufReader::new(writer.try_clone()?);
    let mut last = None;
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            // Nobody is connected on the host's side.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        let mut words = line.split_whitespace();
        let mut reply = match (words.next(), words.next().and_then(|word| word.parse().ok())) {
            (Some("watch"), Some(millis)) => {
                // From here on, the host may stop the guest.
                writer.write_all(b"{\"begun\":true}\n")?;
                watch(millis, &mut last)
            }
            (Some("shift"), Some(micros)) => shift(micros),
            _ => answer(&pages),
        }
        .to_string();
        reply.push('\n');
        writer.write_all(reply.as_bytes())?;
    }
}

fn open(text: &str) -> Result<(String, beside::PageReader)> {
    let (name, path) = text.split_once('=').context("a page is given as NAME=PATH")?;
    let page = pages::open(Path::new(path))?;
    let counter = HostCounter::for_reader(counter_of(&page, 0)).context("a foreign counter")?;
    Ok((name.to_owned(), Reader::open(page, counter, 0)?))
}

fn answer(pages: &[(String, beside::PageReader)]) -> Value {
    // Read before the clocks, because what it says must hold when they are read.
    let tracking = tracking();
    let mut all = serde_json::Map::new();
    for (name, reader) in pages {
        all.insert(
            name.clone(),
            beside::page(reader).unwrap_or_else(|error| json!({"error": error.to_string()})),
        );
    }
    let real = bracket(&Tsc::unchecked(), TRIES);
    json!({
        "pages": all,
        "realtime": {"before": real.before, "ns": real.realtime.ceil_nanos(), "after": real.after},
        "tracking": tracking,
    })
}

/// Reads CLOCK_REALTIME many times, with pauses that leave the processor to others. `last` is the
/// last reading of the previous watch.
fn watch(millis: i64, last: &mut Option<Instant<Utc>>) -> Value {
    let tsc = Tsc::unchecked();
    let end = monotonic() + Span::from_millis(millis);
    let (mut looks, mut backward) = (0u64, 0u64);
    let mut jump = (0i128, 0u64);
    let mut apart: Option<i128> = None;
    while monotonic() < end {
        for _ in 0..BURST {
            let (now, raw) = (realtime(), monotonic_raw_nanos());
            let at = tsc.read_ordered();
            looks += 1;
            backward += u64::from(last.is_some_and(|before| now < before));
            let apart_now = i128::from(now.ceil_nanos()) - i128::from(raw);
            let moved = apart.map_or(0, |before| apart_now - before);
            if moved.abs() > jump.0.abs() {
                jump = (moved, at);
            }
            (*last, apart) = (Some(now), Some(apart_now));
        }
        std::thread::sleep(PAUSE);
    }
    let jump_ns = i64::try_from(jump.0).unwrap_or(i64::MAX);
    json!({"looks": looks, "backward": backward, "jump_ns": jump_ns, "jump_at": jump.1})
}

fn shift(micros: i64) -> Value {
    match adjust::step(Span::from_micros(micros)) {
        Ok(()) => json!({"shifted_us": micros}),
        Err(error) => json!({"error": error.to_string()}),
    }
}

/// The output line of `chronyc -c tracking`; null if chronyd does not answer.
fn tracking() -> Option<String> {
    let out = Command::new("chronyc").args(["-c", "-n", "tracking"]).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
