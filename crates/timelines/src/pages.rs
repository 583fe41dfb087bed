//! The entries of an owner's pages: which are free, since when, and which generation is next.
//!
//! Entry 0 of each page is the page's own clock, always in use, with generation 0. The other
//! entries are assigned with a generation that grows with every use: the least recently freed
//! first, and not before a quarantine has passed.
//!
//! What it does not do: know timelines, or write pages.

use std::collections::VecDeque;

use timevisor_protocols::channel::Place;
use timevisor_time::Duration;

use crate::timeline::TimelineId;

/// Entries of 192 bytes behind the 512 bytes of headers of a 4 KiB page, the page's own clock
/// included.
pub const ENTRIES_PER_PAGE: u16 = 18;

/// Entry 0, on page 0.
pub(crate) const CLOCK: Place = Place { page: 0, entry: 0, generation: 0 };

/// The timescale of a page's own clock, entry 0: fixed before the vCPUs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Entry 0 is `tai`.
    Tai,
    /// Entry 0 is `utc`.
    Utc,
}

impl Scale {
    /// The timeline of entry 0.
    pub(crate) const fn timeline(self) -> TimelineId {
        match self {
            Self::Tai => TimelineId::TAI,
            Self::Utc => TimelineId::UTC,
        }
    }
}

/// The number of an entry, counted through all pages without the clocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Slot(u16);

/// Entries of pages.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Slots {
    /// The generation of the current use, or of the last one.
    generations: Vec<u16>,
    /// In the order in which they were freed.
    free: VecDeque<Free>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Free {
    slot: Slot,
    /// `None` if never used.
    since: Option<Duration>,
}

impl Slots {
    /// All entries free. First uses get the generation after `generation`, because readers of pages
    /// that outlive a daemon may know earlier ones.
    pub(crate) fn new(pages: u32, generation: u16) -> Self {
        let entries = u32::from(ENTRIES_PER_PAGE - 1) * pages;
        let count = u16::try_from(entries).unwrap_or(u16::MAX);
        let never = |slot| Free { slot: Slot(slot), since: None };
        Self {
            generations: vec![generation; usize::from(count)],
            free: (0..count).map(never).collect(),
        }
    }

    /// The number of entries.
    pub(crate) fn capacity(&self) -> usize {
        self.generations.len()
    }

    /// The number of entries that can be taken now.
    pub(crate) fn ready(&self, now: Duration, quarantine: Duration) -> usize {
        self.free.partition_point(|free| free.since.is_none_or(|since| since + quarantine <= now))
    }

    /// Takes the least recently freed entry. Call it only when [`Slots::ready`] is not 0.
    pub(crate) fn take(&mut self) -> Option<Slot> {
        let slot = self.free.pop_front()?.slot;
        self.renew(slot);
        Some(slot)
    }

    /// Another use of an entry that is in use. Generation 0 is the clock's, so it is skipped when
    /// generations wrap.
    pub(crate) fn renew(&mut self, slot: Slot) {
        if let Some(generation) = self.generations.get_mut(usize::from(slot.0)) {
            *generation = generation.checked_add(1).unwrap_or(1);
        }
    }

    /// Ends a use.
    pub(crate) fn free(&mut self, slot: Slot, now: Duration) {
        self.free.push_back(Free { slot, since: Some(now) });
    }

    /// The place and the generation of an entry.
    pub(crate) fn place(&self, slot: Slot) -> Place {
        let per_page = ENTRIES_PER_PAGE - 1;
        Place {
            page: u32::from(slot.0 / per_page),
            entry: slot.0 % per_page + 1,
            generation: self.generations.get(usize::from(slot.0)).copied().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARANTINE: Duration = Duration::from_secs(1);

    #[test]
    fn places_are_distinct_and_never_a_clock() {
        let mut slots = Slots::new(4, 0);
        let taken: Vec<Slot> = std::iter::from_fn(|| slots.take()).collect();
        let places: Vec<Place> = taken.iter().map(|slot| slots.place(*slot)).collect();
        let mut seen: Vec<(u32, u16)> = places.iter().map(|at| (at.page, at.entry)).collect();
        seen.dedup();
        assert_eq!((seen.len(), seen[0], seen[67]), (68, (0, 1), (3, 17)));
        assert!(places.iter().all(|at| (1..=17).contains(&at.entry) && at.generation == 1));
    }

    #[test]
    fn the_least_recently_freed_comes_first_and_not_too_soon() {
        let mut slots = Slots::new(1, 0);
        let all: Vec<Slot> = std::iter::from_fn(|| slots.take()).collect();
        let at = Duration::from_millis;
        slots.free(all[5], at(0));
        slots.free(all[2], at(500));
        assert_eq!(slots.ready(at(999), QUARANTINE), 0);
        assert_eq!(slots.ready(at(1000), QUARANTINE), 1);
        assert_eq!(slots.ready(at(1500), QUARANTINE), 2);
        assert_eq!(slots.take(), Some(all[5]));
        assert_eq!(slots.place(all[5]).generation, 2);
        assert_eq!(slots.take(), Some(all[2]));
        assert_eq!(slots.take(), None);
    }

    #[test]
    fn generations_continue_an_earlier_writers_and_leave_out_the_clocks() {
        let mut slots = Slots::new(1, u16::MAX - 1);
        let slot = slots.take().unwrap();
        assert_eq!(slots.place(slot).generation, u16::MAX);
        slots.renew(slot);
        assert_eq!(slots.place(slot).generation, 1);
    }
}
