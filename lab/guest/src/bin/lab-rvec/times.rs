//! Tables 1 and 2: 5,000 arithmetic instructions, 10,000 times a run. First with one read of a
//! clock in the middle, timed from outside: the cost of the clock. Then each block is timed by the
//! clock itself: the quality of the clock.
//!
//! The clocks take turns within every run, so that a noisy moment of the machine affects all of
//! them.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use timevisor_clock_page::Counter as _;
use timevisor_linux::affinity;
use timevisor_linux::clock::process_cpu_nanos;
use timevisor_linux::counter::Tsc;

use crate::PageReader;

type Age = timevisor_time::Instant<timevisor_time::Local>;

const BLOCKS: usize = 10_000;
/// One multiplication and one exclusive or per iteration: half of the paper's 5,000 instructions.
const HALF: u32 = 1_250;
/// A moving program changes its processor after this many blocks, between two of them.
const STAY: usize = 100;

/// What is needed to time with a clock.
struct Clock<'a> {
    name: &'static str,
    /// Whether the program moves.
    moves: bool,
    run: Run<'a>,
}

/// Appends the us of every block; returns how many readings were not later than the one before.
type Run<'a> = Box<dyn FnMut(&mut Vec<f64>) -> u64 + 'a>;

pub(crate) fn times(page: &PageReader, runs: usize) -> Result<Value> {
    let processors = affinity::allowed()?;
    let [first, second, ..] = processors[..] else { bail!("two processors are needed") };
    affinity::pin(first)?;
    let tsc = Tsc::unchecked();
    let tick_us = tick_us();
    // A page that no longer knows the time would show as readings that are not later: None sorts
    // before everything.
    let elapsed = || page.read_estimate().ok().flatten();
    ensure!(elapsed().is_some(), "the elapsed clock is not known yet");

    let mut costs = [
        ("Base", Vec::new()),
        ("TSC", Vec::new()),
        ("MONOTONIC", Vec::new()),
        ("PROCESS_CPUTIME", Vec::new()),
        ("elapsed", Vec::new()),
    ];
    let of_tsc = |a: u64, b: u64| b.wrapping_sub(a).cast_signed() as f64 * tick_us;
    let of_elapsed = |a: Option<Age>, b: Option<Age>| {
        b.zip(a).map_or(f64::NAN, |(b, a)| (b - a).to_bits() as f64 / 2f64.powi(64) * 1e6)
    };
    let both = Some((first, second));
    let mut clocks: Vec<Clock<'_>> = vec![
        timed("TSC", None, || tsc.read_ordered(), of_tsc),
        timed("TSC", both, || tsc.read_ordered(), of_tsc),
        timed("MONOTONIC", None, Instant::now, |a: Instant, b| (b - a).as_secs_f64() * 1e6),
        timed("PROCESS_CPUTIME", None, process_cpu_nanos, |a: u64, b| {
            b.wrapping_sub(a) as f64 / 1e3
        }),
        timed("elapsed", None, elapsed, of_elapsed),
        timed("elapsed", both, elapsed, of_elapsed),
    ];
    let mut found: Vec<(Vec<f64>, u64, Vec<f64>)> =
        clocks.iter().map(|_| Default::default()).collect();
    for _ in 0..runs {
        costs[0].1.push(cost(|| ()));
        costs[1].1.push(cost(|| tsc.read_ordered()));
        costs[2].1.push(cost(Instant::now));
        costs[3].1.push(cost(process_cpu_nanos));
        costs[4].1.push(cost(elapsed));
        for (clock, (all, not_later, means)) in clocks.iter_mut().zip(&mut found) {
            let before = all.len();
            *not_later += (clock.run)(all);
            affinity::pin(first)?;
            means.push(mean(&all[before..]));
        }
    }
    let table_1: Vec<Value> =
        costs.iter().map(|(name, runs)| json!({"clock": name, "runs_us": runs})).collect();
    let table_2 = clocks.iter().zip(found).map(|(clock, (mut all, not_later, runs))| {
        let (mean, count) = (mean(&all), all.len());
        let sd = (all.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / count as f64).sqrt();
        all.sort_unstable_by(f64::total_cmp);
        let at = |per_mille: usize| all[(count - 1) * per_mille / 1000];
        json!({"clock": clock.name, "moves": clock.moves, "count": count, "mean_us": mean, "sd_us": sd, "min_us": all[0],
               "median_us": at(500), "p99_us": at(990), "not_later": not_later, "runs_us": runs})
    });
    let table_2: Vec<Value> = table_2.collect();
    Ok(json!({"blocks": BLOCKS, "stay": STAY, "table_1": table_1, "table_2": table_2}))
}

/// us per block with one read in its middle, by CLOCK_MONOTONIC around all blocks.
fn cost<T>(read: impl Fn() -> T) -> f64 {
    let began = Instant::now();
    let mut x = black_box(1);
    for _ in 0..BLOCKS {
        x = half(x);
        black_box(read());
        x = half(x);
    }
    black_box(x);
    began.elapsed().as_secs_f64() * 1e6 / BLOCKS as f64
}

/// A clock whose runs time every block.
fn timed<'a, T: Copy + PartialOrd + 'a>(
    name: &'static str,
    moves: Option<(usize, usize)>,
    read: impl Fn() -> T + 'a,
    us: impl Fn(T, T) -> f64 + 'a,
) -> Clock<'a> {
    let run = move |out: &mut Vec<f64>| {
        let (mut x, mut not_later) = (black_box(1), 0);
        let mut last = read();
        for n in 0..BLOCKS {
            if let Some((even, odd)) = moves
                && n % STAY == 0
            {
                let to = if (n / STAY).is_multiple_of(2) { odd } else { even };
                // The target was one of the allowed processors; if it no longer is, the program
                // stays.
                let _ = affinity::pin(to);
            }
            let begin = read();
            x = half(half(x));
            let end = read();
            not_later += u64::from(begin <= last) + u64::from(end <= begin);
            last = end;
            out.push(us(begin, end));
        }
        black_box(x);
        not_later
    };
    Clock { name, moves: moves.is_some(), run: Box::new(run) }
}

/// Each step depends on the one before, and a product followed by an exclusive or cannot be folded
/// into the next step (a product and a sum can: compilers merge five such steps into one).
#[inline(never)]
fn half(mut x: u64) -> u64 {
    for _ in 0..HALF {
        x = x.wrapping_mul(6_364_136_223_846_793_005) ^ 1_442_695_040_888_963_407;
    }
    x
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// us per tick of the TSC, measured against CLOCK_MONOTONIC over a fifth of a second.
fn tick_us() -> f64 {
    let tsc = Tsc::unchecked();
    let (start, from) = (Instant::now(), tsc.read_ordered());
    std::thread::sleep(std::time::Duration::from_millis(200));
    let (took, to) = (start.elapsed(), tsc.read_ordered());
    took.as_secs_f64() * 1e6 / to.wrapping_sub(from) as f64
}
