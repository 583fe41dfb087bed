//! What a guest's real-time tasks need of its vCPU: from what was learned of them to a reservation.
//!
//! Tasks under SCHED_DEADLINE say what they need. Of SCHED_FIFO and SCHED_RR a guest tells the priority only: cost and period of a job are
//! what its operator says ([`Declared`]). A guest may ask for anything: its numbers are checked, and what is computed for it has limits.

use timevisor_schedule::synthesis::{Search, Sharing};
use timevisor_schedule::{Policy, Reservation, Task as Planned, TaskSet};

use crate::tasks::event;
use crate::tasks::table::{Task, Tasks};

/// More tasks are not planned for.
pub const MOST_TASKS: usize = 64;
/// What Linux takes for SCHED_DEADLINE unless told otherwise (kernel.sched_deadline_period_{min,max}_us), ns.
const PERIODS: core::ops::RangeInclusive<u64> = 100_000..=4_194_304_000;

/// What threads under SCHED_FIFO or SCHED_RR need of which only their priority can be seen; ns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declared {
    /// What they call themselves.
    pub comm: String,
    /// Only those with this priority.
    pub priority: Option<u32>,
    /// Processor time of a job.
    pub cost: u64,
    /// Between two jobs, at least; the deadline.
    pub period: u64,
}

/// How the reservation is to be; ns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Tasks with fixed priorities that are planned for.
    pub declared: Vec<Declared>,
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
    /// No task that is planned for.
    Nothing,
    /// This.
    Reservation(Reservation),
    /// More than there can be, or numbers that make no sense: why.
    TooMuch(String),
}

/// What these tasks need.
#[must_use]
pub fn need(tasks: &Tasks, rules: &Rules) -> Need {
    let mut all: Vec<Planned> = tasks.iter().filter_map(planned).collect();
    let fixed = match fixed_priorities(tasks, &rules.declared) {
        Ok(fixed) => fixed,
        Err(why) => return Need::TooMuch(why),
    };
    if all.is_empty() && fixed.is_empty() {
        return Need::Nothing;
    }
    let policy = if fixed.is_empty() {
        Policy::Edf
    } else {
        // Linux runs them before all others. If deadline-monotonic priorities keep their deadlines, so does EDF, and others see no more of them.
        all.sort_by_key(|task| task.deadline);
        Policy::Listed
    };
    all.extend(fixed);
    if all.len() > MOST_TASKS {
        let count = all.len();
        return Need::TooMuch(format!("{count} tasks; at most {MOST_TASKS} are planned for"));
    }
    if let Some(odd) = all.iter().find(|task| !PERIODS.contains(&task.period)) {
        return Need::TooMuch(format!("{} has a period of {} ns", odd.name, odd.period));
    }
    let set = match TaskSet::new(all, policy) {
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
    let name = name(task);
    let deadline = or(asked.deadline_ns, period);
    Some(Planned { deadline, ..Planned::new(&name, asked.runtime_ns, period) })
}

fn name(task: &Task) -> String {
    format!("{} {}", task.thread.tid, task.thread.comm)
}

/// A task with a fixed priority, and what is said of it.
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

/// Those with fixed priorities that somebody has declared, the most urgent first.
///
/// # Errors
/// When something that nobody has declared may delay them, or several take turns.
fn fixed_priorities(tasks: &Tasks, declared: &[Declared]) -> Result<Vec<Planned>, String> {
    let mut all: Vec<_> = tasks.iter().filter_map(|task| Fixed::of(task, declared)).collect();
    all.sort_by_key(|one| core::cmp::Reverse(one.priority));
    // What is less urgent than all of these delays none.
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
        // Jobs of the same priority that were there before go first: one of each, as long as all are in time. Those before it in the list
        // count as more urgent.
        let after = all[index + 1..].iter().filter(equal).filter_map(|other| other.needs);
        let blocking = after.fold(0, |sum: u64, other| sum.saturating_add(other.cost));
        Ok(Planned { blocking, ..Planned::new(&name, needs.cost, needs.period) })
    };
    all.iter().enumerate().map(planned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::event::{Attributes, Event, Kind, Thread};

    const MS: u64 = 1_000_000;
    const RULES: Rules =
        Rules { declared: Vec::new(), period: None, sharing: Sharing::Alone, tick: 4 * MS };

    fn with(all: &[(u64, u64, u64)]) -> Tasks {
        let attributes = |(runtime_ns, deadline_ns, period_ns): &(u64, u64, u64)| Attributes {
            policy: event::Policy::Deadline,
            runtime_ns: *runtime_ns,
            deadline_ns: *deadline_ns,
            period_ns: *period_ns,
            ..Attributes::default()
        };
        asked(all.iter().map(attributes))
    }

    fn asked(all: impl Iterator<Item = Attributes>) -> Tasks {
        let mut tasks = Tasks::default();
        for (tid, attributes) in (1u32..).zip(all) {
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

    fn fixed(policy: event::Policy, priority: u32) -> Attributes {
        Attributes { policy, priority, ..Attributes::default() }
    }

    fn declared(priority: Option<u32>, cost: u64, period: u64) -> Declared {
        Declared { comm: "rt".into(), priority, cost, period }
    }

    #[test]
    fn fixed_priorities_are_planned_for_as_declared() {
        let fifo = event::Policy::Fifo;
        let tasks = asked([fixed(fifo, 60), fixed(fifo, 59)].into_iter());
        let rules = |declared: &[Declared]| Rules {
            declared: declared.to_vec(),
            period: Some(50 * MS),
            ..RULES
        };
        assert_eq!(need(&tasks, &RULES), Need::Nothing, "nobody says what they need");
        // The example of docs/explanation/real-time.md: rate-monotonic, 26.67 ms of 50 alone, and slack of a tick.
        let both = [declared(Some(60), 30 * MS, 150 * MS), declared(Some(59), 50 * MS, 200 * MS)];
        let Need::Reservation(of) = need(&tasks, &rules(&both)) else { panic!("nothing") };
        assert!((26_666_667..34 * MS).contains(&of.budget()), "{of:?}");
        // The more urgent one alone needs nothing of the other; the other one would have to wait for what is not known.
        assert!(matches!(need(&tasks, &rules(&both[..1])), Need::Reservation(_)));
        let Need::TooMuch(why) = need(&tasks, &rules(&both[1..])) else { panic!("a plan") };
        assert!(why.contains("1 rt needs is not known"), "{why}");
        // A deadline task goes first.
        let before = Attributes {
            policy: event::Policy::Deadline,
            runtime_ns: 20 * MS,
            period_ns: 100 * MS,
            ..Attributes::default()
        };
        let three = asked([before, fixed(fifo, 60), fixed(fifo, 59)].into_iter());
        let Need::Reservation(more) = need(&three, &rules(&both)) else { panic!("nothing") };
        assert!(more.budget() > of.budget() + 5 * MS, "{more:?} after {of:?}");
    }

    #[test]
    fn equal_priorities_wait_for_each_other() {
        let (fifo, turns) = (event::Policy::Fifo, event::Policy::RoundRobin);
        let needs = |policies: [event::Policy; 2], deadline: u64| {
            let tasks = asked(policies.map(|policy| fixed(policy, 9)).into_iter());
            let all = vec![declared(None, 10 * MS, deadline)];
            need(&tasks, &Rules { declared: all, period: Some(10 * MS), ..RULES })
        };
        assert!(matches!(needs([fifo, fifo], 100 * MS), Need::Reservation(_)));
        assert!(
            matches!(needs([fifo, fifo], 19 * MS), Need::TooMuch(_)),
            "one waits for the other"
        );
        let Need::TooMuch(why) = needs([turns, turns], 100 * MS) else { panic!("a plan") };
        assert!(why.contains("takes turns"), "{why}");
    }
}
