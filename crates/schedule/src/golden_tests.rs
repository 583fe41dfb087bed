//! Values that others have computed or measured: the example of "Real-Time Virtual Machines", tasks
//! (30 ms, 150 ms) and (50 ms, 200 ms) in a period of 50 ms.

use proptest::prelude::*;

use crate::admission::Host;
use crate::edf::Demand;
use crate::synthesis::{self, Model, Search, Sharing, candidate_periods};
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
        let search = Search { sharing, model, overheads: Overheads::default() };
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
    assert_eq!(fixed_priority::response(&example(RM), 0, &Worst(shared(28))), Some(96 * MS));
    assert_eq!(Worst(shared(28)).time_for(110 * MS), 220 * MS, "its own 50 ms and two of tau1");
}

/// "Phase-locked": both periods are multiples of the reservation's, and only a release starts one.
#[test]
fn response_times_of_aligned_releases() {
    let worst = |ms| judge(&example(RM), &Aligned(Reservation::alone(ms * MS, 50 * MS).unwrap()));
    assert_eq!(worst(28), Verdict::Schedulable(vec![52 * MS, 124 * MS]));
    assert_eq!(worst(32), Verdict::Schedulable(vec![30 * MS, 116 * MS]));
    // The shortfall is in the long-run average, so the budget is no smaller than without alignment.
    let least = |policy| Search::new(Sharing::Aligned).least_budget(&example(policy), 50 * MS);
    assert_eq!((least(RM), least(Policy::Edf)), (Some(26_666_667), Some(22_500_000)));
    assert_eq!(Search::new(Sharing::Aligned).least_budget(&example(RM), 40 * MS), None);
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
    let search = Search::new(Sharing::Alone).on_host(Overheads::of_tick(4 * MS));
    let set = example(RM);
    let least = search.least_budget(&set, 50 * MS).unwrap();
    assert!(least > 26_666_667 && least <= 31 * MS, "{least}");
    let of = Reservation::alone(least, 50 * MS).unwrap();
    assert!(!search.fits(&set, Reservation::alone(least - 1, 50 * MS).unwrap()));
    // At the minimum budget, no task may grow, or only one may.
    let greatest = search.greatest_costs(&set, of).unwrap();
    let grown: Vec<u64> = greatest.iter().zip(set.tasks()).map(|(g, t)| g - t.cost).collect();
    assert!(grown.iter().any(|more| *more <= 1), "{grown:?}");
}

/// The paper's 28 of 50 ms on a host with a tick of 4 ms: tau2 would be done at 150 ms, when tau1 is released
/// again. Nothing may be late by more.
#[test]
fn what_the_paper_reserves_leaves_exactly_a_tick() {
    let set = example(RM);
    let of = Reservation::alone(28 * MS, 50 * MS).unwrap();
    let on = |overheads| Search::new(Sharing::Alone).on_host(overheads).judge(&set, of);
    let tick = Overheads::of_tick(4 * MS);
    assert_eq!(on(Overheads::default()), Verdict::Schedulable(vec![74 * MS, 146 * MS]));
    assert_eq!(on(tick), Verdict::Schedulable(vec![78 * MS, 150 * MS]));
    assert_eq!(on(Overheads { latency: 1, ..tick }), Verdict::Late(1));
    assert_eq!(on(Overheads { interference_ppm: 1, ..tick }), Verdict::Late(1));
    assert_eq!(on(Overheads { burst: 1, ..tick }), Verdict::Late(1));
}

#[test]
fn a_core_keeps_what_it_has() {
    let of = |b: u64, d: u64, p: u64| Reservation::new(b * MS, d * MS, p * MS).unwrap();
    assert_eq!(admission::core_keeps(&[], &Host::default()), Demand::Supplied);
    assert_eq!(
        admission::core_keeps(&[of(28, 50, 50), of(22, 50, 50)], &Host::default()),
        Demand::Supplied
    );
    assert!(matches!(
        admission::core_keeps(&[of(28, 50, 50), of(23, 50, 50)], &Host::default()),
        Demand::Missed(_)
    ));
    // Two reservations that both need to be first.
    assert_eq!(
        admission::core_keeps(&[of(10, 10, 50), of(10, 10, 50)], &Host::default()),
        Demand::Missed(10 * MS)
    );
    assert!(matches!(
        admission::core_keeps(
            &[of(28, 50, 50), of(22, 50, 50)],
            &Host { switch: 1000, ..Host::default() }
        ),
        Demand::Missed(_)
    ));
}

/// As sporadic tasks, both would fit: 10 by 10, 20 by 20. But the second wakes at 0, runs for 1 and
/// sleeps. At 12 it wakes again and may run for 4 until 20, ahead of the first, which wakes at that
/// moment and has to run for 10 within 10.
#[test]
fn a_reservation_that_sleeps_is_no_sporadic_task() {
    let of = |b: u64, d: u64, p: u64| Reservation::new(b * MS, d * MS, p * MS).unwrap();
    let keeps = |all: &[Reservation]| admission::core_keeps(all, &Host::default());
    let tasks = |all: &[Reservation]| {
        let task = |of: &Reservation| Task {
            deadline: of.deadline(),
            ..Task::new("", of.budget(), of.period())
        };
        edf::test(&TaskSet::new(all.iter().map(task).collect(), Policy::Edf).unwrap(), &Dedicated)
    };
    let both = [of(10, 10, 100), of(10, 20, 100)];
    assert_eq!((tasks(&both), keeps(&both)), (Demand::Supplied, Demand::Missed(10 * MS)));
    assert_eq!(keeps(&[of(5, 10, 100), of(10, 20, 100)]), Demand::Supplied, "densities of 1");
    // Blocking by the kernel reduces full budgets.
    let half = [of(5, 10, 100), of(5, 20, 100)];
    let blocked = |ms| admission::core_keeps(&half, &Host { blocking: ms * MS, ..Host::default() });
    assert_eq!((blocked(2), blocked(3)), (Demand::Supplied, Demand::Missed(10 * MS)));
    // So does the other reservation that runs until the tick.
    let ticked = |ms| admission::core_keeps(&half, &Host { tick: ms * MS, ..Host::default() });
    assert_eq!((ticked(2), ticked(3)), (Demand::Supplied, Demand::Missed(10 * MS)));
}

#[test]
fn tasks_are_spread_over_vcpus() {
    let tasks: Vec<Task> = (0..4).map(|n| Task::new(&n.to_string(), 40 * MS, 100 * MS)).collect();
    let search = Search::new(Sharing::Alone);
    let spread = |vcpus| partition::partition(&tasks, RM, vcpus, |_| None, 20 * MS, &search, 950);
    let shares = spread(2).unwrap();
    assert_eq!(shares.iter().map(|share| share.set.tasks().len()).collect::<Vec<_>>(), [2, 2]);
    assert!(shares.iter().all(|s| search.fits(&s.set, s.reservation)));
    assert_eq!(spread(1), Err("2".to_owned()), "80 % is one processor's, 120 % nobody's");
    // Where it is stated, it is so: three on vCPU 1 are too much.
    let stated = |last: &'static str| {
        let place = move |task: &Task| (task.name.as_str() <= last).then_some(1);
        partition::partition(&tasks, RM, 3, place, 20 * MS, &search, 950)
    };
    let shares = stated("1").unwrap();
    let on = |vcpu| shares.iter().find(|share| share.vcpu == vcpu).unwrap();
    assert!(on(1).set.tasks().iter().all(|task| task.name.as_str() <= "1"), "{shares:?}");
    assert_eq!((shares.len(), on(0).set.tasks().len()), (2, 2), "a second one raises it least");
    assert_eq!(stated("2"), Err("2".to_owned()));
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

/// Computed by hand; those of the example by the simulator (`simulation::reservations`).
#[test]
fn response_times_under_edf() {
    let of = |tasks: &[(u64, u64, u64)], supply: &dyn Fn(&TaskSet) -> Verdict| {
        let task = |(c, d, t): &(u64, u64, u64)| Task { deadline: *d, ..Task::new("", *c, *t) };
        supply(&TaskSet::new(tasks.iter().map(task).collect(), Policy::Edf).unwrap())
    };
    let dedicated = |set: &TaskSet| judge(set, &Dedicated);
    // Two tasks of the same deadline may each wait for the other; a full processor leaves no room.
    assert_eq!(of(&[(1, 4, 4), (2, 4, 4)], &dedicated), Verdict::Schedulable(vec![3, 3]));
    assert_eq!(of(&[(2, 4, 4), (3, 6, 6)], &dedicated), Verdict::Schedulable(vec![4, 6]));
    // A job of (3, 10) is done at 5, before any job of (1, 3) that is due after it is released, so
    // none has to wait.
    assert_eq!(of(&[(1, 3, 3), (3, 10, 10)], &dedicated), Verdict::Schedulable(vec![1, 5]));
    assert_eq!(of(&[(1, 3, 3), (5, 10, 10)], &dedicated), Verdict::Schedulable(vec![1, 8]));
    // But a job of (1, 4) that is released at 6 has to wait for (7, 10) until 8, because it is due
    // at 10 as well.
    assert_eq!(of(&[(1, 4, 4), (7, 10, 10)], &dedicated), Verdict::Schedulable(vec![3, 9]));
    // The example in 32 of 50 ms.
    let shared = Worst(Reservation::shared(32 * MS, 50 * MS).unwrap());
    let Verdict::Schedulable(worst) = judge(&example(Policy::Edf), &shared) else { panic!() };
    assert_eq!(worst, vec![102 * MS, 152 * MS]);
}

fn tasks() -> impl Strategy<Value = Vec<Task>> {
    let task = (1..12u64, 4..30u64, 0..10u64, 0..3u64).prop_map(|(cost, period, early, jitter)| {
        let cost = cost.min(period);
        let deadline = (period - early.min(period - cost)).max(cost);
        Task { deadline, jitter: jitter.min(deadline - 1), ..Task::new("", cost, period) }
    });
    prop::collection::vec(task, 1..5)
}

/// Up to twelve tasks that want up to the whole processor, with unrelated or closely related
/// periods.
fn many_tasks() -> impl Strategy<Value = (Vec<Task>, Policy)> {
    let task = (
        1..100u64,
        prop_oneof![500..20_000u64, (5..40u64).prop_map(|n| n * 500)],
        50..100u64,
        0..20u64,
        0..20u64,
    );
    let policy =
        prop_oneof![Just(Policy::Edf), Just(Policy::DeadlineMonotonic), Just(Policy::Listed)];
    (prop::collection::vec(task, 1..12), 10..95u64, policy).prop_map(|(parts, percent, policy)| {
        let sum: u64 = parts.iter().map(|(part, ..)| part).sum();
        let task = |(part, period, early, jitter, blocking): (u64, u64, u64, u64, u64)| {
            let cost = (period * part * percent / sum / 100).max(1);
            let deadline = cost + (period - cost) * early / 100;
            let (jitter, blocking) = (jitter.min(deadline - 1), blocking.min(deadline - 1));
            Task { deadline, jitter, blocking, ..Task::new("", cost, period) }
        };
        (parts.into_iter().map(task).collect(), policy)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Compares QPA with checking every interval one by one.
    #[test]
    fn qpa_finds_what_looking_everywhere_finds(tasks in tasks(), budget in 1..40u64, more in (0..20u64, 0..20u64)) {
        let set = TaskSet::new(tasks, Policy::Edf).unwrap();
        let of = Reservation::new(budget, budget + more.0, budget + more.0 + more.1).unwrap();
        // This is not always beyond the common multiple of the small periods, but QPA would also
        // find any miss there.
        let everywhere = (1..20_000).find(|t| demand::due_within(&set, *t) > Worst(of).within(*t));
        match edf::test(&set, &Worst(of)) {
            Demand::Supplied => prop_assert_eq!(everywhere, None),
            Demand::Missed(t) => {
                prop_assert!(demand::due_within(&set, t) > Worst(of).within(t));
            }
            Demand::NotKnown => prop_assert!(false, "numbers this small are decided"),
        }
    }

    /// The greatest cost fits, and 1 ns more does not; the best period is the best of all.
    #[test]
    fn growth_and_periods_are_what_trying_finds(tasks in tasks(), edf: bool, budget in 1..40u64, idle in 0..9u64, switch in 0..3u64) {
        let policy = if edf { Policy::Edf } else { Policy::DeadlineMonotonic };
        let set = TaskSet::new(tasks, policy).unwrap();
        let search = Search::new(Sharing::Shared);
        let of = Reservation::shared(budget, budget + idle).unwrap();
        let fits = |index, cost| {
            let mut set = set.clone();
            set.set_cost(index, cost);
            search.fits(&set, of)
        };
        match search.greatest_costs(&set, of) {
            None => prop_assert!(!search.fits(&set, of)),
            Some(greatest) => for (index, cost) in greatest.into_iter().enumerate() {
                prop_assert!(fits(index, cost), "{index} {cost}");
                prop_assert!(cost == set.tasks()[index].deadline || !fits(index, cost + 1), "{index} {cost}");
            }
        }
        let all = (1..20).filter_map(|period| search.reservation(search.least_budget(&set, period)?, period));
        let cost = |of: &Reservation| ((of.budget() + switch) * 232_792_560 / of.period(), core::cmp::Reverse(of.period()));
        let best = all.filter(|of| of.budget() >= 3).min_by_key(cost);
        prop_assert_eq!(search.best_period(&set, 1..20, switch, 3), best);
    }

    /// EDF is optimal: it can do everything that fixed priorities can do on a supply, and more
    /// budget never hurts.
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
        let least = search.least_budget(&set, period);
        for budget in 1..=period {
            prop_assert_eq!(least.is_some_and(|least| budget >= least), search.fits(&set, search.reservation(budget, period).unwrap()));
            let fits = search.fits(&set, search.reservation(budget, period).unwrap());
            prop_assert!(fits || !fitted, "less was enough");
            fitted = fits;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Raising the budget during a test gives the same result as bisection over full tests. The
    /// same holds for the best of many periods.
    #[test]
    fn searches_find_what_halving_finds(
        (tasks, policy) in many_tasks(),
        (sharing, linear, tick) in (0..4usize, prop::bool::weighted(0.2), 0..40u64),
        (latency, interference_ppm, burst) in (0..9u64, 0..90_000u32, 0..9u64),
        (switch, smallest) in (0..40u64, 0..90u64),
    ) {
        let set = TaskSet::new(tasks, policy).unwrap();
        let sharing = [Sharing::Shared, Sharing::Shared, Sharing::Alone, Sharing::Aligned][sharing];
        let model = if linear { Model::Linear } else { Model::Worst };
        let search = Search { sharing, model, overheads: Overheads { tick, latency, interference_ppm, burst } };
        let periods = candidate_periods(&set, 20, 97);
        let halved = |period: u64| {
            let fits = |budget| search.reservation(budget, period).is_some_and(|of| search.fits(&set, of));
            let budget = fits(period).then(|| synthesis::last_that_fits(period, 0, fits))?;
            search.reservation(budget, period)
        };
        let all: Vec<_> = periods.iter().map(|period| halved(*period)).collect();
        for (of, period) in all.iter().zip(&periods).step_by(1 + periods.len() / 5) {
            prop_assert_eq!(search.least_budget(&set, *period), of.map(|of| of.budget()), "{}", period);
        }
        // If two costs are equal, the longer period is preferred.
        let cost = |of: &Reservation| u128::from(of.budget() + switch);
        let best = all.into_iter().flatten().filter(|of| of.budget() >= smallest).min_by(|a, b| {
            let (left, right) = (cost(a) * u128::from(b.period()), cost(b) * u128::from(a.period()));
            left.cmp(&right).then(b.period().cmp(&a.period()))
        });
        prop_assert_eq!(search.best_period(&set, periods, switch, smallest), best);
        let Some(of) = best else { return Ok(()) };
        let greatest = search.greatest_costs(&set, of).unwrap();
        for (index, task) in set.tasks().iter().enumerate() {
            let fits = |cost| {
                let mut set = set.clone();
                set.set_cost(index, cost);
                search.fits(&set, of)
            };
            prop_assert_eq!(greatest[index], synthesis::last_that_fits(task.cost, task.deadline + 1, |cost| cost <= task.deadline && fits(cost)));
        }
    }
}
