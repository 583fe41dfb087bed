//! The newest exchanges with the filter before each of them, so that they can be taken back.

use super::coordinates::Sighting;
use super::filter::Filter;
use super::parameters::WINDOW;

/// One more than can be suspected, so that the filter before the oldest suspected exchange is
/// there.
const CAPACITY: usize = WINDOW + 1;

#[derive(Clone, Copy, Debug)]
struct Entry {
    before: Filter,
    sighting: Sighting,
}

/// A ring whose memory is allocated once.
#[derive(Clone, Debug)]
pub struct History {
    entries: Vec<Entry>,
    oldest: usize,
}

impl History {
    /// Memory that one takes.
    #[cfg(test)]
    pub const BYTES: usize = CAPACITY * size_of::<Entry>();

    /// Empty.
    pub fn new() -> Self {
        Self { entries: Vec::with_capacity(CAPACITY), oldest: 0 }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.oldest = 0;
    }

    /// How many exchanges there are.
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

    /// The filter before the exchange that came `back` exchanges ago (1 is the newest,
    /// [`Self::len`] the oldest).
    pub fn before(&self, back: usize) -> &Filter {
        &self.entries[self.position(back)].before
    }

    /// Replaces [`Self::before`].
    pub fn set_before(&mut self, back: usize, filter: &Filter) {
        let position = self.position(back);
        self.entries[position].before = *filter;
    }

    /// The exchange that came `back` exchanges ago.
    pub fn sighting(&self, back: usize) -> &Sighting {
        &self.entries[self.position(back)].sighting
    }
}
