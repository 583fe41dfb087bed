//! Bytes that wait until the stream accepts them, up to a limit.
//!
//! What it does not do: write.

/// Most bytes that a session keeps for a peer that does not read.
pub const MAX_UNSENT: usize = 256 << 10;

/// A queue of bytes, written to the stream from its front.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Appends bytes. Returns false, and keeps none of them, if the limit would be exceeded.
    #[must_use]
    pub(super) fn push(&mut self, frame: &[u8]) -> bool {
        let fits = self.unsent().len() + frame.len() <= MAX_UNSENT;
        if fits {
            self.bytes.extend_from_slice(frame);
        }
        fits
    }

    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Removes this many bytes, which the stream has accepted.
    pub(super) fn sent(&mut self, count: usize) {
        self.sent = self.sent.saturating_add(count).min(self.bytes.len());
        // Moves the rest only when most is gone, so that every byte moves at most once on average.
        if self.sent * 2 >= self.bytes.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_up_to_the_limit_and_makes_room_as_it_is_sent() {
        let mut outbox = Outbox::default();
        assert!(outbox.push(&[1; MAX_UNSENT - 1]));
        assert!(!outbox.push(&[2; 2]));
        outbox.sent(1);
        assert!(outbox.push(&[2; 2]));
        outbox.sent(MAX_UNSENT - 2);
        assert_eq!(outbox.unsent(), [2; 2]);
        outbox.sent(100);
        assert!(outbox.unsent().is_empty());
        assert!(outbox.push(&[3]));
        assert_eq!(outbox.unsent(), [3]);
    }
}
