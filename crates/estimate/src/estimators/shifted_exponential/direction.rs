//! The recent history of one direction of a path, in addition to the filter's state.

use super::parameters::WINDOW;
use super::ring::Ring;

/// Number of blocks of residuals whose minima are remembered: 112 blocks of 12 exchanges are six
/// hours at 16 s polls.
const BLOCKS: usize = 112;
/// The newest blocks may already lie behind a shift that is being searched for: [`WINDOW`]
/// exchanges span no more blocks than this.
const BLOCKS_UNDER_SUSPICION: usize = 3;
/// Number of past blocks that are needed before their minima define the usual level.
const ENOUGH_BLOCKS: usize = 8;

/// Queueing and recent residuals of one direction.
#[derive(Clone, Copy, Debug)]
pub struct Direction {
    /// Mean queueing beyond the minimum, s.
    pub queueing_s: f64,
    /// Late messages in a row.
    pub late_run: usize,
    /// How much later than the earliest expected moment the newest messages arrived, s. In single
    /// precision, like the minima of blocks, because every exchange that may be taken back has a
    /// copy of both.
    residuals: Ring<f32, WINDOW>,
    block_minima: Ring<f32, BLOCKS>,
    in_block: usize,
}

impl Direction {
    /// Creates a direction without any messages yet.
    pub const fn new(queueing_s: f64) -> Self {
        Self {
            queueing_s,
            late_run: 0,
            residuals: Ring::new(0.0),
            block_minima: Ring::new(0.0),
            in_block: 0,
        }
    }

    /// Moves the mean queueing towards a delay of `excess_s` that is ordinary with probability
    /// `ordinary`.
    pub fn average(&mut self, excess_s: f64, ordinary: f64, gain: f64, limits_s: [f64; 2]) {
        let moved = self.queueing_s + gain * ordinary * (excess_s - self.queueing_s);
        self.queueing_s = moved.clamp(limits_s[0], limits_s[1]);
    }

    /// Records a residual; the minima of blocks of `block` residuals define the usual level.
    pub fn record(&mut self, residual_s: f64, block: usize) {
        self.residuals.push(single(residual_s));
        self.in_block += 1;
        if self.in_block == block {
            self.in_block = 0;
            if self.residuals.len() >= block {
                self.block_minima.push(single(self.least(block)));
            }
        }
    }

    /// How much later than the earliest expected moment the newest messages arrived, s.
    pub const fn residuals(&self) -> &Ring<f32, WINDOW> {
        &self.residuals
    }

    /// The least residual of the newest `exchanges`, s.
    pub fn least(&self, exchanges: usize) -> f64 {
        self.residuals.smallest_of_newest(exchanges)
    }

    /// Number of residuals.
    pub const fn len(&self) -> usize {
        self.residuals.len()
    }

    /// The largest of the minima of earlier blocks, s: the level that was reached without a shift.
    /// `None` until enough is known.
    pub fn record_minimum(&self) -> Option<f64> {
        (self.block_minima.len() >= ENOUGH_BLOCKS).then(|| {
            let minima = self.block_minima.newest().skip(BLOCKS_UNDER_SUSPICION);
            minima.fold(0.0, |a, b| f64::max(a, b.into()))
        })
    }

    /// Resets the residuals after the minimum has moved: those against the old one are meaningless.
    pub fn forget(&mut self) {
        self.residuals.clear();
        self.block_minima.clear();
        self.in_block = 0;
    }

    /// A suspicion was not confirmed, so the search restarts once enough new messages have been
    /// seen.
    pub fn acquit(&mut self) {
        self.late_run = 0;
        self.residuals.clear();
    }
}

#[expect(clippy::cast_possible_truncation, reason = "seven digits of a residual are enough")]
const fn single(value: f64) -> f32 {
    value as f32
}
