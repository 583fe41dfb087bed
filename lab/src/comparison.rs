//! Compares the guest's reading with the host's at the same counter value.

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_clock_page::Reading;

use crate::reader::{GuestReader, HostPage};

/// An interval in nanoseconds of TAI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nanos {
    /// The true time is not before this.
    pub earliest: i64,
    /// The best guess.
    pub estimate: i64,
    /// The true time is not after this.
    pub latest: i64,
}

impl Nanos {
    /// The larger distance from the estimate to an end.
    pub fn half_width(&self) -> i64 {
        (self.latest - self.estimate).max(self.estimate - self.earliest)
    }

    fn of(reading: &Reading) -> Self {
        Self {
            earliest: reading.earliest.floor_nanos(),
            estimate: reading.estimate.floor_nanos(),
            latest: reading.latest.ceil_nanos(),
        }
    }
}

/// /dev/ptp0, read by the guest between two reads of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ptp {
    /// The PTP reading minus the host page's estimate in the middle of the bracket, ns.
    pub error: i64,
    /// Half the bracket, ns: the uncertainty of when the clock was read.
    pub slack: i64,
}

/// One comparison.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// What the guest read.
    pub guest: Nanos,
    /// The host page's reading for the same counter value.
    pub host: Nanos,
    /// How far the guest's estimate lies outside the host's readings before and after it, ns; 0 if
    /// it lies between them.
    pub outside: i64,
    /// The stock driver's clock, where there is one.
    pub ptp: Option<Ptp>,
}

impl Comparison {
    /// Guest minus host at the same counter value, ns.
    pub fn difference(&self) -> i64 {
        self.guest.estimate - self.host.estimate
    }

    /// Whether the two intervals overlap.
    pub fn overlaps(&self) -> bool {
        self.guest.earliest <= self.host.latest && self.host.earliest <= self.guest.latest
    }
}

/// Asks the guest once. Its counter is the host's plus `offset`, as `vm list` shows it.
///
/// # Errors
/// When either cannot be read, or the guest does not know the time.
pub fn compare(
    page: &HostPage,
    guest: &mut GuestReader,
    offset: i64,
) -> anyhow::Result<Comparison> {
    let before = page.read()?;
    let answer = guest.ask("read")?;
    let after = page.read()?;
    ensure!(answer["known"] == true, "the guest knows no time: {answer}");
    // A UTC page and its kernel's clock are converted to TAI for the comparison.
    let shift = match answer["timescale"].as_str() {
        Some("utc") => {
            answer["tai_offset"].as_i64().context("a UTC page without TAI - UTC")? * 1_000_000_000
        }
        _ => 0,
    };
    let ns = |name: &str| {
        answer[name].as_i64().map(|ns| ns + shift).with_context(|| format!("no {name} in {answer}"))
    };
    let guest = Nanos {
        earliest: ns("earliest_ns")?,
        estimate: ns("estimate_ns")?,
        latest: ns("latest_ns")?,
    };
    let host_at = |counter: &Value| {
        let counter = counter.as_u64().context("no counter")?.wrapping_sub(offset.cast_unsigned());
        anyhow::Ok(Nanos::of(&page.convert(counter)?))
    };
    let ptp = match answer["ptp"]["ns"].as_i64() {
        Some(ptp) => {
            let from = host_at(&answer["ptp"]["before"])?.estimate;
            let to = host_at(&answer["ptp"]["after"])?.estimate;
            Some(Ptp { error: ptp + shift - from.midpoint(to), slack: (to - from) / 2 })
        }
        None => None,
    };
    let (low, high) = (before.estimate.floor_nanos(), after.estimate.floor_nanos());
    Ok(Comparison {
        guest,
        host: host_at(&answer["counter"])?,
        outside: (low - guest.estimate).max(guest.estimate - high).max(0),
        ptp,
    })
}

/// The worst of many comparisons.
#[derive(Debug, Default, Clone, Copy)]
pub struct Worst {
    /// Number of comparisons.
    pub count: u32,
    /// Largest absolute difference between guest and host, ns.
    pub difference: i64,
    /// Largest distance of the guest outside the host's two readings, ns.
    pub outside: i64,
    /// Largest distance of the PTP clock outside its bracket, ns.
    pub ptp: i64,
    /// The largest half-width of a bound, ns.
    pub half_width: i64,
}

/// The limit that the issue sets: both read the same counter.
const LIMIT_NS: i64 = 1000;

impl Worst {
    /// Adds a comparison and judges it.
    ///
    /// # Errors
    /// When guest and host differ by a microsecond or more, or their intervals do not overlap.
    pub fn add(&mut self, c: &Comparison) -> anyhow::Result<()> {
        let difference = c.difference().abs();
        let ptp = c.ptp.map_or(0, |p| (p.error.abs() - p.slack).max(0));
        self.count += 1;
        self.difference = self.difference.max(difference);
        self.outside = self.outside.max(c.outside);
        self.ptp = self.ptp.max(ptp);
        self.half_width = self.half_width.max(c.guest.half_width());
        ensure!(
            difference < LIMIT_NS,
            "guest and host differ by {difference} ns at one counter value"
        );
        ensure!(
            c.outside < LIMIT_NS,
            "the guest is {} ns outside the host's readings around it",
            c.outside
        );
        ensure!(ptp < LIMIT_NS, "/dev/ptp0 is {ptp} ns beyond its bracket");
        ensure!(c.overlaps(), "the guest's interval and the host's exclude each other: {c:?}");
        Ok(())
    }

    /// In words.
    pub fn text(&self) -> String {
        format!(
            "{} readings: |guest - host| <= {} ns at the same counter, ptp0 <= {} ns beyond its bracket, \
             bounds <= +-{:.1} us",
            self.count,
            self.difference,
            self.ptp,
            self.half_width as f64 / 1000.0
        )
    }
}
