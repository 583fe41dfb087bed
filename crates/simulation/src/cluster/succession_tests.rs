//! A cluster's own timeline through beginnings, ends and returns of masters, cuts and losses.

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

#[test]
fn a_cut_ends_in_one_origin_after_two_with_names_of_their_own() {
    for seed in 0..3 {
        let cut = Some((s(30), s(80), 2));
        let report = run(&Plan { cut, until: s(160), ..plan(12) }, seed);
        assert_eq!((report.outside, report.backward), (0, 0), "seed {seed}");
        assert!(report.masters.len() >= 2, "seed {seed}: {:?}", report.masters);
        assert_eq!(report.origins_at_end, 1, "seed {seed}: {:?}", report.masters);
    }
}

#[test]
fn losses_do_not_depose_a_master() {
    for seed in 0..3 {
        let link = Link { loss: 0.1, ..Link::LAN };
        let report = run(&Plan { link, until: s(300), ..plan(12) }, seed);
        assert_eq!((report.outside, report.masters.len()), (0, 1), "seed {seed}");
    }
}
