//! The minimum round trip: over a sliding history, with upward shifts found by a short window.

use timevisor_time::{Duration, Period};

use super::history::{History, Stamp};
use super::windows::Windows;

/// Minimum round trips, in ticks.
#[derive(Clone, Debug)]
pub(super) struct RoundTrip {
    /// The one in force.
    minimum: u64,
    /// The one that takes over when the history slides: from its second half only.
    successor: u64,
}

impl RoundTrip {
    pub(super) fn new(first: u64) -> Self {
        Self { minimum: first, successor: first }
    }

    pub(super) fn minimum(&self) -> u64 {
        self.minimum
    }

    /// Downward shifts are adopted at once: they cannot be anything else.
    pub(super) fn observe(&mut self, round_trip: u64) {
        self.minimum = self.minimum.min(round_trip);
        self.successor = self.successor.min(round_trip);
    }

    /// The second half of a history begins.
    pub(super) fn begin_successor(&mut self, round_trip: u64) {
        self.successor = round_trip;
    }

    /// The history slides by half its length.
    pub(super) fn slide(&mut self, round_trip: u64) {
        self.minimum = self.successor;
        self.successor = round_trip;
    }

    /// An upward shift: for a whole shift window no round trip came near the minimum. The new
    /// minimum is put in force from the shift's start on, in `history` too. True when there was
    /// one.
    pub(super) fn detect_shift(
        &mut self,
        history: &mut History,
        windows: &Windows,
        threshold: Duration,
        period: Period,
    ) -> bool {
        let Some(recent) = history.last(windows.shift).map(Stamp::round_trip).min() else {
            return false;
        };
        if recent <= self.minimum.saturating_add(period.ticks_in(threshold)) {
            return false;
        }
        self.minimum = recent;
        self.successor = recent;
        history.correct_minimum(windows.shift, recent);
        true
    }
}
