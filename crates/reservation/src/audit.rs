//! What each reservation received: second by second, and while a job was late.

use std::collections::BTreeMap;

use timevisor_schedule::Reservation;
use timevisor_schedule::audit::{Cause, Finding, History, Sample, Stretch, Tally, cause, find};

use crate::held::Held;
use crate::host::{Host, Severity};

/// 1 / CONFIG_HZ of the slowest common kernel, ns. A shorter tick only makes a guarantee easier to
/// keep.
const TICK: u64 = 10_000_000;
/// Samples are taken at multiples of this, ns: one wake-up for all that are due.
const GRID: u64 = 20_000_000;
/// The longest time between two samples of a thread, ns. The evaluation of a late job may omit up to
/// that much at both ends, and waits for the sample after it.
const LONGEST: u64 = 160_000_000;
/// Samples of all threads together in a second. One takes about 2.5 us.
const IN_A_SECOND: u64 = 1000;
/// Number of samples of a thread that are kept: at least a minute's worth.
const REMEMBERED: usize = 3000;
/// Length of an evaluated interval, ns; longer if the machine delays the samples.
const JUDGED: u64 = 1_000_000_000;

/// One thread.
#[derive(Debug, Default)]
struct Audited {
    /// When the next sample is due, ns.
    next: u64,
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

    /// Samples the reservations that are in force and due. Those without SCHED_DEADLINE give no
    /// guarantee to audit.
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
        let audited: Vec<_> = in_force.filter(|held| held.guarantee.is_by_deadline()).collect();
        let mut before = std::mem::take(&mut self.threads);
        self.next = now + LONGEST;
        for held in &audited {
            let mut of = before.remove(&held.tid).unwrap_or_default();
            if of.next <= now {
                of.look(held, host);
                of.next = now / GRID * GRID + pause(held.reservation(), audited.len());
            }
            self.next = self.next.min(of.next);
            self.threads.insert(held.tid, of);
        }
    }

    /// Starts over for a thread whose reservation was changed: older samples belong to the previous
    /// reservation.
    pub fn restart(&mut self, tid: u32) {
        if let Some(audited) = self.threads.get_mut(&tid) {
            audited.history = History::default();
            audited.begin = None;
            audited.next = 0;
            self.next = 0;
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

/// The time between two samples of a thread, of `count` that are audited; ns. An interval of a
/// reservation can be judged to within two ticks and period - budget (`timevisor_schedule::audit`):
/// samples that are closer than half of that tell no more.
fn pause(reservation: Option<Reservation>, count: usize) -> u64 {
    let free = reservation.map_or(0, |of| of.period() - of.budget());
    let each = (2 * TICK + free) / 2 / GRID * GRID;
    let all = (count as u64 * 1_000_000_000 / IN_A_SECOND).div_ceil(GRID) * GRID;
    each.max(all).clamp(GRID, LONGEST)
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn pause_of(budget: u64, period: u64, count: usize) -> u64 {
        pause(Reservation::shared(budget * MS, period * MS).ok(), count) / MS
    }

    #[test]
    fn a_thread_is_looked_at_as_often_as_it_tells_more() {
        // To within 20 + 22 ms.
        assert_eq!(pause_of(28, 50, 1), 20);
        assert_eq!(pause_of(28, 50, 20), 20);
        assert_eq!(pause_of(1, 10, 1), 20);
        // To within 20 + 99 ms.
        assert_eq!(pause_of(1, 100, 1), 40);
        assert_eq!(pause_of(1, 1000, 1), 160);
    }

    #[test]
    fn many_threads_share_a_thousand_samples_a_second() {
        for count in 1..=160 {
            let pause = pause_of(28, 50, count);
            assert!(
                pause.is_multiple_of(20) && count as u64 * 1000 / pause <= 1000,
                "{count}: {pause}"
            );
        }
        assert_eq!((pause_of(28, 50, 21), pause_of(28, 50, 50)), (40, 60));
        assert_eq!(pause_of(28, 50, 10_000), 160);
    }
}
