//! [`RejectReason`]: why an answer was refused, and what the operator can do about it.

/// Why a datagram was not accepted. The text says what to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
pub enum RejectReason {
    /// The datagram has fewer than 48 bytes.
    #[error("shorter than an NTP header; check that the port belongs to an NTP server")]
    TooShort,
    /// The bytes behind the header are neither extension fields nor a MAC.
    #[error("what follows the header is malformed; check the path for damaged packets")]
    MalformedTail,
    /// Neither version 3 nor 4.
    #[error("not NTP version 3 or 4; use a server that speaks one of them")]
    Version,
    /// Not mode 4 (server).
    #[error("not a server's answer; check that the address belongs to an NTP server")]
    Mode,
    /// The origin stamp belongs to no request of ours: forged, or stray.
    #[error("answers no request of ours; if this repeats, someone may be forging answers")]
    BogusOrigin,
    /// The request was already answered: duplicated by the network or replayed.
    #[error(
        "answers a request that was already answered; if this repeats, look for packet duplication"
    )]
    Duplicate,
    /// The request had already timed out.
    #[error(
        "came after the request timeout; raise request_timeout (up to 16s), use a nearer server or look for congestion"
    )]
    Late,
    /// Leap indicator 3.
    #[error("the server says that its clock is not synchronized; check the server or use another")]
    Unsynchronized,
    /// Stratum 16 or above (stratum 0 is a kiss-o'-death and has its own outcome).
    #[error(
        "the server's stratum means that it is not synchronized; check the server or use another"
    )]
    Stratum,
    /// Receive or transmit stamp is zero.
    #[error("the server sent no time; check the server or use another")]
    ZeroTimestamp,
    /// The answer left before the request arrived.
    #[error("the server's clock went backwards while it answered; check the server")]
    TimeReversed,
    /// The server's own error budget exceeds the limit.
    #[error(
        "the server's own error exceeds max_distance; use a better server or raise max_distance"
    )]
    Distance,
    /// The server declares that it smears leap seconds, so it is off UTC around them.
    #[error(
        "the server smears leap seconds, so its time is not UTC around one; use servers that do not, \
         or set allow_smear for this one"
    )]
    LeapSmear,
    /// The precise bounds say something else than the header.
    #[error(
        "the server's precise bounds contradict its header; update the server, or set precise = false \
         for it"
    )]
    PreciseBounds,
    /// The server is synchronized to us (RFC 5905's synchronization loop).
    #[error("the server has its time from this host, which would be a loop; use another")]
    Loop,
    /// From another address or port than the one that was asked.
    #[error(
        "comes from another address or port than the one that was asked; check the server's configuration and \
         address translation (NAT) on the way"
    )]
    Source,
}

impl RejectReason {
    /// Every reason, for tables.
    pub const ALL: [Self; 16] = [
        Self::TooShort,
        Self::MalformedTail,
        Self::Version,
        Self::Mode,
        Self::BogusOrigin,
        Self::Duplicate,
        Self::Late,
        Self::Unsynchronized,
        Self::Stratum,
        Self::ZeroTimestamp,
        Self::TimeReversed,
        Self::Distance,
        Self::LeapSmear,
        Self::PreciseBounds,
        Self::Loop,
        Self::Source,
    ];

    /// The name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooShort => "too_short",
            Self::MalformedTail => "malformed_tail",
            Self::Version => "version",
            Self::Mode => "mode",
            Self::BogusOrigin => "bogus_origin",
            Self::Duplicate => "duplicate",
            Self::Late => "late",
            Self::Unsynchronized => "unsynchronized",
            Self::Stratum => "stratum",
            Self::ZeroTimestamp => "zero_timestamp",
            Self::TimeReversed => "time_reversed",
            Self::Distance => "distance",
            Self::LeapSmear => "leap_smear",
            Self::PreciseBounds => "precise_bounds",
            Self::Loop => "loop",
            Self::Source => "source",
        }
    }

    /// Returns true if the datagram certainly answered our request and so ended it. After a stray
    /// packet, the request still waits for the true answer.
    #[must_use]
    pub const fn ends_request(self) -> bool {
        matches!(
            self,
            Self::Unsynchronized
                | Self::Stratum
                | Self::ZeroTimestamp
                | Self::TimeReversed
                | Self::Distance
                | Self::LeapSmear
                | Self::PreciseBounds
                | Self::Loop
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_all_is_complete() {
        let names: std::collections::BTreeSet<_> =
            RejectReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), RejectReason::ALL.len());
        // In the order of the enum, so that a missing variant shows here.
        assert!(RejectReason::ALL.iter().enumerate().all(|(i, r)| *r as usize == i));
        assert_eq!(RejectReason::ALL.last(), Some(&RejectReason::Source));
    }
}
