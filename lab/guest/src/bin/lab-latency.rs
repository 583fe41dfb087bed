//! lab-latency: how long one read of a clock takes, by QuartzV's method: read it repeatedly without
//! pause, and take the differences between adjacent readings. Prints one line of JSON.
//!
//! `lab-latency SECONDS READS [NAME=PAGE ...]` does rounds of READS reads of every clock, one clock
//! after the other, for SECONDS. Each round gives a minimum, mean, median and standard deviation;
//! it prints their means over the rounds. The differences are measured on the clock that is read;
//! TSC ticks are converted at the TSC's rate against CLOCK_MONOTONIC. It stores the readings and
//! computes afterwards, so only the store is timed along with the read.
#![forbid(unsafe_code)]

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use timevisor_clock_page::reader::counter_of;
use timevisor_clock_page::{Counter, CounterId, Reader};
use timevisor_linux::counter::{MonotonicRaw, Tsc};
use timevisor_linux::page::ReadPage;

#[path = "../pages.rs"]
mod pages;

/// The paper's number of repetitions; more would not change a mean.
const MOST_ROUNDS: u32 = 1000;

/// Appends the ns between adjacent readings.
type Round = Box<dyn FnMut(&mut Vec<f64>)>;

struct Clock {
    name: String,
    round: Round,
    sums: Figures,
}

#[derive(Default, Clone, Copy)]
struct Figures {
    min: f64,
    mean: f64,
    median: f64,
    sd: f64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seconds, reads, pages @ ..] = &arguments[..] else {
        bail!("usage: lab-latency SECONDS READS [NAME=PAGE ...]")
    };
    let (seconds, reads): (f64, usize) = (seconds.parse()?, reads.parse()?);
    ensure!(reads >= 2, "READS: at least 2");
    let tick_ns = tick_ns();
    let mut clocks = vec![
        clock(
            "TSC",
            reads,
            || Tsc::unchecked().read_unordered(),
            move |a: u64, b| b.wrapping_sub(a) as f64 * tick_ns,
        ),
        // clock_gettime(2) through the vDSO, as the standard library calls it.
        clock("CLOCK_REALTIME", reads, SystemTime::now, |a: SystemTime, b| {
            b.duration_since(a).map_or(0.0, |d| d.as_nanos() as f64)
        }),
        clock("CLOCK_MONOTONIC", reads, Instant::now, |a: Instant, b| {
            b.duration_since(a).as_nanos() as f64
        }),
    ];
    for page in pages {
        let (name, path) = page.split_once('=').context("a page is given as NAME=PATH")?;
        clocks.push(of_page(name, Path::new(path), reads)?);
    }
    let (start, end) = (Instant::now(), Duration::from_secs_f64(seconds));
    let mut differences = Vec::with_capacity(reads);
    let mut rounds = 0;
    while rounds == 0 || (start.elapsed() < end && rounds < MOST_ROUNDS) {
        for clock in &mut clocks {
            (clock.round)(&mut differences);
            clock.sums.add(&figures(&mut differences));
        }
        rounds += 1;
    }
    let rows: Vec<Value> = clocks.iter().map(|c| c.sums.row(&c.name, rounds)).collect();
    println!(
        "{}",
        json!({"clocksource": clocksource(), "rounds": rounds, "reads": reads, "rows": rows})
    );
    Ok(())
}

fn clock<T: Copy + 'static>(
    name: &str,
    reads: usize,
    mut read: impl FnMut() -> T + 'static,
    nanos: impl Fn(T, T) -> f64 + 'static,
) -> Clock {
    let mut readings = vec![read(); reads];
    let round = move |differences: &mut Vec<f64>| {
        for reading in &mut readings {
            *reading = read();
        }
        differences.clear();
        differences.extend(readings.windows(2).map(|pair| nanos(pair[0], pair[1])));
    };
    Clock { name: name.to_owned(), round: Box::new(round), sums: Figures::default() }
}

/// The page's estimate, read with the counter that the page counts.
fn of_page(name: &str, path: &Path, reads: usize) -> Result<Clock> {
    let page = pages::open(path)?;
    match counter_of(&page, 0) {
        CounterId::X86Tsc => reader(name, page, Tsc::unchecked(), reads),
        CounterId::MonotonicRaw => reader(name, page, MonotonicRaw, reads),
        other => bail!("{}: counts {}, which is not measured here", path.display(), other.name()),
    }
}

fn reader<C: Counter + 'static>(
    name: &str,
    page: ReadPage,
    counter: C,
    reads: usize,
) -> Result<Clock> {
    let reader = Reader::open(page, counter, 0)?;
    let first = reader.read()?;
    ensure!(first.has_estimate(), "{name} knows no time yet");
    let mut last = first.estimate;
    // A failed read repeats the last reading: it shows as a difference of 0, which no clock has.
    let read = move || {
        last = reader.read().map_or(last, |reading| reading.estimate);
        last
    };
    let scale = 1e9 / 2f64.powi(64);
    Ok(clock(name, reads, read, move |a, b| (b - a).to_bits() as f64 * scale))
}

fn figures(differences: &mut [f64]) -> Figures {
    let count = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / count;
    let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / count;
    differences.sort_unstable_by(f64::total_cmp);
    Figures {
        min: differences[0],
        mean,
        median: differences[differences.len() / 2],
        sd: variance.sqrt(),
    }
}

impl Figures {
    fn add(&mut self, other: &Self) {
        self.min += other.min;
        self.mean += other.mean;
        self.median += other.median;
        self.sd += other.sd;
    }

    fn row(&self, name: &str, rounds: u32) -> Value {
        let of = |sum: f64| sum / f64::from(rounds);
        json!({"clock": name, "min_ns": of(self.min), "mean_ns": of(self.mean), "median_ns": of(self.median),
               "sd_ns": of(self.sd)})
    }
}

/// ns per tick of the TSC, measured against CLOCK_MONOTONIC over a fifth of a second.
fn tick_ns() -> f64 {
    let tsc = Tsc::unchecked();
    let (start, from) = (Instant::now(), tsc.read_ordered());
    std::thread::sleep(Duration::from_millis(200));
    let (took, to) = (start.elapsed(), tsc.read_ordered());
    took.as_nanos() as f64 / to.wrapping_sub(from) as f64
}

fn clocksource() -> String {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(file).map_or_else(|_| "unknown".to_owned(), |t| t.trim().to_owned())
}
