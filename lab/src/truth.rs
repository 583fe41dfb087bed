//! The true time at which a counter had a certain value.
//!
//! The lab's server serves this machine's CLOCK_REALTIME, and nobody steers that clock. Between two
//! brackets around a request it is therefore a linear function of the counter; a guest's counter is
//! the host's plus an offset. The uncertainty of the line is half the wider bracket.

use anyhow::ensure;
use timevisor_clock_page::Counter;
use timevisor_linux::clock::{Bracket, bracket};

/// Number of tries; the narrowest bracket is kept.
const TRIES: usize = 10;

/// CLOCK_REALTIME over a short span of the counter.
#[derive(Debug, Clone, Copy)]
pub struct Truth {
    from: Bracket,
    to: Bracket,
}

impl Truth {
    /// Calls `ask` between two readings of the clock.
    ///
    /// # Errors
    /// Those of `ask`, or when the counter went backwards.
    pub fn around<T>(
        counter: &impl Counter,
        ask: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Self)> {
        let from = bracket(counter, TRIES);
        let answer = ask()?;
        Ok((answer, Self::between(from, bracket(counter, TRIES))?))
    }

    /// The line through two readings, for instance of another machine's clock.
    ///
    /// # Errors
    /// When the counter went backwards.
    pub fn between(from: Bracket, to: Bracket) -> anyhow::Result<Self> {
        ensure!(to.before > from.after, "the counter went back; is this machine's TSC usable?");
        Ok(Self { from, to })
    }

    /// UTC in ns at this value of the machine's counter. A timestamp in whole ns was rounded down
    /// to 2^-64 s, hence the `ceil`.
    pub fn at(&self, counter: u64) -> i64 {
        let (from, to) = (middle(&self.from), middle(&self.to));
        let (low, high) = (self.from.realtime.ceil_nanos(), self.to.realtime.ceil_nanos());
        let along = i128::from(counter.wrapping_sub(from).cast_signed());
        let slope = (i128::from(high - low), i128::from(to.wrapping_sub(from)).max(1));
        low + i64::try_from(along * slope.0 / slope.1).unwrap_or(i64::MAX / 2)
    }

    /// The uncertainty of [`Self::at`] between the two readings, ns.
    pub fn uncertainty_ns(&self) -> i64 {
        let widest = self.from.width().max(self.to.width());
        let span = middle(&self.to).wrapping_sub(middle(&self.from)).max(1);
        let ns = self.to.realtime.ceil_nanos() - self.from.realtime.ceil_nanos();
        // One more ns for the clock's granularity.
        i64::try_from(i128::from(widest) * i128::from(ns) / i128::from(span) / 2)
            .unwrap_or(i64::MAX)
            + 1
    }

    /// The counter's value at the later reading.
    pub fn end(&self) -> u64 {
        middle(&self.to)
    }
}

fn middle(bracket: &Bracket) -> u64 {
    bracket.before.wrapping_add(bracket.width() / 2)
}

#[cfg(test)]
mod tests {
    use timevisor_time::Instant;

    use super::*;

    #[test]
    fn between_two_looks_the_clock_is_a_line() {
        let look = |before, ns, width| Bracket {
            before,
            realtime: Instant::from_unix_nanos(ns),
            after: before + width,
        };
        // 2 ticks a ns; the clock was read in the middle of each bracket.
        let truth = Truth { from: look(1000, 500_000, 20), to: look(3000, 501_000, 20) };
        assert_eq!(truth.at(1010), 500_000);
        assert_eq!(truth.at(2010), 500_500);
        assert_eq!(truth.at(3010), 501_000);
        assert_eq!(truth.at(truth.end()), 501_000);
        assert_eq!(truth.uncertainty_ns(), 6, "half of 20 ticks is 5 ns, and the granule");
    }
}
