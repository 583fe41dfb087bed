//! A cluster's own timeline through beginnings, ends and returns of masters, cuts and losses.

use timevisor_cluster::node::Origin;

use super::*;

fn run(plan: &Plan, seed: u64) -> Report {
    let mut world = World::new(plan, seed);
    world.run();
    world.report()
}

fn s(seconds: i64) -> Duration {
    Duration::from_secs(seconds)
}

/// Polls every 4 s, and a master that was not heard for 15 s is gone: what timevisord does.
fn plan(nodes: u32) -> Plan {
    let succession = succession::Settings { after: s(15), step: s(4), leads: true };
    Plan {
        seeds: 3,
        peers: 3,
        poll: s(4),
        succession: Some(succession),
        until: s(120),
        ..Plan::cold(nodes, Link::LAN)
    }
}

#[test]
fn one_of_the_seeds_begins_and_all_follow() {
    for seed in 0..3 {
        let report = run(&plan(20), seed);
        assert_eq!((report.outside, report.backward), (0, 0), "seed {seed}");
        // Nobody waits where everybody says that there is none.
        let [(master, at, 1)] = report.masters[..] else { panic!("{:?}", report.masters) };
        assert!(master < 3 && at < 1_000_000_000, "seed {seed}: {master} at {at}");
        assert_eq!((report.vouching(), report.origins_at_end), (19, 1), "seed {seed}");
        assert!(report.judged > 1_000);
    }
}

#[test]
fn a_dead_master_is_succeeded_once_and_its_return_changes_nothing() {
    for seed in 0..3 {
        let first = run(&Plan { until: s(5), ..plan(20) }, seed).masters[0].0;
        let deaths = vec![(first, s(30), Some(s(80)))];
        let report = run(&Plan { deaths, ..plan(20) }, seed);
        assert_eq!(report.outside, 0, "seed {seed}");
        assert_eq!(report.backward, 0, "seed {seed}: {:?}", report.masters);
        assert_eq!(report.origins_at_end, 1, "seed {seed}");
        let second = report.masters[1];
        assert!(second.0 != first && second.2 == 2, "seed {seed}: {:?}", report.masters);
        // At most one poll after it was last heard, 15 s, and the turns of who stands behind.
        assert!((40..70).contains(&(second.1 / 1_000_000_000)), "seed {seed}: {second:?}");
        assert_eq!(report.masters.len(), 2, "seed {seed}: {:?}", report.masters);
    }
}

/// What nodes follow at one moment: for each origin that anybody has, whether the first or the second
/// part has it.
fn origins(world: &World, first: u32) -> [Vec<Origin>; 2] {
    let mut parts = [Vec::new(), Vec::new()];
    for (index, origin) in (0..).zip(world.origins()) {
        let part = &mut parts[usize::from(index >= first)];
        part.extend(origin.filter(|origin| !part.contains(origin)));
    }
    parts
}

/// Nodes below 6 are cut off from the others from 30 s until 80 s. Returns the report, and what each
/// part followed shortly before that ended.
fn cut(seed: u64, deaths: Vec<(u32, Duration, Option<Duration>)>) -> (Report, [Vec<Origin>; 2]) {
    let plan = Plan { cut: Some((s(30), s(80), 6)), deaths, until: s(160), ..plan(12) };
    // Each part has seeds, and some of the masters.
    let mut world = World::new(&Plan { seeds: 12, ..plan }, seed);
    world.run_until(s(79));
    let apart = origins(&world, 6);
    world.run();
    (world.report(), apart)
}

#[test]
fn a_cut_ends_in_one_origin_after_two_with_names_of_their_own() {
    for seed in 0..5 {
        let (report, [near, far]) = cut(seed, Vec::new());
        let ([one], [other]) = (&near[..], &far[..]) else { panic!("{near:?} {far:?}") };
        assert_ne!((one, one.to_string()), (other, other.to_string()), "seed {seed}");
        assert_ne!(one.generation, other.generation, "one of the parts has the old master");
        one_is_left(&report, (*one).max(*other), seed);
    }
}

/// Both parts continue what they had: their origins have the same generation, and different names.
#[test]
fn parts_that_both_lost_their_master_continue_under_two_names_of_one_generation() {
    for seed in 0..5 {
        let plan = Plan { seeds: 12, until: s(5), ..plan(12) };
        let master = run(&plan, seed).masters[0].0;
        let (report, [near, far]) = cut(seed, vec![(master, s(30), None)]);
        let ([one], [other]) = (&near[..], &far[..]) else { panic!("{near:?} {far:?}") };
        assert_ne!((one, one.to_string()), (other, other.to_string()), "seed {seed}");
        assert_eq!((one.generation, other.generation), (2, 2), "seed {seed}");
        one_is_left(&report, (*one).max(*other), seed);
    }
}

/// The greater origin is left, who went over to it said so, and nothing went back.
fn one_is_left(report: &Report, greater: Origin, seed: u64) {
    assert_eq!((report.outside, report.backward), (0, 0), "seed {seed}");
    assert_eq!(report.origins_at_end, 1, "seed {seed}: {:?}", report.masters);
    assert_eq!(report.last_origin, Some(greater), "seed {seed}");
    // Nobody changes its origin without a word.
    assert_eq!(report.silent_changes, 0, "seed {seed}");
    // Those who had the smaller one.
    let since = report.changes.iter().filter(|(_, at)| *at >= 80_000_000_000).count();
    assert!((5..=6).contains(&since), "seed {seed}: {:?}", report.changes);
}

#[test]
fn losses_do_not_depose_a_master() {
    for seed in 0..3 {
        let link = Link { loss: 0.1, ..Link::LAN };
        let report = run(&Plan { link, until: s(300), ..plan(12) }, seed);
        assert_eq!((report.outside, report.masters.len()), (0, 1), "seed {seed}");
    }
}
