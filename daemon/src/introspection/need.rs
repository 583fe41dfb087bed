//! The reservation that meets a guest's demand: the tasks are found by crates/introspection and
//! planned by crates/schedule.

use timevisor_introspection::tasks::demand::{Declared, Demand, Order, Planned};
use timevisor_protocols::control::IntrospectReserve;
use timevisor_schedule::global::GlobalSearch;
use timevisor_schedule::synthesis::{Search, Sharing};
use timevisor_schedule::{Overheads, Policy, Reservation, Task, TaskSet};

/// How a reservation follows a guest; times in ns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Fixed-priority tasks, as their operator declares them.
    pub declared: Vec<Declared>,
    /// The reservation's period; if absent, half of the shortest deadline.
    pub period: Option<u64>,
    /// Whether other reservations may share its core.
    pub sharing: Sharing,
    /// The tasks run on any of so many vCPUs.
    pub vcpus: u16,
    /// What the host takes.
    pub overheads: Overheads,
}

/// The rules that the user asked for.
pub fn rules(asked: &IntrospectReserve) -> Rules {
    let sharing = if asked.alone { Sharing::Alone } else { Sharing::Shared };
    let declared = asked.tasks.iter().map(|task| Declared {
        comm: task.name.clone(),
        priority: task.priority,
        cost: task.cost_ns,
        period: task.period_ns,
    });
    let overheads = asked.overheads.map_or(Overheads::UNMEASURED, |of| Overheads {
        tick: of.tick_ns,
        latency: of.latency_ns,
        interference_ppm: of.interference_ppm,
        burst: of.burst_ns,
    });
    let vcpus = asked.vcpus.unwrap_or(1);
    Rules { declared: declared.collect(), period: asked.period_ns, sharing, vcpus, overheads }
}

/// What a guest needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// No reservation.
    Nothing,
    /// This reservation, of each vCPU on which the tasks may run.
    Reservation(Reservation),
    /// No reservation can meet the demand, or its numbers are invalid; why.
    TooMuch(String),
}

/// The smallest reservation that meets this demand on this host, with some slack.
pub fn need(demand: Demand, rules: &Rules) -> Need {
    let (order, tasks) = match demand {
        Demand::Nothing => return Need::Nothing,
        Demand::Refused(why) => return Need::TooMuch(why),
        Demand::Tasks(order, tasks) => (order, tasks),
    };
    let policy = match order {
        Order::EarliestDeadline => Policy::Edf,
        Order::Listed => Policy::Listed,
    };
    let set = match TaskSet::new(tasks.into_iter().map(task).collect(), policy) {
        Ok(set) => set,
        Err(error) => return Need::TooMuch(error.to_string()),
    };
    if rules.vcpus > 1 {
        return on_any(&set, rules);
    }
    let shortest = set.tasks().iter().map(|task| task.deadline).min().unwrap_or(1);
    let period = rules.period.unwrap_or(shortest / 2).max(1);
    let theory = Search::new(rules.sharing);
    let least = theory.least_budget(&set, period).and_then(|b| theory.reservation(b, period));
    let here = theory.on_host(rules.overheads);
    let with_slack = least.and_then(|least| here.with_slack(&set, least));
    with_slack.map_or_else(
        || {
            let (count, percent) = (set.tasks().len(), set.utilization() * 100.0);
            Need::TooMuch(format!(
                "{count} tasks of {percent:.1} % fit in no reservation with a period of {} ms, what the host takes included",
                period as f64 / 1e6
            ))
        },
        Need::Reservation,
    )
}

/// Parts of the shortest deadline that are tried as periods where the tasks run on any of several
/// vCPUs: with shorter ones all vCPUs run at once more of the time, and ticks weigh more.
const PARTS: [u64; 6] = [2, 4, 6, 8, 12, 16];
/// What a switch into a reservation takes, and how many ticks a budget has at least; for choosing
/// the period.
const SWITCH: u64 = 50_000;
const TICKS: u64 = 3;

/// The smallest equal reservations of all vCPUs.
fn on_any(set: &TaskSet, rules: &Rules) -> Need {
    if rules.sharing != Sharing::Alone {
        let why =
            "tasks that run on any of several vCPUs need each of them alone on its core (--alone)";
        return Need::TooMuch(why.to_owned());
    }
    let shortest = set.tasks().iter().map(|task| task.deadline).min().unwrap_or(1);
    let theory = GlobalSearch::new(rules.vcpus);
    let here = theory.on_host(rules.overheads);
    let period = rules.period.or_else(|| {
        let smallest = rules.overheads.tick.saturating_mul(TICKS);
        let periods = PARTS.map(|part| (shortest / part).max(1));
        here.best_period(set, periods, SWITCH, smallest).map(|of| of.period())
    });
    let least = period
        .and_then(|period| Reservation::alone(theory.least_budget(set, period)?, period).ok());
    let with_slack = least.and_then(|least| here.with_slack(set, least));
    with_slack.map_or_else(
        || {
            let (count, percent) = (set.tasks().len(), set.utilization() * 100.0);
            let period = period.map_or(String::new(), |ns| format!(" with a period of {} ms", ns as f64 / 1e6));
            Need::TooMuch(format!(
                "{count} tasks of {percent:.1} % fit on any of {} vCPUs in no reservations{period}, what the host takes included; fewer vCPUs, or tasks that the guest keeps on one of them, may do",
                rules.vcpus
            ))
        },
        Need::Reservation,
    )
}

fn task(of: Planned) -> Task {
    let Planned { name, cost, deadline, period, blocking } = of;
    Task { deadline, blocking, ..Task::new(&name, cost, period) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const RULES: Rules = Rules {
        declared: Vec::new(),
        period: None,
        sharing: Sharing::Alone,
        vcpus: 1,
        overheads: Overheads::of_tick(4 * MS),
    };

    fn planned(cost: u64, period: u64, blocking: u64) -> Planned {
        Planned { name: "1 rt".into(), cost, deadline: period, period, blocking }
    }

    fn by_deadline(all: &[(u64, u64)]) -> Demand {
        let all = all.iter().map(|(cost, period)| planned(*cost, *period, 0)).collect();
        Demand::Tasks(Order::EarliestDeadline, all)
    }

    fn budget(all: &[(u64, u64)]) -> u64 {
        match need(by_deadline(all), &RULES) {
            Need::Reservation(of) => {
                assert_eq!(of.period(), 50 * MS);
                of.budget()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_grows_with_the_tasks() {
        assert_eq!(need(Demand::Nothing, &RULES), Need::Nothing);
        let one = budget(&[(20 * MS, 100 * MS)]);
        assert!((10 * MS..25 * MS).contains(&one), "{one}");
        let two = budget(&[(20 * MS, 100 * MS), (20 * MS, 100 * MS)]);
        assert!(two > one + 5 * MS, "{two} after {one}");
    }

    #[test]
    fn what_cannot_be_is_said() {
        let refused = |demand: Demand| match need(demand, &RULES) {
            Need::TooMuch(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(refused(by_deadline(&[(60 * MS, 100 * MS); 2])).contains("120.0 %"));
        assert!(refused(by_deadline(&[(2 * MS, MS)])).contains("1 rt"));
        assert!(refused(by_deadline(&[(0, 100 * MS)])).contains("cost"));
        assert_eq!(refused(Demand::Refused("why".into())), "why");
    }

    #[test]
    fn listed_tasks_are_planned_in_their_order() {
        let rules = Rules { period: Some(50 * MS), ..RULES };
        let of = |all: Vec<Planned>, rules: &Rules| need(Demand::Tasks(Order::Listed, all), rules);
        // The textbook example of reservation theory: rate-monotonic, 26.67 ms out of 50 alone,
        // plus the slack of one tick.
        let both = vec![planned(30 * MS, 150 * MS, 0), planned(50 * MS, 200 * MS, 0)];
        let Need::Reservation(two) = of(both.clone(), &rules) else { panic!("nothing") };
        assert!((26_666_667..34 * MS).contains(&two.budget()), "{two:?}");
        let three = [vec![planned(20 * MS, 100 * MS, 0)], both].concat();
        let Need::Reservation(more) = of(three, &rules) else { panic!("nothing") };
        assert!(more.budget() > two.budget() + 5 * MS, "{more:?} after {two:?}");
        // Two tasks of 10 ms that block each other cannot both finish within 19 ms.
        let equal = |period| vec![planned(10 * MS, period, 10 * MS), planned(10 * MS, period, 0)];
        let rules = Rules { period: Some(10 * MS), ..RULES };
        assert!(matches!(of(equal(100 * MS), &rules), Need::Reservation(_)));
        assert!(matches!(of(equal(19 * MS), &rules), Need::TooMuch(_)));
    }

    #[test]
    fn tasks_on_any_of_two_vcpus_are_planned_for_both() {
        let two =
            Rules { vcpus: 2, period: Some(10 * MS), overheads: Overheads::default(), ..RULES };
        let both = || by_deadline(&[(40 * MS, 100 * MS); 2]);
        // By hand: 7 of 10 ms (crates/schedule/src/global.rs), and 3 %.
        let each = Reservation::alone(7_210_000, 10 * MS).unwrap();
        assert_eq!(need(both(), &two), Need::Reservation(each));
        // With ticks of 4 ms, a longer period.
        let here = Rules { vcpus: 2, ..RULES };
        let Need::Reservation(of) = need(both(), &here) else { panic!("nothing") };
        assert!(of.budget() >= 12 * MS && of.bandwidth() < 0.95, "{of:?}");
        let refused = |rules: &Rules, tasks| match need(tasks, rules) {
            Need::TooMuch(why) => why,
            other => panic!("{other:?}"),
        };
        let shared = Rules { sharing: Sharing::Shared, ..here.clone() };
        assert!(refused(&shared, both()).contains("--alone"));
        let three = by_deadline(&[(70 * MS, 100 * MS); 3]);
        assert!(refused(&here, three).contains("3 tasks of 210.0 % fit on any of 2 vCPUs"));
    }
}
