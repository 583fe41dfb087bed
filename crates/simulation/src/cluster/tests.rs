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

/// A burst each, then nothing for a day: bounds are what their counters may have done since.
#[test]
fn a_day_without_a_network() {
    let day = Duration::from_secs(86_400);
    let report = run(&Plan { until: day, ..Plan::cold(1_000, Link::LAN) }, 1);
    assert_eq!((report.vouching(), report.outside), (999, 0));
    let half_s = report.levels[&1].half_width_at_end_ns(1000) * 1e-9;
    assert!((1.296..1.297).contains(&half_s), "15 us in each second: {half_s} s");
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

/// One of the seeds, and no root.
const LIAR: u32 = 4;

/// The liar's answers at one node, until it is named, are at most three polls apart from the first of
/// them that is a lie.
fn named_within_three_polls(lie: Lie, since: Duration, trusted: bool) {
    let poll = Duration::from_millis(100);
    let (mut last, mut most, mut hearers) = (0, 0, 0);
    for seed in 0..10 {
        // Where nobody is believed alone, three have to be heard before anybody vouches.
        let roots = if trusted { 1 } else { 4 };
        let plan = Plan {
            liars: 1,
            liar: Some((LIAR, 5_000_000)),
            lie,
            roots,
            trusted,
            // Nobody else is asked where one may lie.
            seeds: 6,
            peers: 5,
            children: 6,
            poll,
            ..Plan::cold(20, Link::LAN)
        };
        let report = run(&plan, seed);
        assert_eq!(report.outside, 0, "seed {seed}");
        assert!(report.vouching() >= 18 - roots as usize, "seed {seed}: {}", report.vouching());
        assert!(report.named.iter().all(|(_, named)| *named == LIAR), "{:?}", report.named);
        let (three, since) = (nanos(poll) * 3, nanos(since));
        let until = nanos(plan.until);
        for (by, heard, _) in &report.heard_liar {
            let of = report.namings.iter().find(|naming| naming.by == *by);
            let first_lie = (*heard).max(since);
            match of {
                Some(naming) => {
                    let took = naming.at.saturating_sub(first_lie);
                    assert!(took <= three, "seed {seed}, {lie:?}: {naming:?}");
                    last = last.max(took);
                    most = most.max(naming.answers);
                }
                // It was asked before it lied, and not since.
                None => assert!(*heard < since && since > 0, "seed {seed}, {lie:?}: {by}"),
            }
            hearers += u64::from(of.is_some() && first_lie + three < until);
        }
    }
    println!(
        "{lie:?}, trusted {trusted}: named {hearers} times, at most {last} ns and {most} answers after it was first heard"
    );
    assert!(hearers >= 30, "{lie:?}: the liar was heard {hearers} times");
}

#[test]
fn a_liar_among_twenty_is_named_within_three_polls_and_nobody_else_is() {
    for trusted in [true, false] {
        for lie in [Lie::Constant, Lie::TwoFaced] {
            named_within_three_polls(lie, Duration::ZERO, trusted);
        }
        // 5 ms a second are beyond all bounds, some 50 us, after 20 ms.
        named_within_three_polls(Lie::Ramp, Duration::from_millis(20), trusted);
        let since = Duration::from_secs(3);
        named_within_three_polls(Lie::Since(since), since, trusted);
    }
}

/// UTC has one origin: whoever says another is not believed, and keeps nobody from hearing the others.
#[test]
fn a_liar_with_another_origin_of_utc_harms_nobody() {
    for (liars, trusted, seed) in [(0, true, 1), (1, true, 2), (1, false, 3), (1, false, 4)] {
        let plan = Plan {
            liars,
            liar: Some((LIAR, 5_000_000)),
            lie: Lie::Origin,
            roots: if trusted { 1 } else { 4 },
            trusted,
            seeds: 6,
            peers: 5,
            poll: Duration::from_millis(100),
            ..Plan::cold(20, Link::LAN)
        };
        let report = run(&plan, seed);
        let expected = if trusted { 18 } else { 15 };
        assert_eq!(report.outside, 0);
        assert!(report.vouching() >= expected, "{liars} {trusted}: {}", report.vouching());
    }
}

/// Whoever dies, others' bounds grow with age only.
#[test]
fn a_death_widens_nothing_but_by_age() {
    let at_death = Duration::from_secs(3);
    let plan = |until| Plan { peers: 3, children: 6, until, ..Plan::cold(60, Link::LAN) };
    let run = |plan: &Plan, seed| {
        let mut world = World::new(plan, seed);
        world.run();
        world.widths()
    };
    let mut narrowed = 0;
    for victim in 0..60 {
        let seed = u64::from(victim) % 7;
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
                narrowed += u64::from(after < before);
            }
        }
    }
    // Those who are left go on asking each other: age does not take its whole share.
    assert!(narrowed > 100, "{narrowed}");
}

#[test]
fn one_seed_is_one_world() {
    let link = Link { loss: 0.1, ..Link::LAN };
    let rough = Plan { children: 5, restarts: 0.5, peers: 3, ..Plan::cold(50, link) };
    let succession = timevisor_cluster::succession::Settings {
        after: Duration::from_secs(2),
        step: Duration::from_secs(1),
        leads: true,
    };
    let deaths = vec![(0, Duration::from_secs(3), None)];
    let own = Plan { succession: Some(succession), seeds: 3, deaths, ..rough.clone() };
    let liar = Plan { liars: 1, liar: Some((7, 5_000_000)), ..rough.clone() };
    for plan in [rough, own, liar] {
        assert_eq!(run(&plan, 5), run(&plan, 5));
        assert_ne!(run(&plan, 5), run(&plan, 6));
    }
}

/// All at the same instant, and 16 addresses for everybody.
#[test]
fn a_start_of_many_at_once_takes_few_exchanges() {
    let until = Duration::from_secs(2);
    let plan = Plan { seeds: 16, until, ..Plan::cold(30_000, Link::RACK) };
    let report = run(&plan, 1);
    assert_eq!((report.vouching(), report.outside), (29_999, 0));
    assert!(report.vouching_ns(1000) < 1e9, "{}", report.vouching_ns(1000));
    assert!(report.exchanges(500) <= 12.0, "{}", report.exchanges(500));
    for (level, at) in &report.levels {
        let most = f64::from(*level) * 1.3 * 98_000.0;
        assert!(at.half_width_ns(990) < most, "level {level}: {}", at.half_width_ns(990));
    }
}
