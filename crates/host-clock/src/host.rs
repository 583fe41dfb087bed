//! What the state machine needs from its host while it handles an event.

use timevisor_clock_page::Counter;
use timevisor_time::{Duration, Instant, Leaps, Tai};

use crate::recovery::JournalEntry;

/// The host, as [`crate::HostClock::handle`] uses it.
///
/// Everything else that an event leads to is an action, which the caller performs afterwards. The
/// journal is not: its entry must be safe before the page shows the lines, so the state machine
/// writes it in the middle of a publication.
pub trait Host {
    /// The host's counter.
    type Counter: Counter;

    /// The counter to read. Its value must be taken when it is asked for, not when the event began.
    fn counter(&self) -> &Self::Counter;

    /// Monotonic time since any fixed origin.
    fn monotonic(&self) -> Duration;

    /// TAI - UTC in seconds now, by the host's own idea of UTC. Asked only while no time is known.
    /// `None` where no leap second table answers, or where that idea cannot be right.
    fn tai_offset(&self) -> Option<i16>;

    /// TAI - UTC around this instant. `None` where no leap second table answers.
    fn leaps(&self, at: Instant<Tai>) -> Option<Leaps>;

    /// Replaces the recovery journal before this call returns; `None` clears it.
    fn journal(&mut self, entry: Option<&JournalEntry>);
}
