//! lab-calls: a real-time program whose every call is known in advance, for the introspection
//! tests.
//!
//! `lab-calls JOBS YIELDS` prints its process id, becomes a deadline task (2 ms of 20 ms within 10
//! ms), ends JOBS jobs with sched_yield, sleeps 1, 2 and 3 ms, becomes FIFO with priority 7, yields
//! YIELDS times, and exits with status 3. `lab-calls paced YIELDS HZ` becomes FIFO, yields YIELDS
//! times at HZ per second (0: as fast as it can), and waits to be killed. It prints its process id,
//! how often it yielded, and how many processes and kernel threads started meanwhile: each of these
//! may be an event.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use timevisor_linux::scheduling::Attributes;

/// The exit status.
const STATUS: i32 = 3;
/// The time between two groups of yields.
const PACE: Duration = Duration::from_millis(1);

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1).peekable();
    let paced = words.next_if(|word| word == "paced").is_some();
    let mut numbers = words.map(|word| word.parse::<u64>());
    let usage = "usage: lab-calls JOBS YIELDS | lab-calls paced YIELDS HZ";
    let mut number = || numbers.next().context(usage)?.context("a number");
    let (first, second) = (number()?, number()?);
    if paced {
        return pace(first, second);
    }
    every_kind(first, second)?;
    std::process::exit(STATUS)
}

fn every_kind(jobs: u64, yields: u64) -> Result<()> {
    println!("{{\"pid\":{}}}", std::process::id());
    Attributes::deadline(2_000_000, 10_000_000, 20_000_000).set(0)?;
    for _ in 0..jobs {
        std::thread::yield_now();
    }
    for ms in 1..=3 {
        std::thread::sleep(Duration::from_millis(ms));
    }
    Attributes::fifo(7).set(0)?;
    for _ in 0..yields {
        std::thread::yield_now();
    }
    Ok(())
}

/// A group of yields each millisecond; late groups are not caught up. Waiting makes no system
/// calls.
fn pace(yields: u64, rate_hz: u64) -> Result<()> {
    Attributes::fifo(7).set(0)?;
    let before = processes()?;
    let mut made = 0;
    let group = if rate_hz == 0 { yields } else { (rate_hz / 1000).max(1) };
    let mut left = yields;
    while left > 0 {
        let due = Instant::now() + PACE;
        for _ in 0..group.min(left) {
            std::thread::yield_now();
            made += 1;
        }
        left -= group.min(left);
        while rate_hz > 0 && Instant::now() < due {
            std::hint::spin_loop();
        }
    }
    let (pid, began) = (std::process::id(), processes()? - before);
    println!("{{\"pid\":{pid},\"made\":{made},\"began\":{began}}}");
    loop {
        std::thread::park();
    }
}

/// The number of processes and kernel threads started since boot.
fn processes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("processes "));
    Ok(line.context("no processes in /proc/stat")?.trim().parse()?)
}
