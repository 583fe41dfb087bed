//! The minimum round trip over a sliding history, with a short window that detects upward shifts.

use timevisor_time::{Duration, Period};

use super::history::{History, Stamp};
use super::windows::Windows;

/// Minimum round trips, in ticks.
#[derive(Clone, Debug)]
pub(super) struct RoundTrip {
    /// The one in force.
    minimum: u64,
    /// The one that takes over when the history slides; it covers only the second half of the
    /// history.
    successor: u64,
}

impl RoundTrip {
    pub(super) fn new(first: u64) -> Self {
        Self { minimum: first, successor: first }
    }

    pub(super) fn minimum(&self) -> u64 {
        self.minimum
    }

    /// Downward shifts are adopted at once, because they have no other explanation.
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

    /// Detects an upward shift: no round trip came near the minimum for a whole shift window. The
    /// new minimum applies from the start of the shift, in `history` as well. Returns true if there
    /// was a shift.
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
