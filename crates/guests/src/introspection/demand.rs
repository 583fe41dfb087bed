//! What a guest's real-time tasks need of its vCPU: from what was learned of them to a reservation.
//!
//! Tasks under SCHED_DEADLINE say what they need; of SCHED_FIFO and SCHED_RR the cost of a job is not known. A guest may ask for
//! anything: its numbers are checked, and what is computed for it has limits.

use timevisor_schedule::synthesis::{Search, Sharing};
use timevisor_schedule::{Policy, Reservation, Task as Planned, TaskSet};

use super::event;
use super::tasks::{Task, Tasks};

/// More tasks are not planned for.
pub const MOST_TASKS: usize = 64;
/// What Linux takes for SCHED_DEADLINE unless told otherwise (kernel.sched_deadline_period_{min,max}_us), ns.
const PERIODS: core::ops::RangeInclusive<u64> = 100_000..=4_194_304_000;

/// How the reservation is to be; ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Its period; absent: half of the shortest deadline.
    pub period: Option<u64>,
    /// Who else may be on its core.
    pub sharing: Sharing,
    /// The host's 1 / HZ.
    pub tick: u64,
}

/// What is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// No task under SCHED_DEADLINE.
    Nothing,
    /// This.
    Reservation(Reservation),
    /// More than there can be, or numbers that make no sense: why.
    TooMuch(String),
}

/// What these tasks need.
#[must_use]
pub fn need(tasks: &Tasks, rules: &Rules) -> Need {
    let declared: Vec<Planned> = tasks.iter().filter_map(planned).collect();
    if declared.is_empty() {
        return Need::Nothing;
    }
    if declared.len() > MOST_TASKS {
        let count = declared.len();
        return Need::TooMuch(format!("{count} tasks; at most {MOST_TASKS} are planned for"));
    }
    if let Some(odd) = declared.iter().find(|task| !PERIODS.contains(&task.period)) {
        return Need::TooMuch(format!("{} has a period of {} ns", odd.name, odd.period));
    }
    let set = match TaskSet::new(declared, Policy::Edf) {
        Ok(set) => set,
        Err(error) => return Need::TooMuch(error.to_string()),
    };
    let shortest = set.tasks().iter().map(|task| task.deadline).min().unwrap_or(1);
    let period = rules.period.unwrap_or(shortest / 2).max(1);
    let search = Search::new(rules.sharing);
    let least = search.least_budget(&set, period).and_then(|b| search.reservation(b, period));
    let with_slack = least.and_then(|least| search.with_slack(&set, least, rules.tick));
    with_slack.map_or_else(
        || {
            let (count, percent) = (set.tasks().len(), set.utilization() * 100.0);
            Need::TooMuch(format!(
                "{count} tasks of {percent:.1} % fit in no reservation with a period of {} ms, ticks included",
                period as f64 / 1e6
            ))
        },
        Need::Reservation,
    )
}

fn planned(task: &Task) -> Option<Planned> {
    let asked = task.attributes.filter(|asked| asked.policy == event::Policy::Deadline)?;
    let or = |value: u64, other: u64| if value == 0 { other } else { value };
    let period = or(asked.period_ns, asked.deadline_ns);
    let name = format!("{} {}", task.thread.tid, task.thread.comm);
    let deadline = or(asked.deadline_ns, period);
    Some(Planned { deadline, ..Planned::new(&name, asked.runtime_ns, period) })
}

#[cfg(test)]
mod tests {
    use super::super::event::{Attributes, Event, Kind, Thread};
    use super::*;

    const MS: u64 = 1_000_000;
    const RULES: Rules = Rules { period: None, sharing: Sharing::Alone, tick: 4 * MS };

    fn with(all: &[(u64, u64, u64)]) -> Tasks {
        let mut tasks = Tasks::default();
        for (tid, (runtime, deadline, period)) in (1u32..).zip(all) {
            let attributes = Attributes {
                policy: event::Policy::Deadline,
                runtime_ns: *runtime,
                deadline_ns: *deadline,
                period_ns: *period,
                ..Attributes::default()
            };
            let target = Thread { tid, pid: tid, comm: "rt".into(), ..Thread::default() };
            let kind = Kind::SetScheduler { target, attributes };
            let thread = Thread::default();
            tasks.on_event(&Event {
                sequence: 0,
                counter: None,
                counter_error: 0,
                vcpu: 0,
                thread,
                kind,
            });
        }
        tasks
    }

    fn budget(all: &[(u64, u64, u64)]) -> u64 {
        match need(&with(all), &RULES) {
            Need::Reservation(of) => {
                assert_eq!(of.period(), 50 * MS);
                of.budget()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_grows_with_the_tasks() {
        assert_eq!(need(&with(&[]), &RULES), Need::Nothing);
        let one = budget(&[(20 * MS, 100 * MS, 100 * MS)]);
        assert!((10 * MS..25 * MS).contains(&one), "{one}");
        // Absent ones are as the kernel takes them.
        assert_eq!(budget(&[(20 * MS, 100 * MS, 0)]), one);
        let two = budget(&[(20 * MS, 100 * MS, 100 * MS), (20 * MS, 100 * MS, 100 * MS)]);
        assert!(two > one + 5 * MS, "{two} after {one}");
    }

    #[test]
    fn what_cannot_be_is_said() {
        let refused = |all: &[(u64, u64, u64)]| match need(&with(all), &RULES) {
            Need::TooMuch(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(refused(&[(60 * MS, 100 * MS, 100 * MS); 2]).contains("120.0 %"));
        assert!(refused(&[(2 * MS, MS, MS)]).contains("1 rt"));
        assert!(refused(&[(u64::MAX, u64::MAX, u64::MAX)]).contains("period"));
        assert!(refused(&[(0, 100 * MS, 100 * MS)]).contains("cost"));
        assert!(refused(&[(MS, 100 * MS, 100 * MS); MOST_TASKS + 1]).contains("65 tasks"));
    }
}
