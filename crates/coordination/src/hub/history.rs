//! The messages of a topic that were kept for who subscribes later.

use std::collections::VecDeque;

use super::Settings;

/// The last messages of one topic.
#[derive(Debug, Default)]
pub struct History {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    /// How many were not kept.
    dropped: u64,
}

impl History {
    /// Keeps a message, and drops the oldest ones that have no room any more.
    pub fn keep(&mut self, message: Vec<u8>, settings: &Settings) {
        self.bytes += message.len();
        self.messages.push_back(message);
        while self.messages.len() > settings.history || self.bytes > settings.history_bytes {
            let Some(oldest) = self.messages.pop_front() else { break };
            self.bytes -= oldest.len();
            self.dropped += 1;
        }
    }

    /// The last so many, the oldest first, and how many there were before them that were dropped.
    pub fn last(&self, count: u32) -> (impl Iterator<Item = &Vec<u8>>, u64) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let skipped = self.messages.len().saturating_sub(count);
        let dropped = if count > self.messages.len() { self.dropped } else { 0 };
        (self.messages.iter().skip(skipped), dropped)
    }
}
