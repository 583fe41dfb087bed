//! lab-beats: a workload that reads CLOCK_REALTIME without pause, each time between two reads of the
//! guest's TSC, so that the host can compute the true time at those values. It judges nothing.
//!
//! `lab-beats PORT` writes lines to a virtio-serial port: `S SEQUENCE`, then three numbers for each
//! read, TSC before, CLOCK_REALTIME in ns and TSC after, then `E`. A restored snapshot takes the
//! sequence back, which tells the host where in the stream that was.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use timevisor_linux::clock::bracket;
use timevisor_linux::counter::Tsc;

/// Reads in one line.
const BURST: u32 = 16;
/// Leaves the emulated processor to others.
const PAUSE: Duration = Duration::from_micros(500);

fn main() -> Result<()> {
    let port = std::env::args().nth(1).context("usage: lab-beats PORT")?;
    let mut port =
        File::options().write(true).open(&port).with_context(|| format!("cannot open {port}"))?;
    let mut line = String::new();
    for sequence in 0u64.. {
        line.clear();
        write!(line, "S {sequence}")?;
        for _ in 0..BURST {
            let read = bracket(&Tsc::unchecked(), 1);
            write!(line, " {} {} {}", read.before, read.realtime.floor_nanos(), read.after)?;
        }
        line.push_str(" E\n");
        port.write_all(line.as_bytes())?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
