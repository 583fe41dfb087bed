//! What happens to the publisher, and what it asks the caller to do.

use timevisor_estimate::{Discard, Exchange, Slot};
use timevisor_time::Duration;

use crate::publication::Publication;

/// Something that happened.
#[derive(Debug)]
pub enum Event<E> {
    /// A reference answered.
    Exchange {
        /// Index of the reference.
        reference: usize,
        /// Its answer.
        exchange: Exchange,
    },
    /// Another server took the place of this reference; what the old one said is void.
    Forget {
        /// Index of the reference.
        reference: usize,
    },
    /// Which references have one source of time, and hence one vote: those with the same number.
    Witnesses(Vec<usize>),
    /// Other references are configured. Those that stay keep what they said. What was published
    /// holds, with growing bounds, until enough of the new ones have answered.
    References {
        /// The references from now on.
        slots: Vec<Slot>,
        /// As in [`crate::Settings::stale_after`].
        stale_after: Duration,
    },
    /// The counter was disturbed (a suspend, a migration): everything known on it is void.
    StartOver {
        /// The estimate to continue with, which knows nothing yet.
        estimate: E,
    },
    /// Whether the counter is trusted from now on. While it is not, the clock is unreliable whatever
    /// the estimate says, and nothing is journaled.
    CounterTrusted(bool),
    /// The page is due.
    Publish,
    /// The page is written for the last time before the daemon ends.
    PublishLast,
}

/// What the caller does after an event, in this order.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Tells the operator.
    Note(Note),
    /// Saves the estimators' state for the next daemon.
    SaveEstimates,
    /// Deletes the saved state of the estimators: the counter they describe has a new history.
    ClearEstimates,
    /// The host's page was written; every other page follows it.
    Published(Box<Publication>),
}

/// Something that an operator may want to know.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Note {
    /// An exchange needs a path or a clock that moved by this much; the bounds are not trusted
    /// until more agree.
    Doubt {
        /// Index of the reference.
        reference: usize,
        /// The smallest movement that explains the exchange.
        by: Duration,
    },
    /// An exchange was not used.
    Discarded {
        /// Index of the reference.
        reference: usize,
        /// Why not.
        reason: Discard,
    },
    /// An exchange contradicts its reference's bounds, which are being rebuilt.
    Contradiction {
        /// Index of the reference.
        reference: usize,
        /// The gap between the exchange and the bounds.
        gap: Duration,
    },
    /// What the references say now excludes what was published before: the clock steps.
    Stepped,
}
