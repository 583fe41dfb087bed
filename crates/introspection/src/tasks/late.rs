//! [`Lateness`]: which jobs of a guest's tasks were late, as far as calls show it.
//!
//! A job begins when its task wakes up from a sleep, and ends with its next sleep or yield. Its deadline is what the
//! task states (SCHED_DEADLINE) or what its operator declares. Only what is certain is reported: where the moment
//! of the release is not known exactly, the latest possible one counts.
//!
//! | what ended the job before | the latest release of this one |
//! | --- | --- |
//! | a sleep for a time | that time later |
//! | a sleep until an instant of the guest's clock | that instant, if the guest's clock is as far ahead of ours as the earliest end of a job allows |
//! | sched_yield | one period later, when the kernel gives the next budget at the latest |
//!
//! What it does not do: know why (timevisor-reservation).

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::tasks::demand::{Declared, deadline_of};
use crate::tasks::event::{Event, Kind};
use crate::tasks::table::{MOST, Tasks};

/// By so much a guest's clock may run at another rate than the host's, parts per million.
const RATE_PPM: i64 = 500;
/// So many ends of jobs are remembered to know how far a guest's clock is ahead.
const REMEMBERED: usize = 64;

/// A job that was late. Times are in ns of the clock that [`Lateness::on_event`] is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Late {
    /// Its task's thread id and name.
    pub task: String,
    /// The vCPU on which it ended.
    pub vcpu: u16,
    /// When it was released, at the latest.
    pub released: i64,
    /// When it ended.
    pub ended: i64,
    /// From the release to its deadline.
    pub deadline: u64,
}

/// What is known of the jobs of one task.
#[derive(Default, Debug)]
struct Of {
    /// What ended its last job.
    sleeps: Option<Sleep>,
    /// Ends of jobs, and by how much each was after the instant of the guest's clock until which the task had
    /// slept before.
    ends: VecDeque<(i64, i64)>,
}

#[derive(Clone, Copy, Debug)]
enum Sleep {
    /// Until this moment, at the latest.
    Until(i64),
    /// Until this instant of the guest's clock with this number.
    Instant { clock: u32, ns: i64 },
}

/// Follows the jobs of a guest's tasks. Bounded as [`Tasks`] are.
#[derive(Default, Debug)]
pub struct Lateness {
    all: BTreeMap<u32, Of>,
}

impl Lateness {
    /// Takes in an event that happened at `at` ns. `tasks` have taken it in already.
    pub fn on_event(
        &mut self,
        event: &Event,
        at: i64,
        tasks: &Tasks,
        declared: &[Declared],
    ) -> Option<Late> {
        let tid = event.thread.tid;
        let Some(task) = tasks.get(tid) else {
            self.all.remove(&tid);
            return None;
        };
        if !matches!(event.kind, Kind::Yield | Kind::Sleep { .. }) {
            // What it asks for now is not what its last job was released for.
            if matches!(event.kind, Kind::SetScheduler { .. } | Kind::Abort) {
                self.all.remove(&tid);
            }
            return None;
        }
        if self.all.len() >= MOST && !self.all.contains_key(&tid) {
            return None;
        }
        let (deadline, period) = deadline_of(task, declared)?;
        let of = self.all.entry(tid).or_default();
        let released = of.sleeps.and_then(|sleep| of.released(sleep, at));
        of.sleeps = match event.kind {
            Kind::Yield => Some(Sleep::Until(plus(at, period))),
            Kind::Sleep { absolute: false, ns, .. } => {
                Some(Sleep::Until(at.saturating_add(ns.max(0))))
            }
            Kind::Sleep { clock, ns, .. } => Some(Sleep::Instant { clock, ns }),
            _ => None,
        };
        let released = released?;
        let is_late = at > plus(released, deadline);
        is_late.then(|| Late {
            task: format!("{tid} {}", task.thread.comm),
            vcpu: event.vcpu,
            released,
            ended: at,
            deadline,
        })
    }
}

impl Of {
    /// When a job was released at the latest that ended at `at`. `None` if that is not known.
    fn released(&mut self, sleep: Sleep, at: i64) -> Option<i64> {
        let (clock, ns) = match sleep {
            Sleep::Until(until) => return Some(until),
            Sleep::Instant { clock, ns } => (clock, ns),
        };
        // Guests set CLOCK_REALTIME, and instants before and after that have nothing in common.
        if clock == libc_clock::REALTIME || clock == libc_clock::TAI {
            return None;
        }
        // No job ends before its release: the guest's clock is behind ours by at most this.
        let after = at.saturating_sub(ns);
        if self.ends.len() >= REMEMBERED {
            self.ends.pop_front();
        }
        self.ends.push_back((at, after));
        let drifted = |(then, after): &(i64, i64)| {
            let since = at.saturating_sub(*then);
            after.saturating_add(
                since / 1_000_000 * RATE_PPM + since % 1_000_000 * RATE_PPM / 1_000_000,
            )
        };
        let most = self.ends.iter().map(drifted).min()?;
        Some(ns.saturating_add(most))
    }
}

/// include/uapi/linux/time.h.
mod libc_clock {
    pub const REALTIME: u32 = 0;
    pub const TAI: u32 = 11;
}

fn plus(at: i64, span: u64) -> i64 {
    at.saturating_add(i64::try_from(span).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::event::{Attributes, Policy, Thread};
    use super::*;

    const MS: i64 = 1_000_000;
    const MONOTONIC: u32 = 1;

    struct Guest {
        tasks: Tasks,
        lateness: Lateness,
        declared: Vec<Declared>,
        policy: Policy,
    }

    impl Guest {
        fn new(policy: Policy) -> Self {
            let declared =
                Declared { comm: "rt".into(), priority: None, cost: 1, period: 100_000_000 };
            let mut guest = Self {
                tasks: Tasks::default(),
                lateness: Lateness::default(),
                declared: vec![declared],
                policy,
            };
            let period_ns = if policy == Policy::Deadline { 100_000_000 } else { 0 };
            let attributes = Attributes {
                policy,
                priority: 9,
                runtime_ns: period_ns / 2,
                deadline_ns: period_ns * 4 / 5,
                period_ns,
                ..Attributes::default()
            };
            guest.at(0, Kind::SetScheduler { target: guest.thread(), attributes });
            guest
        }

        fn thread(&self) -> Thread {
            Thread { tid: 7, pid: 7, comm: "rt".into(), policy: self.policy }
        }

        fn at(&mut self, ms: i64, kind: Kind) -> Option<Late> {
            let thread = self.thread();
            let event =
                Event { sequence: 0, counter: None, counter_error: 0, vcpu: 1, thread, kind };
            self.tasks.on_event(&event);
            self.lateness.on_event(&event, ms * MS, &self.tasks, &self.declared)
        }

        fn sleep_for(&mut self, at: i64, ms: i64) -> Option<Late> {
            self.at(at, Kind::Sleep { clock: MONOTONIC, absolute: false, ns: ms * MS })
        }

        fn sleep_until(&mut self, at: i64, ms: i64) -> Option<Late> {
            self.at(at, Kind::Sleep { clock: MONOTONIC, absolute: true, ns: ms * MS })
        }
    }

    #[test]
    fn a_sleep_for_a_time_says_when_the_next_job_is_released() {
        let mut guest = Guest::new(Policy::Fifo);
        assert_eq!(guest.sleep_for(30, 70), None, "the first one began unseen");
        assert_eq!(guest.sleep_for(199, 1), None, "99 of 100 ms");
        assert_eq!(guest.sleep_for(300, 1), None, "just in time");
        let late = guest.sleep_for(402, 98).unwrap();
        assert_eq!((late.released, late.ended), (301 * MS, 402 * MS));
        assert_eq!((late.task.as_str(), late.vcpu, late.deadline), ("7 rt", 1, 100_000_000));
        assert_eq!(guest.sleep_for(520, 80), None, "that one is over");
    }

    #[test]
    fn an_instant_is_of_the_guests_clock() {
        // The guest's clock is 1 s behind. Jobs of 30 ms, released every 100 ms, and one of 140 ms.
        let mut guest = Guest::new(Policy::Fifo);
        assert_eq!(guest.sleep_until(1030, 100), None);
        assert_eq!(guest.sleep_until(1130, 200), None);
        assert_eq!(guest.sleep_until(1230, 300), None);
        // 140 ms after its release at 1300, and surely 110.
        let late = guest.sleep_until(1440, 400).unwrap();
        assert!(late.released > 1329 * MS && late.released < 1331 * MS, "{late:?}");
        // 110 ms: it may have been in time.
        assert_eq!(guest.sleep_until(1510, 500), None);
        // One that is set is no measure.
        let mut guest = Guest::new(Policy::Fifo);
        for (at, ns) in [(0, 100), (150, 200), (9_000, 300)] {
            let kind = Kind::Sleep { clock: 0, absolute: true, ns: ns * MS };
            assert_eq!(guest.at(at, kind), None);
        }
    }

    #[test]
    fn a_yield_is_followed_by_a_budget_within_a_period() {
        let mut guest = Guest::new(Policy::Deadline);
        assert_eq!(guest.at(30, Kind::Yield), None);
        // Released at 130 at the latest, and due 80 ms later.
        assert_eq!(guest.at(209, Kind::Yield), None);
        let late = guest.at(400, Kind::Yield).unwrap();
        assert_eq!((late.released, late.deadline), (309 * MS, 80_000_000));
        // An abort is counted elsewhere, and ends the job.
        assert_eq!(guest.at(420, Kind::Abort), None);
        assert_eq!(guest.at(900, Kind::Yield), None);
    }

    #[test]
    fn nothing_is_known_of_tasks_without_a_deadline() {
        let mut guest = Guest::new(Policy::Fifo);
        guest.declared.clear();
        assert_eq!(guest.sleep_for(30, 70), None);
        assert_eq!(guest.sleep_for(30_000, 70), None);
        let kind = Kind::Exit { status: 0 };
        assert_eq!(guest.at(30_001, kind), None);
        assert!(guest.lateness.all.is_empty());
    }
}
