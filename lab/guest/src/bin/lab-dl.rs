//! lab-dl RUNTIME PERIOD: requests SCHED_DEADLINE with these parameters in ms, and sleeps until it
//! is killed.

use anyhow::{Context as _, Result};
use timevisor_linux::scheduling::Attributes;

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mut ns = || -> Result<u64> {
        Ok(words.next().context("usage: lab-dl RUNTIME PERIOD")?.parse::<u64>()? * 1_000_000)
    };
    let (runtime, period) = (ns()?, ns()?);
    Attributes::deadline(runtime, period, period).set(0)?;
    loop {
        std::thread::park();
    }
}
