use timevisor_schedule::admission::{Host, core_keeps};
use timevisor_schedule::edf::Demand;
use timevisor_schedule::supply::Line;
use timevisor_schedule::{Policy, Reservation, Supply, Task, TaskSet, Verdict, Worst, judge};

use super::attacks::{Plans, short_of_promise, theory};
use super::guest::Guest;
use super::processor::{Enforcement, Member, run};
use super::releases::{Span, apart, shifted, together};
use super::sets::{MS, below};
use super::*;
use crate::random::Random;

/// Nothing that the analysis calls schedulable can be broken, and no response is longer than
/// predicted.
#[test]
fn what_is_promised_is_kept() {
    let mut tally = cross_check(0..60, |_| false);
    assert!(tally.schedulable() > 300, "{}", tally.table());
    assert_eq!(tally.broken(), 0, "{}{}", tally.table(), tally.told.join("\n"));
}

/// Admission's guarantee for a core, whatever the others do.
#[test]
fn a_core_keeps_what_admission_says() {
    let mut random = Random::stream(1, "cores");
    let mut kept = 0;
    for round in 0..3000 {
        let implicit = random.chance(0.3);
        let one = |random: &mut Random| {
            let period = (4 + below(random, 60)) * MS;
            let deadline =
                if implicit { period } else { period / 4 + below(random, period * 3 / 4) };
            let budget = 1 + below(random, deadline * 3 / 4);
            Reservation::new(budget, deadline, period).unwrap()
        };
        let all: Vec<Reservation> = (0..2 + round % 3).map(|_| one(&mut random)).collect();
        if core_keeps(&all, &Host::default()) != Demand::Supplied {
            continue;
        }
        kept += 1;
        let short = short_of_promise(&all, &mut random, |t| Worst(all[0]).within(t));
        assert_eq!(short, None, "{all:?}");
    }
    assert!(kept > 200, "{kept}");
}

/// Under EDF the worst response of a task is met at some offset to all others, which are released
/// together: all of them are tried.
#[test]
fn edf_response_times_are_met() {
    let mut random = Random::stream(1, "offsets");
    let mut met = 0;
    while met < 150 {
        let tasks = (0..1 + below(&mut random, 3)).map(|_| {
            let period = 3 + below(&mut random, 10);
            let cost = 1 + below(&mut random, period / 2);
            let deadline = cost + below(&mut random, period - cost + 1);
            let jitter = below(&mut random, 3).min(deadline - 1);
            Task { deadline, jitter, ..Task::new("", cost, period) }
        });
        let set = TaskSet::new(tasks.collect(), Policy::Edf).unwrap();
        let budget = 1 + below(&mut random, 10);
        let of = Reservation::shared(budget, budget + below(&mut random, 5)).unwrap();
        let Verdict::Schedulable(predicted) = judge(&set, &Worst(of)) else { continue };
        // All pairs of the small periods repeat within this span; a busy period is shorter.
        let span = Span { origin: 100, end: 3000 };
        let mut seen = vec![0; set.tasks().len()];
        for target in 0..seen.len() {
            for offset in 0..set.tasks()[target].period {
                let plan = shifted(&set, span, target, offset);
                let mut guest = Guest::new(&set, &plan, false);
                windows::run(&mut guest, windows::worst(of, span.origin, 0));
                for (seen, worst) in seen.iter_mut().zip(&guest.outcome.worst) {
                    *seen = (*seen).max(*worst);
                }
            }
        }
        assert_eq!(seen, predicted, "{set:?} {of:?}");
        met += 1;
    }
}

/// The simulator must find deliberate errors: a prediction that is 1 ns too early, and a budget
/// that is 1 ns too small.
#[test]
fn a_wrong_promise_is_broken() {
    #[derive(Clone, Copy)]
    struct Early(Worst);
    impl Supply for Early {
        fn within(&self, t: u64) -> u64 {
            self.0.within(t + 1)
        }
        fn time_for(&self, work: u64) -> u64 {
            self.0.time_for(work).saturating_sub(1)
        }
        fn line(&self) -> Line {
            self.0.line()
        }
    }
    let (mut early, mut less, mut judged) = (0, 0, 0);
    for seed in 0..40 {
        let case = Case::random(seed);
        let plans = Plans::new(&case, Claim::Shared);
        let Some(least) = Claim::Shared.least_budget(&case) else { continue };
        judged += 1;
        let broken = |budget| theory(Claim::Shared, &case, &plans, budget);
        less += u64::from(broken(least - 1).missed.is_some());
        let wrong = Early(Worst(Claim::Shared.reservation(&case, least).unwrap()));
        let Verdict::Schedulable(predicted) = judge(&case.set, &wrong) else { panic!("{seed}") };
        early +=
            u64::from(broken(least).worst.iter().zip(&predicted).any(|(seen, most)| seen > most));
    }
    assert!(judged >= 25 && early == judged && less * 10 >= judged * 9, "{judged} {early} {less}");
}

/// The example of "Real-Time Virtual Machines", (30 ms, 150 ms) and (50 ms, 200 ms) in a
/// reservation of 50 ms, as predicted.
#[test]
fn the_example_responds_as_predicted() {
    let set = |policy| {
        let tasks =
            vec![Task::new("tau1", 30 * MS, 150 * MS), Task::new("tau2", 50 * MS, 200 * MS)];
        TaskSet::new(tasks, policy).unwrap()
    };
    let rm = set(Policy::RateMonotonic);
    let span = |origin| Span { origin, end: origin + 1200 * MS };
    // Alone on a core: the releases start the periods, or a hog has just used up a budget when they
    // come.
    let alone = |ms: u64, hog: bool| {
        let plan = together(&rm, span(if hog { (100 + ms) * MS } else { 7 * MS }));
        let of = Reservation::shared(ms * MS, 50 * MS).unwrap();
        let mut members = [Member::new(of, Guest::new(&rm, &plan, hog))];
        run(&mut members, Enforcement::Exact, u64::MAX >> 1);
        members[0].guest.outcome.worst.iter().map(|ns| ns / MS).collect::<Vec<_>>()
    };
    assert_eq!([alone(28, false), alone(32, false)], [[52, 124], [30, 116]]);
    assert_eq!([alone(28, true), alone(32, true)], [[74, 146], [48, 134]]);
    // With others on the core, in the worst case.
    let worst = |set: &TaskSet, ms: u64, offsets: [u64; 2]| {
        let plan = apart(set, span(1000 * MS), |index| offsets[index] * MS);
        let mut guest = Guest::new(set, &plan, false);
        let of = Reservation::shared(ms * MS, 50 * MS).unwrap();
        windows::run(&mut guest, windows::worst(of, span(1000 * MS).origin, 0));
        guest.outcome.worst.iter().map(|ns| ns / MS).collect::<Vec<_>>()
    };
    assert_eq!(worst(&rm, 32, [0, 0]), [66, 200]);
    assert_eq!(worst(&rm, 28, [0, 0]), [96, 220], "late by 20 ms");
    let edf = set(Policy::Edf);
    let offsets = (0..200).flat_map(|offset| [[offset, 0], [0, offset]]);
    let all: Vec<_> = offsets.map(|offsets| worst(&edf, 32, offsets)).collect();
    let most = |index: usize| all.iter().map(|worst| worst[index]).max();
    assert_eq!([most(0), most(1)], [Some(102), Some(152)]);
}
