//! Random clusters inside the assumptions: whatever the graph, the paths, losses, repetitions, replays,
//! deaths, counters and, where one may lie, its lies, nobody honest vouches for bounds without the
//! truth, and nobody honest is named.
//!
//! The clients, servers and datagrams are those that hosts run; each world draws its parts from its
//! seed. `TIMEVISOR_CLUSTER_BOUNDS` says how many bounds are to be judged, and
//! `TIMEVISOR_CLUSTER_SEED` which world is first:
//!
//! ```text
//! TIMEVISOR_CLUSTER_BOUNDS=1000000 cargo test --profile quick -p timevisor-simulation \
//!     random_clusters -- --nocapture
//! ```

mod liar;
mod plan;
mod ticker;
mod world;

use std::ops::AddAssign;

use timevisor_time::Duration;

use crate::random::Random;
use plan::Plan;
use world::World;

/// Bounds that an ordinary test run judges.
const BOUNDS: u64 = 500_000;

/// What random worlds have shown so far.
#[derive(Clone, Debug, Default)]
struct Judged {
    worlds: u64,
    answers: u64,
    /// Bounds that somebody vouched for, compared with the truth.
    bounds: u64,
    outside: u64,
    /// Delivered late, twice, or by somebody who had kept them.
    late: u64,
    duplicated: u64,
    replayed: u64,
    /// Answers that came when none was expected from there, and those to no question that waited.
    unasked: u64,
    strays: u64,
    deaths: u64,
    restarts: u64,
    /// Origins of the cluster's own timelines, hosts that went over to another one, those of them that
    /// its master had heard before, and estimates of any that went back then.
    origins: u64,
    crossings: u64,
    provided: u64,
    backward: u64,
    /// How often a liar was named.
    named: u64,
    /// Hosts of calm worlds, each of which has bounds in the end.
    in_the_end: u64,
    wrong: Vec<String>,
}

impl AddAssign for Judged {
    fn add_assign(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.answers += other.answers;
        self.bounds += other.bounds;
        self.outside += other.outside;
        self.late += other.late;
        self.duplicated += other.duplicated;
        self.replayed += other.replayed;
        self.unasked += other.unasked;
        self.strays += other.strays;
        self.deaths += other.deaths;
        self.restarts += other.restarts;
        self.origins += other.origins;
        self.crossings += other.crossings;
        self.provided += other.provided;
        self.backward += other.backward;
        self.named += other.named;
        self.in_the_end += other.in_the_end;
        self.wrong.extend(other.wrong);
    }
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn random_clusters_hold_the_truth() {
    let bounds = number("TIMEVISOR_CLUSTER_BOUNDS", BOUNDS);
    let mut seed = number("TIMEVISOR_CLUSTER_SEED", 0);
    let mut all = Judged::default();
    while all.bounds < bounds {
        let plan = Plan::new(seed);
        let told = format!("{}; {:?} of {} may lie", plan.kind(), plan.liar, plan.liars);
        let mut one = World::run(plan, seed);
        one.wrong.truncate(3);
        one.wrong.iter_mut().for_each(|text| *text = format!("seed {seed} ({told}): {text}"));
        all += one;
        seed += 1;
    }
    let wrong = std::mem::take(&mut all.wrong);
    println!("{all:?}");
    let first: Vec<_> = wrong.iter().take(20).collect();
    assert!(wrong.is_empty() && all.outside == 0, "{} are wrong: {first:#?}", wrong.len());
    if bounds < BOUNDS {
        return;
    }
    // The worlds have had all of it.
    let had = [all.late, all.duplicated, all.replayed, all.unasked, all.strays];
    assert!(had.iter().all(|count| *count > 1_000), "{all:?}");
    let had = [all.deaths, all.restarts, all.origins, all.provided, all.named, all.in_the_end];
    assert!(had.iter().all(|count| *count > 10), "{all:?}");
}

fn span(ns: u64) -> Duration {
    Duration::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX))
}

fn chance(dice: &mut Random, share: f64) -> bool {
    dice.chance(share)
}

fn pick(dice: &mut Random, count: usize) -> usize {
    usize::try_from(dice.bits() % count.max(1) as u64).unwrap_or(0)
}

/// Between the two, and as likely in each decade.
fn log_range(dice: &mut Random, low: u64, high: u64) -> u64 {
    let (low, high) = (low.max(1) as f64, high.max(2) as f64);
    let ns = libm::exp(libm::log(low) + (libm::log(high) - libm::log(low)) * dice.uniform());
    u64::try_from(Duration::from_secs_f64(ns * 1e-9).floor_nanos()).unwrap_or(1)
}
