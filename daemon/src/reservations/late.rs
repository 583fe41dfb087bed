//! [`LateJobs`]: the late jobs that introspection has seen, by their causes.

use std::collections::BTreeMap;

use timevisor_introspection::tasks::late::Late;
use timevisor_protocols::control::{self, LateJob, MissedCause, MissedJob, ReserveRow};

/// As many vCPUs of a VM as are remembered.
const MOST: usize = 1024;
/// As many jobs of a vCPU as are told one by one.
const RECENT: usize = 10;

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
        let (counted, why) = match missed.map(|missed| missed.cause) {
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
            None => (
                &mut of.unclear,
                "not known: the vCPU had no reservation all the time, or samples of that time came too late",
            ),
        };
        *counted = counted.saturating_add(1);
        let took = late.ended.saturating_sub(late.released).unsigned_abs();
        let late_by_ns = took.saturating_sub(late.deadline);
        if of.recent.len() >= RECENT {
            of.recent.remove(0);
        }
        of.recent.push(LateJob {
            task: late.task.clone(),
            released_ns: u64::try_from(late.released).unwrap_or(0),
            ended_ns: u64::try_from(late.ended).unwrap_or(0),
            late_by_ns,
            missed,
        });
        let [late_by, deadline] = [late_by_ns, late.deadline].map(ms);
        let got = missed.map(|missed| got(&missed)).unwrap_or_default();
        format!(
            "a job of task {} ended at least {late_by} after its deadline of {deadline} on vCPU {vcpu}; because of {why}{got}",
            late.task
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

/// What the vCPU got while the job was there.
fn got(missed: &MissedJob) -> String {
    let MissedJob { looked_at_ns, ran_ns, waited_ns, missing_ns, .. } = *missed;
    let missing =
        if missing_ns > 0 { format!(", {} too little", ms(missing_ns)) } else { String::new() };
    let [looked_at, ran, waited] = [looked_at_ns, ran_ns, waited_ns].map(ms);
    format!(" (in {looked_at} of that time it ran for {ran}{missing}, and waited for {waited})")
}

fn ms(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
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
            let [looked_at_ns, ran_ns, waited_ns] = [100_000_000, 8_000_000, 90_000_000];
            Some(MissedJob { cause, looked_at_ns, ran_ns, waited_ns, missing_ns: 42_000_000 })
        };
        let mut all = LateJobs::default();
        let said = all.count("web", &late, missed(MissedCause::HostBroke));
        assert!(
            said.contains("7 rt") && said.contains("12.0 ms") && said.contains("the host"),
            "{said}"
        );
        assert!(
            said.ends_with(
                "(in 100.0 ms of that time it ran for 8.0 ms, 42.0 ms too little, and waited for 90.0 ms)"
            ),
            "{said}"
        );
        all.count("web", &late, missed(MissedCause::GuestPolicy));
        assert!(all.count("web", &late, None).contains("no reservation"));
        let found = &all.0[&("web".to_owned(), 1)];
        assert_eq!(
            (found.host_broke, found.guest_policy, found.unclear, found.count()),
            (1, 1, 1, 3)
        );
        let last = &found.recent[2];
        assert_eq!((last.released_ns, last.ended_ns), (50_000_000, 162_000_000));
        assert_eq!((last.late_by_ns, last.missed), (12_000_000, None));
        assert_eq!(found.recent[0].missed, missed(MissedCause::HostBroke));
        // What a QEMU says of its vCPUs is bounded, and costs others nothing.
        for vcpu in 0..=u16::MAX / 16 {
            all.count("db", &Late { vcpu, ..late.clone() }, None);
        }
        assert_eq!(all.0.len(), MOST + 1);
        (0..RECENT).for_each(|_| drop(all.count("db", &late, None)));
        let found = &all.0[&("db".to_owned(), 1)];
        assert_eq!((found.count(), found.recent.len()), (11, RECENT));
        all.forget("db");
        assert_eq!(all.0.len(), 1);
    }
}
