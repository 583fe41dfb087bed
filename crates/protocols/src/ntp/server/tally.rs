//! Counts of requests by outcome.

/// One kind of event. `Interleaved`, `Precise`, `Nts` and `Unsynchronized` are properties of replies,
/// which are counted as `Answered` (or as `Kissed`, with NTS), too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Tally {
    /// Datagrams that arrived.
    Received,
    /// Replies except kisses.
    Answered,
    /// Replies in interleaved mode.
    Interleaved,
    /// Replies with precise bounds, or that there is no timeline of the name.
    Precise,
    /// Replies with NTS, which their clients can authenticate.
    Nts,
    /// Replies that the clock is not synchronized.
    Unsynchronized,
    /// RATE kisses.
    Kissed,
    /// NTS NAKs: the client's cookie could not be read, or its request was not authentic.
    NtsNak,
    /// Dropped: above the rate limit.
    Limited,
    /// Dropped: from an address that is not served.
    Denied,
    /// Dropped: not NTP.
    Malformed,
    /// Dropped: not from a client (mode 3), or of another version than 1 to 4.
    Unsupported,
    /// Dropped: with a MAC, or with NTS where it is not served.
    Authenticated,
    /// Dropped: the clock stepped while the reply was made, or a leap second is at hand.
    Stepped,
}

impl Tally {
    /// Every kind, in the order of the enum.
    pub const ALL: [Self; 14] = [
        Self::Received,
        Self::Answered,
        Self::Interleaved,
        Self::Precise,
        Self::Nts,
        Self::Unsynchronized,
        Self::Kissed,
        Self::NtsNak,
        Self::Limited,
        Self::Denied,
        Self::Malformed,
        Self::Unsupported,
        Self::Authenticated,
        Self::Stepped,
    ];

    /// The name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Answered => "answered",
            Self::Interleaved => "interleaved",
            Self::Precise => "precise",
            Self::Nts => "nts",
            Self::Unsynchronized => "unsynchronized",
            Self::Kissed => "kissed",
            Self::NtsNak => "nts_nak",
            Self::Limited => "limited",
            Self::Denied => "denied",
            Self::Malformed => "malformed",
            Self::Unsupported => "unsupported",
            Self::Authenticated => "authenticated",
            Self::Stepped => "stepped",
        }
    }
}

/// The count of each event. `Received` is the sum of `Answered`, `Kissed`, `NtsNak` and everything
/// dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters([u64; Tally::ALL.len()]);

impl Counters {
    /// Counts one more.
    pub(super) fn add(&mut self, what: Tally) {
        self.0[what as usize] += 1;
    }

    /// Returns the count of one event.
    #[must_use]
    pub const fn of(&self, what: Tally) -> u64 {
        self.0[what as usize]
    }

    /// Returns all counts, in the order of [`Tally::ALL`].
    #[must_use]
    pub const fn all(&self) -> &[u64; Tally::ALL.len()] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_complete_and_in_order() {
        assert!(Tally::ALL.iter().enumerate().all(|(index, what)| *what as usize == index));
        let names: std::collections::BTreeSet<_> = Tally::ALL.iter().map(|t| t.name()).collect();
        assert_eq!(names.len(), Tally::ALL.len());
    }
}
