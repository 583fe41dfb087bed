//! Recognizes a thread that wants to run and has a budget, but never runs.
//!
//! Linux can forget to replenish a budget (see [`crate::ledger::Ledger::leave`]): the thread then
//! stays throttled forever. Our own requests avoid that. However, other programs may change a
//! thread's policy, too, and a frozen VM must not stay frozen until it ends.

use timevisor_schedule::Reservation;

/// The state of a thread when it was last seen running or asleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stall {
    ran: u64,
    since: u64,
}

impl Stall {
    /// A thread that has run for `ran` ns in total, observed at `now` ns.
    pub(crate) const fn begin(ran: u64, now: u64) -> Self {
        Self { ran, since: now }
    }

    /// Whether it has been runnable without running for longer than any budget explains: the kernel
    /// has forgotten it. `lag`: maximum delay of `ran`, ns.
    ///
    /// There are at most two periods between two budgets. After a stall has been reported, timing
    /// starts again.
    pub(crate) fn observe(
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
        // The next stall begins.
        assert!(!at(162, 7, true) && !at(321, 7, true) && at(322, 7, true));
        // It has slept; it has run.
        assert!(!at(500, 7, false) && !at(660, 7, true));
        assert!(!at(661, 8, true) && !at(821, 8, true) && at(822, 8, true));
    }
}
