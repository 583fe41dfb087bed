//! What each reservation got: second by second, and while a job was late.

use std::collections::BTreeMap;

use timevisor_guests::reservation::Held;
use timevisor_linux::scheduling::schedstat;
use timevisor_protocols::control::{MissedCause, MissedJob, ReserveAudit};
use timevisor_schedule::audit::{Cause, Finding, History, Sample, Tally, cause, find};
use timevisor_time::Duration;

/// 1 / CONFIG_HZ of the slowest usual kernel; a shorter tick only makes a promise easier to keep.
const TICK: u64 = 10_000_000;
/// Between two samples: a job that was late is looked at without as much at both ends.
const INTERVAL: Duration = Duration::from_nanos(20_000_000);
/// A minute of samples.
const REMEMBERED: usize = 3000;
/// What is judged is so long, ns, or longer where this machine lets us look seldom.
const JUDGED: u64 = 1_000_000_000;

/// Of one thread.
#[derive(Default)]
struct Audited {
    /// With the same reservation all along.
    history: History,
    /// Since this one: nothing is judged yet.
    begin: Option<Sample>,
    tally: Tally,
    most_missing: u64,
}

/// Of all, by thread.
#[derive(Default)]
pub struct Audit {
    next: Duration,
    threads: BTreeMap<u32, Audited>,
}

impl Audit {
    /// When the next samples are due, if anything is held.
    pub const fn poll_at(&self) -> Duration {
        self.next
    }

    /// Samples every reservation, if the time has come; `now_ns`: CLOCK_MONOTONIC's. Those that are not in force yet, or promise
    /// nothing, are left out.
    pub fn look<'a>(&mut self, in_force: impl Iterator<Item = &'a Held>, now: Duration) {
        if now < self.next {
            return;
        }
        self.next = now + INTERVAL;
        let mut before = std::mem::take(&mut self.threads);
        for held in in_force.filter(|held| held.guarantee.is_by_deadline()) {
            let mut audited = before.remove(&held.tid).unwrap_or_default();
            audited.look(held);
            self.threads.insert(held.tid, audited);
        }
    }

    /// A reservation was changed: what ran until now belongs to the one before.
    pub fn begin_anew(&mut self, tid: u32) {
        if let Some(audited) = self.threads.get_mut(&tid) {
            audited.history = History::default();
            audited.begin = None;
        }
    }

    /// What was found of a thread.
    pub fn of(&self, tid: u32) -> Option<ReserveAudit> {
        let Audited { tally, most_missing, .. } = self.threads.get(&tid)?;
        let Tally { satisfied, exhausted, broken, unclear } = *tally;
        let most_missing_ns = *most_missing;
        Some(ReserveAudit { satisfied, exhausted, broken, unclear, most_missing_ns })
    }

    /// Why a job was late that was there from `from` to `to`, ns of CLOCK_MONOTONIC; nothing where that is not remembered.
    pub fn missed(&self, held: &Held, from: u64, to: u64) -> Option<MissedJob> {
        let stretch = self.threads.get(&held.tid)?.history.within(from, to)?;
        let (cause, missing_ns) = match cause(&stretch, &held.reservation()?, TICK) {
            Cause::HostBroke(missing) => (MissedCause::HostBroke, missing),
            Cause::GuestUnderDeclared => (MissedCause::GuestUnderDeclared, 0),
            Cause::GuestPolicy => (MissedCause::GuestPolicy, 0),
            Cause::Unclear => (MissedCause::Unclear, 0),
        };
        let (looked_at_ns, ran_ns, waited_ns) = (stretch.length, stretch.ran, stretch.waited);
        Some(MissedJob { cause, looked_at_ns, ran_ns, waited_ns, missing_ns })
    }
}

impl Audited {
    fn look(&mut self, held: &Held) {
        let at = super::now_ns();
        let Ok(stat) = schedstat(held.pid, held.tid) else { return };
        let sample = Sample { at, ran: stat.ran, waited: stat.waited };
        self.history.add(sample, REMEMBERED);
        let begin = *self.begin.get_or_insert(sample);
        if sample.at - begin.at >= JUDGED {
            self.begin = Some(sample);
            self.judge(held, begin, sample);
        }
    }

    fn judge(&mut self, held: &Held, begin: Sample, end: Sample) {
        let Some(reservation) = held.reservation() else { return };
        let stretch = begin.until(&end);
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
