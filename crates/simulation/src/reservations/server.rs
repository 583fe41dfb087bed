//! [`Server`]: one reservation as Linux's SCHED_DEADLINE implements it, the hard constant bandwidth
//! server of kernel/sched/deadline.c.
//!
//! What it does not do: reclaim (GRUB), be inherited, or be scaled by a clock frequency.
//! [`processor`](super::processor) decides which one runs.

use timevisor_schedule::Reservation;

/// The kernel's fixed point for densities (BW_SHIFT) and the bits it drops before it multiplies
/// (DL_SCALE).
const BW_SHIFT: u32 = 20;
const DL_SCALE: u32 = 10;

/// State of a `struct sched_dl_entity`. Times in ns.
#[derive(Clone, Debug)]
pub struct Server {
    of: Reservation,
    /// The remaining budget; negative by the overrun until a late tick.
    runtime: i64,
    deadline: u64,
    throttled: bool,
    queued: bool,
    begun: bool,
}

impl Server {
    /// A server that has never run.
    #[must_use]
    pub fn new(of: Reservation) -> Self {
        Self { of, runtime: 0, deadline: 0, throttled: false, queued: false, begun: false }
    }

    /// The deadline by which it is scheduled, if it may run.
    #[must_use]
    pub fn urgency(&self) -> Option<u64> {
        (self.queued && !self.throttled).then_some(self.deadline)
    }

    /// The remaining budget, ns.
    #[must_use]
    pub fn runtime(&self) -> i64 {
        self.runtime
    }

    /// Whether its guest wants to run.
    #[must_use]
    pub fn queued(&self) -> bool {
        self.queued
    }

    /// When the budget is replenished; `None` if it is not exhausted.
    #[must_use]
    pub fn timer(&self) -> Option<u64> {
        // dl_next_period()
        self.throttled.then(|| self.next_period())
    }

    fn next_period(&self) -> u64 {
        self.deadline + self.of.period() - self.of.deadline()
    }

    /// enqueue_task_dl() of a task that slept, with update_dl_entity() and
    /// dl_check_constrained_dl().
    pub fn wake(&mut self, now: u64) {
        self.queued = true;
        if self.throttled {
            return;
        }
        if !self.begun {
            self.begun = true;
            return self.new_period(now);
        }
        let implicit = self.of.deadline() == self.of.period();
        if !implicit && self.deadline < now && now < self.next_period() {
            // Woken between the deadline and the next period: it gets nothing until then, because
            // otherwise it would use budget / deadline of the core.
            self.throttled = true;
            self.runtime = self.runtime.min(0);
        } else if self.deadline < now {
            self.new_period(now);
        } else if self.overflows(now) {
            if implicit {
                self.new_period(now);
            } else {
                // The revised rule: the deadline stays, the budget shrinks to what the density
                // allows until then.
                let density =
                    (u128::from(self.of.budget()) << BW_SHIFT) / u128::from(self.of.deadline());
                let left = (density * u128::from(self.deadline - now)) >> BW_SHIFT;
                self.runtime = i64::try_from(left).unwrap_or(i64::MAX);
            }
        }
    }

    /// dl_entity_overflow(): whether using the remaining budget until the deadline would exceed
    /// budget / deadline.
    fn overflows(&self, now: u64) -> bool {
        let scaled = |ns: u64| u128::from(ns >> DL_SCALE);
        let left = scaled(self.of.deadline()) * scaled(self.runtime.max(0).unsigned_abs());
        left > scaled(self.deadline - now) * scaled(self.of.budget())
    }

    fn new_period(&mut self, now: u64) {
        self.deadline = now + self.of.deadline();
        self.runtime = self.of.budget().cast_signed();
    }

    /// update_curr_dl(): it ran for this long.
    pub fn spend(&mut self, span: u64) {
        self.runtime -= span.cast_signed();
    }

    /// Checks whether the budget is exhausted, as the kernel does at ticks and whenever the task
    /// leaves the processor.
    pub fn account(&mut self) {
        if self.runtime <= 0 {
            self.throttled = true;
        }
    }

    /// Its guest has nothing to do.
    pub fn sleep(&mut self) {
        self.queued = false;
        self.account();
    }

    /// replenish_dl_entity(), by the timer.
    pub fn replenish(&mut self, now: u64) {
        while self.runtime <= 0 {
            self.deadline += self.of.period();
            self.runtime += self.of.budget().cast_signed();
        }
        self.throttled = false;
        if self.deadline < now {
            // "replenish lagged too much"
            self.new_period(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1 << 20;

    fn server(budget: u64, deadline: u64) -> Server {
        let of = Reservation::new(budget * MS, deadline * MS, 100 * MS).unwrap();
        let mut server = Server::new(of);
        server.wake(0);
        server.spend(MS);
        server.sleep();
        server
    }

    #[test]
    fn wakes_as_the_kernel_lets_it() {
        let state = |mut server: Server, now: u64| {
            server.wake(now * MS);
            (server.runtime / MS.cast_signed(), server.deadline / MS, server.timer())
        };
        // Implicit deadline, 39 of 40 left: until 97.5 that is too much for what remains of the
        // period.
        assert_eq!(state(server(40, 100), 2), (39, 100, None));
        assert_eq!(state(server(40, 100), 50), (40, 150, None));
        assert_eq!(state(server(40, 100), 100), (40, 200, None), "at the deadline");
        // Constrained: the deadline stays, with half of the time until it as budget; then nothing
        // until the next period.
        assert_eq!(state(server(10, 20), 1), (9, 20, None));
        assert_eq!(state(server(10, 20), 15), (2, 20, None));
        assert_eq!(state(server(10, 20), 60), (0, 20, Some(100 * MS)));
        assert_eq!(state(server(10, 20), 130), (10, 150, None));
    }

    #[test]
    fn a_budget_that_is_gone_comes_back_with_the_period() {
        let mut server = server(40, 100);
        server.wake(2 * MS);
        server.spend(41 * MS);
        server.account();
        assert_eq!((server.urgency(), server.timer()), (None, Some(100 * MS)));
        server.replenish(100 * MS);
        // The overrun is paid back.
        assert_eq!((server.urgency(), server.runtime), (Some(200 * MS), 38 * MS.cast_signed()));
    }
}
