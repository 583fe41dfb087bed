//! What a random world is made of.

use timevisor_time::RateError;

use super::{chance, log_range, pick};
use crate::random::Random;

/// One direction between two hosts.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub minimum_ns: u64,
    pub queueing_ns: u64,
}

/// How a host lies. Offsets are in ns.
#[derive(Clone, Copy, Debug)]
pub enum Lie {
    /// The same to everybody.
    Offset(i64),
    /// It grows by this every second.
    Ramp(i64),
    /// Another one for each who asks, up to this.
    TwoFaced(i64),
    /// The time is right, the level is not.
    Level(u8),
    /// The time is right, but the master was heard just now, always.
    Silence,
    /// The time is right, but others are referred to these.
    Referrals(Referrals),
}

/// To whom a liar refers.
#[derive(Clone, Copy, Debug)]
pub enum Referrals {
    Nowhere,
    Itself,
    TheAsker,
    /// A host that answers, and is not of this cluster.
    Stranger,
}

/// A world inside the assumptions.
#[derive(Clone, Debug)]
pub struct Plan {
    pub nodes: usize,
    /// Those that know UTC by themselves, and how wrong their clocks are, below and above, ns. Empty:
    /// the cluster has a timeline of its own.
    pub roots: Vec<(usize, u64, u64)>,
    /// Believed alone.
    pub trusted: Option<usize>,
    /// As many may lie.
    pub liars: usize,
    pub liar: Option<(usize, Lie)>,
    /// At how many ports the liar answers, and is listed where it is; others at one.
    pub liar_ports: u16,
    pub seeds: Vec<Vec<usize>>,
    /// From the first to the second; `None` where no datagram ever arrives.
    pub paths: Vec<Vec<Option<Path>>>,
    pub loss: f64,
    pub duplicated: f64,
    pub late: f64,
    pub replayed: f64,
    pub truncated: f64,
    pub service_ns: Vec<u64>,
    /// Who answers nobody as often as bursts ask.
    pub limits: Vec<bool>,
    /// From reading the counter until a question leaves, at most.
    pub stamped_ns: u64,
    pub rate: RateError,
    pub peers: usize,
    pub poll_ns: u64,
    pub most: u32,
    pub spacing_ns: u64,
    pub children: usize,
    /// Moments at which a host dies, ns, and when it comes back.
    pub deaths: Vec<(usize, u64, Option<u64>)>,
    pub until_ns: u64,
}

impl Plan {
    pub fn is_liar(&self, host: usize) -> bool {
        self.liar.is_some_and(|(liar, _)| liar == host)
    }

    /// Whether everybody has all that it takes to have bounds soon.
    pub fn is_calm(&self) -> bool {
        let few = 2 * self.liars;
        let honest = self.roots.iter().filter(|(root, ..)| !self.is_liar(*root)).count();
        let heard = self.liars == 0 || self.trusted.is_some() || honest > few;
        let reached = self.paths.iter().enumerate().all(|(from, paths)| {
            paths.iter().enumerate().all(|(to, path)| from == to || path.is_some())
        });
        // Slower ones are asked more than they can answer.
        let in_time = self.service_ns.iter().all(|ns| *ns < 1_000_000);
        let all = !self.limits.contains(&true) && self.loss.max(self.late) < 0.01;
        heard && reached && in_time && all && self.deaths.is_empty()
    }

    pub fn own_timeline(&self) -> bool {
        self.roots.is_empty()
    }

    /// Against a timeline that is another counter's, both may be off.
    pub fn both(&self) -> RateError {
        if self.own_timeline() { self.rate.against(self.rate) } else { self.rate }
    }

    pub fn lies_about_time(&self) -> bool {
        let lie = self.liar.map(|(_, lie)| lie);
        matches!(lie, Some(Lie::Offset(_) | Lie::Ramp(_) | Lie::TwoFaced(_)))
    }

    /// The world of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut dice = Random::stream(seed, "cluster world");
        let dice = &mut dice;
        let nodes = 3 + pick(dice, 38);
        let own_timeline = chance(dice, 0.4);
        // On a timeline whose master is one host of many, nobody has heard enough to outvote a liar.
        let liars = usize::from(chance(dice, if own_timeline { 0.1 } else { 0.6 }));
        let trusted = !own_timeline && chance(dice, 0.5);
        let roots = match (own_timeline, trusted || liars == 0) {
            (true, _) => 0,
            (false, true) => 1 + pick(dice, 3),
            (false, false) => 3 + pick(dice, 3),
        };
        let mut hosts: Vec<usize> = (0..nodes).collect();
        shuffle(dice, &mut hosts);
        let roots: Vec<_> = hosts.iter().take(roots).map(|at| root(dice, *at)).collect();
        let trusted = roots.first().filter(|_| trusted).map(|(root, ..)| *root);
        let liar = *hosts.get(pick(dice, nodes)).unwrap_or(&0);
        // Some hosts are so near that nothing but rounding is left to be wrong by.
        let (nearest, rough) = (log_range(dice, 10, 1_000_000), log_range(dice, 2, 30));
        let mut liar = (trusted != Some(liar)).then(|| (liar, lie(dice, nearest * rough)));
        let may_lie = liars > 0 && chance(dice, 0.8);
        // Without any that may lie, false levels and referrals must not hurt all the same.
        liar = liar.filter(|(_, lie)| {
            let of_time = matches!(lie, Lie::Offset(_) | Lie::Ramp(_) | Lie::TwoFaced(_));
            may_lie || !of_time
        });
        let calm = chance(dice, 0.2);
        let missing = if !calm && chance(dice, 0.5) { dice.uniform() * 0.5 } else { 0.0 };
        let paths = paths(dice, nodes, missing, nearest, rough);
        let poll_ns = log_range(dice, 100_000_000, 2_000_000_000);
        let until_ns = poll_ns * 15 + if own_timeline { 40_000_000_000 } else { 2_000_000_000 };
        Self {
            nodes,
            trusted,
            liars,
            liar_ports: if liar.is_some() && chance(dice, 0.4) { 8 } else { 1 },
            liar,
            seeds: seeds(dice, &hosts, &roots, liars, liar.map(|(host, _)| host)),
            paths,
            loss: if !calm && chance(dice, 0.7) { dice.uniform() * 0.3 } else { 0.0 },
            duplicated: dice.uniform() * 0.2,
            late: if calm { 0.0 } else { dice.uniform() * 0.2 },
            replayed: dice.uniform() * 0.2,
            truncated: if chance(dice, 0.2) { 0.02 } else { 0.0 },
            stamped_ns: if chance(dice, 0.5) { 1 } else { log_range(dice, 10, 50_000) },
            service_ns: (0..nodes).map(|_| service(dice, calm)).collect(),
            limits: (0..nodes).map(|_| !calm && chance(dice, 0.1)).collect(),
            rate: RateError::from_ppm([1, 15, 15, 100, 500][pick(dice, 5)]),
            peers: if liars > 0 { 3 + pick(dice, 6) } else { pick(dice, 6) },
            poll_ns,
            most: 1 + u32::try_from(pick(dice, 16)).unwrap_or(0),
            spacing_ns: if chance(dice, 0.5) { 0 } else { log_range(dice, 10_000, 10_000_000) },
            children: 1 + pick(dice, 20),
            deaths: if calm { Vec::new() } else { deaths(dice, &hosts, until_ns) },
            until_ns,
            roots,
        }
    }

    /// For people.
    pub fn kind(&self) -> String {
        let (nodes, roots) = (self.nodes, self.roots.len());
        let trusted = if self.trusted.is_some() { "trusted" } else { "not trusted" };
        format!("{nodes} hosts, {roots} roots, {trusted}, {} peers", self.peers)
    }
}

fn shuffle(dice: &mut Random, hosts: &mut [usize]) {
    for last in (1..hosts.len()).rev() {
        hosts.swap(last, pick(dice, last + 1));
    }
}

fn root(dice: &mut Random, at: usize) -> (usize, u64, u64) {
    let mut error = || if chance(dice, 0.3) { 0 } else { log_range(dice, 10, 200_000) };
    (at, error(), error())
}

/// The longest path has this minimum, ns. Lies that are about as large could be true for some.
fn lie(dice: &mut Random, longest: u64) -> Lie {
    let sign = if chance(dice, 0.5) { 1 } else { -1 };
    let (low, high) =
        if chance(dice, 0.6) { (longest / 10, longest * 2) } else { (100, 50_000_000) };
    let offset = sign * i64::try_from(log_range(dice, low, high)).unwrap_or(0);
    match pick(dice, 9) {
        0..3 => Lie::Offset(offset),
        3 => Lie::Ramp(offset / 4),
        4 | 5 => Lie::TwoFaced(offset),
        6 => Lie::Level([0, 1, 7, 255][pick(dice, 4)]),
        7 => Lie::Silence,
        _ => Lie::Referrals(
            [Referrals::Nowhere, Referrals::Itself, Referrals::TheAsker, Referrals::Stranger]
                [pick(dice, 4)],
        ),
    }
}

fn paths(
    dice: &mut Random,
    nodes: usize,
    missing: f64,
    nearest: u64,
    rough: u64,
) -> Vec<Vec<Option<Path>>> {
    let path = |dice: &mut Random| {
        let minimum_ns = log_range(dice, nearest, nearest * rough);
        Path { minimum_ns, queueing_ns: log_range(dice, minimum_ns / 20 + 1, minimum_ns * 2) }
    };
    let mut paths = vec![vec![None; nodes]; nodes];
    let pairs = (0..nodes).flat_map(|first| (0..first).map(move |second| (first, second)));
    for (first, second) in pairs {
        // Half of those that are missing are missing in one direction only.
        let (both, one) = (chance(dice, missing / 2.0), chance(dice, missing / 2.0));
        let (there, back) = if chance(dice, 0.5) { (!one, true) } else { (true, !one) };
        paths[first][second] = (there && !both).then(|| path(dice));
        paths[second][first] = (back && !both).then(|| path(dice));
    }
    paths
}

fn seeds(
    dice: &mut Random,
    hosts: &[usize],
    roots: &[(usize, u64, u64)],
    liars: usize,
    liar: Option<usize>,
) -> Vec<Vec<usize>> {
    let list = |dice: &mut Random| {
        // The first ones are the roots.
        let own = if liars > 0 { roots.len() } else { roots.len().min(1) };
        let mut list: Vec<usize> = hosts.iter().take(own).copied().collect();
        let mut others: Vec<usize> =
            (0..1 + pick(dice, 4)).map(|_| hosts[pick(dice, hosts.len())]).collect();
        // Where some may lie, nobody is asked who is not listed.
        others.extend(liar.filter(|_| liars > 0 && chance(dice, 0.8)));
        for other in others {
            if !list.contains(&other) {
                list.insert(pick(dice, list.len() + 1), other);
            }
        }
        list
    };
    let common = list(dice);
    let differ = chance(dice, 0.3);
    hosts.iter().map(|_| if differ { list(dice) } else { common.clone() }).collect()
}

fn service(dice: &mut Random, calm: bool) -> u64 {
    if !calm && chance(dice, 0.1) {
        log_range(dice, 100_000, 20_000_000)
    } else {
        log_range(dice, 500, 50_000)
    }
}

fn deaths(dice: &mut Random, hosts: &[usize], until: u64) -> Vec<(usize, u64, Option<u64>)> {
    let mut count = pick(dice, 4);
    if chance(dice, 0.3) {
        count += hosts.len() / 3;
    }
    let death = |dice: &mut Random| {
        // Roots are the first: they die as often as all others together.
        let host = hosts[if chance(dice, 0.5) { 0 } else { pick(dice, hosts.len()) }];
        let at = 1 + dice.bits() % until;
        let back = chance(dice, 0.7).then(|| at + log_range(dice, 1_000_000, until));
        (host, at, back)
    };
    (0..count).map(|_| death(dice)).collect()
}
