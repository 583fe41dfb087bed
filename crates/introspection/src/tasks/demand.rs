//! What a guest's real-time tasks demand of its vCPU.
//!
//! A task under SCHED_DEADLINE states its cost, deadline and period. A task under SCHED_FIFO or
//! SCHED_RR states only its priority; its operator declares its cost and period ([`Declared`]). A
//! guest may ask for anything, so the number of tasks and their periods are limited.
//!
//! What it does not do: find the reservation that meets this demand (timevisor-schedule).

use crate::tasks::event;
use crate::tasks::table::{Task, Tasks};

/// Maximum number of tasks in a plan.
pub const MOST_TASKS: usize = 64;
/// Periods that Linux accepts for SCHED_DEADLINE by default
/// (kernel.sched_deadline_period_{min,max}_us), ns.
const PERIODS: core::ops::RangeInclusive<u64> = 100_000..=4_194_304_000;

/// What an operator declares for threads under SCHED_FIFO or SCHED_RR, which state only their
/// priority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declared {
    /// Their name (comm).
    pub comm: String,
    /// Restricts this to threads of one priority.
    pub priority: Option<u32>,
    /// Processor time per job, ns.
    pub cost: u64,
    /// Minimum time between two jobs (ns), which is also the deadline.
    pub period: u64,
}

/// A task to plan for; times in ns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// Thread id and name, for messages.
    pub name: String,
    /// Processor time per job.
    pub cost: u64,
    /// From a job's release to its deadline.
    pub deadline: u64,
    /// Minimum time between two jobs.
    pub period: u64,
    /// How long earlier-released jobs of the same priority may delay a job.
    pub blocking: u64,
}

/// Which task runs first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The task with the earliest deadline.
    EarliestDeadline,
    /// The task that is listed first.
    Listed,
}

/// What a guest demands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Demand {
    /// No task has to be planned for.
    Nothing,
    /// These tasks.
    Tasks(Order, Vec<Planned>),
    /// No plan is possible, for this reason.
    Refused(String),
}

/// Computes what these tasks demand.
#[must_use]
pub fn demand(tasks: &Tasks, declared: &[Declared]) -> Demand {
    let mut all: Vec<Planned> = tasks.iter().filter_map(deadline_task).collect();
    let fixed = match fixed_priorities(tasks, declared) {
        Ok(fixed) => fixed,
        Err(why) => return Demand::Refused(why),
    };
    if all.is_empty() && fixed.is_empty() {
        return Demand::Nothing;
    }
    let order = if fixed.is_empty() {
        Order::EarliestDeadline
    } else {
        // Linux runs deadline tasks before all others. If they meet their deadlines under
        // deadline-monotonic priorities, they do so under EDF too, and the tasks below them get the
        // same time.
        all.sort_by_key(|task| task.deadline);
        Order::Listed
    };
    all.extend(fixed);
    if all.len() > MOST_TASKS {
        let count = all.len();
        return Demand::Refused(format!("{count} tasks; at most {MOST_TASKS} are planned for"));
    }
    if let Some(odd) = all.iter().find(|task| !PERIODS.contains(&task.period)) {
        return Demand::Refused(format!("{} has a period of {} ns", odd.name, odd.period));
    }
    Demand::Tasks(order, all)
}

fn deadline_task(task: &Task) -> Option<Planned> {
    let asked = task.attributes.filter(|asked| asked.policy == event::Policy::Deadline)?;
    let or = |value: u64, other: u64| if value == 0 { other } else { value };
    let period = or(asked.period_ns, asked.deadline_ns);
    let deadline = or(asked.deadline_ns, period);
    Some(Planned { name: name(task), cost: asked.runtime_ns, deadline, period, blocking: 0 })
}

/// The deadline and period of a task (ns), as it states them or its operator declares them; `None` if
/// nobody does.
#[must_use]
pub fn deadline_of(task: &Task, declared: &[Declared]) -> Option<(u64, u64)> {
    if let Some(planned) = deadline_task(task) {
        return Some((planned.deadline, planned.period));
    }
    let needs = Fixed::of(task, declared)?.needs?;
    Some((needs.period, needs.period))
}

fn name(task: &Task) -> String {
    format!("{} {}", task.thread.tid, task.thread.comm)
}

/// A fixed-priority task, and what its operator declares for it.
struct Fixed<'a> {
    task: &'a Task,
    policy: event::Policy,
    priority: u32,
    needs: Option<&'a Declared>,
}

impl<'a> Fixed<'a> {
    fn of(task: &'a Task, declared: &'a [Declared]) -> Option<Self> {
        let event::Attributes { policy, priority, .. } = task.attributes?;
        let is = |of: &&Declared| {
            of.comm == task.thread.comm && of.priority.is_none_or(|wanted| wanted == priority)
        };
        let needs = declared.iter().find(is);
        let fixed = matches!(policy, event::Policy::Fifo | event::Policy::RoundRobin);
        fixed.then_some(Self { task, policy, priority, needs })
    }
}

/// The declared fixed-priority tasks, the most urgent first.
///
/// # Errors
/// When an undeclared task may delay them, or tasks under SCHED_RR share a priority.
fn fixed_priorities(tasks: &Tasks, declared: &[Declared]) -> Result<Vec<Planned>, String> {
    let mut all: Vec<_> = tasks.iter().filter_map(|task| Fixed::of(task, declared)).collect();
    all.sort_by_key(|one| core::cmp::Reverse(one.priority));
    // Tasks with a lower priority than every declared task delay none of them.
    let lowest = all.iter().rfind(|one| one.needs.is_some()).map(|one| one.priority);
    all.retain(|one| lowest.is_some_and(|lowest| one.priority >= lowest));
    let planned = |(index, one): (usize, &Fixed<'_>)| {
        let (name, priority) = (name(one.task), one.priority);
        let needs = one.needs.ok_or_else(|| {
            format!("what {name} needs is not known, and its priority is {priority}")
        })?;
        let equal = |other: &&Fixed<'_>| other.priority == priority;
        if one.policy == event::Policy::RoundRobin && all.iter().filter(equal).count() > 1 {
            return Err(format!("{name} takes turns with others of priority {priority}"));
        }
        // A job waits for earlier-released jobs of the same priority: at most one of each task as
        // long as all meet their deadlines. Tasks that are listed before it count as more urgent.
        let after = all[index + 1..].iter().filter(equal).filter_map(|other| other.needs);
        let blocking = after.fold(0, |sum: u64, other| sum.saturating_add(other.cost));
        let Declared { cost, period, .. } = *needs;
        Ok(Planned { name, cost, deadline: period, period, blocking })
    };
    all.iter().enumerate().map(planned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::event::{Attributes, Event, Kind, Policy, Thread};
    use super::*;

    const MS: u64 = 1_000_000;

    fn deadline(runtime_ns: u64, deadline_ns: u64, period_ns: u64) -> Attributes {
        let policy = Policy::Deadline;
        Attributes { policy, runtime_ns, deadline_ns, period_ns, ..Attributes::default() }
    }

    fn fixed(policy: Policy, priority: u32) -> Attributes {
        Attributes { policy, priority, ..Attributes::default() }
    }

    fn asked(all: &[Attributes]) -> Tasks {
        let mut tasks = Tasks::default();
        for (tid, attributes) in (1u32..).zip(all.iter().copied()) {
            let target = Thread { tid, pid: tid, comm: "rt".into(), ..Thread::default() };
            let kind = Kind::SetScheduler { target, attributes };
            let (counter, thread) = (None, Thread::default());
            let event = Event { sequence: 0, counter, counter_error: 0, vcpu: 0, thread, kind };
            tasks.on_event(&event);
        }
        tasks
    }

    fn declared(priority: Option<u32>, cost: u64, period: u64) -> Declared {
        Declared { comm: "rt".into(), priority, cost, period }
    }

    fn refused(tasks: &Tasks, declared: &[Declared]) -> String {
        match demand(tasks, declared) {
            Demand::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn deadline_tasks_tell_what_they_need() {
        assert_eq!(demand(&asked(&[]), &[]), Demand::Nothing);
        let tasks = asked(&[deadline(20 * MS, 80 * MS, 100 * MS), deadline(MS, 50 * MS, 0)]);
        let planned = |name: &str, cost, deadline, period| Planned {
            name: name.into(),
            cost,
            deadline,
            period,
            blocking: 0,
        };
        let all = vec![
            planned("1 rt", 20 * MS, 80 * MS, 100 * MS),
            // An omitted period defaults to the deadline, as in the kernel.
            planned("2 rt", MS, 50 * MS, 50 * MS),
        ];
        assert_eq!(demand(&tasks, &[]), Demand::Tasks(Order::EarliestDeadline, all));
    }

    #[test]
    fn a_guest_cannot_ask_for_an_endless_plan() {
        let whole = deadline(u64::MAX, u64::MAX, u64::MAX);
        assert!(refused(&asked(&[whole]), &[]).contains("period"));
        let many = vec![deadline(MS, 100 * MS, 100 * MS); MOST_TASKS + 1];
        assert!(refused(&asked(&many), &[]).contains("65 tasks"));
        assert!(
            matches!(demand(&asked(&many[1..]), &[]), Demand::Tasks(_, all) if all.len() == 64)
        );
    }

    #[test]
    fn fixed_priorities_are_planned_for_as_declared() {
        let tasks = asked(&[fixed(Policy::Fifo, 59), fixed(Policy::Fifo, 60)]);
        assert_eq!(demand(&tasks, &[]), Demand::Nothing, "nobody declares what they need");
        let both = [declared(Some(60), 30 * MS, 150 * MS), declared(Some(59), 50 * MS, 200 * MS)];
        let names = |tasks: &Tasks, declared: &[Declared]| match demand(tasks, declared) {
            Demand::Tasks(Order::Listed, all) => {
                all.into_iter().map(|task| (task.name, task.cost)).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        let [urgent, other] = [("2 rt".to_owned(), 30 * MS), ("1 rt".to_owned(), 50 * MS)];
        assert_eq!(names(&tasks, &both), [urgent.clone(), other.clone()]);
        // The more urgent task alone does not depend on the other; the other would wait for an
        // unknown time.
        assert_eq!(names(&tasks, &both[..1]), std::slice::from_ref(&urgent));
        assert!(refused(&tasks, &both[1..]).contains("2 rt needs is not known"));
        // Deadline tasks go first, by their deadlines.
        let [late, early] = [deadline(MS, 90 * MS, 100 * MS), deadline(2 * MS, 80 * MS, 100 * MS)];
        let fifo = [fixed(Policy::Fifo, 59), fixed(Policy::Fifo, 60)];
        let four = asked(&[fifo[0], fifo[1], late, early]);
        let first = [("4 rt".to_owned(), 2 * MS), ("3 rt".to_owned(), MS)];
        assert_eq!(names(&four, &both), [&first[..], &[urgent, other]].concat());
    }

    #[test]
    fn equal_priorities_wait_for_each_other() {
        let (fifo, turns) = (Policy::Fifo, Policy::RoundRobin);
        let all = [declared(None, 10 * MS, 100 * MS)];
        let Demand::Tasks(_, two) = demand(&asked(&[fixed(fifo, 9), fixed(fifo, 9)]), &all) else {
            panic!("nothing")
        };
        assert_eq!(two.iter().map(|task| task.blocking).collect::<Vec<_>>(), [10 * MS, 0]);
        assert!(refused(&asked(&[fixed(turns, 9), fixed(turns, 9)]), &all).contains("takes turns"));
        assert!(matches!(demand(&asked(&[fixed(turns, 9)]), &all), Demand::Tasks(..)));
    }
}
