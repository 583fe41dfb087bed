use timevisor_schedule::global::judge;
use timevisor_schedule::synthesis::last_that_fits;
use timevisor_schedule::{Supply, Together, Verdict, Worst};

use super::*;

/// Nothing that the analysis calls schedulable can be broken, and no response is longer than
/// predicted.
#[test]
fn what_is_promised_is_kept() {
    let tally = cross_check(0..250);
    assert!(tally.schedulable > 150 && tally.told.is_empty(), "{tally:?}");
    assert!(tally.tightest < 1.1, "the attacks are too weak to say anything: {}", tally.tightest);
}

/// The least budget by another test, and what the simulator makes of it.
fn broken(fits: impl Fn(&Case, Reservation) -> Verdict, sight: Sight, sleeps: bool) -> (u32, u32) {
    let (mut judged, mut broken) = (0, 0);
    for seed in 0..300 {
        let case = Case { host: Host::default(), ..Case::random(seed) };
        let enough = |budget| {
            Reservation::alone(budget, case.period).is_ok_and(|of| fits(&case, of).is_schedulable())
        };
        if !enough(case.period) {
            continue;
        }
        let least = last_that_fits(case.period, 0, enough);
        judged += 1;
        let mut random = Random::stream(seed, "attack");
        let found = case.attack(least, sight, sleeps, &mut random);
        broken += u32::from(found.missed.is_some());
    }
    (judged, broken)
}

/// The multi supply function's test for equal reservations (Bini, Buttazzo, Bertogna, RTCSA 2009):
/// `vcpus * C + sum of W_j <= vcpus * supply(D)`.
fn multi_supply(case: &Case, of: Reservation) -> Verdict {
    let tasks = case.set.tasks();
    let edf = case.set.policy() == Policy::Edf;
    let work = |task: &Task, in_window: u64| {
        let jobs = if edf {
            (in_window + task.period).saturating_sub(task.deadline) / task.period
        } else {
            (in_window + task.deadline - task.cost) / task.period
        };
        let rest = if edf {
            in_window.saturating_sub(jobs * task.period)
        } else {
            in_window + task.deadline - task.cost - jobs * task.period
        };
        jobs * task.cost + rest.min(task.cost)
    };
    let fits = |index: usize| {
        let task = &tasks[index];
        let others = tasks.iter().enumerate();
        let others = others.filter(|(j, _)| *j != index && (edf || *j < index));
        let sum: u64 = others.map(|(_, other)| work(other, task.deadline + other.jitter)).sum();
        let vcpus = u64::from(case.vcpus);
        vcpus * task.cost + sum <= vcpus * Worst(of).within(task.deadline - task.jitter)
    };
    match (0..tasks.len()).find(|index| !fits(*index)) {
        Some(index) => Verdict::Late(index),
        None => Verdict::Schedulable(Vec::new()),
    }
}

/// The theory of virtual multiprocessors holds for a guest that sees which of its vCPUs have
/// processor time, and never sleeps. It does not hold for one that does not see that.
#[test]
fn a_guest_that_does_not_see_its_vcpus_needs_more() {
    let (judged, seeing) = broken(multi_supply, Sight::Seeing, false);
    let (_, blind) = broken(multi_supply, Sight::Blind, false);
    println!("{judged} judged, broken: {seeing} seeing, {blind} blind");
    assert!(judged > 140 && seeing == 0 && blind > 3, "{judged} {seeing} {blind}");
}

/// An analysis that is wrong by a vCPU, or by one period's pause, is found out.
#[test]
fn a_wrong_promise_is_broken() {
    let fewer = |case: &Case, of| {
        let supply = Together { of, late: 0, once: 0, vcpus: case.vcpus - 1 };
        judge(&case.set, case.vcpus, 0, &supply)
    };
    let one_more = |case: &Case, of| {
        let supply = Together { of, late: 0, once: 0, vcpus: case.vcpus };
        judge(&case.set, case.vcpus + 1, 0, &supply)
    };
    let results = [
        broken(fewer, Sight::Blind, true),
        broken(fewer, Sight::Blind, false),
        broken(one_more, Sight::Blind, true),
    ];
    println!("{results:?}");
    assert!(results.iter().all(|(judged, broken)| judged > &150 && broken > &3), "{results:?}");
}
