//! [`LateJobs`]: the late jobs that introspection has seen, by their causes.

use std::collections::BTreeMap;

use timevisor_introspection::tasks::late::Late;
use timevisor_protocols::control::{self, MissedCause, MissedJob, ReserveRow};

/// As many vCPUs of a VM as are remembered.
const MOST: usize = 1024;

/// Late jobs of each VM's vCPUs, whether they have a reservation or not.
#[derive(Debug, Default)]
pub struct LateJobs(BTreeMap<(String, u32), control::LateJobs>);

impl LateJobs {
    /// Counts one; `missed`: what the host's samples say of it. Returns it in words.
    pub fn count(&mut self, vm: &str, late: &Late, missed: Option<MissedJob>) -> String {
        let vcpu = u32::from(late.vcpu);
        let named = vm.to_owned();
        let known = self.0.range((named.clone(), 0)..=(named.clone(), u32::MAX)).count();
        let has_room = known < MOST || self.0.contains_key(&(named, vcpu));
        let mut unknown = control::LateJobs::default();
        let of =
            if has_room { self.0.entry((vm.to_owned(), vcpu)).or_default() } else { &mut unknown };
        let cause = missed.map(|missed| missed.cause);
        let (counted, why) = match cause {
            Some(MissedCause::HostBroke) => {
                (&mut of.host_broke, "the host: it gave the vCPU less than its reservation")
            }
            Some(MissedCause::GuestUnderDeclared) => (
                &mut of.guest_under_declared,
                "the guest: it had more work than declared, and all of its reservation",
            ),
            Some(MissedCause::GuestPolicy) => {
                (&mut of.guest_policy, "the guest: its vCPU slept meanwhile")
            }
            Some(MissedCause::Unclear) => (&mut of.unclear, "not known"),
            None => (&mut of.unclear, "not known, as the vCPU had no reservation all the time"),
        };
        *counted = counted.saturating_add(1);
        let took = late.ended.saturating_sub(late.released).unsigned_abs();
        of.last_late_by_ns = took.saturating_sub(late.deadline);
        of.last_task.clone_from(&late.task);
        of.last_cause = cause;
        format!(
            "a job of task {} ended at least {:.1} ms after its deadline of {:.1} ms on vCPU {vcpu}; because of {why}",
            late.task,
            of.last_late_by_ns as f64 / 1e6,
            late.deadline as f64 / 1e6
        )
    }

    /// Forgets those of a VM.
    pub fn forget(&mut self, vm: &str) {
        self.0.retain(|(of, _), _| of != vm);
    }

    /// A reservation with the late jobs of its vCPU.
    pub fn with(&self, row: ReserveRow) -> ReserveRow {
        let late = self.0.get(&(row.vm.clone(), row.vcpu)).cloned();
        ReserveRow { late, ..row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_job_has_a_cause() {
        let late = Late {
            task: "7 rt".into(),
            vcpu: 1,
            released: 50_000_000,
            ended: 162_000_000,
            deadline: 100_000_000,
        };
        let missed = |cause| {
            Some(MissedJob { cause, looked_at_ns: 1, ran_ns: 1, waited_ns: 1, missing_ns: 1 })
        };
        let mut all = LateJobs::default();
        let said = all.count("web", &late, missed(MissedCause::HostBroke));
        assert!(
            said.contains("7 rt") && said.contains("12.0 ms") && said.contains("the host"),
            "{said}"
        );
        all.count("web", &late, missed(MissedCause::GuestPolicy));
        assert!(all.count("web", &late, None).contains("no reservation"));
        let found = &all.0[&("web".to_owned(), 1)];
        assert_eq!(
            (found.host_broke, found.guest_policy, found.unclear, found.count()),
            (1, 1, 1, 3)
        );
        assert_eq!(found.last_cause, None);
        // What a QEMU says of its vCPUs is bounded, and costs others nothing.
        for vcpu in 0..=u16::MAX / 16 {
            all.count("db", &Late { vcpu, ..late.clone() }, None);
        }
        assert_eq!(all.0.len(), MOST + 1);
        all.forget("db");
        assert_eq!(all.0.len(), 1);
    }
}
