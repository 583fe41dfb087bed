//! One timeline entry under its own sequence lock: what is in force, and how it is stored.

use core::sync::atomic::Ordering::Relaxed;

use timevisor_time::{Local, TimescaleId};

use super::Update;
use super::stores::ceil_ns;
use crate::Counter;
use crate::CounterId;
use crate::abi::{ClockStatus, LeapIndicator, Meta, entry};
use crate::lines::Lines;
use crate::page::Page;
use crate::reader::name_words;

/// The timeline that an entry is given to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryIdentity {
    /// The timeline's id; 0 only for the page's own clock. Ids are never reused.
    pub id: u64,
    /// Its name, zero padded.
    pub name: [u64; 4],
    /// Its timescale.
    pub timescale: TimescaleId,
    /// Differs from the generations of the timelines that had this entry before.
    pub generation: u16,
}

impl EntryIdentity {
    /// The identity of a timeline with this name, cut after 32 bytes.
    #[must_use]
    pub fn new(id: u64, name: &str, timescale: TimescaleId, generation: u16) -> Self {
        Self { id, name: name_words(name), timescale, generation }
    }
}

/// The writer's copy of one entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryState {
    index: usize,
    counter: CounterId,
    pub(super) identity: EntryIdentity,
    pub(super) in_force: Option<Lines<Local>>,
    pub(super) disruption: u64,
    /// See [`EntryUpdate::clock`](super::EntryUpdate::clock).
    pub(super) clock: u64,
    pub(super) status: ClockStatus,
    pub(super) tai_offset: Option<i16>,
    pub(super) leap: LeapIndicator,
    pub(super) seen_disruptions: Option<u64>,
}

impl EntryState {
    pub(super) fn new(
        index: usize,
        counter: CounterId,
        identity: EntryIdentity,
        disruption: u64,
    ) -> Self {
        let status = ClockStatus::Unknown;
        Self {
            index,
            counter,
            identity,
            in_force: None,
            disruption,
            clock: 0,
            status,
            tai_offset: None,
            leap: LeapIndicator::None,
            seen_disruptions: None,
        }
    }

    /// The clock may step at the next publication.
    pub(super) fn disrupt(&mut self) {
        self.in_force = None;
        self.disruption = self.disruption.wrapping_add(1);
    }

    /// The lines of `update` at the present counter value, continued from those in force. Call this
    /// inside the section: the odd sequence must be visible before the counter is read (see the
    /// module's header).
    pub(super) fn next(&self, update: &Update, counter: &impl Counter) -> Lines<Local> {
        let now = counter.read_after_stores();
        match &self.in_force {
            Some(old) => old.continued(&update.target, now, update.slew),
            None => update.target.rebased(now),
        }
    }

    pub(super) fn note(&mut self, lines: &Lines<Local>, update: &Update) {
        self.in_force = Some(*lines);
        self.status = update.status;
        self.tai_offset = update.tai_offset;
    }

    pub(super) fn store_identity(&self, page: &Page) {
        let own = page.entry(self.index);
        own[entry::ID].store(self.identity.id, Relaxed);
        for (to, word) in own[entry::NAME..].iter().zip(self.identity.name) {
            to.store(word, Relaxed);
        }
        own[entry::REQUIRED].store(0, Relaxed);
    }

    pub(super) fn store_lines(&self, page: &Page, lines: &Lines<Local>, update: &Update) {
        let flags = entry::FLAG_BOUNDS | entry::FLAG_ESTIMATE;
        self.store(page, lines, self.meta(update.status, update.tai_offset, flags));
        let own = page.entry(self.index);
        let error = u64::try_from(update.estimated_error.to_bits()).unwrap_or(u64::MAX);
        own[entry::ESTIMATED_ERROR].store(error, Relaxed);
        own[entry::AS_OF].store(update.as_of, Relaxed);
        own[entry::ACHIEVED].store(ceil_ns(lines.half_width()), Relaxed);
    }

    /// No time, no bounds.
    pub(super) fn store_unknown(&self, page: &Page) {
        self.store(page, &Lines::NOTHING, self.meta(self.status, self.tai_offset, 0));
        let own = page.entry(self.index);
        own[entry::ESTIMATED_ERROR].store(u64::MAX, Relaxed);
        own[entry::AS_OF].store(0, Relaxed);
        own[entry::ACHIEVED].store(u64::MAX, Relaxed);
    }

    fn meta(&self, status: ClockStatus, tai_offset: Option<i16>, flags: u8) -> u64 {
        let timescale = self.identity.timescale as u8;
        let flags = flags | if self.leap.is_ahead() { entry::FLAG_LEAP_AHEAD } else { 0 };
        let (counter, generation) = (self.counter as u8, self.identity.generation);
        Meta { status, timescale, counter, tai_offset, flags, generation }.pack()
    }

    fn store(&self, page: &Page, lines: &Lines<Local>, meta: u64) {
        let own = page.entry(self.index);
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
        page.clock(self.index).store(self.clock, Relaxed);
    }
}
