//! Table 4: a walk through memory in which each load gives the next address (as in lat_mem_rd of
//! lmbench), timed by rdtsc, as in Memperf, or by the page. A measurement can begin in one process
//! and end in another, as in a container that migrates.
//!
//! It reads commands from standard input, each followed by `tsc` or `page`. `whole` prints the
//! timestamps at the beginning and the end; `begin` prints the first and then does half of the
//! walk; `end` does half of the walk and then prints the second. Timestamps are in ticks or in ns.

use std::hint::black_box;
use std::io::{BufRead as _, Write as _};

use anyhow::{Result, bail, ensure};
use timevisor_clock_page::Counter as _;
use timevisor_linux::counter::Tsc;

use crate::PageReader;

/// 1 MiB of words: more than a first-level cache.
const WORDS: usize = 1 << 17;
/// The loads of one walk, which take about a millisecond.
const LOADS: usize = 100_000;

pub(crate) fn work(page: &PageReader) -> Result<()> {
    let mut ring = Ring::new();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (what, clock) = line.split_once(' ').unwrap_or((&line, ""));
        let stamp = || -> Result<i128> {
            match clock {
                "tsc" => Ok(i128::from(Tsc::unchecked().read_ordered())),
                "page" => {
                    let reading = page.read()?;
                    ensure!(reading.has_estimate(), "the page knows no time");
                    Ok(i128::from(reading.estimate.floor_nanos()))
                }
                other => bail!("no clock {other:?}"),
            }
        };
        match what {
            "whole" => {
                let begin = stamp()?;
                ring.walk(LOADS);
                writeln!(out, "{begin} {}", stamp()?)?;
            }
            "begin" => {
                let begin = stamp()?;
                ring.walk(LOADS / 2);
                writeln!(out, "{begin}")?;
            }
            "end" => {
                ring.walk(LOADS / 2);
                writeln!(out, "{}", stamp()?)?;
            }
            other => bail!("no command {other:?}"),
        }
        out.flush()?;
    }
    Ok(())
}

/// One cycle through all words, in an order that a processor cannot predict.
struct Ring {
    next: Vec<usize>,
    at: usize,
}

impl Ring {
    fn new() -> Self {
        // Sattolo's shuffle yields a single cycle; xorshift64 is random enough for it.
        let mut next: Vec<usize> = (0..WORDS).collect();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for last in (1..WORDS).rev() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let other = usize::try_from(random % last as u64).unwrap_or(0);
            next.swap(last, other);
        }
        Self { next, at: 0 }
    }

    fn walk(&mut self, loads: usize) {
        for _ in 0..loads {
            self.at = black_box(self.next[self.at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_round_once() {
        let mut ring = Ring::new();
        let mut seen = vec![false; WORDS];
        for _ in 0..WORDS {
            ring.walk(1);
            assert!(!std::mem::replace(&mut seen[ring.at], true));
        }
        assert_eq!(ring.at, 0);
    }
}
