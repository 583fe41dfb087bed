//! What operators see of an association: reachability, counters and advice.
//!
//! What it does not do: change anything. [`super::client`] writes these; the daemon and the command
//! line read them.

use std::collections::BTreeMap;
use std::fmt;

use timevisor_time::Duration;

use super::reject::RejectReason;
use super::response::KissCode;

/// Counts of all events since the association was made.
///
/// `sent` = accepted + lost + kisses + those rejections whose [`RejectReason::ends_request`] + the
/// one in flight.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Requests sent.
    pub sent: u64,
    /// Answers accepted.
    pub accepted: u64,
    /// Requests that no answer ended in time.
    pub lost: u64,
    /// Kiss-o'-death answers.
    pub kisses: u64,
    /// Datagrams rejected; reasons that never occurred are absent.
    pub rejected: BTreeMap<RejectReason, u64>,
}

impl Counters {
    /// How often `reason` occurred.
    #[must_use]
    pub fn rejected_for(&self, reason: RejectReason) -> u64 {
        self.rejected.get(&reason).copied().unwrap_or(0)
    }

    /// Rejections for any reason.
    #[must_use]
    pub fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }
}

/// The reachability register of RFC 5905 section 13: the last eight requests, the newest in the
/// lowest bit, 1 for an accepted answer. A request enters when it ends, so a healthy server shows
/// 377 at all times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reach(u8);

impl Reach {
    /// Length of the register in requests.
    pub const BITS: u64 = 8;

    /// Returns the register with the newest request's outcome shifted in.
    #[must_use]
    pub const fn pushed(self, answered: bool) -> Self {
        Self((self.0 << 1) | answered as u8)
    }

    /// The register.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns true if any of the last eight requests was answered.
    #[must_use]
    pub const fn any(self) -> bool {
        self.0 != 0
    }
}

/// Octal, as in ntpq and chronyc: `377`.
impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:o}", self.0)
    }
}

/// The state of an association. Instants are on the caller's monotonic time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Nothing accepted yet and fewer than eight requests lost.
    Probing,
    /// The server answers.
    Reachable,
    /// Eight requests in a row ended without an accepted answer, the last one lost.
    Unreachable {
        /// When an answer was last accepted, or the first request was sent.
        since: Duration,
    },
    /// Something arrives, but the last answer cannot be used, or nothing that arrives can.
    Unusable {
        /// Why.
        reason: RejectReason,
        /// For [`RejectReason::Distance`]: the error that the server states, and the limit.
        distance: Option<(Duration, Duration)>,
    },
    /// The last answer was a kiss with a code that asks nothing of us, such as INIT.
    Declined {
        /// The code.
        code: KissCode,
    },
    /// The last answer asked us to slow down, and we did.
    RateLimited {
        /// The interval now in force.
        poll: Duration,
    },
    /// The server refuses to serve us.
    Denied {
        /// DENY or RSTR.
        code: KissCode,
        /// When we ask again.
        retry_at: Duration,
    },
}

impl Status {
    /// The name in JSON and tables.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Probing => "probing",
            Self::Reachable => "reachable",
            Self::Unreachable { .. } => "unreachable",
            Self::Unusable { .. } => "unusable",
            Self::Declined { .. } => "declined",
            Self::RateLimited { .. } => "rate-limited",
            Self::Denied { .. } => "denied",
        }
    }

    /// Returns one line for the operator: the state and what to do about it.
    #[must_use]
    pub fn describe(&self, now: Duration) -> String {
        match self {
            Self::Probing => "waiting for the first usable answer".to_owned(),
            Self::Reachable => "the server answers".to_owned(),
            Self::Unreachable { since } => format!(
                "no answer for {}; check the address, the route and that UDP port 123 is not filtered",
                now - *since
            ),
            Self::Unusable { distance: Some((stated, limit)), .. } => format!(
                "the last answer was rejected: the server states an error of {stated}, and max_distance is {limit}; use a \
                 better server or raise max_distance (up to 16s)"
            ),
            Self::Unusable { reason, distance: None } => {
                format!("the last answer was rejected: {reason}")
            }
            Self::Declined { code } => {
                format!(
                    "the server declines to serve (kiss code {code}); wait for it to start, or use another"
                )
            }
            Self::RateLimited { poll } => {
                format!(
                    "the server asked us to slow down; polling every {poll}; raise poll_min or use a server of your own"
                )
            }
            Self::Denied { code, retry_at } => format!(
                "the server refuses us (kiss code {code}); ask its operator for access or remove it; next attempt in {}",
                (*retry_at - now).max(Duration::ZERO)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_reads_like_chronyc() {
        let mut reach = Reach::default();
        for (answered, octal) in [(true, "1"), (true, "3"), (false, "6"), (true, "15")] {
            reach = reach.pushed(answered);
            assert_eq!(reach.to_string(), octal);
        }
        let full = (0..8).fold(reach, |r, _| r.pushed(true));
        assert_eq!(full.to_string(), "377");
        assert!(!(0..8).fold(full, |r, _| r.pushed(false)).any());
    }

    #[test]
    fn advice_names_the_next_step() {
        let now = Duration::from_secs(100);
        let texts = [
            (
                Status::Unreachable { since: Duration::from_secs(40) },
                "no answer for 60.000 s; check the address",
            ),
            (
                Status::Denied { code: KissCode::Deny, retry_at: Duration::from_secs(160) },
                "attempt in 60.000 s",
            ),
            (
                Status::Unusable { reason: RejectReason::Unsynchronized, distance: None },
                "check the server or use another",
            ),
            (
                Status::Unusable {
                    reason: RejectReason::Distance,
                    distance: Some((Duration::from_secs(8), Duration::from_millis(1500))),
                },
                "states an error of 8.000 s, and max_distance is 1.500 s",
            ),
        ];
        for (status, part) in texts {
            assert!(status.describe(now).contains(part), "{}", status.describe(now));
        }
    }
}
