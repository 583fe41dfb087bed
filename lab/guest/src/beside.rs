//! A clock page beside the guest's TSC, so that the host can compute the true time of a reading.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use timevisor_clock_page::{Counter as _, CounterId, Reader, Reading};
use timevisor_linux::counter::{HostCounter, Tsc};
use timevisor_linux::page::ReadPage;
use timevisor_time::TimescaleId;

/// The narrowest of this many brackets is kept.
const TRIES: usize = 8;

pub(crate) type PageReader = Reader<ReadPage, HostCounter>;

/// A page that counts the TSC gives the TSC value itself; any other page is read between two TSC
/// reads.
pub(crate) fn page(reader: &PageReader) -> Result<Value> {
    let tsc = Tsc::unchecked();
    let mut best: Option<(u64, Reading, u64)> = None;
    for _ in 0..TRIES {
        let before = tsc.read_ordered();
        let reading = reader.read()?;
        let after = tsc.read_ordered();
        if best.is_none_or(|(from, _, to)| after.wrapping_sub(before) < to.wrapping_sub(from)) {
            best = Some((before, reading, after));
        }
    }
    let (mut before, reading, mut after) = best.context("no reading")?;
    if reader.counter().id() == CounterId::X86Tsc {
        (before, after) = (reading.counter, reading.counter);
    }
    let shift = match reading.timescale() {
        TimescaleId::Tai => i64::from(reading.tai_offset().context("TAI without TAI - UTC")?),
        _ => 0,
    } * 1_000_000_000;
    Ok(json!({
        "before": before,
        "after": after,
        "earliest_ns": reading.earliest.floor_nanos().saturating_sub(shift),
        "estimate_ns": reading.estimate.floor_nanos().saturating_sub(shift),
        "latest_ns": reading.latest.ceil_nanos().saturating_sub(shift),
        "known": reading.has_estimate(),
        "status": reading.status().name(),
    }))
}
