//! The only writer of a page.
//!
//! Behavior: keeps its own copy of what it published and never reads time back from the page (a
//! guest may be able to write it). Enters both sequence locks, then reads the counter, then decides
//! the lines: no reader can have used the old lines at a later counter value than the one at which
//! the new ones take over, so monotonicity is exact. Each further timeline is an entry with its own
//! sequence (`slot.rs`); the page's own clock is entry 0. The writer remembers the sequences that
//! it left. [`PageWriter::is_intact`] thus notices when something else wrote the page, for instance
//! a VM monitor that loaded a snapshot. What it announces of a coming disruption is in `notice.rs`,
//! the VM generation counter in `generation.rs`, what an earlier writer has left in `found.rs`.
//! Limitations: one writer per page; the mapping's owner takes the lock.

mod found;
mod generation;
mod notice;
mod slot;
mod stores;

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use timevisor_time::{Duration, Local, TimescaleId};

use crate::abi::{ClockStatus, LeapIndicator, Notice, entry, header, vcpus, vmclock};
use crate::lines::{Lines, Slew};
use crate::page::{Page, WritablePage};
use crate::seqlock::{write_begin, write_end};
use crate::{Counter, CounterId};

pub use self::found::{NotedBirth, timescale_left_on};
pub use self::slot::EntryIdentity;
use self::slot::EntryState;

/// The fixed part of a page. A guest's driver reads counter and timescale only once, when it
/// probes.
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
    /// The best knowledge. The writer continues towards it from the lines in force.
    pub target: Lines<Local>,
    /// The status to publish.
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

/// The content of a further entry.
#[derive(Clone, Copy, Debug)]
pub struct EntryUpdate {
    /// Which entry, 1 to 17.
    pub index: usize,
    /// Its timeline.
    pub identity: EntryIdentity,
    /// The tightest required half-width, ns; 0: none.
    pub required_ns: u64,
    /// Changes whenever earlier publications are void, and with `clock`.
    pub disruptions: u64,
    /// Which clock the timeline is, the same number on every host that has it; 0: this host's own.
    pub clock: u64,
    /// The update, or the status of a timeline whose time is unknown.
    pub update: Result<Update, ClockStatus>,
}

/// Publishes on one page.
pub struct PageWriter<P> {
    page: P,
    identity: Identity,
    /// Entry 0, which is the same clock as `vmclock_abi`.
    own: EntryState,
    /// The further timelines: entry `i + 1`.
    others: [Option<EntryState>; entry::CAPACITY - 1],
    left: Left,
    published: u64,
    /// TAI - UTC as last known.
    tai_offset_hint: Option<i16>,
    /// The leap indicator has changed since the last call of [`Self::follow`].
    leap_changed: bool,
    /// The flags of `vmclock_abi` that belong to its clock, as stored last.
    clock_flags: Cell<u64>,
    notice: Cell<Notice>,
    /// The VM generation counter; `None` on pages that have none.
    generation: Cell<Option<u64>>,
}

/// The sequence numbers as this writer left them.
#[derive(Default)]
struct Left {
    abi: Cell<u32>,
    entries: [Cell<u64>; entry::CAPACITY],
}

impl<P: WritablePage> PageWriter<P> {
    /// Takes over a page: writes everything that is fixed, repairs a sequence that a dead writer
    /// left odd, and says `initializing` with no time and no bounds.
    ///
    /// `tai_offset` goes in at once: a guest's driver refuses a TAI page without it when it probes
    /// (Linux < 7.0).
    #[must_use]
    pub fn take_over(page: P, identity: Identity, tai_offset: Option<i16>) -> Self {
        let mut writer = Self::new(page, identity);
        writer.start_over(identity, tai_offset);
        writer
    }

    /// As [`Self::take_over`] where the time is known already: in one section, so that no reader
    /// finds the page without it. Readers see a disruption.
    #[must_use]
    pub fn take_over_with(
        page: P,
        identity: Identity,
        update: &Update,
        leap: LeapIndicator,
        counter: &impl Counter,
    ) -> Self {
        let mut writer = Self::new(page, identity);
        writer.jump_sequences();
        writer.disrupt();
        writer.own.leap = leap;
        writer.publish_with(update, counter, Self::store_fixed);
        writer.write_host_cpu_time(None);
        for index in 1..entry::CAPACITY {
            writer.clear(index);
        }
        writer
    }

    /// Rewrites the page from the start, under a marker and sequences that no earlier page had.
    /// Needed when a migration or a restore copied another page over this one, or when the page's
    /// readers come from another host's page.
    pub fn arrive(&mut self, identity: Identity, tai_offset: Option<i16>) {
        self.own.disruption = fresh(&self.page, identity.epoch);
        self.arrive_with_generation(identity.epoch);
        self.start_over(identity, tai_offset);
    }

    /// Writes the fixed part and the status `initializing`, as for a new reader.
    pub fn start_over(&mut self, identity: Identity, tai_offset: Option<i16>) {
        self.identity = identity;
        // What was announced has happened, or was announced of another page.
        self.notice.set(Notice::None);
        self.jump_sequences();
        self.own.identity = own_identity(&identity);
        self.disrupt();
        self.own.status = ClockStatus::Initializing;
        self.own.seen_disruptions = None;
        self.own.tai_offset = tai_offset;
        self.tai_offset_hint = tai_offset;
        self.section(|w| {
            w.store_fixed();
            w.store_unknown(tai_offset);
        });
        self.write_host_cpu_time(None);
        self.others = [const { None }; entry::CAPACITY - 1];
        for index in 1..entry::CAPACITY {
            self.clear(index);
        }
    }

    /// Takes over a page whose last lines are known (`update.target`), on a counter that was not
    /// disturbed since. Readers see no disruption, and the next publication continues from those
    /// lines. This holds for the page's own clock only: bindings to other timelines end with the
    /// daemon that gave them.
    #[must_use]
    pub fn recover(page: P, identity: Identity, update: &Update, counter: &impl Counter) -> Self {
        let mut writer = Self::new(page, identity);
        writer.own.in_force = Some(update.target);
        // One section: until the lines are whole again, what a dead writer left may be torn.
        writer.publish_with(update, counter, Self::store_fixed);
        for index in 1..entry::CAPACITY {
            writer.clear(index);
        }
        writer
    }

    fn new(page: P, identity: Identity) -> Self {
        // The marker and the VM generation counter are read back: only that they change, or do not,
        // has a meaning. On a new page the marker starts where no other
        // host's does, so that a guest that migrates between two pages always sees a change.
        let disruption = match page.word(vmclock::AT_DISRUPTION).load(Relaxed) {
            0 => first_marker(identity.epoch) - 1,
            marker => marker,
        };
        let own = EntryState::new(0, identity.counter, own_identity(&identity), disruption);
        let others = [const { None }; entry::CAPACITY - 1];
        let left = Left::default();
        let generation = Cell::new(generation::to_continue(&page, identity.epoch));
        Self {
            page,
            identity,
            own,
            others,
            left,
            published: 0,
            tai_offset_hint: None,
            leap_changed: false,
            clock_flags: Cell::new(0),
            notice: Cell::new(Notice::None),
            generation,
        }
    }

    /// Follows another page's clock: publishes what is known of it, or withdraws time and bounds,
    /// once. `disruptions` changes whenever what was published before is void.
    pub fn follow(
        &mut self,
        disruptions: u64,
        update: &Result<Update, ClockStatus>,
        tai_offset: Option<i16>,
        counter: &impl Counter,
    ) {
        if self.own.seen_disruptions.replace(disruptions).is_some_and(|seen| seen != disruptions) {
            self.disrupt();
        }
        let leap_changed = core::mem::take(&mut self.leap_changed);
        match update {
            Ok(update) => drop(self.publish(update, counter)),
            Err(status) if self.own.in_force.is_none() && self.own.status == *status => {
                // Readers know no time to be disrupted.
                if leap_changed {
                    self.section(|w| w.store_unknown(w.own.tai_offset));
                }
            }
            Err(status) => self.withdraw(*status, tai_offset),
        }
    }

    /// Sets the page's leap indicator from the next publication on.
    pub fn announce(&mut self, leap: LeapIndicator) {
        self.leap_changed |= self.own.leap != leap;
        self.own.leap = leap;
        self.others.iter_mut().flatten().for_each(|state| state.leap = leap);
    }

    /// The page's leap indicator.
    #[must_use]
    pub fn announced(&self) -> LeapIndicator {
        self.own.leap
    }

    /// Publishes `update` and returns the lines that are now in force, based at the counter value
    /// of the publication.
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
            lines = w.own.next(update, counter);
            w.store_lines(&lines, update);
        });
        self.own.note(&lines, update);
        self.tai_offset_hint = update.tai_offset.or(self.tai_offset_hint);
        self.published += 1;
        lines
    }

    /// Withdraws time and bounds. The next publication starts from nothing, so this counts as a
    /// disruption.
    pub fn withdraw(&mut self, status: ClockStatus, tai_offset: Option<i16>) {
        self.disrupt();
        self.own.status = status;
        self.own.tai_offset = tai_offset;
        self.section(|w| w.store_unknown(tai_offset));
        for index in 1..entry::CAPACITY {
            self.withdraw_entry(index, status);
        }
    }

    /// Tells readers that every timeline may step at the next publication, and forgets the lines in
    /// force.
    pub fn disrupt(&mut self) {
        self.own.disrupt();
        self.others.iter_mut().flatten().for_each(EntryState::disrupt);
    }

    /// Makes the further entries match: closes those that are not wanted, opens new ones, and
    /// publishes all.
    pub fn write_entries(&mut self, wanted: &[EntryUpdate], counter: &impl Counter) {
        for index in 1..entry::CAPACITY {
            if !wanted.iter().any(|w| w.index == index) {
                self.close_entry(index);
            }
        }
        for want in wanted.iter().filter(|w| (1..entry::CAPACITY).contains(&w.index)) {
            if self.entry_identity(want.index) != Some(&want.identity) {
                self.open_entry(want.index, want.identity);
            }
            self.require(want.index, want.required_ns);
            self.heed_disruptions(want.index, want.disruptions);
            if let Some(state) = &mut self.others[want.index - 1] {
                state.clock = want.clock;
            }
            match &want.update {
                Ok(update) => drop(self.publish_entry(want.index, update, counter)),
                Err(status) => self.withdraw_entry(want.index, *status),
            }
        }
    }

    fn heed_disruptions(&mut self, index: usize, count: u64) {
        let Some(state) = &mut self.others[index - 1] else { return };
        if state.seen_disruptions.replace(count).is_some_and(|seen| seen != count) {
            state.disrupt();
        }
    }

    /// Gives entry `index` (not 0) to a timeline: `initializing`, with no time and no bounds. Its
    /// former timeline ends. Publish next, so that no reader waits.
    pub fn open_entry(&mut self, index: usize, identity: EntryIdentity) {
        let marker = self.next_marker(index);
        let mut state = EntryState::new(index, self.identity.counter, identity, marker);
        state.status = ClockStatus::Initializing;
        state.leap = self.own.leap;
        self.entry_section(index, |page| {
            state.store_identity(page);
            state.store_unknown(page);
        });
        self.others[index - 1] = Some(state);
    }

    /// Publishes an entry's lines, continued from its own; `None` for an entry that is not open.
    pub fn publish_entry(
        &mut self,
        index: usize,
        update: &Update,
        counter: &impl Counter,
    ) -> Option<Lines<Local>> {
        let state = self.entry(index)?;
        let mut lines = update.target;
        self.entry_section(index, |page| {
            lines = state.next(update, counter);
            state.store_lines(page, &lines, update);
        });
        self.others[index - 1].as_mut()?.note(&lines, update);
        Some(lines)
    }

    /// Withdraws an entry's time and bounds, as a disruption of that timeline alone.
    pub fn withdraw_entry(&mut self, index: usize, status: ClockStatus) {
        let Some(state) = &mut self.others[index - 1] else { return };
        let said = state.in_force.is_none() && state.status == status;
        if said {
            return;
        }
        state.disrupt();
        state.status = status;
        let state = *state;
        self.entry_section(index, |page| state.store_unknown(page));
    }

    /// The next publication of an entry may step.
    pub fn disrupt_entry(&mut self, index: usize) {
        if let Some(state) = &mut self.others[index - 1] {
            state.disrupt();
        }
    }

    /// Closes an entry. Its readers find no time and, once it is given to another timeline, another
    /// generation.
    pub fn close_entry(&mut self, index: usize) {
        self.withdraw_entry(index, ClockStatus::Unknown);
        if self.others[index - 1].take().is_some() {
            self.entry_section(index, |page| {
                page.entry(index)[entry::ID].store(0, Relaxed);
                page.entry(index)[entry::REQUIRED].store(0, Relaxed);
            });
        }
    }

    /// Stores the half-width in nanoseconds that is required of an entry's timeline; 0: none.
    pub fn require(&self, index: usize, half_width_ns: u64) {
        self.page.entry(index)[entry::REQUIRED].store(half_width_ns, Relaxed);
    }

    /// The lines that an open entry has in force.
    #[must_use]
    pub fn entry_in_force(&self, index: usize) -> Option<&Lines<Local>> {
        self.entry(index)?.in_force.as_ref()
    }

    /// The timeline of an open entry.
    #[must_use]
    pub fn entry_identity(&self, index: usize) -> Option<&EntryIdentity> {
        self.entry(index).map(|state| &state.identity)
    }

    fn entry(&self, index: usize) -> Option<&EntryState> {
        self.others.get(index.checked_sub(1)?)?.as_ref()
    }

    /// Clears an entry of a page that is taken over: nothing vouches for it any more.
    fn clear(&self, index: usize) {
        let identity = EntryIdentity::new(0, "", self.identity.timescale, 0);
        let marker = self.next_marker(index);
        // An entry that was never used stays zero; the daemon that vouched for any other content is
        // gone.
        if self.page.entry(index).iter().all(|word| word.load(Relaxed) == 0) {
            self.left.entries[index].set(0);
            return;
        }
        let state = EntryState::new(index, self.identity.counter, identity, marker);
        self.entry_section(index, |page| {
            state.store_identity(page);
            state.store_unknown(page);
        });
    }

    /// Like the page's own marker, an entry's is read back: only that it changes matters.
    fn next_marker(&self, index: usize) -> u64 {
        match self.page.entry(index)[entry::DISRUPTION].load(Relaxed) {
            0 => first_marker(self.identity.epoch),
            marker => marker.wrapping_add(1),
        }
    }

    /// The lines in force, if any.
    #[must_use]
    pub fn in_force(&self) -> Option<&Lines<Local>> {
        self.own.in_force.as_ref()
    }

    /// The marker as published.
    #[must_use]
    pub fn disruption(&self) -> u64 {
        self.own.disruption
    }

    /// The status that was published last.
    #[must_use]
    pub fn status(&self) -> ClockStatus {
        self.own.status
    }

    /// TAI - UTC as published last.
    #[must_use]
    pub fn tai_offset(&self) -> Option<i16> {
        self.own.tai_offset
    }

    /// TAI - UTC as last known. A driver that probes a TAI page wants one.
    #[must_use]
    pub fn tai_offset_hint(&self) -> Option<i16> {
        self.tai_offset_hint
    }

    /// How many updates were published through this writer.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.published
    }

    /// What the page lies in, for questions that are not about its content.
    #[must_use]
    pub fn storage(&self) -> &P {
        &self.page
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
        // The page's own sequence is not loaded: something else may have written the page by now.
        self.left.entries[0].set(own_odd.wrapping_add(1));
        #[expect(clippy::cast_possible_truncation, reason = "the ABI's sequence has 32 bits")]
        self.left.abi.set(abi_odd.wrapping_add(1) as u32);
    }

    /// Runs `body` with the sequence of entry `index` (not 0) odd.
    fn entry_section(&self, index: usize, body: impl FnOnce(&Page)) {
        let sequence = &self.page.entry(index)[entry::SEQUENCE];
        let odd = write_begin(sequence);
        body(&self.page);
        write_end(sequence, odd);
        self.left.entries[index].set(odd.wrapping_add(1));
    }

    /// False once another page, or an older state of this one, was copied over this page. Its
    /// content is then wrong for every present reader; [`Self::arrive`] repairs it.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        let abi: &AtomicU32 = self.page.head(vmclock::AT_SEQUENCE);
        let same = |(index, left): (usize, &Cell<u64>)| {
            self.page.entry(index)[entry::SEQUENCE].load(Relaxed) == left.get()
        };
        abi.load(Relaxed) == self.left.abi.get()
            && self.page.word(header::AT_EPOCH).load(Relaxed) == self.identity.epoch
            && self.left.entries.iter().enumerate().all(same)
    }

    /// A reader may be stopped inside a read and continue on another writer's page. It must not
    /// find the sequence there that it began with.
    fn jump_sequences(&self) {
        let jump = scramble(self.identity.epoch) << 1;
        let abi: &AtomicU32 = self.page.head(vmclock::AT_SEQUENCE);
        #[expect(clippy::cast_possible_truncation, reason = "the ABI's sequence has 32 bits")]
        abi.store(abi.load(Relaxed).wrapping_add(jump as u32), Relaxed);
        for index in 0..entry::CAPACITY {
            let sequence: &AtomicU64 = &self.page.entry(index)[entry::SEQUENCE];
            // An entry with sequence 0 was never used.
            if index == 0 || sequence.load(Relaxed) != 0 {
                sequence.store(sequence.load(Relaxed).wrapping_add(jump), Relaxed);
            }
        }
        let sequence: &AtomicU64 = &self.page.vcpus()[vcpus::SEQUENCE];
        if sequence.load(Relaxed) != 0 {
            sequence.store(sequence.load(Relaxed).wrapping_add(jump), Relaxed);
        }
    }
}

/// The first marker on a page that has none: never 0, and another one for every epoch of the next
/// 290 years.
const fn first_marker(epoch: u64) -> u64 {
    epoch.wrapping_mul(2) | 1
}

/// A marker that neither what is on the page nor another host's page has: epochs are times of day
/// in ns.
fn fresh(page: &Page, epoch: u64) -> u64 {
    scramble(page.word(vmclock::AT_DISRUPTION).load(Relaxed) ^ epoch)
}

/// Mixes the low bits into all others (the finalizer of MurmurHash3), so that near epochs give far
/// numbers.
const fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

fn own_identity(identity: &Identity) -> EntryIdentity {
    EntryIdentity::new(0, identity.timeline, identity.timescale, 0)
}

#[cfg(test)]
mod entry_tests;
#[cfg(test)]
pub(crate) mod tests;
