//! Read latency: lab-latency on the host and in guests.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use timevisor_lab::command;
use timevisor_lab::guest::{BOOT, Guest};
use timevisor_lab::interrupt;

/// Reads in a round; the paper uses a million. Fewer reads fit into the processor's cache and,
/// under emulation, into a run.
pub(super) const READS: usize = 100_000;
const OUTPUT: &str = "/run/latency";

/// The results of one clock, ns.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) clock: String,
    pub(super) min: f64,
    pub(super) mean: f64,
    pub(super) median: f64,
    pub(super) sd: f64,
}

/// The results of one run of lab-latency.
#[derive(Debug, Clone)]
pub(super) struct Latency {
    pub(super) clocksource: String,
    pub(super) rounds: u64,
    pub(super) rows: Vec<Row>,
}

/// Measures on this machine.
pub(super) fn native(program: &Path, span: Duration, page: &Path) -> anyhow::Result<Latency> {
    let mut command = Command::new(program);
    command.args([&span.as_secs_f64().to_string(), &READS.to_string()]);
    command.arg(format!("page={}", page.display()));
    Latency::parse(&command::output(&mut command)?)
}

/// Starts measuring in a guest; `pages` has the form `NAME=PATH`.
pub(super) fn begin(guest: &mut Guest, span: Duration, pages: &str) -> anyhow::Result<()> {
    let run = format!("lab-latency {} {READS} {pages}", span.as_secs_f64());
    guest
        .sh(&format!("rm -f {OUTPUT}; ({run} >{OUTPUT}.part 2>&1; mv {OUTPUT}.part {OUTPUT}) &"))?;
    Ok(())
}

/// Waits for the end of what [`begin`] started; its running time must already have passed.
pub(super) fn end(guest: &mut Guest) -> anyhow::Result<Latency> {
    let text = interrupt::poll_until(BOOT, || {
        std::thread::sleep(Duration::from_millis(200));
        let text = guest.sh(&format!("cat {OUTPUT} 2>/dev/null || true"))?;
        Ok((!text.is_empty()).then_some(text))
    })?;
    Latency::parse(&text.context("lab-latency in the guest does not end")?)
}

impl Latency {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let Ok(value) = serde_json::from_str::<Value>(text) else {
            bail!("lab-latency says: {}", text.trim())
        };
        let rows = value["rows"].as_array().context("no rows")?;
        Ok(Self {
            clocksource: value["clocksource"].as_str().unwrap_or("unknown").to_owned(),
            rounds: value["rounds"].as_u64().context("no rounds")?,
            rows: rows.iter().map(Row::parse).collect::<anyhow::Result<_>>()?,
        })
    }

    /// The row of a clock.
    pub(super) fn row(&self, clock: &str) -> anyhow::Result<&Row> {
        self.rows.iter().find(|row| row.clock == clock).with_context(|| format!("no row {clock}"))
    }
}

impl Row {
    fn parse(value: &Value) -> anyhow::Result<Self> {
        let ns = |name: &str| value[name].as_f64().with_context(|| format!("no {name} in {value}"));
        Ok(Self {
            clock: value["clock"].as_str().context("a row without a clock")?.to_owned(),
            min: ns("min_ns")?,
            mean: ns("mean_ns")?,
            median: ns("median_ns")?,
            sd: ns("sd_ns")?,
        })
    }

    /// The row for a result file.
    pub(super) fn json(&self) -> Value {
        json!({"clock": self.clock, "min_ns": self.min, "mean_ns": self.mean, "median_ns": self.median,
               "sd_ns": self.sd})
    }
}
