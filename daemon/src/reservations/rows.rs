//! What is held, for those who ask.

use timevisor_guests::reservation::{self, Guarantee, Held};
use timevisor_linux::scheduling::schedstat;
use timevisor_protocols::control::{Promise, Reservations as Answer, ReserveRow, Response};

use super::configured::Configured;
use super::{Reservations, now_ns};

impl Reservations {
    /// Answers `reserve_list`.
    pub fn list(&self) -> Response {
        let problems =
            self.failed.iter().map(|(vm, vcpu, why)| format!("VM {vm} vCPU {vcpu}: {why}"));
        let problems = problems.chain(self.configured.iter().filter_map(Configured::problem));
        let problems = problems.collect();
        Response::Reservations(Answer { reservations: self.rows(), changes: Vec::new(), problems })
    }

    pub(super) fn rows(&self) -> Vec<ReserveRow> {
        let now = now_ns();
        let row = |held: &Held| {
            let (promise, core) = match held.guarantee {
                Guarantee::Core(core) => (Promise::Core, u32::try_from(core).ok()),
                Guarantee::Global => (Promise::Global, None),
                Guarantee::Fifo => (Promise::Fifo, None),
                Guarantee::Limit => (Promise::Limit, None),
            };
            let ran = schedstat(held.pid, held.tid).ok();
            ReserveRow {
                vm: held.vm.clone(),
                vcpu: held.vcpu,
                tid: held.tid,
                promise,
                core,
                budget_ns: held.budget,
                soft_ns: held.soft,
                deadline_ns: held.deadline,
                period_ns: held.period,
                alone: held.alone,
                held_ns: now.saturating_sub(held.since),
                ran_ns: ran.map(|stat| stat.ran.saturating_sub(held.ran)),
                audit: self.audit.of(held.tid),
                problem: self.problem(held),
            }
        };
        self.held.iter().map(row).collect()
    }

    /// Why the promise to `held` does not hold at the moment.
    fn problem(&self, held: &Held) -> Option<String> {
        if self.waiting.iter().any(|waiting| waiting.wanted.tid == held.tid) {
            return Some("waits for the vCPU to run".to_owned());
        }
        let apart = self.joined.as_ref().filter(|_| held.core().is_some());
        let checked = reservation::check(&held.changes).err().map(|error| error.to_string());
        checked.or_else(|| apart.map(|why| format!("its core may not be apart: {why}")))
    }
}
