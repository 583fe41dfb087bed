//! Times batches of reads and summarizes them.

use std::hint::black_box;

use timevisor_clock_page::Counter;
use timevisor_linux::counter::Tsc;

/// Reads in a batch: the granule of many TSCs, 26 ticks or more, is then a fraction of a tick per
/// read.
pub(crate) const READS: u32 = 100;
/// Batches per candidate; a million reads.
pub(crate) const BATCHES: usize = 10_000;
/// Batches that one candidate runs before the next has its turn.
const BLOCK: usize = 100;

/// Times one batch, in ticks.
pub(crate) type Batch<'a> = Box<dyn FnMut() -> u64 + 'a>;

/// A batch of `read`, each result materialized in memory as a caller that keeps it would have it.
pub(crate) fn batch<'a, R>(mut read: impl FnMut() -> R + 'a) -> Batch<'a> {
    Box::new(move || {
        let tsc = Tsc::unchecked();
        let start = tsc.read_ordered();
        for _ in 0..READS {
            black_box(&read());
        }
        tsc.read_ordered().wrapping_sub(start)
    })
}

/// Ticks of every batch of every candidate, in turns, sorted.
pub(crate) fn measure(candidates: &mut [Batch<'_>]) -> Vec<Vec<u64>> {
    let mut ticks = vec![Vec::with_capacity(BATCHES); candidates.len()];
    for _ in 0..BATCHES / BLOCK {
        for (batch, ticks) in candidates.iter_mut().zip(&mut ticks) {
            // The first one brings code and data back into the caches and teaches the branch
            // predictor.
            batch();
            ticks.extend((0..BLOCK).map(|_| batch()));
        }
    }
    ticks.iter_mut().for_each(|ticks| ticks.sort_unstable());
    ticks
}

/// Median ticks of the bracket itself: what two ordered counter reads with nothing between them
/// differ by.
pub(crate) fn empty_bracket() -> u64 {
    let tsc = Tsc::unchecked();
    let mut ticks: Vec<u64> = (0..BATCHES)
        .map(|_| {
            let start = tsc.read_ordered();
            tsc.read_ordered().wrapping_sub(start)
        })
        .collect();
    ticks.sort_unstable();
    quantile(&ticks, 0.5)
}

/// The step in which the TSC advances: greatest common divisor of many differences.
pub(crate) fn granule() -> u64 {
    let tsc = Tsc::unchecked();
    let first = tsc.read_ordered();
    (0..1000).map(|_| tsc.read_ordered().wrapping_sub(first)).fold(0, gcd)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The value below which a share `q` of the sorted `ticks` lies.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a length is an index"
)]
pub(crate) fn quantile(ticks: &[u64], q: f64) -> u64 {
    let index = (ticks.len().saturating_sub(1) as f64 * q).round() as usize;
    ticks.get(index).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let ticks: Vec<u64> = (0..=100).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|q| quantile(&ticks, q)), [0, 50, 99, 100]);
        assert_eq!(quantile(&[], 0.5), 0);
    }

    #[test]
    fn the_granule_divides_every_difference() {
        assert_eq!([52, 78, 130].into_iter().fold(0, gcd), 26);
        assert!(granule() > 0);
    }
}
