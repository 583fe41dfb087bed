//! What a server's answers prove about a timeline, at any later value of our counter.
//!
//! A request cannot arrive before it was sent, nor an answer before it left: each answer gives a
//! latest and an earliest possible time. The best of each are kept, aged at the limits of the
//! counter's rate. One-way delays need not be equal, and need no estimate.

use timevisor_estimate::bounds::{Bounds, Contradiction};
use timevisor_estimate::{Exchange, RateLimits};
use timevisor_time::{Duration, Instant, Interval, Tai};

/// One answer: our counter around it, and what the server's clock said in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statement {
    /// Our counter, no later than the request's departure.
    pub sent: u64,
    /// Our counter, no earlier than the answer's arrival.
    pub received: u64,
    /// The server's interval when the request arrived.
    pub arrived: Interval<Tai>,
    /// The server's interval when the answer left.
    pub left: Interval<Tai>,
}

impl Statement {
    /// The exchange that proves the same: the latest that the server may have seen the request, and
    /// the earliest that the answer may have left.
    fn exchange(&self) -> Exchange {
        Exchange {
            ta: self.sent,
            tb: self.arrived.latest(),
            te: self.left.earliest(),
            tf: self.received,
            error: Duration::ZERO,
        }
    }

    /// Ticks of our counter from the request to the answer.
    #[must_use]
    pub fn round_trip(&self) -> u64 {
        self.received.wrapping_sub(self.sent)
    }
}

/// What one server has proven so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Facts(Option<Bounds>);

impl Facts {
    /// Takes an answer in.
    ///
    /// # Errors
    /// It excludes what the server said before: its clock, or our counter, is not what was assumed.
    /// The facts stay as they were.
    pub fn take(&mut self, said: &Statement, rate: &RateLimits) -> Result<(), Contradiction> {
        let exchange = said.exchange();
        let before = self.0.unwrap_or_else(|| Bounds::new(said.received, Interval::UNKNOWN));
        self.0 = Some(before.with(&exchange, rate)?);
        Ok(())
    }

    /// The interval that holds the timeline's time at this counter value, which must not be before
    /// the last answer; `None` before the first one.
    #[must_use]
    pub fn at(&self, counter: u64, rate: &RateLimits) -> Option<Interval<Tai>> {
        self.0.map(|bounds| bounds.aged(counter, rate).interval())
    }
}

/// The interval at `counter`, of a clock that has this interval at `base` and this rate.
#[must_use]
pub fn aged(interval: Interval<Tai>, base: u64, counter: u64, rate: &RateLimits) -> Interval<Tai> {
    Bounds::new(base, interval).aged(counter, rate).interval()
}

/// The instant in the middle.
#[must_use]
pub fn middle(interval: &Interval<Tai>) -> Instant<Tai> {
    interval.earliest() + interval.width().half()
}
