//! Threads that the kernel has forgotten to let run: they are put under SCHED_DEADLINE anew.

use timevisor_guests::reservation::{self, Stall};
use timevisor_linux::scheduling::{accounting_lag, is_runnable, schedstat};

use super::{Reservations, name_of, now_ns};

impl Reservations {
    pub(super) fn look_for_stalls(&mut self) {
        let mut before = std::mem::take(&mut self.stalls);
        let mut stalled = Vec::new();
        for (index, held) in self.held.iter().enumerate() {
            let waits = self.waiting.iter().any(|waiting| waiting.wanted.tid == held.tid);
            if waits || !held.guarantee.is_by_deadline() {
                continue;
            }
            let seen = schedstat(held.pid, held.tid)
                .and_then(|stat| Ok((stat.ran, is_runnable(held.pid, held.tid)?)));
            let (Some(reservation), Ok(seen)) = (held.reservation(), seen) else { continue };
            let now = now_ns();
            let mut stall = before.remove(&held.tid).unwrap_or(Stall::begin(seen.0, now));
            if stall.observe(seen, &reservation, accounting_lag(), now) {
                stalled.push((index, reservation));
            }
            self.stalls.insert(held.tid, stall);
        }
        // From the last on: one that cannot be kept goes from the list.
        for (index, reservation) in stalled.into_iter().rev() {
            let name = name_of(&self.held[index]);
            tracing::warn!("{name}: the kernel does not let it run; its budget is begun anew");
            if let Err(error) = reservation::begin_anew(&reservation, &self.held[index].changes) {
                tracing::warn!("{name}: not reserved: {error}");
                self.give_up(index, &error);
            }
        }
    }
}
