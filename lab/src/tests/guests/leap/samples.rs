//! What a guest's lab-reader recorded (lab/guest/src/record.rs).

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::reader::GuestReader;

/// One reading, with the guest's counter converted to the host's.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) counter: u64,
    pub(super) entry: Said,
    /// TAI - UTC in entry 0.
    pub(super) tai_offset: Option<i64>,
    pub(super) disruption: u64,
    /// What vmclock_abi says of the same counter value.
    pub(super) abi: Said,
    pub(super) abi_tai_offset: Option<i64>,
    pub(super) leap_indicator: u64,
    /// The host's counter value at the newest publication.
    pub(super) base: u64,
    /// The stock driver's clock, if it was read.
    pub(super) ptp: Option<Ptp>,
}

/// An answer of the stock driver's PTP clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ptp {
    /// The clock's time in ns, between two values of the host's counter.
    Time(i64, u64, u64),
    /// The driver refused.
    Refused,
}

/// A status and an interval in ns, of the page's own timescale.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) status: String,
    pub(super) earliest: i64,
    pub(super) latest: i64,
    has_bounds: bool,
}

impl Said {
    /// Whether a reader may rely on the interval.
    pub(super) fn is_usable(&self) -> bool {
        let vouches =
            matches!(self.status.as_str(), "initializing" | "synchronized" | "freerunning");
        vouches && self.has_bounds
    }

    pub(super) fn is(&self, status: &str) -> bool {
        self.status == status
    }
}

/// All samples of one page, and the number of reads behind them.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) samples: Vec<Sample>,
    pub(super) reads: u64,
}

/// Lets the guest read its page for some seconds. Guest counter = host counter + `offset`.
pub(super) fn record(
    reader: &mut GuestReader,
    seconds: f64,
    offset: i64,
) -> anyhow::Result<Recording> {
    let mut samples = Vec::new();
    let mut report = reader.ask(&format!("record {seconds:.1}"))?;
    loop {
        for sample in report["samples"].as_array().into_iter().flatten() {
            samples.push(parse(sample, offset).with_context(|| format!("odd: {sample}"))?);
        }
        for never in ["backward", "outside", "errors"] {
            ensure!(report[never] == 0, "{} {never} reads in the guest", report[never]);
        }
        if report["done"] == true {
            let reads = report["reads"].as_u64().context("no reads")?;
            return Ok(Recording { samples, reads });
        }
        report = reader.answer()?;
    }
}

fn parse(sample: &Value, offset: i64) -> anyhow::Result<Sample> {
    let abi = &sample["abi"];
    let ns = |value: &Value| value.as_i64().context("no ns");
    let number = |value: &Value| value.as_u64().context("no number");
    let counter = |value: &Value| anyhow::Ok(number(value)?.wrapping_sub(offset.cast_unsigned()));
    let status = |value: &Value| anyhow::Ok(value.as_str().context("no status")?.to_owned());
    let entry = Said {
        status: status(&sample["status"])?,
        earliest: ns(&sample["earliest_ns"])?,
        latest: ns(&sample["latest_ns"])?,
        has_bounds: sample["known"] == true,
    };
    let (estimate, error) = (ns(&abi["estimate_ns"])?, ns(&abi["error_ns"])?);
    let said = Said {
        status: status(&abi["status"])?,
        earliest: estimate.saturating_sub(error),
        latest: estimate.saturating_add(error),
        has_bounds: abi["has_bounds"] == true,
    };
    let ptp = match &sample["ptp"] {
        Value::Null => None,
        Value::Bool(_) => Some(Ptp::Refused),
        ptp => Some(Ptp::Time(ns(&ptp["ns"])?, counter(&ptp["before"])?, counter(&ptp["after"])?)),
    };
    Ok(Sample {
        counter: counter(&sample["counter"])?,
        entry,
        tai_offset: sample["tai_offset"].as_i64(),
        disruption: number(&sample["disruption"])?,
        abi: said,
        abi_tai_offset: abi["tai_offset"].as_i64(),
        leap_indicator: number(&abi["leap"])?,
        base: counter(&abi["base"])?,
        ptp,
    })
}
