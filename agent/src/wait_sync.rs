//! `timevisor-guest wait-sync`: exits when the time is known accurately enough, so that a boot or a
//! restored VM can wait for it; with `--clock`, when CLOCK_REALTIME is right as well.
//!
//! It only reads the page and the clock: it needs neither the agent nor a channel, and sets
//! nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use timevisor::{Reading, Requirement, WaitError};

use crate::set_clock::view::{LOOK_INTERVAL, View};
use crate::span::{self, of_std};

/// How often CLOCK_REALTIME is checked.
const CLOCK_INTERVAL: Duration = Duration::from_millis(10);

/// What is waited for.
#[derive(clap::Args)]
pub struct WaitSync {
    /// True time may be this far from the estimate
    #[arg(long, value_name = "SPAN", value_parser = span::parse, default_value = "1ms")]
    within: Duration,
    /// CLOCK_REALTIME may be this far outside of the page's interval; without this option it is not
    /// looked at
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    clock: Option<Duration>,
    /// Fail when it has not come true by then
    #[arg(long, value_name = "SPAN", value_parser = span::parse, default_value = "1m")]
    timeout: Duration,
}

impl WaitSync {
    /// Waits, and returns a line that describes the outcome.
    pub fn run(&self) -> Result<String> {
        let until = Instant::now() + self.timeout;
        let view = View::wait_for("timevisor-guest wait-sync", until)?;
        let path = view.path();
        let timeline = view.timeline().with_requirement(&Requirement::within(self.within))?;
        let left = until.saturating_duration_since(Instant::now()).max(LOOK_INTERVAL);
        let known = match timeline.wait_met(left) {
            Ok(waited) => format!("{path}: {}", text(&waited.reading)),
            Err(WaitError::TimedOut) => {
                bail!(
                    "{path}: {}, not {:?}, after {:?}; is the host's timevisord synchronized?",
                    text(&timeline.now()?),
                    self.within,
                    self.timeout
                )
            }
            Err(error) => return Err(error).context(path),
        };
        match self.clock {
            None => Ok(known),
            Some(clock) => {
                self.wait_clock(&view, clock, until).map(|said| format!("{known}; {said}"))
            }
        }
    }

    fn wait_clock(&self, view: &View, clock: Duration, until: Instant) -> Result<String> {
        loop {
            let problem = match view.look() {
                Ok((_, beside)) if beside.outside() <= of_std(clock) => {
                    return Ok(format!("CLOCK_REALTIME within {} of true time", beside.at_most()));
                }
                Ok((_, beside)) => {
                    format!("CLOCK_REALTIME is {} off, not {clock:?}", beside.offset())
                }
                Err(unusable) => unusable.to_string(),
            };
            if Instant::now() >= until {
                bail!(
                    "{}: {problem}, after {:?}; have it set: `timevisor-guest --set-clock step`, `timevisor-guest set-clock`, or \
                     chronyd on /dev/ptp0",
                    view.path(),
                    self.timeout
                );
            }
            std::thread::sleep(CLOCK_INTERVAL);
        }
    }
}

fn text(reading: &Reading) -> String {
    let known = reading.half_width_ns().map(Duration::from_nanos);
    let known = known.map_or_else(|| "nothing".to_owned(), |half| format!("{half:?}"));
    format!("{} within {known}", reading.status().name())
}
