use super::*;

fn run(plan: &Plan, seed: u64) -> Report {
    let mut world = World::new(plan, seed);
    world.run();
    world.report()
}

#[test]
fn a_cold_start_bounds_everybody_soon() {
    let plan = Plan { children: 50, ..Plan::cold(2_000, Link::DATA_CENTRE) };
    let report = run(&plan, 1);
    assert_eq!((report.vouching(), report.outside), (1_999, 0));
    assert!(report.vouching_ns(1000) < 1e9, "{}", report.vouching_ns(1000));
    assert!(report.questions(500) <= 12.0, "{}", report.questions(500));
    // Each was answered once by the root, which then had room for 50.
    assert!(report.busiest < 2_000 + 50 * 16, "{}", report.busiest);
    let half = report.levels[&1].half_width_ns(990);
    assert!(half < 2.0 * 1.3 * 5_000.0 + 2_000.0, "{half}");
}

#[test]
fn losses_and_restarts_cost_time_and_no_truth() {
    for seed in 0..20 {
        let link = Link { loss: 0.1, ..Link::LAN };
        let until = Duration::from_secs(20);
        let plan = Plan { children: 5, restarts: 0.5, peers: 3, until, ..Plan::cold(200, link) };
        let report = run(&plan, seed);
        assert_eq!((report.vouching(), report.outside), (199, 0), "seed {seed}");
        assert!(report.judged > 1_000);
    }
}

#[test]
fn peers_keep_bounds_narrow() {
    let alone = run(&Plan::cold(100, Link::LAN), 3);
    let mesh = run(&Plan { peers: 3, ..Plan::cold(100, Link::LAN) }, 3);
    let half = |report: &Report| report.levels[&1].half_width_at_end_ns(500);
    // Alone they have grown by 15 ppm for ten seconds.
    assert!(half(&alone) > 150_000.0, "{}", half(&alone));
    assert!(half(&mesh) < 70_000.0, "{}", half(&mesh));
    assert_eq!((alone.outside, mesh.outside), (0, 0));
}

#[test]
fn a_liar_among_twenty_is_named_and_nobody_else_is() {
    for seed in 0..20 {
        let plan = Plan {
            liars: 1,
            liar: Some((3, 5_000_000)),
            peers: 4,
            children: 6,
            poll: Duration::from_millis(100),
            ..Plan::cold(20, Link::LAN)
        };
        let report = run(&plan, seed);
        assert_eq!(report.outside, 0, "seed {seed}");
        assert!(report.named.iter().all(|(_, named)| *named == 3), "{:?}", report.named);
        assert!(report.vouching() >= 18, "seed {seed}: {}", report.vouching());
    }
}

/// The root, a parent, a leaf: whoever dies, others' bounds grow with age only.
#[test]
fn a_death_widens_nothing_but_by_age() {
    let at_death = Duration::from_secs(3);
    let plan = |until| Plan { peers: 3, children: 6, until, ..Plan::cold(60, Link::LAN) };
    let run = |plan: &Plan, seed| {
        let mut world = World::new(plan, seed);
        world.run();
        world.widths()
    };
    for (seed, victim) in (0..).zip([0, 1, 2, 30, 59]) {
        let before = run(&plan(at_death), seed);
        for later in [1, 10] {
            let until = at_death + Duration::from_secs(later);
            let dying = Plan { deaths: vec![(victim, at_death, None)], ..plan(until) };
            // Both sides grow by 15 ppm at most.
            let aged = Duration::from_nanos(30_000 * later) + Duration::from_nanos(10);
            let after = run(&dying, seed);
            let survivors = (1..60).filter(|index| *index != victim as usize);
            for index in survivors {
                let (before, after) = (before[index].unwrap(), after[index].unwrap());
                assert!(
                    after <= before + aged,
                    "{victim} died: {index} had {before}, and {after} after {later} s"
                );
            }
        }
    }
}
