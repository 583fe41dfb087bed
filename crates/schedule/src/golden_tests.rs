//! Values that others have computed or measured: the example of "Real-Time Virtual Machines", tasks (30 ms, 150 ms) and (50 ms,
//! 200 ms) in a period of 50 ms.

use proptest::prelude::*;

use crate::edf::Demand;
use crate::synthesis::{Model, Search, Sharing, candidate_periods};
use crate::*;

const MS: u64 = 1_000_000;

fn example(policy: Policy) -> TaskSet {
    let tasks = vec![Task::new("tau1", 30 * MS, 150 * MS), Task::new("tau2", 50 * MS, 200 * MS)];
    TaskSet::new(tasks, policy).unwrap()
}

const RM: Policy = Policy::RateMonotonic;

#[test]
fn least_budgets_of_the_example() {
    let least = |policy, sharing, model| {
        let search = Search { sharing, model, tick: 0 };
        search.least_budget(&example(policy), 50 * MS).unwrap()
    };
    assert_eq!(least(RM, Sharing::Shared, Model::Worst), 32 * MS);
    assert_eq!(least(Policy::Edf, Sharing::Shared, Model::Worst), 26 * MS);
    assert_eq!(least(RM, Sharing::Alone, Model::Worst), 26_666_667); // 80 / 3
    assert_eq!(least(Policy::Edf, Sharing::Alone, Model::Worst), 22_500_000);
    let hundredths = |ns: u64| ns.div_ceil(10_000);
    assert_eq!(hundredths(least(RM, Sharing::Shared, Model::Linear)), 3_310);
    assert_eq!(hundredths(least(Policy::Edf, Sharing::Shared, Model::Linear)), 2_624);
}

#[test]
fn response_times_of_the_example() {
    let worst = |reservation| judge(&example(RM), &Worst(reservation));
    // "When guest background work drains the budget": the supply of a reservation that goes first.
    let alone = |ms| Reservation::alone(ms * MS, 50 * MS).unwrap();
    assert_eq!(worst(alone(28)), Verdict::Schedulable(vec![74 * MS, 146 * MS]));
    assert_eq!(worst(alone(32)), Verdict::Schedulable(vec![48 * MS, 134 * MS]));
    let shared = |ms| Reservation::shared(ms * MS, 50 * MS).unwrap();
    assert_eq!(worst(shared(32)), Verdict::Schedulable(vec![66 * MS, 200 * MS]));
    // 96/220: the second one is beyond its deadline.
    assert_eq!(worst(shared(28)), Verdict::Late(1));
}

#[test]
fn best_periods_of_the_example() {
    let search = Search::new(Sharing::Shared);
    let grid = || (4..=200).map(|n| n * MS / 2);
    for (switch, policy, period, tenths) in [
        (50_000, RM, 7 * MS, 553),
        (50_000, Policy::Edf, 11 * MS, 459),
        (200_000, RM, 12 * MS, 572),
        (200_000, Policy::Edf, 23_500_000, 468),
        (500_000, RM, 16 * MS, 594),
        (500_000, Policy::Edf, 25_500_000, 480),
    ] {
        let best = search.best_period(&example(policy), grid(), switch, 0).unwrap();
        let cost = ((best.budget() + switch) * 2000 / best.period()).div_ceil(2);
        assert_eq!((best.period(), cost), (period, tenths), "{policy:?}");
    }
}

#[test]
fn a_tick_costs_what_it_withholds() {
    let search = Search { tick: 4 * MS, ..Search::new(Sharing::Alone) };
    let set = example(RM);
    let least = search.least_budget(&set, 50 * MS).unwrap();
    assert!(least > 26_666_667 && least <= 31 * MS, "{least}");
    let of = Reservation::alone(least, 50 * MS).unwrap();
    assert!(!search.fits(&set, Reservation::alone(least - 1, 50 * MS).unwrap()));
    // Least budget: no task may grow, or only one may.
    let grown: Vec<u64> =
        (0..2).map(|i| search.greatest_cost(&set, i, of).unwrap() - set.tasks()[i].cost).collect();
    assert!(grown.iter().any(|more| *more <= 1), "{grown:?}");
}

#[test]
fn a_core_keeps_what_it_has() {
    let of = |b: u64, d: u64, p: u64| Reservation::new(b * MS, d * MS, p * MS).unwrap();
    assert_eq!(admission::core_keeps(&[], 0, 0), Demand::Supplied);
    assert_eq!(admission::core_keeps(&[of(28, 50, 50), of(22, 50, 50)], 0, 0), Demand::Supplied);
    assert!(matches!(
        admission::core_keeps(&[of(28, 50, 50), of(23, 50, 50)], 0, 0),
        Demand::Missed(_)
    ));
    // Two that want to be first.
    assert_eq!(
        admission::core_keeps(&[of(10, 10, 50), of(10, 10, 50)], 0, 0),
        Demand::Missed(10 * MS)
    );
    assert!(matches!(
        admission::core_keeps(&[of(28, 50, 50), of(22, 50, 50)], 1000, 0),
        Demand::Missed(_)
    ));
}

#[test]
fn tasks_are_spread_over_vcpus() {
    let tasks: Vec<Task> = (0..4).map(|n| Task::new(&n.to_string(), 40 * MS, 100 * MS)).collect();
    let search = Search::new(Sharing::Alone);
    let spread = |vcpus| partition::partition(&tasks, RM, vcpus, 20 * MS, &search, 950);
    let shares = spread(2).unwrap();
    assert_eq!(shares.iter().map(|share| share.set.tasks().len()).collect::<Vec<_>>(), [2, 2]);
    assert!(shares.iter().all(|s| search.fits(&s.set, s.reservation)));
    assert_eq!(spread(1), Err("2".to_owned()), "80 % is one processor's, 120 % nobody's");
}

#[test]
fn refused_with_the_reason() {
    let set = |task: Task| TaskSet::new(vec![task], RM).map(drop);
    assert_eq!(TaskSet::new(Vec::new(), RM), Err(InvalidTask::None));
    assert!(matches!(set(Task::new("a", 0, 5)), Err(InvalidTask::Order(name)) if name == "a"));
    assert!(set(Task { deadline: 6, ..Task::new("a", 1, 5) }).is_err());
    assert!(matches!(set(Task { jitter: 5, ..Task::new("a", 1, 5) }), Err(InvalidTask::Late(_))));
    assert!(Reservation::new(3, 2, 5).is_err() && Reservation::new(0, 2, 5).is_err());
    assert_eq!(
        candidate_periods(&example(RM), 50 * MS, 50 * MS),
        [50 * MS, 66_666_666, 75 * MS, 100 * MS, 150 * MS]
    );
}

fn tasks() -> impl Strategy<Value = Vec<Task>> {
    let task = (1..12u64, 4..30u64, 0..10u64, 0..3u64).prop_map(|(cost, period, early, jitter)| {
        let cost = cost.min(period);
        let deadline = (period - early.min(period - cost)).max(cost);
        Task { deadline, jitter: jitter.min(deadline - 1), ..Task::new("", cost, period) }
    });
    prop::collection::vec(task, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// QPA against every interval, one after the other.
    #[test]
    fn qpa_finds_what_looking_everywhere_finds(tasks in tasks(), budget in 1..40u64, more in (0..20u64, 0..20u64)) {
        let set = TaskSet::new(tasks, Policy::Edf).unwrap();
        let of = Reservation::new(budget, budget + more.0, budget + more.0 + more.1).unwrap();
        // Far beyond the common multiple of the small numbers? Not always; a miss found there would be one found by QPA.
        let everywhere = (1..20_000).find(|t| demand::due_within(&set, *t) > Worst(of).within(*t));
        match edf::test(&set, &Worst(of)) {
            Demand::Supplied => prop_assert_eq!(everywhere, None),
            Demand::Missed(t) => {
                prop_assert!(demand::due_within(&set, t) > Worst(of).within(t));
            }
            Demand::NotKnown => prop_assert!(false, "numbers this small are decided"),
        }
    }

    /// EDF is optimal: what fixed priorities can do on a supply, it can; and more budget never hurts.
    #[test]
    fn edf_does_what_fixed_priorities_do(tasks in tasks(), period in 2..30u64) {
        let search = Search::new(Sharing::Shared);
        let of = |policy| search.least_budget(&TaskSet::new(tasks.clone(), policy).unwrap(), period);
        if let Some(fixed) = of(Policy::DeadlineMonotonic) {
            let edf = of(Policy::Edf);
            prop_assert!(edf.is_some_and(|edf| edf <= fixed), "{edf:?} {fixed}");
        }
        let set = TaskSet::new(tasks, Policy::DeadlineMonotonic).unwrap();
        let mut fitted = false;
        for budget in 1..=period {
            let fits = search.fits(&set, search.reservation(budget, period).unwrap());
            prop_assert!(fits || !fitted, "less was enough");
            fitted = fits;
        }
    }
}
