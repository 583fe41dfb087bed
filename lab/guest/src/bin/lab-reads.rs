//! lab-reads: a program that reads this machine's clock without a break, through whatever happens to
//! the daemon, and counts what must never happen.
//!
//! `lab-reads FILE` reads `tai` every millisecond until it is killed. FILE, replaced four times a
//! second, has one line of JSON: how many `reads` were known, how often the estimate
//! went `back`, how many intervals were not ordered (`disordered`), how many failed (`errors`),
//! how many knew no time (`unknown`), and how often the `disruption` marker changed.
#![forbid(unsafe_code)]

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;
use timevisor::Client;

const EVERY: Duration = Duration::from_millis(1);
const REPORT: Duration = Duration::from_millis(250);

fn main() -> Result<()> {
    let file = std::env::args().nth(1).context("usage: lab-reads FILE")?;
    let tai = Client::connect()?.timeline("tai")?;
    let (mut reads, mut back, mut disordered, mut errors, mut unknown, mut disruptions) =
        (0_u64, 0_u64, 0_u64, 0_u64, 0_u64, 0_u64);
    let (mut last, mut marker) = (None::<i64>, None);
    let mut reported = Instant::now();
    loop {
        match tai.now() {
            Err(_) => errors += 1,
            Ok(reading) if !reading.is_known() => unknown += 1,
            Ok(reading) => {
                reads += 1;
                let estimate = reading.estimate_ns();
                back += u64::from(last.is_some_and(|last| estimate < last));
                let ordered = reading.earliest_ns() <= estimate && estimate <= reading.latest_ns();
                disordered += u64::from(!ordered);
                disruptions += u64::from(marker.is_some_and(|m| m != reading.disruption()));
                marker = Some(reading.disruption());
                last = Some(estimate);
            }
        }
        if reported.elapsed() >= REPORT {
            reported = Instant::now();
            let line = json!({
                "reads": reads, "back": back, "disordered": disordered, "errors": errors,
                "unknown": unknown, "disruptions": disruptions,
            });
            let fresh = format!("{file}.new");
            fs::write(&fresh, format!("{line}\n")).and_then(|()| fs::rename(&fresh, &file))?;
        }
        std::thread::sleep(EVERY);
    }
}
