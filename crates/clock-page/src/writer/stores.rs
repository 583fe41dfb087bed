//! The words of a page: what the writer stores inside of its sequence locks.

use core::sync::atomic::Ordering::Relaxed;

use timevisor_time::{Duration, Local, Period, TimescaleId};

use super::{PageWriter, Update};
use crate::CounterId;
use crate::abi::{ClockStatus, entry, header, vmclock};
use crate::lines::Lines;
use crate::page::WritablePage;

impl<P: WritablePage> PageWriter<P> {
    /// A VM's page names only counters of the vmclock ABI; a host's fallback counter is not one of
    /// them.
    fn vmclock_counter(&self) -> u8 {
        match self.identity.counter {
            CounterId::MonotonicRaw => CounterId::Invalid as u8,
            id => id as u8,
        }
    }

    pub(super) fn store_fixed(&self) {
        self.page.head(vmclock::AT_MAGIC).store(vmclock::MAGIC, Relaxed);
        self.page.head(vmclock::AT_SIZE).store(vmclock::SIZE, Relaxed);
        let [v0, v1] = vmclock::VERSION.to_le_bytes();
        let fixed = [v0, v1, self.vmclock_counter(), self.identity.timescale as u8];
        self.page.head(vmclock::AT_VERSION).store(u32::from_le_bytes(fixed), Relaxed);
        self.store_header();
    }

    pub(super) fn store_header(&self) {
        let store = |at: usize, value: u64| self.page.word(at).store(value, Relaxed);
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, b| (sum << 8) | u64::from(*b));
        store(header::AT_MAGIC, header::MAGIC);
        store(
            header::AT_VERSION,
            u64::from(header::VERSION)
                | ((entry::SIZE as u64) << 32)
                | ((entry::CAPACITY as u64) << 48),
        );
        for (at, id) in
            [(header::AT_HOST_ID, self.identity.host), (header::AT_VM_ID, self.identity.vm)]
        {
            store(at, word(&id[..8]));
            store(at + 8, word(&id[8..]));
        }
        store(header::AT_EPOCH, self.identity.epoch);
        store(header::AT_MOVING, 0);
        self.store_generation();
        self.own.store_identity(&self.page);
    }

    pub(super) fn store_lines(&self, lines: &Lines<Local>, update: &Update) {
        let word = |at: usize, value: u64| self.page.word(at).store(value, Relaxed);
        let flags = vmclock::FLAG_PERIOD_ESTERROR_VALID
            | vmclock::FLAG_PERIOD_MAXERROR_VALID
            | vmclock::FLAG_TIME_ESTERROR_VALID
            | vmclock::FLAG_TIME_MAXERROR_VALID
            | vmclock::FLAG_TIME_MONOTONIC;
        match (self.identity.timescale, update.tai_offset, self.tai_offset_hint) {
            // TAI - UTC is about to change. Stock drivers read UTC: they must not read now. They
            // still find an offset when they probe, or they would refuse the page for good.
            (TimescaleId::Tai, None, Some(hint)) => {
                self.store_small(ClockStatus::Unreliable, Some(hint), flags);
            }
            _ => self.store_small(update.status, update.tai_offset, flags),
        }
        let (sec, frac) = lines.estimate.time.to_words();
        let period = lines.estimate.period.to_bits();
        // With the limits of the rate, which hold beyond the expiry too; the estimate's period lies
        // between them.
        let (shortest, longest) = lines.rate_limits();
        let rate = farther(period, shortest, longest);
        word(vmclock::AT_COUNTER, lines.base);
        word(vmclock::AT_PERIOD, period);
        word(
            vmclock::AT_PERIOD_ESTERROR,
            one_sigma(farther(period, lines.earliest.period, lines.latest.period)),
        );
        word(vmclock::AT_PERIOD_MAXERROR, rate);
        word(vmclock::AT_TIME_SEC, sec);
        word(vmclock::AT_TIME_FRAC, frac);
        word(vmclock::AT_TIME_ESTERROR, ceil_ns(update.estimated_error));
        let widest = lines.half_width() + ROUNDED_BITS;
        word(vmclock::AT_TIME_MAXERROR, ceil_ns(widest).saturating_add(ROUNDED_NS));

        self.own.store_lines(&self.page, lines, update);
    }

    /// No time, no bounds. A stock guest's driver is told `unreliable`, so that it refuses to read;
    /// for any other status it would return 1970.
    pub(super) fn store_unknown(&self, tai_offset: Option<i16>) {
        self.store_small(ClockStatus::Unreliable, tai_offset, 0);
        for at in (vmclock::AT_COUNTER..=vmclock::AT_TIME_MAXERROR).step_by(8) {
            self.page.word(at).store(0, Relaxed);
        }
        self.own.store_unknown(&self.page);
    }

    /// The vmclock words that every publication has: marker, flags, and the word of small fields.
    fn store_small(&self, status: ClockStatus, tai_offset: Option<i16>, flags: u64) {
        let valid = if tai_offset.is_some() { vmclock::FLAG_TAI_OFFSET_VALID } else { 0 };
        let [o0, o1] = tai_offset.unwrap_or(0).to_le_bytes();
        let leap = self.own.leap as u8;
        let shift = vmclock::PERIOD_SHIFT;
        let small = u64::from_le_bytes([0, 0, status as u8, 0, o0, o1, leap, shift]);
        self.page.word(vmclock::AT_DISRUPTION).store(self.own.disruption, Relaxed);
        self.page.word(header::AT_MARKER).store(self.own.disruption, Relaxed);
        self.clock_flags.set(flags | valid);
        self.store_flags();
        self.page.word(vmclock::AT_SMALL).store(small, Relaxed);
    }
}

/// A driver rounds the time and the growth of its error down to whole nanoseconds
/// (drivers/ptp/ptp_vmclock.c), each by less than one, and both products by less than 2^-64 s
/// before. Its error must hold the truth nevertheless.
const ROUNDED_NS: u64 = 2;
const ROUNDED_BITS: Duration = Duration::from_bits(2);

/// The larger distance from a period to one of two others, 2^-84 s.
fn farther(period: u64, shortest: Period, longest: Period) -> u64 {
    longest.to_bits().saturating_sub(period).max(period.saturating_sub(shortest.to_bits()))
}

/// The standard uncertainty of a period that lies within `limit` of the published one: limit / √3,
/// as of a uniform distribution (JCGM 100:2008, 4.3.7), rounded up. It covers the deviation of an
/// estimate that slews, too: for a distance d of the published period from the middle of the
/// limits ±h, (h + d) / √3 is at least the root of h²/3 + d².
fn one_sigma(limit: u64) -> u64 {
    let sigma = (u128::from(limit) * 577_351).div_ceil(1_000_000);
    u64::try_from(sigma).unwrap_or(u64::MAX)
}

/// Rounded up: errors on the page never understate.
pub(super) fn ceil_ns(span: Duration) -> u64 {
    u64::try_from(span.ceil_nanos()).unwrap_or(0)
}
