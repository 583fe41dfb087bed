//! A thousand members on twenty timelines: counts are checked, timings are only printed
//! (`--nocapture`).

use std::cell::Cell;
use std::time::Instant;

use super::*;

const MEMBERS: u64 = 1000;

#[test]
fn a_thousand_members_cost_a_question_per_timeline_and_owner() {
    let mut setup = setup();
    setup.timelines = (0..20)
        .map(|i| Configured {
            name: name(&format!("t{i}")),
            origin: Origin::Tai(CLOCK_B),
            visibility: Visibility::Everyone,
        })
        .collect();
    let mut registry = Registry::new(setup, NOW).unwrap();
    registry.add_owner(&Owner::Host, Scale::Tai, 0);
    let owners: Vec<String> = (0..4).map(|i| format!("vm{i}")).collect();
    for vm in &owners {
        registry.add_owner(&Owner::vm(vm), Scale::Tai, 0);
    }
    let begun = Instant::now();
    for (i, nth) in (0..MEMBERS).zip(0usize..) {
        // Most are on the host, on 20 timelines; every tenth is in one of 4 VMs, on one of 4
        // timelines.
        let vm = (i % 10 == 9).then(|| &owners[nth / 10 % 4]);
        let (tenant, owner) =
            vm.map_or((Tenant::User(0), Owner::Host), |vm| (Tenant::vm(vm), Owner::vm(vm)));
        registry.open(i, tenant, &owner).unwrap();
        let timeline = if vm.is_some() { i / 40 % 4 } else { i % 20 };
        registry.try_bind(i, &requiring(&format!("t{timeline}"), 100_000 - i)).unwrap();
    }
    let bound = begun.elapsed();
    let questions = Cell::new(0);
    let counted = |ns: u64| {
        let questions = &questions;
        move |timeline: &Timeline, owner: &Owner| {
            questions.set(questions.get() + 1);
            gives(ns)(timeline, owner)
        }
    };
    let begun = Instant::now();
    assert_eq!(registry.quality(counted(1000)), []);
    let quality = begun.elapsed();
    let pairs = 5 * 20;
    assert!((20..=pairs).contains(&questions.get()), "{}", questions.get());
    assert_eq!(registry.quality(counted(100_001)).len() as u64, MEMBERS);
    assert_eq!(registry.quality(counted(100_001)), []);

    let begun = Instant::now();
    assert_eq!(registry.demand(CLOCK_B).unwrap().half_width_ns, Some(100_001 - MEMBERS));
    let demand = begun.elapsed();
    println!(
        "{MEMBERS} members: open and bind {} ns each, quality {} ns a member, demand {} ns",
        bound.as_nanos() / u128::from(MEMBERS),
        quality.as_nanos() / u128::from(MEMBERS),
        demand.as_nanos()
    );
}
