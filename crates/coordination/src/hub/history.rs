//! The messages of a topic that were kept for who subscribes later.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::Settings;

/// How many bytes all groups of one user keep, or those with a key.
#[derive(Clone, Debug, Default)]
pub struct Kept(Rc<Cell<usize>>);

/// The last messages of one topic.
#[derive(Debug)]
pub struct History {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    /// How many were not kept.
    dropped: u64,
    kept: Kept,
}

impl History {
    pub fn new(kept: &Kept) -> Self {
        Self { messages: VecDeque::new(), bytes: 0, dropped: 0, kept: kept.clone() }
    }

    /// Keeps a message, and drops the oldest ones of this topic that have no room any more. Where other topics have
    /// taken all that there is, that is the message itself.
    pub fn keep(&mut self, message: Vec<u8>, settings: &Settings) {
        self.count(self.bytes + message.len());
        self.messages.push_back(message);
        while self.messages.len() > settings.history
            || self.bytes > settings.history_bytes
            || self.kept.0.get() > settings.kept_bytes
        {
            let Some(oldest) = self.messages.pop_front() else { break };
            self.count(self.bytes - oldest.len());
            self.dropped += 1;
        }
    }

    fn count(&mut self, bytes: usize) {
        self.kept.0.set(self.kept.0.get() - self.bytes + bytes);
        self.bytes = bytes;
    }

    /// The last so many, the oldest first, and how many there were before them that were dropped.
    pub fn last(&self, count: u32) -> (impl Iterator<Item = &Vec<u8>>, u64) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let skipped = self.messages.len().saturating_sub(count);
        let dropped = if count > self.messages.len() { self.dropped } else { 0 };
        (self.messages.iter().skip(skipped), dropped)
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.count(0);
    }
}
