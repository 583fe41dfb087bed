//! Widths against what docs/explanation and the links' parameters predict.
//!
//! **One burst.** On one edge of one-way minimum `d` and mean exponential queueing `q`, the best of `m`
//! forward messages is late by `d + Exp(q/m)`, and so is, apart from it, the best backward message:
//! these are the distances of the latest and of the earliest end from the truth. The half-width is
//! half of their sum, `d + Gamma(2)/2 q/m` in distribution, on average `d + q/m`. Edges add up: at level
//! L (L edges from the master) it is `L d + Gamma(2L)/2 q/m`.
//!
//! **Polls.** Afterwards every peer is asked once every `P`. An answer that was `x` late and is `a` old
//! puts an end at `x + g a` beyond the minimum, where `g` is what the counter's limits allow to that
//! side: with limits of `r` and a counter that is off by `e`, `r - e` on one side and `r + e` on the
//! other. An end is the best of all past answers:
//!
//! ```text
//! U(t) = min over answers i of [ U_server(t_i) + d + x_i + g (t - t_i) ],    U_master = 0
//! ```
//!
//! For one peer and many answers within `q / g` that is a Rayleigh distribution of scale
//! `sqrt(g q P)` beyond `d`. In general [`Model`] draws from the formula, without any state machine.
//! Further peers of the same level share the edge's minimum, and only bring more answers; a peer that
//! is one level further adds an edge, and helps as far as `g P` and `q` are large against `d`.

use super::*;
use crate::random::Random;

const LINKS: [(&str, Link); 4] = [
    ("data centre", Link::DATA_CENTRE),
    ("rack", Link::RACK),
    ("lan", Link::LAN),
    ("wan", Link::WAN),
];
const ANSWERS: u32 = 8;
/// Limits of all counters, ns a s.
const RATE: f64 = 15_000.0;

fn run(plan: &Plan, seed: u64) -> Report {
    let mut world = World::new(plan, seed);
    world.run();
    world.report()
}

/// Level 1 asks the root alone, with room for everybody; level 2 asks hosts of level 1 alone.
fn pure(level: u8, link: Link) -> Plan {
    let first_seed = u32::from(level) - 1;
    let seeds = if level == 1 { 1 } else { 21 };
    let start = Duration::from_secs(2);
    Plan { children: 10_000, first_seed, seeds, start, ..Plan::cold(1_000, link) }
}

/// (level + 1) x 1.3 x the one-way minimum, plus queueing: on each of the edges `q/m`, the mean of what
/// the best of `m` answers is late by. A hundredth of the nodes may be above it.
#[test]
fn cold_widths_are_as_the_links_say() {
    println!("link, level: half-width median and p99, predicted median and p99, criterion, us");
    for (name, link) in LINKS {
        for level in [1, 2] {
            // What hosts age before they are asked is no matter of the link.
            let start = Duration::from_millis(20);
            let report = run(&Plan { start, ..pure(level, link) }, 1);
            let at = &report.levels[&level];
            let (median, p99) = (at.half_width_ns(500), at.half_width_ns(990));
            assert!(at.nodes() > 900, "{name}: {} nodes", at.nodes());
            let edges = f64::from(level);
            let d = f64::from(link.minimum_ns);
            let queueing = f64::from(link.queueing_ns) / f64::from(ANSWERS);
            let criterion = (edges + 1.0) * 1.3 * d + edges * queueing;
            // Of Gamma(2) and of Gamma(4).
            let [middle, high] = if level == 1 { [1.678, 6.638] } else { [3.672, 10.045] };
            let predicted = |gamma: f64| edges * d + gamma / 2.0 * queueing;
            println!(
                "{name}, {level}: {:.2} {:.2}, {:.2} {:.2}, {:.2}",
                median * 1e-3,
                p99 * 1e-3,
                predicted(middle) * 1e-3,
                predicted(high) * 1e-3,
                criterion * 1e-3
            );
            assert!(p99 <= criterion, "{name}, level {level}: {p99} > {criterion}");
            // A burst, and 20 ms of age at level 2.
            let (least, most) = (predicted(middle) * 0.98, predicted(middle) * 1.02 + 500.0);
            assert!((least..most).contains(&median), "{name}, {level}: {median}");
        }
    }
}

/// Draws from the formula for `U`. What happened at one moment is a function of who, whom, and when,
/// so that both see the same.
struct Model {
    d: f64,
    q: f64,
    /// Seconds.
    poll: f64,
    seed: u64,
}

impl Model {
    fn draw(&self, what: [u64; 3]) -> Random {
        let mix = |hash: u64, part: &u64| {
            (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
        Random::new(what.iter().fold(self.seed, mix))
    }

    /// How far the end of this side (0 or 1) of a host is from the truth at `t`, s, when it asks `peers`,
    /// each of which is a host and whom that asks; host 0 is the master.
    fn end(&self, host: &Host, side: u64, t: f64) -> f64 {
        if host.id == 0 {
            return 0.0;
        }
        let off = self.draw([host.id, 0, 0]).uniform() * 2.0 - 1.0;
        let growth = RATE * if side == 0 { 1.0 - off } else { 1.0 + off };
        let mut best = f64::INFINITY;
        for peer in &host.peers {
            let phase = self.draw([host.id, peer.id, 1]).uniform() * self.poll;
            let last = ((t - phase) / self.poll).floor();
            for back in 0..12 {
                let number = last - f64::from(back);
                let at = phase + number * self.poll;
                let least = self.d + growth * (t - at);
                if least >= best {
                    break;
                }
                let count = number.to_bits();
                let late =
                    self.draw([host.id ^ (side << 60), peer.id, count]).exponential() * self.q;
                best = best.min(least + late + self.end(peer, side, at));
            }
        }
        best
    }
}

struct Host {
    id: u64,
    peers: Vec<Host>,
}

/// A host of this level that asks one server of the level before, and `others` of its own level, which
/// ask their servers alone.
fn host(level: u8, others: u64, id: u64) -> Host {
    if level == 0 {
        return Host { id: 0, peers: Vec::new() };
    }
    let mut peers = vec![host(level - 1, 0, if level == 1 { 0 } else { id + 1_000 })];
    peers.extend((0..others).map(|other| host(level, 0, id + 1 + other)));
    Host { id, peers }
}

/// The median half-width that the formula gives, ns.
fn predicted(link: Link, level: u8, peers: u64) -> f64 {
    let (d, q) = (f64::from(link.minimum_ns), f64::from(link.queueing_ns));
    let half = |seed| {
        let model = Model { d, q, poll: 1.0, seed };
        let host = host(level, peers - 1, 1);
        (model.end(&host, 0, 0.0) + model.end(&host, 1, 0.0)) / 2.0
    };
    let mut all: Vec<f64> = (0..2_000).map(half).collect();
    all.sort_by(f64::total_cmp);
    quantile(&all, 500)
}

#[test]
fn peers_narrow_bounds_as_the_links_say() {
    println!("link, level, peers: half-width median, predicted, us");
    let mut wrong = Vec::new();
    for (name, link) in LINKS {
        for level in [1, 2] {
            for peers in [0, 1, 3] {
                let until = Duration::from_secs(15);
                let plan = Plan { peers, until, ..pure(level, link) };
                let report = run(&Plan { nodes: 300, ..plan }, 1);
                let median = report.levels[&level].half_width_at_end_ns(500);
                let theory = if peers == 0 {
                    // A burst, and age since: 14 s on average.
                    let gamma = if level == 1 { 1.678 } else { 3.672 };
                    let (d, q) = (f64::from(link.minimum_ns), f64::from(link.queueing_ns));
                    let server = if level == 1 { 0.0 } else { 1.0 };
                    f64::from(level) * d
                        + gamma / 2.0 * q / f64::from(ANSWERS)
                        + RATE * (14.0 + server)
                } else {
                    predicted(link, level, peers as u64)
                };
                println!(
                    "{name}, {level}, {peers}: {:.2}, {:.2} ({:.3})",
                    median * 1e-3,
                    theory * 1e-3,
                    median / theory
                );
                if !(0.9..1.1).contains(&(median / theory)) {
                    wrong.push(format!(
                        "{name}, level {level}, {peers} peers: {median} and {theory}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
