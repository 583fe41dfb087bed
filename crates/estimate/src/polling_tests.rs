use proptest::prelude::*;

use super::*;

fn micros(us: i64) -> Duration {
    Duration::from_micros(us)
}

fn demand(required_us: i64) -> Demand {
    Demand {
        required: micros(required_us),
        typical: micros(100),
        best: micros(40),
        rate: 15e-6,
        wander: 0.0,
    }
}

fn limits() -> Limits {
    Limits { packets_per_hour: 3600, ..Limits::default() }
}

#[test]
fn the_formula() {
    // 1000 us required, 100 us floor, 15 ppm: 60 s, halved for one loss; an eighth of a second is
    // rounded away.
    let found = plan(&demand(1000), &limits());
    assert_eq!(found.burst, 1);
    let about = |interval: Duration, seconds: f64| {
        (seconds - 0.126..=seconds).contains(&interval.as_secs_f64())
    };
    assert!(about(found.interval, 30.0), "{found:?}");
    let patient = Limits { losses: 0, ..limits() };
    assert!(about(plan(&demand(1000), &patient).interval, 60.0));
    // 15 ppm and 1e-7 /s over 60 s are another 180 us, so it is shorter.
    let wandering = plan(&Demand { wander: 1e-7, ..demand(1000) }, &patient).interval;
    let grown = |t: f64| 15e-6 * t + 1e-7 * t * t / 2.0;
    assert!(grown(wandering.as_secs_f64()) <= 900e-6);
    assert!(grown(wandering.as_secs_f64() + 0.126) > 900e-6);
}

#[test]
fn bursts_come_where_the_shortest_interval_does_not_suffice() {
    // At 2 s the bound grows by 60 us before a second poll is due; 100 us - 60 us = 40 us is the
    // best floor there is.
    let found = plan(&demand(125), &limits());
    assert_eq!(found.interval, Duration::from_secs(2));
    // floor(n) <= 125 - 60 = 65 would take n = 3, but the budget allows one request a second.
    assert_eq!(found.burst, 2);
    let generous = Limits { poll_min: Duration::from_secs(4), ..limits() };
    let rate = Demand { rate: 7.5e-6, ..demand(125) };
    assert_eq!(plan(&rate, &generous), Plan { interval: Duration::from_secs(4), burst: 3 });
    // What cannot be met uses the budget and no more.
    let hopeless = plan(&demand(10), &limits());
    assert_eq!(hopeless, Plan { interval: Duration::from_secs(2), burst: 2 });
}

#[test]
fn what_a_requirement_needs_is_known_whatever_the_limits() {
    // (1000 - 100) us at 15 ppm, halved for one loss.
    let found = needed(&demand(1000), 1).unwrap().as_secs_f64();
    assert!((found - 30.0).abs() < 1e-6, "{found}");
    assert!(keeps(&demand(1000), &plan(&demand(1000), &limits()), 1));
    // 30 us of room: a second, which poll_min = 2 s forbids.
    let tight = demand(130);
    let found = needed(&tight, 1).unwrap().as_secs_f64();
    assert!((found - 1.0).abs() < 1e-6, "{found}");
    assert!(!keeps(&tight, &Plan { interval: Duration::from_secs(2), burst: 1 }, 1));
    assert!(keeps(&tight, &Plan { interval: Duration::from_millis(999), burst: 1 }, 1));
    // Below what the best exchange proves, no poll helps.
    assert_eq!(needed(&demand(10), 1), None);
    assert!(!keeps(&demand(10), &plan(&demand(10), &limits()), 1));
}

#[test]
fn the_budget_bounds_the_interval() {
    let poor = Limits { packets_per_hour: 60, ..limits() };
    let found = plan(&demand(150), &poor);
    assert!(found.interval >= Duration::from_secs(60) && found.burst == 1, "{found:?}");
}

#[test]
fn limits_are_checked_by_name() {
    assert_eq!(Limits::default().validate(), Ok(()));
    let bad = Limits { packets_per_hour: 3, ..Limits::default() };
    assert_eq!(bad.validate().unwrap_err().name, "packets_per_hour");
    let bad = Limits { poll_max: Duration::from_secs(1), ..Limits::default() };
    assert_eq!(bad.validate().unwrap_err().name, "poll_max");
}

#[test]
fn the_controller_does_not_hunt() {
    let mut controller = Controller::new(limits());
    let first = controller.update(&demand(1000)).unwrap();
    assert_eq!(controller.update(&demand(1000)), None);
    // A fifth longer: not worth it. Shorter: at once. Twice as long: yes.
    assert_eq!(controller.update(&demand(1180)), None);
    let shorter = controller.update(&demand(900)).unwrap();
    assert!(shorter.interval < first.interval);
    assert!(controller.update(&demand(1900)).unwrap().interval > first.interval);
}

prop_compose! {
    fn any_limits()(
        min in 1_i64..100, more in 1_i64..5000, burst_max in 1_u32..=16, packets in 1_u32..=3600, losses in 0_u32..=8,
    ) -> Limits {
        let poll_min = Duration::from_secs(min);
        let limits = Limits {
            poll_min, poll_max: poll_min + Duration::from_secs(more), burst_max, packets_per_hour: packets, losses,
        };
        // A budget that allows no poll at all is refused by validate().
        if limits.validate().is_ok() { limits } else { Limits { packets_per_hour: 3600, ..limits } }
    }
}

prop_compose! {
    fn any_demand()(
        required in 1_i64..100_000, best in 0_i64..2_000, queue in 0_i64..2_000, rate in 0.0_f64..2e-4, wander in 0.0_f64..1e-6,
    ) -> Demand {
        Demand { required: micros(required), typical: micros(best + queue), best: micros(best), rate, wander }
    }
}

proptest! {
    #[test]
    fn never_outside_the_limits(demands in proptest::collection::vec(any_demand(), 1..8), limits in any_limits()) {
        prop_assert_eq!(limits.validate(), Ok(()));
        let mut controller = Controller::new(limits);
        for demand in demands {
            let Some(plan) = controller.update(&demand) else { continue };
            prop_assert!(plan.interval >= limits.poll_min && plan.interval <= limits.poll_max.max(limits.shortest()));
            prop_assert!((1..=limits.burst_max).contains(&plan.burst));
            let per_hour = f64::from(plan.burst) * 3600.0 / plan.interval.as_secs_f64();
            prop_assert!(per_hour <= f64::from(limits.packets_per_hour) + 1e-9, "{plan:?} is {per_hour} an hour");
        }
    }

    #[test]
    fn whoever_needs_more_is_not_asked_less_often(
        demand in any_demand(), limits in any_limits(), tighter in 0_i64..50_000, wider in 0.0_f64..1e-6, worse in 0.0_f64..1e-4,
    ) {
        let base = plan(&demand, &limits).interval;
        let harder = [
            Demand { required: demand.required - micros(tighter), ..demand },
            Demand { wander: demand.wander + wider, ..demand },
            Demand { rate: demand.rate + worse, ..demand },
        ];
        for demand in harder {
            prop_assert!(plan(&demand, &limits).interval <= base, "{demand:?}");
        }
    }

    #[test]
    fn a_plan_keeps_what_is_required_where_the_limits_allow(demand in any_demand(), limits in any_limits()) {
        let found = plan(&demand, &limits);
        let kept = |interval: Duration, burst: u32| {
            let t = interval.as_secs_f64() * f64::from(1 + limits.losses);
            let floor = demand.best.as_secs_f64()
                + (demand.typical - demand.best).as_secs_f64() / f64::from(burst);
            floor + demand.rate * t + demand.wander * t * t / 2.0 <= demand.required.as_secs_f64() * (1.0 + 1e-9)
        };
        if kept(limits.shortest(), 1) {
            prop_assert!(kept(found.interval, found.burst), "{found:?}");
            prop_assert!(needed(&demand, limits.losses).is_some());
        }
        // And no more than needed: twice the interval would break it, or a limit.
        if found.burst == 1 && found.interval < limits.poll_max && found.interval > limits.shortest() {
            prop_assert!(!kept(found.interval + found.interval, 1));
        }
    }
}
