//! The only writer of a page.
//!
//! Behavior: keeps its own copy of what it published and never reads time back from the page (a guest may be able to
//! write it). Enters both sequence locks, then reads the counter, then decides the lines: no reader can have used the
//! old lines at a later counter value than the one at which the new ones take over, so monotonicity is exact.
//! Limitations: one writer per page; the mapping's owner takes the lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use timevisor_time::{Duration, Instant, Local, Period, TimescaleId};

use crate::abi::{ClockStatus, Meta, entry, header, vmclock};
use crate::lines::{Line, Lines, Slew};
use crate::page::{Page, WritablePage};
use crate::seqlock::{write_begin, write_end};
use crate::{Counter, CounterId};

/// What is fixed for the life of a page. A guest's driver reads counter and timescale once, when it probes.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The counter the readers read.
    pub counter: CounterId,
    /// The timescale of everything on the page.
    pub timescale: TimescaleId,
    /// The host's machine id.
    pub host: [u8; 16],
    /// The VM's id; zero on a host's own page.
    pub vm: [u8; 16],
    /// Name of entry 0's timeline; at most 32 bytes are kept.
    pub timeline: &'static str,
    /// Changes whenever the page is initialized: the caller's time of day or a random number.
    pub epoch: u64,
}

/// One publication, on the page's own timescale and counter.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// The best knowledge; the writer continues from what it published before.
    pub target: Lines<Local>,
    /// What to say of it.
    pub status: ClockStatus,
    /// One sigma of the estimate.
    pub estimated_error: Duration,
    /// Counter value of the newest reference fact.
    pub as_of: u64,
    /// TAI - UTC in seconds, where known.
    pub tai_offset: Option<i16>,
    /// How the estimate moves.
    pub slew: Slew,
}

/// Publishes on one page.
pub struct PageWriter<P> {
    page: P,
    identity: Identity,
    in_force: Option<Lines<Local>>,
    disruption: u64,
    published: u64,
    status: ClockStatus,
    tai_offset: Option<i16>,
}

impl<P: WritablePage> PageWriter<P> {
    /// Takes over a page: writes everything that is fixed, repairs a sequence that a dead writer left odd, and says
    /// `initializing` with no time and no bounds.
    ///
    /// `tai_offset` goes in at once: a guest's driver refuses a TAI page without it when it probes (Linux < 7.0).
    #[must_use]
    pub fn take_over(page: P, identity: Identity, tai_offset: Option<i16>) -> Self {
        let mut writer = Self::new(page, identity);
        writer.begin_anew(identity, tai_offset);
        writer
    }

    /// Writes everything that is fixed and says `initializing`, as for a new reader.
    pub fn begin_anew(&mut self, identity: Identity, tai_offset: Option<i16>) {
        self.identity = identity;
        self.disrupt();
        self.status = ClockStatus::Initializing;
        self.tai_offset = tai_offset;
        self.section(|w| {
            w.store_fixed();
            w.store_unknown(ClockStatus::Initializing, tai_offset);
        });
    }

    /// Takes over a page whose last lines are known (`update.target`) and whose counter has run on undisturbed since:
    /// readers see no disruption, and what is published next continues from those lines.
    #[must_use]
    pub fn recover(page: P, identity: Identity, update: &Update, counter: &impl Counter) -> Self {
        let mut writer = Self::new(page, identity);
        writer.in_force = Some(update.target);
        // One section: until the lines are whole again, what a dead writer left may be torn.
        writer.publish_with(update, counter, Self::store_fixed);
        writer
    }

    fn new(page: P, identity: Identity) -> Self {
        // The marker is the one word that is read back: whatever it is, a changed one tells of a disruption.
        let disruption = page.word(vmclock::AT_DISRUPTION).load(Relaxed);
        Self {
            page,
            identity,
            in_force: None,
            disruption,
            published: 0,
            status: ClockStatus::Unknown,
            tai_offset: None,
        }
    }

    /// Publishes `update` and returns the lines that are now in force, based at the counter value of the publication.
    pub fn publish(&mut self, update: &Update, counter: &impl Counter) -> Lines<Local> {
        self.publish_with(update, counter, |_| ())
    }

    fn publish_with(
        &mut self,
        update: &Update,
        counter: &impl Counter,
        first: impl FnOnce(&Self),
    ) -> Lines<Local> {
        let mut lines = update.target;
        self.section(|w| {
            first(w);
            // The odd sequences must be visible before the counter is read: see the module's header.
            let now = counter.read_after_stores();
            lines = match &w.in_force {
                Some(old) => old.continued(&update.target, now, update.slew),
                None => update.target.rebased(now),
            };
            w.store_lines(&lines, update);
        });
        self.in_force = Some(lines);
        self.published += 1;
        self.status = update.status;
        self.tai_offset = update.tai_offset;
        lines
    }

    /// Withdraws time and bounds. What is published next begins anew, so it counts as a disruption.
    pub fn withdraw(&mut self, status: ClockStatus, tai_offset: Option<i16>) {
        self.disrupt();
        self.status = status;
        self.tai_offset = tai_offset;
        self.section(|w| w.store_unknown(status, tai_offset));
    }

    /// Tells readers that the clock may step at the next publication, and forgets the lines in force.
    pub fn disrupt(&mut self) {
        self.in_force = None;
        self.disruption = self.disruption.wrapping_add(1);
    }

    /// The lines in force, if any.
    #[must_use]
    pub fn in_force(&self) -> Option<&Lines<Local>> {
        self.in_force.as_ref()
    }

    /// The marker as published.
    #[must_use]
    pub fn disruption(&self) -> u64 {
        self.disruption
    }

    /// The status that was published last.
    #[must_use]
    pub fn status(&self) -> ClockStatus {
        self.status
    }

    /// TAI - UTC as published last.
    #[must_use]
    pub fn tai_offset(&self) -> Option<i16> {
        self.tai_offset
    }

    /// How many updates were published through this writer.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.published
    }

    /// The page, for readers in this process.
    #[must_use]
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// What is fixed on this page.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Runs `body` with both sequences odd.
    fn section(&self, body: impl FnOnce(&Self)) {
        let abi: &AtomicU32 = self.page.head(vmclock::AT_SEQUENCE);
        let own: &AtomicU64 = &self.page.entry(0)[entry::SEQUENCE];
        let (abi_odd, own_odd) = (write_begin(abi), write_begin(own));
        body(self);
        write_end(own, own_odd);
        write_end(abi, abi_odd);
    }

    /// A VM's page only ever names a counter of the vmclock ABI; a host's fallback counter is none of them.
    fn vmclock_counter(&self) -> u8 {
        match self.identity.counter {
            CounterId::MonotonicRaw => CounterId::Invalid as u8,
            id => id as u8,
        }
    }

    fn store_fixed(&self) {
        self.page.head(vmclock::AT_MAGIC).store(vmclock::MAGIC, Relaxed);
        self.page.head(vmclock::AT_SIZE).store(vmclock::SIZE, Relaxed);
        let [v0, v1] = vmclock::VERSION.to_le_bytes();
        let fixed = [v0, v1, self.vmclock_counter(), self.identity.timescale as u8];
        self.page.head(vmclock::AT_VERSION).store(u32::from_le_bytes(fixed), Relaxed);
        self.store_header();
    }

    fn store_header(&self) {
        let store = |at: usize, value: u64| self.page.word(at).store(value, Relaxed);
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, b| (sum << 8) | u64::from(*b));
        store(header::AT_MAGIC, header::MAGIC);
        store(
            header::AT_VERSION,
            u64::from(header::VERSION) | ((entry::SIZE as u64) << 32) | (1 << 48),
        );
        for (at, id) in
            [(header::AT_HOST_ID, self.identity.host), (header::AT_VM_ID, self.identity.vm)]
        {
            store(at, word(&id[..8]));
            store(at + 8, word(&id[8..]));
        }
        store(header::AT_EPOCH, self.identity.epoch);
        let own = self.page.entry(0);
        own[entry::ID].store(0, Relaxed);
        let mut name = [0u8; 32];
        for (to, from) in name.iter_mut().zip(self.identity.timeline.bytes()) {
            *to = from;
        }
        for (to, bytes) in own[entry::NAME..].iter().zip(name.chunks_exact(8)) {
            to.store(word(bytes), Relaxed);
        }
        own[entry::REQUIRED].store(0, Relaxed);
    }

    fn store_lines(&self, lines: &Lines<Local>, update: &Update) {
        let word = |at: usize, value: u64| self.page.word(at).store(value, Relaxed);
        let half_width = ceil_ns(lines.half_width());
        let flags = vmclock::FLAG_PERIOD_MAXERROR_VALID
            | vmclock::FLAG_TIME_ESTERROR_VALID
            | vmclock::FLAG_TIME_MAXERROR_VALID
            | vmclock::FLAG_TIME_MONOTONIC;
        self.store_small(update.status, update.tai_offset, flags);
        let (sec, frac) = lines.estimate.time.to_words();
        let period = lines.estimate.period.to_bits();
        // With the limits of the rate, which hold beyond the expiry too; the estimate's period lies between them.
        let (shortest, longest) = lines.rate_limits();
        let rate =
            longest.to_bits().saturating_sub(period).max(period.saturating_sub(shortest.to_bits()));
        word(vmclock::AT_COUNTER, lines.base);
        word(vmclock::AT_PERIOD, period);
        word(vmclock::AT_PERIOD_ESTERROR, 0);
        word(vmclock::AT_PERIOD_MAXERROR, rate);
        word(vmclock::AT_TIME_SEC, sec);
        word(vmclock::AT_TIME_FRAC, frac);
        word(vmclock::AT_TIME_ESTERROR, ceil_ns(update.estimated_error));
        word(vmclock::AT_TIME_MAXERROR, half_width);

        let meta_flags = entry::FLAG_BOUNDS | entry::FLAG_ESTIMATE;
        self.store_entry(lines, self.meta(update.status, update.tai_offset, meta_flags));
        let own = self.page.entry(0);
        let error = u64::try_from(update.estimated_error.to_bits()).unwrap_or(u64::MAX);
        own[entry::ESTIMATED_ERROR].store(error, Relaxed);
        own[entry::AS_OF].store(update.as_of, Relaxed);
        own[entry::ACHIEVED].store(half_width, Relaxed);
    }

    /// No time, no bounds. To a stock guest's driver that is `unreliable`: it then refuses to read, where for any other
    /// status it would return 1970.
    fn store_unknown(&self, status: ClockStatus, tai_offset: Option<i16>) {
        self.store_small(ClockStatus::Unreliable, tai_offset, 0);
        for at in (vmclock::AT_COUNTER..=vmclock::AT_TIME_MAXERROR).step_by(8) {
            self.page.word(at).store(0, Relaxed);
        }
        let still = |time| Line { time, period: Period::from_bits(0) };
        let nothing = Lines::<Local> {
            base: 0,
            expiry: 0,
            earliest: still(Instant::MIN),
            estimate: still(Instant::from_bits(0)),
            latest: still(Instant::MAX),
            holdover: 0,
        };
        self.store_entry(&nothing, self.meta(status, tai_offset, 0));
        let own = self.page.entry(0);
        own[entry::ESTIMATED_ERROR].store(u64::MAX, Relaxed);
        own[entry::AS_OF].store(0, Relaxed);
        own[entry::ACHIEVED].store(u64::MAX, Relaxed);
    }

    /// The vmclock words that every publication has: marker, flags, and the word of small fields.
    fn store_small(&self, status: ClockStatus, tai_offset: Option<i16>, flags: u64) {
        let valid = if tai_offset.is_some() { vmclock::FLAG_TAI_OFFSET_VALID } else { 0 };
        let [o0, o1] = tai_offset.unwrap_or(0).to_le_bytes();
        let small = u64::from_le_bytes([0, 0, status as u8, 0, o0, o1, 0, vmclock::PERIOD_SHIFT]);
        self.page.word(vmclock::AT_DISRUPTION).store(self.disruption, Relaxed);
        self.page.word(vmclock::AT_FLAGS).store(flags | valid, Relaxed);
        self.page.word(vmclock::AT_SMALL).store(small, Relaxed);
    }

    fn meta(&self, status: ClockStatus, tai_offset: Option<i16>, flags: u16) -> u64 {
        let (timescale, counter) = (self.identity.timescale as u8, self.identity.counter as u8);
        Meta { status, timescale, counter, tai_offset, flags }.pack()
    }

    fn store_entry(&self, lines: &Lines<Local>, meta: u64) {
        let own = self.page.entry(0);
        own[entry::META].store(meta, Relaxed);
        own[entry::BASE].store(lines.base, Relaxed);
        own[entry::EXPIRY].store(lines.expiry, Relaxed);
        let parts = [
            (entry::ESTIMATE, &lines.estimate),
            (entry::EARLIEST, &lines.earliest),
            (entry::LATEST, &lines.latest),
        ];
        for (at, line) in parts {
            let (sec, frac) = line.time.to_words();
            own[at].store(sec, Relaxed);
            own[at + 1].store(frac, Relaxed);
            own[at + 2].store(line.period.to_bits(), Relaxed);
        }
        own[entry::HOLDOVER].store(lines.holdover, Relaxed);
        own[entry::DISRUPTION].store(self.disruption, Relaxed);
    }
}

/// Rounded up: errors on the page never understate.
fn ceil_ns(span: Duration) -> u64 {
    u64::try_from(span.ceil_nanos()).unwrap_or(0)
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
