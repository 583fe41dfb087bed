//! lab-freeze SECONDS: takes a busy thread out of SCHED_DEADLINE and puts it back repeatedly, until
//! this kernel no longer runs it.
//!
//! Prints one JSON object: the number of `changes`, and whether the thread was `frozen` after them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use timevisor_linux::scheduling::Attributes;

const MS: u64 = 1_000_000;
/// How long a thread with 3 ms in each 30 ms must not run to count as frozen.
const FROZEN: Duration = Duration::from_secs(3);

static TURNS: AtomicU64 = AtomicU64::new(0);

fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).context("usage: lab-freeze SECONDS")?.parse()?;
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = tell.send(std::fs::read_link("/proc/thread-self"));
        loop {
            TURNS.fetch_add(1, Relaxed);
        }
    });
    let link = told.recv()??;
    let tid = link.file_name().and_then(|name| name.to_str()).context("no thread")?.parse()?;
    let (began, mut changes) = (Instant::now(), 0u64);
    let mut frozen = false;
    while !frozen && began.elapsed() < Duration::from_secs(seconds) {
        Attributes::deadline(3 * MS, 30 * MS, 30 * MS).set(tid)?;
        changes += 1;
        frozen = !goes_on();
        // So that the changes hit all phases of its period.
        std::thread::sleep(Duration::from_micros(changes * 7_919 % 60_000));
        Attributes::other().set(tid)?;
        std::thread::sleep(Duration::from_micros(changes * 1_237 % 10_000));
    }
    println!("{{\"changes\":{changes},\"frozen\":{frozen}}}");
    Ok(())
}

fn goes_on() -> bool {
    let (before, began) = (TURNS.load(Relaxed), Instant::now());
    while TURNS.load(Relaxed) == before {
        if began.elapsed() > FROZEN {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
