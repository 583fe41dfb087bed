//! What each reservation got, second by second.

use std::collections::BTreeMap;

use timevisor_guests::reservation::{Guarantee, Held};
use timevisor_linux::scheduling::{Schedstat, schedstat};
use timevisor_protocols::control::ReserveAudit;
use timevisor_schedule::audit::{Finding, Stretch, Tally, find};

/// 1 / CONFIG_HZ of the slowest usual kernel; a shorter tick only makes a promise easier to keep.
const TICK: u64 = 10_000_000;

/// Of one thread.
#[derive(Default)]
struct Audited {
    last: Option<(u64, Schedstat)>,
    tally: Tally,
    most_missing: u64,
}

/// Of all, by thread.
#[derive(Default)]
pub struct Audit {
    threads: BTreeMap<u32, Audited>,
}

impl Audit {
    /// Looks at every reservation; `now`: ns. Those that are not in force yet, or promise nothing, are left out.
    pub fn look<'a>(&mut self, in_force: impl Iterator<Item = &'a Held>, now: u64) {
        let mut before = std::mem::take(&mut self.threads);
        for held in in_force.filter(|held| held.guarantee != Guarantee::Fifo) {
            let mut audited = before.remove(&held.tid).unwrap_or_default();
            audited.look(held, now);
            self.threads.insert(held.tid, audited);
        }
    }

    /// A reservation was changed: what ran until now belongs to the one before.
    pub fn begin_anew(&mut self, tid: u32) {
        if let Some(audited) = self.threads.get_mut(&tid) {
            audited.last = None;
        }
    }

    /// What was found of a thread.
    pub fn of(&self, tid: u32) -> Option<ReserveAudit> {
        let Audited { tally, most_missing, .. } = self.threads.get(&tid)?;
        let Tally { satisfied, exhausted, broken, unclear } = *tally;
        let most_missing_ns = *most_missing;
        Some(ReserveAudit { satisfied, exhausted, broken, unclear, most_missing_ns })
    }
}

impl Audited {
    fn look(&mut self, held: &Held, now: u64) {
        let Ok(stat) = schedstat(held.pid, held.tid) else { return };
        let last = self.last.replace((now, stat));
        let (Some((then, before)), Some(reservation)) = (last, held.reservation()) else { return };
        let stretch = Stretch {
            length: now.saturating_sub(then),
            ran: stat.ran.saturating_sub(before.ran),
            waited: stat.waited.saturating_sub(before.waited),
        };
        let finding = find(&stretch, &reservation, TICK);
        self.tally.count(finding);
        if let Finding::Broken(missing) = finding {
            self.most_missing = self.most_missing.max(missing);
            tracing::warn!(
                "VM {} vCPU {}: the host owes it {:.1} ms of the last {:.0} ms; see `timevisor reserve audit`",
                held.vm,
                held.vcpu,
                missing as f64 / 1e6,
                stretch.length as f64 / 1e6
            );
        }
    }
}
