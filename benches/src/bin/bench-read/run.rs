//! Arguments, the run, the ratios and the limits.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use timevisor_benches::report::{Column, Report, Row};
use timevisor_clock_page::Reader;
use timevisor_linux::counter::{self, Tsc};

use crate::candidates::{
    self, CLOCKBOUND_2, CLOCKBOUND_3, Candidate, LFENCE_RDTSC, ORDERED, RDTSC, RDTSCP, REALTIME,
};
use crate::page;
use crate::timing::{self, BATCHES, READS, quantile};

/// A read may take this many times the cheaper of the two ordered counter reads, `lfence; rdtsc`
/// and `rdtscp`. The goal is 1.25: 1.24 measured on an AMD EPYC (Zen 5).
const MAX_TO_COUNTER: f64 = 1.3;
/// And this many times the kernel's clock, which has no bounds: 0.79 measured.
const MAX_TO_REALTIME: f64 = 0.85;
/// ClockBound's now() takes at least this many times our read. 2.0.3: 3.3 measured. 3.0.0-rc.0,
/// which no longer asks the kernel for the time: 2.7 measured.
const MIN_CLOCKBOUND: [(&str, f64); 2] = [(CLOCKBOUND_2, 3.0), (CLOCKBOUND_3, 2.4)];

const COLUMNS: [Column; 6] = [
    Column { key: "min_ns", heading: "min ns", decimals: 2 },
    Column { key: "median_ns", heading: "median ns", decimals: 2 },
    Column { key: "p99_ns", heading: "p99 ns", decimals: 2 },
    Column { key: "ratio_to_rdtsc", heading: "x rdtsc", decimals: 2 },
    Column { key: "ratio_to_ordered_counter", heading: "x ordered", decimals: 2 },
    Column { key: "ratio_to_realtime", heading: "x REALTIME", decimals: 2 },
];

/// Compares what one read of a clock costs.
#[derive(Parser)]
#[command(name = "bench-read")]
struct Arguments {
    /// Read this page instead of /dev/vmclock0, /run/timevisor/clock or one in memory.
    #[arg(long, value_name = "PATH")]
    page: Option<PathBuf>,
    /// Write the JSON here instead of target/results/bench-read.json.
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Exit with status 1 unless an ordered read keeps the limits.
    #[arg(long)]
    check: bool,
}

/// The program.
pub(crate) fn run() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let calibration = counter::calibrate(&Tsc::unchecked())?;
    let source = page::find(arguments.page, &calibration)?;
    let nanos_per_tick = 1e9 / calibration.period.hz();
    let bracket = timing::empty_bracket();

    let (names, batches): (Vec<_>, Vec<_>) = candidates::all(&source, &calibration)
        .into_iter()
        .map(|Candidate { name, batch }| (name, batch))
        .unzip();
    let mut runnable = Vec::new();
    let places: Vec<Result<usize, String>> = batches
        .into_iter()
        .map(|batch| {
            runnable.push(batch.map_err(|error| format!("{error:#}"))?);
            Ok(runnable.len() - 1)
        })
        .collect();
    let ticks = timing::measure(&mut runnable);

    let per_read =
        |ticks: u64| ticks.saturating_sub(bracket) as f64 / f64::from(READS) * nanos_per_tick;
    let summaries: Vec<Result<[f64; 3], String>> = places
        .into_iter()
        .map(|place| place.map(|at| [0.0, 0.5, 0.99].map(|q| per_read(quantile(&ticks[at], q)))))
        .collect();
    let median = |name: &str| {
        let at = names.iter().position(|candidate| *candidate == name)?;
        summaries[at].as_ref().ok().map(|summary| summary[1])
    };
    let (rdtsc, counter, realtime) = (median(RDTSC), ordered_counter(median), median(REALTIME));
    let rows = names.iter().zip(&summaries).map(|(name, summary)| Row {
        name: (*name).to_owned(),
        values: summary.clone().map(|summary| {
            let ratio = |to: Option<f64>| to.map_or(f64::NAN, |to| summary[1] / to);
            summary.into_iter().chain([rdtsc, counter, realtime].map(ratio)).collect()
        }),
    });

    let status = Reader::open(source.page, Tsc::unchecked(), 0)?.read()?.status().name();
    let report = Report {
        name: "bench-read",
        subject: "clock",
        caption: vec![
            format!("{BATCHES} batches of {READS} reads of each clock, in turns; a single read is close to the TSC's"),
            format!(
                "step of {} ticks at {:.3} MHz. Each batch between two lfence; rdtsc, whose {bracket} ticks are taken off.",
                timing::granule(),
                calibration.period.hz() / 1e6
            ),
            "Minimum, median and 99th percentile over batches, per read; ratios of medians.".to_owned(),
            format!("Page: {}, status {status}; ordered counter reads are {:?}.", source.name, Tsc::for_reader().ordered_read()),
            "QuartzV's timeline clock, table I, averages: 32.0 ns, 4.3x TSC, 1.2x REALTIME natively; in a VM 60.7 ns,"
                .to_owned(),
            "7.3x and 1.5x. It is CLOCK_MONOTONIC plus a projection, without bounds.".to_owned(),
        ],
        columns: COLUMNS.to_vec(),
        rows: rows.collect(),
    };
    print!("{}", report.table());
    match arguments.json {
        Some(path) => report.write(&path)?,
        // Nobody asked for this file: a guest may have no place for it.
        None => {
            if let Err(error) = report.write(&report.default_path()) {
                eprintln!("bench-read: {error:#}");
            }
        }
    }
    if !arguments.check {
        return Ok(ExitCode::SUCCESS);
    }
    let broken = broken_limits(median);
    for limit in &broken {
        eprintln!("bench-read: {limit}");
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The median of the cheaper ordered counter read of this machine.
fn ordered_counter(median: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    [LFENCE_RDTSC, RDTSCP].into_iter().filter_map(median).reduce(f64::min)
}

/// The limits that do not hold, in words. What was not measured holds no limit.
fn broken_limits(median: impl Fn(&str) -> Option<f64>) -> Vec<String> {
    let ratio = |over: &str, under: &str| Some(median(over)? / median(under)?);
    let mut broken = Vec::new();
    let mut require = |found: Option<f64>, holds: bool, over: &str, under: &str, limit: String| {
        if !holds {
            let found = found.map_or("not measured".to_owned(), |found| format!("{found:.2}x"));
            broken.push(format!("`{over}` to `{under}`: {found}, {limit}"));
        }
    };
    let to_counter =
        median(ORDERED).zip(ordered_counter(&median)).map(|(read, counter)| read / counter);
    let peers = [
        ("the cheaper ordered counter read", to_counter, MAX_TO_COUNTER),
        (REALTIME, ratio(ORDERED, REALTIME), MAX_TO_REALTIME),
    ];
    for (peer, found, limit) in peers {
        let holds = found.is_some_and(|found| found <= limit);
        require(found, holds, ORDERED, peer, format!("at most {limit}x is allowed"));
    }
    for (peer, limit) in MIN_CLOCKBOUND {
        let found = ratio(peer, ORDERED);
        let holds = found.is_some_and(|found| found >= limit);
        require(found, holds, peer, ORDERED, format!("at least {limit}x is required"));
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_at_the_limit_and_break_beyond_or_unmeasured() {
        let broken = |read: Option<f64>, clockbound: Option<f64>| {
            let median = |name: &str| match name {
                ORDERED => read,
                LFENCE_RDTSC => Some(11.0),
                RDTSCP => Some(10.0),
                REALTIME => Some(16.0),
                CLOCKBOUND_2 => clockbound,
                _ => clockbound.map(|ns| ns * 0.9),
            };
            broken_limits(median)
        };
        assert_eq!(broken(Some(13.0), Some(39.0)), Vec::<String>::new());
        assert_eq!(broken(Some(13.1), Some(39.3)).len(), 1, "of the cheaper one");
        assert_eq!(broken(Some(13.7), Some(50.0)).len(), 2, "0.856 of REALTIME");
        assert_eq!(broken(Some(13.0), Some(30.0)).len(), 2);
        assert_eq!(broken(Some(13.0), None).len(), 2);
        let unmeasured = broken(None, Some(39.0));
        assert_eq!(unmeasured.len(), 4);
        assert_eq!(
            unmeasured[0],
            "`timevisor read` to `the cheaper ordered counter read`: not measured, at most 1.3x is allowed"
        );
    }
}
