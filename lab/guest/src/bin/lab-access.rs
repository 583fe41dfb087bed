//! lab-access: what each single access to a counter or clock takes, measured by reading the TSC
//! before and after it (Broomhead and others, "Virtualize everything but time", section 4.1).
//! Prints one line of JSON.
//!
//! `lab-access SECONDS READS [NAME=PAGE ...]` does rounds of READS accesses of every clock, one
//! clock after the other, for SECONDS, and prints per mille ranks over all accesses in ticks. The
//! row `nothing` has no access between the two TSC reads: it shows the cost of the method itself.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use timevisor_clock_page::reader::counter_of;
use timevisor_clock_page::{Counter as _, Reader};
use timevisor_linux::clock::monotonic_raw_nanos;
use timevisor_linux::counter::{HostCounter, Tsc};

#[path = "../pages.rs"]
mod pages;

/// Enough for per mille ranks; more would not fit into a small guest.
const MOST: usize = 300_000;
/// The reported ranks, per mille.
const RANKS: [usize; 9] = [0, 10, 50, 250, 500, 750, 950, 990, 1000];

/// Appends the ticks of each access.
type Round = Box<dyn FnMut(&mut Vec<u64>)>;

struct Clock {
    name: String,
    round: Round,
    ticks: Vec<u64>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seconds, reads, pages @ ..] = &arguments[..] else {
        bail!("usage: lab-access SECONDS READS [NAME=PAGE ...]")
    };
    let (seconds, reads): (f64, usize) = (seconds.parse()?, reads.parse()?);
    ensure!(reads >= 1, "READS: at least 1");
    let tick_ns = tick_ns();
    let tsc = Tsc::unchecked();
    let mut clocks = vec![
        clock("nothing", reads, || ()),
        clock("TSC", reads, move || _ = black_box(tsc.read_ordered())),
        // clock_gettime(2) through the vDSO where the clocksource allows it, as the standard
        // library calls it.
        clock("CLOCK_MONOTONIC", reads, || _ = black_box(Instant::now())),
        clock("CLOCK_MONOTONIC_RAW", reads, || _ = black_box(monotonic_raw_nanos())),
    ];
    for page in pages {
        let (name, path) = page.split_once('=').context("a page is given as NAME=PATH")?;
        let page = pages::open(Path::new(path))?;
        let counter = HostCounter::for_reader(counter_of(&page, 0)).context("a foreign counter")?;
        let reader = Reader::open(page, counter, 0)?;
        ensure!(reader.read()?.has_estimate(), "{name} knows no time yet");
        clocks.push(clock(name, reads, move || _ = black_box(reader.read())));
    }
    let (start, end) = (Instant::now(), Duration::from_secs_f64(seconds));
    while clocks[0].ticks.is_empty() || (start.elapsed() < end && clocks[0].ticks.len() < MOST) {
        for clock in &mut clocks {
            (clock.round)(&mut clock.ticks);
        }
    }
    let rows: Vec<Value> = clocks.iter_mut().map(Clock::row).collect();
    println!(
        "{}",
        json!({"clocksource": clocksource(), "tick_ns": tick_ns, "ranks": RANKS, "rows": rows})
    );
    Ok(())
}

fn clock(name: &str, reads: usize, mut access: impl FnMut() + 'static) -> Clock {
    let tsc = Tsc::unchecked();
    let round = move |ticks: &mut Vec<u64>| {
        for _ in 0..reads {
            let before = tsc.read_ordered();
            access();
            let after = tsc.read_ordered();
            ticks.push(after.wrapping_sub(before));
        }
    };
    Clock { name: name.to_owned(), round: Box::new(round), ticks: Vec::new() }
}

impl Clock {
    fn row(&mut self) -> Value {
        self.ticks.sort_unstable();
        let last = self.ticks.len() - 1;
        let at = RANKS.map(|per_mille| self.ticks[(last * per_mille + 500) / 1000]);
        json!({"clock": self.name, "count": self.ticks.len(), "ticks": at})
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
