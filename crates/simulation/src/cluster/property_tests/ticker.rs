//! A counter whose rate wanders within its limits, exactly: no rounding adds up.

use timevisor_time::RateError;

use crate::random::Random;

/// Parts of a tick in which the counter is kept.
const PARTS: i128 = 1_000_000_000_000;

/// From a moment on, ns: the counter then, in parts of a tick, and how fast it is, 1e-12.
#[derive(Clone, Copy, Debug)]
struct Segment {
    from: u64,
    parts: i128,
    ppt: i128,
}

/// A counter of one boot, at any moment. It goes on for ever, as a dead master's timeline does.
#[derive(Clone, Debug)]
pub struct Ticker(Vec<Segment>);

impl Ticker {
    /// Changes its rate at random moments until `end`, ns; a third of the rates are at a limit.
    pub fn new(dice: &mut Random, limit: RateError, end: u64) -> Self {
        // A tick may be this much longer or shorter than it says, so the counter may be faster by
        // 1 / (1 - limit), and slower by 1 / (1 + limit): rounded towards 0.
        #[expect(clippy::cast_possible_truncation, reason = "a limit is far below 1")]
        let ppt = (limit.ppb() * 1e3) as i128;
        let (fastest, slowest) = (ppt * PARTS / (PARTS - ppt), -(ppt * PARTS / (PARTS + ppt)) + 1);
        // One of the counters is about to wrap.
        let start = match dice.bits() % 4 {
            0 => u64::MAX - dice.bits() % 10_000_000_000,
            _ => dice.bits() >> 2,
        };
        let mut segments = Vec::new();
        let (mut from, mut parts) = (0, i128::from(start) * PARTS);
        while from < end {
            let ppt = match dice.bits() % 6 {
                0 => fastest,
                1 => slowest,
                _ => slowest + i128::from(dice.bits() >> 1) % (fastest - slowest + 1),
            };
            segments.push(Segment { from, parts, ppt });
            let span = super::log_range(dice, 10_000_000, 20_000_000_000);
            parts += i128::from(span) * (PARTS + ppt);
            from += span;
        }
        Self(segments)
    }

    /// The counter at this moment, rounded down as counters are read.
    pub fn at(&self, ns: u64) -> u64 {
        let index = self.0.partition_point(|segment| segment.from <= ns).saturating_sub(1);
        let Segment { from, parts, ppt } = self.0[index];
        let parts = parts + i128::from(ns - from) * (PARTS + ppt);
        u64::try_from((parts / PARTS).rem_euclid(1 << 64)).unwrap_or(0)
    }
}
