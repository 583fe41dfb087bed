//! Decides which reservations a core can keep, before the kernel is asked.
//!
//! The kernel admits by bandwidth alone; a deadline below the period needs a stricter test. In
//! addition, a budget that was given back remains in use until its period ends: the thread may have
//! consumed all of it at the end, where another reservation's period starts.

use timevisor_schedule::Reservation;
use timevisor_schedule::admission::{Host, core_keeps};
use timevisor_schedule::edf::Demand;

/// Why a core cannot keep a reservation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// One of the two requires the core for itself.
    #[error(
        "core {core} has a reservation already ({other}), and one of the two is to be alone there; take another core, or plan both \
             without --alone"
    )]
    Alone {
        /// The core.
        core: usize,
        /// The name of the other reservation.
        other: String,
    },
    /// Deadlines would be missed.
    #[error(
        "core {core} cannot keep {budget} us of every {period} us beside what is reserved there; ask for less, or take another core"
    )]
    Full {
        /// The core.
        core: usize,
        /// Requested budget, us.
        budget: u64,
        /// Requested period, us.
        period: u64,
    },
}

/// How long a thread may run beyond its budget, ns: the tick of the slowest usual kernel.
const OVERRUN: u64 = 10_000_000;

/// Capacity that must not be given away yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    /// Core, the reservation that was given back, and until when it counts.
    freed: Vec<(usize, Reservation, u64)>,
    /// Thread id, and until when it must not return to SCHED_DEADLINE.
    left: Vec<(u32, u64)>,
}

/// A reservation that a core already has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its name in messages.
    pub name: String,
    /// Its budget, deadline and period.
    pub reservation: Reservation,
    /// Whether it requires the core for itself.
    pub alone: bool,
}

impl Ledger {
    /// Whether the core can keep `wanted` alongside its neighbours at `now` ns.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(
        &mut self,
        core: usize,
        wanted: &Reservation,
        alone: bool,
        neighbours: &[Neighbour],
        now: u64,
    ) -> Result<(), Refused> {
        if let Some(other) = neighbours.iter().find(|other| alone || other.alone) {
            return Err(Refused::Alone { core, other: other.name.clone() });
        }
        self.freed.retain(|(_, _, until)| *until > now);
        let freed = self.freed.iter().filter(|(on, ..)| *on == core).map(|(_, freed, _)| *freed);
        let all: Vec<Reservation> = neighbours
            .iter()
            .map(|other| other.reservation)
            .chain(freed)
            .chain([*wanted])
            .collect();
        // A reservation that has the core to itself competes with nobody.
        let kept = all.len() == 1 || core_keeps(&all, &Host::LINUX) == Demand::Supplied;
        kept.then_some(()).ok_or(Refused::Full {
            core,
            budget: wanted.budget() / 1000,
            period: wanted.period() / 1000,
        })
    }

    /// Whether a reservation that was given back still counts on a core.
    #[must_use]
    pub fn is_freeing(&self, core: usize, now: u64) -> bool {
        self.freed.iter().any(|(on, _, until)| *on == core && *until > now)
    }

    /// Records what was given back. It counts until its last deadline has passed.
    pub fn free(&mut self, core: usize, reservation: Reservation, now: u64) {
        self.freed.push((core, reservation, now + reservation.period()));
    }

    /// Records that a thread has left SCHED_DEADLINE.
    ///
    /// A thread that left after exhausting its budget must not return between its deadline and the
    /// moment when its overrun is paid back. The kernel has cancelled the replenishment by then,
    /// but still treats the thread as throttled, and would never let it run again (dl_task_timer
    /// and inactive_task_timer in kernel/sched/deadline.c; observed with Linux 6.1, 6.12, 6.18 and
    /// 7.3).
    pub fn leave(&mut self, tid: u32, reservation: &Reservation, now: u64) {
        let (budget, period) = (u128::from(reservation.budget()), u128::from(reservation.period()));
        let paid_back = period + (u128::from(OVERRUN) * period).div_ceil(budget);
        let until = now.saturating_add(u64::try_from(paid_back).unwrap_or(u64::MAX));
        self.left.retain(|(other, _)| *other != tid);
        self.left.push((tid, until));
    }

    /// For how many ns a thread must not yet return to SCHED_DEADLINE; `None` if it may return now.
    pub fn leaving_for(&mut self, tid: u32, now: u64) -> Option<u64> {
        self.left.retain(|(_, until)| *until > now);
        self.left.iter().find(|(left, _)| *left == tid).map(|(_, until)| until - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn shared(budget: u64, period: u64) -> Reservation {
        Reservation::shared(budget * MS, period * MS).unwrap()
    }

    fn neighbour(reservation: Reservation, alone: bool) -> Neighbour {
        Neighbour { name: "db/0".into(), reservation, alone }
    }

    #[test]
    fn a_thread_that_left_stays_away_until_its_overrun_is_paid_back() {
        let mut ledger = Ledger::default();
        ledger.leave(7, &shared(20, 50), 5 * MS);
        assert_eq!(
            (ledger.leaving_for(7, 5 * MS), ledger.leaving_for(8, 5 * MS)),
            (Some(75 * MS), None)
        );
        // Its last deadline is at most a period away, and 10 ms at 40 % take 25 ms.
        assert_eq!(
            (ledger.leaving_for(7, 80 * MS - 1), ledger.leaving_for(7, 80 * MS)),
            (Some(1), None)
        );
        ledger.leave(7, &Reservation::shared(1024, 4_000 * MS).unwrap(), 100 * MS);
        assert!(ledger.leaving_for(7, 39_000_000 * MS).is_some());
        ledger.leave(7, &shared(20, 50), 100 * MS);
        assert_eq!(ledger.leaving_for(7, 175 * MS), None, "the last time counts");
    }

    #[test]
    fn what_fits_and_what_does_not() {
        let mut ledger = Ledger::default();
        let half = neighbour(shared(25, 50), false);
        let mut admit = |wanted, alone, neighbours: &[Neighbour]| {
            ledger.admit(1, &wanted, alone, neighbours, 0)
        };
        assert_eq!(admit(shared(49, 50), true, &[]), Ok(()));
        assert_eq!(admit(shared(20, 50), false, std::slice::from_ref(&half)), Ok(()));
        assert!(matches!(
            admit(shared(25, 50), false, std::slice::from_ref(&half)),
            Err(Refused::Full { .. })
        ));
        assert!(matches!(
            admit(shared(1, 50), true, std::slice::from_ref(&half)),
            Err(Refused::Alone { .. })
        ));
        let alone = neighbour(shared(5, 50), true);
        assert!(matches!(admit(shared(1, 50), false, &[alone]), Err(Refused::Alone { .. })));
        // Both fit by bandwidth, but not by their deadlines.
        let tight = Reservation::new(6 * MS, 10 * MS, 50 * MS).unwrap();
        assert!(matches!(
            admit(tight, false, &[neighbour(tight, false)]),
            Err(Refused::Full { .. })
        ));
    }

    #[test]
    fn what_was_freed_counts_until_its_period_is_over() {
        let mut ledger = Ledger::default();
        ledger.free(1, shared(40, 50), 100 * MS);
        assert!(ledger.admit(1, &shared(40, 50), false, &[], 120 * MS).is_err());
        assert_eq!(ledger.admit(0, &shared(40, 50), false, &[], 120 * MS), Ok(()));
        assert_eq!(ledger.admit(1, &shared(40, 50), false, &[], 151 * MS), Ok(()));
    }
}
