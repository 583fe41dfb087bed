//! What each reservation received: second by second, and while a job was late.

use std::collections::BTreeMap;

use timevisor_schedule::audit::{Cause, Finding, History, Sample, Stretch, Tally, cause, find};

use crate::held::Held;
use crate::host::{Host, Severity};

/// 1 / CONFIG_HZ of the slowest common kernel, ns. A shorter tick only makes a guarantee easier to
/// keep.
const TICK: u64 = 10_000_000;
/// Time between two samples, ns. The evaluation of a late job may omit up to this much at both
/// ends.
const INTERVAL: u64 = 20_000_000;
/// Number of samples that are kept: a minute's worth.
const REMEMBERED: usize = 3000;
/// Length of an evaluated interval, ns; longer if the machine delays the samples.
const JUDGED: u64 = 1_000_000_000;

/// One thread.
#[derive(Debug, Default)]
struct Audited {
    /// Samples under the current reservation.
    history: History,
    /// The first sample of the interval that is evaluated next.
    begin: Option<Sample>,
    tally: Tally,
    most_missing: u64,
}

/// All threads with a reservation.
#[derive(Debug, Default)]
pub struct Audit {
    next: u64,
    threads: BTreeMap<u32, Audited>,
}

impl Audit {
    /// When the next samples are due, if any reservation is held.
    #[must_use]
    pub const fn poll_at(&self) -> u64 {
        self.next
    }

    /// Samples the reservations that are in force, if it is time. Those without SCHED_DEADLINE give
    /// no guarantee to audit.
    pub fn look<'a, H: Host>(
        &mut self,
        in_force: impl Iterator<Item = &'a Held<H::Change>>,
        host: &mut H,
    ) where
        H::Change: 'a,
    {
        let now = host.now();
        if now < self.next {
            return;
        }
        self.next = now + INTERVAL;
        let mut before = std::mem::take(&mut self.threads);
        for held in in_force.filter(|held| held.guarantee.is_by_deadline()) {
            let mut audited = before.remove(&held.tid).unwrap_or_default();
            audited.look(held, host);
            self.threads.insert(held.tid, audited);
        }
    }

    /// Starts over for a thread whose reservation was changed: older samples belong to the previous
    /// reservation.
    pub fn restart(&mut self, tid: u32) {
        if let Some(audited) = self.threads.get_mut(&tid) {
            audited.history = History::default();
            audited.begin = None;
        }
    }

    /// The findings for a thread, and the largest deficit in one interval, ns.
    #[must_use]
    pub fn of(&self, tid: u32) -> Option<(Tally, u64)> {
        self.threads.get(&tid).map(|audited| (audited.tally, audited.most_missing))
    }

    /// Why a job that was pending from `from` to `to` (ns) was late; `None` if that time is no
    /// longer remembered.
    #[must_use]
    pub fn missed<C>(&self, held: &Held<C>, from: u64, to: u64) -> Option<(Cause, Stretch)> {
        let stretch = self.threads.get(&held.tid)?.history.within(from, to)?;
        Some((cause(&stretch, &held.reservation()?, TICK), stretch))
    }
}

impl Audited {
    fn look<H: Host>(&mut self, held: &Held<H::Change>, host: &mut H) {
        let at = host.now();
        let Some(usage) = host.usage(held.pid, held.tid) else { return };
        let sample = Sample { at, ran: usage.ran, waited: usage.waited };
        self.history.add(sample, REMEMBERED);
        let begin = *self.begin.get_or_insert(sample);
        if sample.at - begin.at >= JUDGED {
            self.begin = Some(sample);
            self.judge(held, begin.until(&sample), host);
        }
    }

    fn judge<H: Host>(&mut self, held: &Held<H::Change>, stretch: Stretch, host: &mut H) {
        let Some(reservation) = held.reservation() else { return };
        let finding = find(&stretch, &reservation, TICK);
        self.tally.count(finding);
        if let Finding::Broken(missing) = finding {
            self.most_missing = self.most_missing.max(missing);
            let text = format!(
                "{}: the host owes it {:.1} ms of the last {:.0} ms; see `timevisor reserve audit`",
                held.name(),
                missing as f64 / 1e6,
                stretch.length as f64 / 1e6
            );
            host.tell(Severity::Warn, &text);
        }
    }
}
