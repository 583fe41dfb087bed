//! `timevisor-guest wait-sync`: ends when the time is known well enough, so that a boot or a restored VM can wait for it.
//!
//! It reads the page; it needs neither the agent nor a channel.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use timevisor::{Options, Reading, Requirement, WaitError};

/// A page may not be there yet: early in the boot, before the driver has probed it.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What is waited for.
#[derive(clap::Args)]
pub struct WaitSync {
    /// True time may be this far from the estimate
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "1ms")]
    within: Duration,
    /// Fail when it has not come true by then
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "1m")]
    timeout: Duration,
}

impl WaitSync {
    /// Waits, and says in a line what has come of it.
    pub fn run(&self) -> Result<String> {
        let until = Instant::now() + self.timeout;
        let client = loop {
            match Options::new().name("timevisor-guest wait-sync").connect() {
                Ok(client) => break client,
                Err(_) if Instant::now() < until => std::thread::sleep(LOOK_INTERVAL),
                Err(error) => return Err(error).context("there is no page to wait for"),
            }
        };
        let page = client.page().path.display();
        let timeline = client.timeline("tai").or_else(|_| client.timeline("utc"))?;
        let timeline = timeline.with_requirement(&Requirement::within(self.within))?;
        let left = until.saturating_duration_since(Instant::now()).max(LOOK_INTERVAL);
        match timeline.wait_met(left) {
            Ok(waited) => Ok(format!("{page}: {}", text(&waited.reading))),
            Err(WaitError::TimedOut) => {
                bail!(
                    "{page}: {}, not {:?}, after {:?}; is the host's timevisord synchronized?",
                    text(&timeline.now()?),
                    self.within,
                    self.timeout
                )
            }
            Err(error) => Err(error).with_context(|| page.to_string()),
        }
    }
}

fn text(reading: &Reading) -> String {
    let known = reading.half_width_ns().map(Duration::from_nanos);
    let known = known.map_or_else(|| "nothing".to_owned(), |half| format!("{half:?}"));
    format!("{} within {known}", reading.status().name())
}

fn span(text: &str) -> Result<Duration, String> {
    humantime_serde::re::humantime::parse_duration(text)
        .map_err(|error| format!("{error}; as in 500us, 1ms, 2min"))
}
