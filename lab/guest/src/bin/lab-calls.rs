//! lab-calls: a real-time program whose every call is known in advance, for the tests of introspection.
//!
//! `lab-calls JOBS YIELDS`: becomes a deadline task (2 ms of 20 ms within 10 ms), ends so many jobs with sched_yield, sleeps 1, 2 and 3 ms,
//! becomes FIFO with priority 7, yields so often, and ends with status 3. It prints its process id first.

use std::time::Duration;

use anyhow::{Context as _, Result};
use timevisor_linux::scheduling::Attributes;

/// How it ends.
const STATUS: i32 = 3;

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let mut number = || numbers.next().context("usage: lab-calls JOBS YIELDS")?.context("a number");
    let (jobs, yields) = (number()?, number()?);
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
    std::process::exit(STATUS)
}
