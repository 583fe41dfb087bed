//! A thread that wants to run, has a budget for it, and is never let.
//!
//! Linux can forget the end of a pause (see [`super::Ledger::leave`]): the thread is then out of budget for ever, whatever it is given. Our own requests keep
//! clear of that; others may change a thread's policy, too, and a frozen VM is not to be thawed by its end only.

use timevisor_schedule::Reservation;

/// What a thread had when it was last seen to run or to sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stall {
    ran: u64,
    since: u64,
}

impl Stall {
    /// A thread that has run for `ran` ns in all, at `now` on any clock that goes on, ns.
    #[must_use]
    pub const fn begin(ran: u64, now: u64) -> Self {
        Self { ran, since: now }
    }

    /// Whether it has not run although it wanted to, for so long that the kernel will not let it any more. `lag`: by how much `ran` may be behind.
    ///
    /// Between two budgets are two periods at most. After that the next stall begins.
    pub fn observe(
        &mut self,
        (ran, runnable): (u64, bool),
        reservation: &Reservation,
        lag: u64,
        now: u64,
    ) -> bool {
        let stalled = runnable
            && ran == self.ran
            && now.saturating_sub(self.since) > 3 * reservation.period() + lag;
        if stalled || !runnable || ran != self.ran {
            *self = Self::begin(ran, now);
        }
        stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn only_who_wants_to_run_and_does_not_for_three_periods_is_stalled() {
        let reservation = Reservation::shared(10 * MS, 50 * MS).unwrap();
        let mut stall = Stall::begin(7, 0);
        let mut at = |ms: u64, ran: u64, runnable: bool| {
            stall.observe((ran, runnable), &reservation, 10 * MS, ms * MS)
        };
        assert!(!at(160, 7, true));
        assert!(at(161, 7, true));
        // Another one begins.
        assert!(!at(162, 7, true) && !at(321, 7, true) && at(322, 7, true));
        // It has slept; it has run.
        assert!(!at(500, 7, false) && !at(660, 7, true));
        assert!(!at(661, 8, true) && !at(821, 8, true) && at(822, 8, true));
    }
}
