//! `timevisor reserve measure`: what this host takes from reservations, and how fast it works, on one core.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use timevisor_linux::affinity;
use timevisor_linux::scheduling::sampling::{self, Loop};
use timevisor_schedule::measured::{Gap, Seen};
use timevisor_schedule::speed::Pace;
use timevisor_schedule::{Overheads, Speed};

use super::{overheads, span};
use crate::plot::{self, Line};

/// More than a second of interrupts, and more than 50 budgets.
const SHORTEST: Duration = Duration::from_secs(9);
/// Something is said so often.
const TURN: Duration = Duration::from_secs(5);
/// A thread sleeps for so long between wake-ups.
const EVERY: Duration = Duration::from_millis(1);
/// Its budgets are longer than any tick, and end in all phases of one.
const BUDGET: Duration = Duration::from_micros(20_370);
const PERIOD: Duration = Duration::from_micros(51_710);

#[derive(Args)]
pub struct Options {
    /// The core [default: the last one]
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// How long, in all; the longer, and the busier the host meanwhile, the more the figures are worth
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "60s")]
    duration: Duration,
    /// Write what was found to a file; `reserve plan` and `apply --plan` read /etc/timevisor/overheads.toml
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Draw how late timers were, and how long interrupts took
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// JSON
    #[arg(long)]
    json: bool,
}

pub fn run(options: &Options) -> Result<()> {
    ensure!(
        options.duration >= SHORTEST,
        "--duration {} s shows next to nothing of a host; at least {} s, and 60 s is the default",
        options.duration.as_secs_f64(),
        SHORTEST.as_secs()
    );
    let core = match options.core {
        Some(core) => core,
        None => affinity::online()?.pop().context("no core is online")?,
    };
    let stolen = stolen_ms(core);
    let (seen, speed) = look(core, options.duration)?;
    let stolen = stolen_ms(core).zip(stolen).map(|(after, before)| after.saturating_sub(before));
    let found = seen.overheads();
    if let Some(path) = &options.plot {
        std::fs::write(path, svg(&seen))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &options.write {
        write(path, core, options.duration, &found, &speed)?;
    }
    if options.json {
        println!("{}", json(core, &seen, (&found, &speed), stolen));
        return Ok(());
    }
    print(core, &seen, &found, stolen);
    println!("its speed     {}", overheads::speed_words(&speed));
    let Some(path) = &options.write else {
        println!("not written: --write {} makes `reserve plan` use it", overheads::FILE);
        return Ok(());
    };
    println!("written to {}", path.display());
    Ok(())
}

/// Three tenths of the time each for timers, interrupts and budgets, and the rest for its speed.
fn look(core: usize, duration: Duration) -> Result<(Seen, Speed)> {
    let next = || {
        format!(
            "cannot measure core {core}: that needs root (CAP_SYS_NICE) and a core that is online (`lscpu -e`) and not another's partition; without it, `reserve plan` uses defaults"
        )
    };
    let began = Instant::now();
    let mut seen = Seen::default();
    let mut said = Instant::now();
    let mut say = |what: &str| {
        if said.elapsed() >= TURN {
            said = Instant::now();
            let (s, of) = (began.elapsed().as_secs(), duration.as_secs());
            eprintln!("  {s} of {of} s: {what}");
        }
    };
    for turn in turns(duration * 3 / 10) {
        seen.late.extend(sampling::wake_ups(core, EVERY, turn).with_context(next)?);
        say("timers");
    }
    for turn in turns(duration * 3 / 10) {
        let (gaps, watched) = sampling::gaps(core, turn).with_context(next)?;
        let before = seen.watched;
        seen.gaps.extend(gaps.into_iter().map(|(at, length)| Gap { at: before + at, length }));
        seen.watched += watched;
        say("interrupts");
    }
    for turn in turns(duration * 3 / 10) {
        let count = (turn.as_nanos() / PERIOD.as_nanos()).max(1);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let over = sampling::overruns(BUDGET, PERIOD, count).context(
            "the kernel gives no budget (SCHED_DEADLINE): CONFIG_SCHED_DEADLINE is missing, or reservations take all of it (`timevisor reserve list`)",
        )?;
        seen.overruns.extend(over);
        say("budgets");
    }
    let mut pace = |of: Loop| {
        let mut blocks = Vec::new();
        for turn in turns(duration / 20) {
            blocks.extend(sampling::blocks(core, of, turn).with_context(next)?);
            say("its speed");
        }
        Pace::of_blocks(of.turns(), &blocks)
            .with_context(|| format!("core {core} did no work within {duration:?}"))
    };
    let speed = Speed { compute: pace(Loop::Compute)?, memory: pace(Loop::Memory)? };
    Ok((seen, speed))
}

/// A span in turns of a few seconds.
fn turns(span: Duration) -> impl Iterator<Item = Duration> {
    let count = u32::try_from(span.as_secs() / TURN.as_secs() + 1).unwrap_or(u32::MAX);
    (0..count).map(move |_| span / count)
}

/// What this machine's own host has taken from a core, if it is a VM (proc_stat(5)).
fn stolen_ms(core: usize) -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find(|line| line.starts_with(&format!("cpu{core} ")))?;
    let ticks: u64 = line.split_ascii_whitespace().nth(8)?.parse().ok()?;
    // USER_HZ is 100 everywhere.
    Some(ticks * 10)
}

fn write(
    path: &Path,
    core: usize,
    duration: Duration,
    found: &Overheads,
    speed: &Speed,
) -> Result<()> {
    let text = format!(
        "# What this host takes from reservations: `timevisor reserve measure`, core {core}, {} s.\n{}",
        duration.as_secs(),
        overheads::text(found, Some(speed))?
    );
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Of a list in any order: the median, the 99th and 99.9th percentile, and the greatest.
fn quantiles(all: &[u64]) -> [u64; 4] {
    let mut all = all.to_vec();
    all.sort_unstable();
    let at = |share: usize| all.get(all.len().saturating_sub(1) * share / 1000).copied();
    [500, 990, 999, 1000].map(|share| at(share).unwrap_or(0))
}

fn gaps(seen: &Seen) -> Vec<u64> {
    seen.gaps.iter().map(|gap| gap.length).collect()
}

fn print(core: usize, seen: &Seen, found: &Overheads, stolen: Option<u64>) {
    println!(
        "{:<34} {:>8} {:>9} {:>9} {:>9} {:>9}",
        format!("core {core}, us"),
        "count",
        "median",
        "p99",
        "p99.9",
        "most"
    );
    for (name, all) in [
        ("timers are late by", &seen.late),
        ("interrupts, or longer", &gaps(seen)),
        ("budgets are exceeded by", &seen.overruns),
    ] {
        let [median, p99, p999, most] = quantiles(all).map(|ns| ns as f64 / 1e3);
        let count = all.len();
        println!("{name:<34} {count:>8} {median:>9.1} {p99:>9.1} {p999:>9.1} {most:>9.1}");
    }
    if let Some(ms) = stolen.filter(|ms| *ms > 0) {
        println!(
            "this machine is a VM, and its host took {ms} ms of the core meanwhile: that is in these figures"
        );
    }
    println!("this host     {}", overheads::words(found));
}

fn json(
    core: usize,
    seen: &Seen,
    (found, speed): (&Overheads, &Speed),
    stolen: Option<u64>,
) -> serde_json::Value {
    let pace = |of: Pace| serde_json::json!({"typical_per_second": of.typical, "slow_per_second": of.slow});
    let figures = |all: &[u64]| {
        let [median, p99, p999, most] = quantiles(all);
        serde_json::json!({"count": all.len(), "median_ns": median, "p99_ns": p99, "p999_ns": p999, "most_ns": most})
    };
    serde_json::json!({
        "core": core,
        "tick_ns": found.tick, "latency_ns": found.latency, "interference_ppm": found.interference_ppm,
        "burst_ns": found.burst,
        "timers": figures(&seen.late), "interrupts": figures(&gaps(seen)), "overruns": figures(&seen.overruns),
        "stolen_ms": stolen,
        "speed": {"compute": pace(speed.compute), "memory": pace(speed.memory)},
    })
}

/// How many of them were longer than each time.
fn svg(seen: &Seen) -> String {
    let curve = |all: &[u64], color, name: &str| {
        let mut all = all.to_vec();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let points = all.iter().enumerate().map(|(n, ns)| (*ns as f64 / 1e3, n as f64 + 1.0));
        let points = points.map(|(us, n)| (us.max(0.1).log10(), n.log10()));
        Line { points: points.collect(), color, width: 2.0, dashed: false, name: name.to_owned() }
    };
    let lines = vec![
        curve(&seen.late, "#4477aa", "timers"),
        curve(&gaps(seen), "#cc3311", "interrupts"),
        curve(&seen.overruns, "#999999", "budgets exceeded"),
    ];
    let axes = ["us, as powers of 10", "so many were as long or longer, as powers of 10"];
    plot::svg("what this host takes from reservations", axes[0], axes[1], lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_divided() {
        for s in [0, 1, 5, 20, 600] {
            let span = Duration::from_secs(s);
            let all: Vec<Duration> = turns(span).collect();
            assert!(all.iter().all(|turn| *turn <= TURN), "{all:?}");
            assert!(span - all.iter().sum::<Duration>() < Duration::from_millis(1));
        }
    }

    #[test]
    fn what_was_seen_is_drawn_and_counted() {
        assert_eq!(quantiles(&[]), [0; 4]);
        let all: Vec<u64> = (0..=1000).rev().collect();
        assert_eq!(quantiles(&all), [500, 990, 999, 1000]);
        let seen = Seen { late: all, overruns: vec![3_900_000], ..Seen::default() };
        assert!(svg(&seen).contains("timers"));
        let found = seen.overheads();
        let pace = |typical| Pace { typical, slow: typical / 2 };
        let speed = Speed { compute: pace(800), memory: pace(20) };
        let json = json(1, &seen, (&found, &speed), None);
        assert_eq!(json["tick_ns"], 4_000_000);
        assert_eq!(json["speed"]["memory"]["slow_per_second"], 10);
    }
}
