//! What operators see of NTS: counters, reasons for refused datagrams, and advice.
//!
//! What it does not do: change anything. [`super::association`] writes these; the daemon and the
//! command line read them.

use std::collections::BTreeMap;

use timevisor_time::Duration;

/// Why a datagram did not reach the NTP client. The text says what to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
pub enum Refusal {
    /// The datagram is too short, has impossible lengths or bytes behind the authenticator, or its
    /// padding is not zero.
    #[error("malformed; check the path for damaged packets")]
    Malformed,
    /// No request is in flight: late, duplicated or stray.
    #[error("no request is waiting for it; if this repeats, look for packet duplication")]
    NotAwaited,
    /// No unique identifier or no authenticator: a plain NTP packet, or one that was stripped.
    #[error(
        "not authenticated; if this repeats, a device on the path strips extension fields, or someone forges answers"
    )]
    Unauthenticated,
    /// The unique identifier belongs to no request in flight.
    #[error("answers no request in flight; if this repeats, someone may be forging answers")]
    UnknownIdentifier,
    /// The authenticator does not match the packet, which was altered on the way.
    #[error("altered on the way or forged; if this repeats, suspect the path")]
    Forged,
    /// The server cannot read our cookie.
    #[error(
        "the server cannot read our cookie, for instance after it changed its keys; keys are renewed"
    )]
    Nak,
}

impl Refusal {
    /// Every reason, for tables.
    pub const ALL: [Self; 6] = [
        Self::Malformed,
        Self::NotAwaited,
        Self::Unauthenticated,
        Self::UnknownIdentifier,
        Self::Forged,
        Self::Nak,
    ];

    /// The name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "nts_malformed",
            Self::NotAwaited => "nts_not_awaited",
            Self::Unauthenticated => "nts_unauthenticated",
            Self::UnknownIdentifier => "nts_unknown_identifier",
            Self::Forged => "nts_forged",
            Self::Nak => "nts_nak",
        }
    }
}

/// Counts of all events since the association was made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Key establishments begun.
    pub exchanges: u64,
    /// Key establishments that succeeded.
    pub established: u64,
    /// Authentic datagrams.
    pub authenticated: u64,
    /// Refused datagrams; reasons that never occurred are absent.
    pub refused: BTreeMap<Refusal, u64>,
}

impl Counters {
    /// How often `reason` occurred.
    #[must_use]
    pub fn refused_for(&self, reason: Refusal) -> u64 {
        self.refused.get(&reason).copied().unwrap_or(0)
    }
}

/// The state of the keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// No keys yet.
    NoKeys,
    /// There are keys, but no answer was authenticated with them yet.
    Keyed {
        /// Cookies left.
        cookies: usize,
    },
    /// The server answers, and its answers are authentic.
    Authenticated {
        /// Cookies left.
        cookies: usize,
        /// The time of the key establishment.
        age: Duration,
    },
    /// There are keys, but the last packet was not authentic.
    Refused {
        /// The reason.
        reason: Refusal,
    },
    /// Every cookie was spent on requests without an authentic answer.
    NoCookies,
    /// The server cannot read our cookies.
    Nak,
}

impl Status {
    /// The name in JSON and tables.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NoKeys => "no-keys",
            Self::Keyed { .. } => "keyed",
            Self::Authenticated { .. } => "authenticated",
            Self::Refused { .. } => "refused",
            Self::NoCookies => "no-cookies",
            Self::Nak => "nak",
        }
    }

    /// One line for the operator.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::NoKeys => "no keys have been established yet".to_owned(),
            Self::Keyed { cookies } => {
                format!("keys are established, {cookies} cookies; no authentic answer yet")
            }
            Self::Authenticated { cookies, age } => {
                format!("answers are authentic (keys from {age} ago, {cookies} cookies)")
            }
            Self::Refused { reason } => format!("the last packet was refused: {reason}"),
            Self::NoCookies => {
                "all cookies are used up without an authentic answer; keys are renewed".to_owned()
            }
            Self::Nak => "the server cannot read our cookies; keys are renewed".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_all_is_complete() {
        let names: std::collections::BTreeSet<_> = Refusal::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), Refusal::ALL.len());
        assert!(Refusal::ALL.iter().enumerate().all(|(i, r)| *r as usize == i));
        assert_eq!(Refusal::ALL.last(), Some(&Refusal::Nak));
    }
}
