//! Reads the page without a break and reports what it says, so that the host can judge each
//! reading: `record SECONDS`.
//!
//! This program itself checks everything in a reading that needs no other clock. It sends a sample
//! to the host every 10 ms and whenever the page's status or disruption marker changes. A sample
//! holds the reading of entry 0 and what `vmclock_abi` says of the same counter value.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use timevisor_clock_page::abi::vmclock;
use timevisor_clock_page::reader::Vmclock;
use timevisor_clock_page::{Counter as _, Page, Reading};
use timevisor_linux::phc::Phc;

use crate::{GuestReader, fields};

/// How often a sample is taken while the page does not change.
const EVERY: Duration = Duration::from_millis(10);
/// How often the samples are sent.
const REPORT: Duration = Duration::from_millis(500);
/// One sample in this many also reads the stock driver's clock.
const PTP_EVERY: u64 = 10;
/// Reads between two checks of the guest's own clock.
const BURST: u32 = 20;
/// Pause between two bursts, for the host's other work.
const PAUSE: Duration = Duration::from_micros(500);

/// Writes a line of JSON every half second, and a last one with `"done": true`.
pub(crate) fn record(
    reader: &GuestReader,
    phc: Option<&Phc>,
    seconds: f64,
    out: &mut impl Write,
) -> Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut record = Record::default();
    while Instant::now() < end {
        let until = (Instant::now() + REPORT).min(end);
        while Instant::now() < until {
            for _ in 0..BURST {
                record.read(reader, phc);
            }
            std::thread::sleep(PAUSE);
        }
        record.report(false, out)?;
    }
    record.report(true, out)
}

#[derive(Default)]
struct Record {
    reads: u64,
    backward: u64,
    outside: u64,
    errors: u64,
    last: Option<Reading>,
    sampled: Option<(Instant, Reading)>,
    samples: Vec<Value>,
    taken: u64,
}

impl Record {
    fn read(&mut self, reader: &GuestReader, phc: Option<&Phc>) {
        self.reads += 1;
        let Ok(now) = reader.read() else {
            self.errors += 1;
            return;
        };
        if now.has_estimate() {
            self.outside += u64::from(now.estimate < now.earliest || now.estimate > now.latest);
            if let Some(before) = self.last.filter(|last| last.disruption == now.disruption) {
                self.backward += u64::from(now.estimate < before.estimate);
            }
            self.last = Some(now);
        }
        let says = |reading: &Reading| (reading.status() as u8, reading.disruption);
        let is_due = |(when, before): &(Instant, Reading)| {
            when.elapsed() >= EVERY || says(before) != says(&now)
        };
        if self.sampled.as_ref().is_none_or(is_due) {
            self.sampled = Some((Instant::now(), now));
            self.sample(reader, phc, &now);
        }
    }

    fn sample(&mut self, reader: &GuestReader, phc: Option<&Phc>, now: &Reading) {
        let mut sample = fields(now);
        match abi(reader.page(), now.counter) {
            Some(abi) => sample["abi"] = abi,
            None => self.errors += 1,
        }
        if let Some(phc) = phc.filter(|_| self.taken.is_multiple_of(PTP_EVERY)) {
            let before = reader.counter().read_ordered();
            let time = phc.read();
            let after = reader.counter().read_ordered();
            sample["ptp"] = match time {
                Ok(time) => json!({"ns": time.floor_nanos(), "before": before, "after": after}),
                Err(_) => json!(false),
            };
        }
        self.taken += 1;
        self.samples.push(sample);
    }

    fn report(&mut self, done: bool, out: &mut impl Write) -> Result<()> {
        let samples = std::mem::take(&mut self.samples);
        let line = json!({"done": done, "reads": self.reads, "backward": self.backward, "outside": self.outside,
            "errors": self.errors, "samples": samples});
        out.write_all(format!("{line}\n").as_bytes())?;
        Ok(())
    }
}

/// What `vmclock_abi` says of a counter value near its base, with its maximum error as
/// docs/reference/page-abi.md computes it; `None` while a writer is inside.
fn abi(page: &Page, counter: u64) -> Option<Value> {
    // The sequence is the same around both reads, so they are consistent.
    let (block, bytes) = (0..1000).find_map(|_| {
        let before = page.bytes();
        let block = Vmclock::read(page).ok()?.ok()?;
        let bytes = page.bytes();
        (sequence(&before) == sequence(&bytes) && sequence(&bytes).is_multiple_of(2))
            .then_some((block, bytes))
    })?;
    let tai_offset = i16::from_le_bytes([bytes[0x24], bytes[0x25]]);
    // The newest publication may be slightly later than the reading.
    let ticks = i128::from(counter.wrapping_sub(block.base).cast_signed());
    let bits = |period: u64| (ticks * i128::from(period)) >> block.shift;
    let error = i128::from(block.maxerror_ns)
        + ((bits(block.period_maxerror).abs() * 1_000_000_000) >> 64)
        + 1;
    let estimate = ((block.time.to_bits() + bits(block.period)) * 1_000_000_000) >> 64;
    let ns = |value: i128| i64::try_from(value).unwrap_or(i64::MAX);
    Some(json!({
        "sequence": sequence(&bytes),
        "status": block.status.name(),
        "has_bounds": block.flags & vmclock::FLAG_TIME_MAXERROR_VALID != 0,
        "tai_offset": (block.flags & vmclock::FLAG_TAI_OFFSET_VALID != 0).then_some(tai_offset),
        "leap": bytes[0x26],
        "disruption": block.disruption,
        "base": block.base,
        "estimate_ns": ns(estimate),
        "error_ns": ns(error),
    }))
}

fn sequence(bytes: &[u8]) -> u32 {
    let at = vmclock::AT_SEQUENCE;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
