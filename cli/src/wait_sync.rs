//! `timevisor wait-sync`: waits until the time is known well enough, for units that need it at their
//! start. It reads the page, so it works on hosts, in guests and in containers.

use std::path::{Path, PathBuf};
use std::time::{Duration as StdDuration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use humantime_serde::re::humantime::format_duration;
use timevisor_clock_page::{ClockStatus, Reading};
use timevisor_time::Duration;

use crate::bound::sides;
use crate::now::reader;
use crate::spans::span;

/// How often the page is read.
const LOOK: StdDuration = StdDuration::from_millis(50);
/// A sign of life.
const SAY: StdDuration = StdDuration::from_secs(5);

#[derive(Args)]
pub struct Options {
    /// The widest bound that is good enough, on either side of the estimate; without it, any
    #[arg(long, value_name = "SPAN", value_parser = span)]
    within: Option<StdDuration>,
    /// Give up after this long, with exit status 1; without it, wait for ever
    #[arg(long, value_name = "SPAN", value_parser = span)]
    timeout: Option<StdDuration>,
    /// Read this page instead of the host's, /dev/vmclock0 or an ivshmem device's
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

pub fn run(directory: &Path, options: &Options) -> Result<()> {
    let began = Instant::now();
    let within = options
        .within
        .map(|within| Duration::from_nanos(i64::try_from(within.as_nanos()).unwrap_or(i64::MAX)));
    let mut said = began;
    loop {
        // The page may not be there yet: the daemon starts, or makes it again.
        let state = match reader(directory, options.page.as_deref()).and_then(|r| Ok(r.read()?)) {
            Ok(reading) => judge(&reading, within),
            Err(error) => Err(format!("{error:#}")),
        };
        let why = match state {
            Ok(known) => {
                println!("{known}");
                return Ok(());
            }
            Err(why) => why,
        };
        if let Some(timeout) = options.timeout.filter(|timeout| began.elapsed() >= *timeout) {
            bail!(
                "not within {}: {why}; `timevisor status` on the host says what is missing",
                format_duration(timeout)
            );
        }
        if said.elapsed() >= SAY {
            said = Instant::now();
            eprintln!("still waiting ({} s): {why}", began.elapsed().as_secs());
        }
        std::thread::sleep(LOOK);
    }
}

fn judge(reading: &Reading, within: Option<Duration>) -> Result<String, String> {
    if !reading.has_estimate() {
        return Err(format!("{}: the time is not known", reading.status().name()));
    }
    let bound = (reading.estimate - reading.earliest, reading.latest - reading.estimate);
    good_enough(reading.status(), bound, within)
}

/// What is known, or why it is not good enough. `bound`: below and above the estimate.
fn good_enough(
    status: ClockStatus,
    (below, above): (Duration, Duration),
    within: Option<Duration>,
) -> Result<String, String> {
    let known = format!("{}, {}", status.name(), sides(below, above));
    // Bounds that hold and grow are as good as others while they are narrow enough.
    let holds = match status {
        ClockStatus::Synchronized => true,
        ClockStatus::FreeRunning => within.is_some(),
        ClockStatus::Unknown | ClockStatus::Initializing | ClockStatus::Unreliable => false,
    };
    let narrow = within.is_none_or(|within| below <= within && above <= within);
    if holds && narrow { Ok(known) } else { Err(known) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_good_enough_when_its_bound_is() {
        let us = Duration::from_micros;
        let bound = (us(30), us(50));
        for (status, within, good) in [
            (ClockStatus::Synchronized, None, true),
            (ClockStatus::Synchronized, Some(us(50)), true),
            (ClockStatus::Synchronized, Some(us(49)), false),
            (ClockStatus::FreeRunning, Some(us(50)), true),
            (ClockStatus::FreeRunning, None, false),
            (ClockStatus::Unreliable, Some(us(50)), false),
            (ClockStatus::Initializing, Some(us(50)), false),
        ] {
            let said = good_enough(status, bound, within);
            assert_eq!(said.is_ok(), good, "{status:?} {within:?}");
            let (Ok(text) | Err(text)) = said;
            assert!(text.ends_with("-30.000 us +50.000 us"), "{text}");
        }
    }
}
