//! lab-age: two ages of this process, with and without blackouts, as lines of JSON.
//!
//! `lab-age FILE` starts both ages and appends to FILE every 20 ms until it is killed:
//! CLOCK_REALTIME before, the two readings, CLOCK_REALTIME after; or why there is none. It keeps no connections, so that
//! CRIU can move it.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use timevisor::{Blackouts, Client, Elapsed, Reading};

fn main() -> Result<()> {
    let file = std::env::args().nth(1).context("usage: lab-age FILE")?;
    let mut file = std::fs::File::options().append(true).create(true).open(file)?;
    let tai = Client::connect()?.timeline("tai")?;
    let counts = Elapsed::begin(&tai, Blackouts::Count)?;
    let runs = Elapsed::begin(&tai, Blackouts::Exclude)?;
    loop {
        let before = realtime();
        let line = match (counts.now(), runs.now()) {
            (Ok(counts), Ok(runs)) => json!({
                "before_ns": before, "after_ns": realtime(), "counts": said(&counts), "runs": said(&runs),
            }),
            (Err(error), _) | (_, Err(error)) => json!({"error": format!("{error:#}")}),
        };
        // A single write: a checkpoint between two writes would leave half a line.
        file.write_all(format!("{line}\n").as_bytes())?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn realtime() -> i64 {
    timevisor_linux::clock::realtime().floor_nanos()
}

fn said(age: &Reading) -> Value {
    json!({
        "known": age.is_known(), "status": age.status().name(),
        "earliest_ns": age.earliest_ns(), "estimate_ns": age.estimate_ns(), "latest_ns": age.latest_ns(),
    })
}
