//! Figures of a simulated cluster.

use std::collections::BTreeMap;

use timevisor_cluster::node::Origin;
use timevisor_time::Duration;

use super::world::Vouched;

/// Nodes of one level.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Level {
    /// Their half-widths when they first vouched, ascending, ns.
    half_widths: Vec<f64>,
    /// The same at the end.
    at_end: Vec<f64>,
}

impl Level {
    /// How many nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.half_widths.len()
    }

    /// The half-width, when they first vouched for bounds, that so many of a thousand nodes do not
    /// exceed, ns.
    #[must_use]
    pub fn half_width_ns(&self, permille: usize) -> f64 {
        quantile(&self.half_widths, permille)
    }

    /// The same at the end.
    #[must_use]
    pub fn half_width_at_end_ns(&self, permille: usize) -> f64 {
        quantile(&self.at_end, permille)
    }
}

/// A node that found another one to lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Naming {
    /// Who says so, of whom.
    pub by: u32,
    /// See `by`.
    pub named: u32,
    /// When, ns.
    pub at: u64,
    /// When it was first heard, ns, and how many answers it has given until then.
    pub heard: u64,
    /// See `heard`.
    pub answers: u32,
}

/// What a cluster did.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Nodes, the root included.
    pub nodes: u32,
    /// When each node vouched for bounds, ascending, ns; those that never did are missing.
    vouch: Vec<f64>,
    /// Questions of each node, ascending.
    asked: Vec<f64>,
    /// Of these, those that were answered, ascending.
    answered: Vec<f64>,
    /// By the number of servers to the master, when they first vouched.
    pub levels: BTreeMap<u8, Level>,
    /// Questions and answers of all.
    pub messages: u64,
    /// Questions that the busiest server was asked.
    pub busiest: u64,
    /// Bounds that were vouched for and compared with the truth.
    pub judged: u64,
    /// Those without the truth.
    pub outside: u64,
    /// Who named whom as a liar.
    pub named: Vec<(u32, u32)>,
    /// The same, with more.
    pub namings: Vec<Naming>,
    /// Who heard the liar, first when, ns, and how often.
    pub heard_liar: Vec<(u32, u64, u32)>,
    /// Nodes that became master, when, ns, and the generation of their origin.
    pub masters: Vec<(u32, u64, u32)>,
    /// How often an estimate was below an earlier one of the same node.
    pub backward: u64,
    /// Origins that nodes have at the end, and the greatest of them.
    pub origins_at_end: usize,
    /// See `origins_at_end`.
    pub last_origin: Option<Origin>,
    /// Who vouched for bounds without the truth, and when, ns.
    pub wrong: Vec<(u32, u64)>,
    /// Nodes that said that their origin is another one, and when, ns.
    pub changes: Vec<(u32, u64)>,
    /// How often one changed without that.
    pub silent_changes: u64,
}

impl Report {
    pub(super) fn new(nodes: u32) -> Self {
        Self {
            nodes,
            vouch: Vec::new(),
            asked: Vec::new(),
            answered: Vec::new(),
            levels: BTreeMap::new(),
            messages: 0,
            busiest: 0,
            judged: 0,
            outside: 0,
            named: Vec::new(),
            namings: Vec::new(),
            heard_liar: Vec::new(),
            masters: Vec::new(),
            backward: 0,
            origins_at_end: 0,
            last_origin: None,
            wrong: Vec::new(),
            changes: Vec::new(),
            silent_changes: 0,
        }
    }

    pub(super) fn add(
        &mut self,
        vouched: Option<Vouched>,
        [asked, answered]: [u32; 2],
        at_end: Option<Duration>,
    ) {
        self.asked.push(f64::from(asked));
        self.answered.push(f64::from(answered));
        let Some(vouched) = vouched else { return };
        self.vouch.push(vouched.at as f64);
        let level = self.levels.entry(vouched.level).or_default();
        let half = |width: Duration| width.as_secs_f64() * 5e8;
        level.half_widths.push(half(vouched.width));
        level.at_end.extend(at_end.map(half));
    }

    pub(super) fn finish(&mut self) {
        self.vouch.sort_by(f64::total_cmp);
        self.asked.sort_by(f64::total_cmp);
        self.answered.sort_by(f64::total_cmp);
        for level in self.levels.values_mut() {
            level.half_widths.sort_by(f64::total_cmp);
            level.at_end.sort_by(f64::total_cmp);
        }
    }

    /// Nodes that vouch for bounds, without the root.
    #[must_use]
    pub fn vouching(&self) -> usize {
        self.vouch.len()
    }

    /// When so many of a thousand of those nodes did, ns.
    #[must_use]
    pub fn vouching_ns(&self, permille: usize) -> f64 {
        quantile(&self.vouch, permille)
    }

    /// When each of them did, ascending, ns.
    #[must_use]
    pub fn all_vouching_ns(&self) -> &[f64] {
        &self.vouch
    }

    /// Questions that so many of a thousand nodes do not exceed.
    #[must_use]
    pub fn questions(&self, permille: usize) -> f64 {
        quantile(&self.asked, permille)
    }

    /// Exchanges, of a question and its answer, that so many of a thousand nodes do not exceed.
    #[must_use]
    pub fn exchanges(&self, permille: usize) -> f64 {
        quantile(&self.answered, permille)
    }
}

/// The value that so many of a thousand do not exceed; NaN of nothing.
#[must_use]
pub fn quantile(sorted: &[f64], permille: usize) -> f64 {
    let index = (sorted.len() * permille).div_ceil(1000).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(f64::NAN)
}
