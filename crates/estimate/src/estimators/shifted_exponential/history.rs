//! The newest exchanges, each with the filter before it, so that they can be taken back.

use super::coordinates::Sighting;
use super::filter::Filter;
use super::parameters::WINDOW;

/// One more than can be suspected, so that the filter before the oldest suspected exchange is
/// available.
const CAPACITY: usize = WINDOW + 1;

#[derive(Clone, Copy, Debug)]
struct Entry {
    before: Filter,
    sighting: Sighting,
}

/// A ring buffer that allocates its memory once.
#[derive(Clone, Debug)]
pub struct History {
    entries: Vec<Entry>,
    oldest: usize,
}

impl History {
    /// Memory used by one history.
    #[cfg(test)]
    pub const BYTES: usize = CAPACITY * size_of::<Entry>();

    /// Creates an empty history.
    pub fn new() -> Self {
        Self { entries: Vec::with_capacity(CAPACITY), oldest: 0 }
    }

    /// Removes all exchanges.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.oldest = 0;
    }

    /// Number of exchanges.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds the newest exchange.
    pub fn push(&mut self, before: &Filter, sighting: &Sighting) {
        let entry = Entry { before: *before, sighting: *sighting };
        if self.entries.len() < CAPACITY {
            self.entries.push(entry);
        } else {
            self.entries[self.oldest] = entry;
            self.oldest = (self.oldest + 1) % CAPACITY;
        }
    }

    fn position(&self, back: usize) -> usize {
        (self.oldest + self.entries.len() - back) % self.entries.len()
    }

    /// The filter before the exchange that arrived `back` exchanges ago (1 is the newest,
    /// [`Self::len`] the oldest).
    pub fn before(&self, back: usize) -> &Filter {
        &self.entries[self.position(back)].before
    }

    /// Replaces [`Self::before`].
    pub fn set_before(&mut self, back: usize, filter: &Filter) {
        let position = self.position(back);
        self.entries[position].before = *filter;
    }

    /// The exchange that arrived `back` exchanges ago.
    pub fn sighting(&self, back: usize) -> &Sighting {
        &self.entries[self.position(back)].sighting
    }
}
