//! Figures of a simulated cluster.

use std::collections::BTreeMap;

use timevisor_time::Duration;

/// Nodes of one level.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Level {
    /// Their half-widths at the end, ascending, ns.
    half_widths: Vec<f64>,
}

impl Level {
    /// How many nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.half_widths.len()
    }

    /// The half-width that so many of a thousand nodes do not exceed, ns.
    #[must_use]
    pub fn half_width_ns(&self, permille: usize) -> f64 {
        quantile(&self.half_widths, permille)
    }
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
    /// By the number of servers to the master.
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
}

impl Report {
    pub(super) fn new(nodes: u32) -> Self {
        Self {
            nodes,
            vouch: Vec::new(),
            asked: Vec::new(),
            levels: BTreeMap::new(),
            messages: 0,
            busiest: 0,
            judged: 0,
            outside: 0,
            named: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        vouches_at: Option<u64>,
        asked: u32,
        level: Option<u8>,
        width: Option<Duration>,
    ) {
        self.vouch.extend(vouches_at.map(|at| at as f64));
        self.asked.push(f64::from(asked));
        if let Some((level, width)) = level.zip(width) {
            let half_width = width.as_secs_f64() * 5e8;
            self.levels.entry(level).or_default().half_widths.push(half_width);
        }
    }

    pub(super) fn finish(&mut self) {
        self.vouch.sort_by(f64::total_cmp);
        self.asked.sort_by(f64::total_cmp);
        for level in self.levels.values_mut() {
            level.half_widths.sort_by(f64::total_cmp);
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

    /// Questions that so many of a thousand nodes do not exceed.
    #[must_use]
    pub fn questions(&self, permille: usize) -> f64 {
        quantile(&self.asked, permille)
    }
}

/// NaN of nothing.
fn quantile(sorted: &[f64], permille: usize) -> f64 {
    let index = (sorted.len() * permille).div_ceil(1000).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(f64::NAN)
}
