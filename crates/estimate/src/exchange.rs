//! One comparison of our counter with a reference.

use timevisor_time::{Duration, Instant, Tai};

/// Counter value `ta` came before the reference read `tb`, and the reference's later reading `te`
/// before our `tf`.
///
/// A PHC or system clock bracket is the same shape with `tb == te`, and an interval of time at one value of
/// the counter with `ta == tf`, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// Our counter before the request left.
    pub ta: u64,
    /// The reference's time when it received the request.
    pub tb: Instant<Tai>,
    /// The reference's time when it sent the answer.
    pub te: Instant<Tai>,
    /// Our counter after the answer arrived.
    pub tf: u64,
    /// The reference's own error: root dispersion + root delay / 2 + stamp granularity (NTP), or
    /// the documented accuracy of the interface.
    pub error: Duration,
}

/// Why an exchange was not used. Counted by reason, shown in `timevisor status`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum Discard {
    /// The same exchange again.
    #[error("duplicate of the exchange before")]
    Duplicate,
    /// Sent before the newest one that is already used.
    #[error("older than the exchange before")]
    OutOfOrder,
    /// Our counter went back within the exchange.
    #[error("received before it was sent")]
    NegativeRoundTrip,
    /// The reference's clock went back within the exchange.
    #[error("the reference answered before it was asked")]
    NegativeResidence,
    /// The reference claims a negative error.
    #[error("the reference states a negative error")]
    NegativeError,
    /// More time went by between the reference's stamps than our counter counted around them.
    #[error("the reference's two stamps are further apart than ours")]
    ImpossibleResidence,
    /// Faster than this host can talk to anything: the stamps are wrong.
    #[error("round trip below the host's physical minimum")]
    TooFast,
}

impl Discard {
    /// The name in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate_exchange",
            Self::OutOfOrder => "out_of_order",
            Self::NegativeRoundTrip => "negative_round_trip",
            Self::NegativeResidence => "negative_residence",
            Self::NegativeError => "negative_error",
            Self::ImpossibleResidence => "impossible_residence",
            Self::TooFast => "too_fast",
        }
    }
}

impl Exchange {
    /// Round trip in counter ticks.
    #[must_use]
    pub fn round_trip(&self) -> u64 {
        self.tf.wrapping_sub(self.ta)
    }

    /// The counter value in the middle of the exchange.
    #[must_use]
    pub fn middle(&self) -> u64 {
        self.ta.wrapping_add(self.round_trip() / 2)
    }

    /// The reading of a clock between two values of our counter, which may be one value where the counter
    /// is slow: one tick more keeps it from being an interval.
    #[must_use]
    pub fn of_reading(before: u64, time: Instant<Tai>, after: u64, error: Duration) -> Self {
        let tf = if after == before { after.wrapping_add(1) } else { after };
        Self { ta: before, tb: time, te: time, tf, error }
    }

    /// Whether it is an interval at one value of the counter: what a cluster, a host's page or a saved visit
    /// has concluded, not the reading of a clock. The time is anywhere in it, and nothing was sent whose
    /// delay could be compared.
    #[must_use]
    pub fn is_interval(&self) -> bool {
        self.ta == self.tf
    }

    /// Checks everything that one exchange shows by itself and against the one `before` it
    /// (docs/explanation/bounds.md).
    ///
    /// # Errors
    /// The reason to discard it.
    pub fn check(&self, before: Option<&Self>, minimum_round_trip: u64) -> Result<(), Discard> {
        if self.round_trip() >> 63 != 0 {
            return Err(Discard::NegativeRoundTrip);
        }
        if self.te < self.tb {
            return Err(Discard::NegativeResidence);
        }
        if self.error.is_negative() {
            return Err(Discard::NegativeError);
        }
        if self.round_trip() < minimum_round_trip {
            return Err(Discard::TooFast);
        }
        match before {
            Some(b) if b == self => Err(Discard::Duplicate),
            // Signed distance, so that a wrapping counter is no disorder.
            Some(b) if self.ta.wrapping_sub(b.ta) >> 63 != 0 || self.ta == b.ta => {
                Err(Discard::OutOfOrder)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(ta: u64, tf: u64) -> Exchange {
        let at = |ns| Instant::from_unix_nanos(ns);
        Exchange { ta, tb: at(100), te: at(110), tf, error: Duration::ZERO }
    }

    #[test]
    fn every_reason() {
        let good = exchange(10, 20);
        assert_eq!(good.check(None, 5), Ok(()));
        assert_eq!(good.check(Some(&good), 5), Err(Discard::Duplicate));
        assert_eq!(exchange(9, 20).check(Some(&good), 5), Err(Discard::OutOfOrder));
        assert_eq!(exchange(10, 9).check(None, 0), Err(Discard::NegativeRoundTrip));
        assert_eq!(good.check(None, 11), Err(Discard::TooFast));
        assert_eq!(
            Exchange { te: good.tb - Duration::EPSILON, ..good }.check(None, 0),
            Err(Discard::NegativeResidence)
        );
        assert_eq!(
            Exchange { error: -Duration::EPSILON, ..good }.check(None, 0),
            Err(Discard::NegativeError)
        );
    }

    #[test]
    fn a_wrapping_counter_is_in_order() {
        let last = exchange(u64::MAX - 10, u64::MAX - 5);
        assert_eq!(exchange(3, 9).check(Some(&last), 0), Ok(()));
    }
}
