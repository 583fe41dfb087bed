//! What timelines cost: from bind to the first qualified read, a read beside a thousand members, a
//! page's publication, and how late a wait is.
//!
//! | file | owns |
//! | --- | --- |
//! | `page.rs` | publishing a VM's page with all its entries, in memory |
//!
//! Method: two real timevisords on this host, one with 1,000 members on 20 timelines and one with a
//! single one; their pages are read in turns of 1,000 reads, so that whatever else the machine does
//! hits both. Figures are medians, so that a busy machine shows in the counts and not in them.

mod page;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use timevisor::{Client, Requirement, Timeline};
use timevisor_benches::daemon::Daemon;
use timevisor_benches::report::{Column, Report, Row, median};

/// From connecting to a reading that meets its requirement.
const MAX_FIRST_READ: Duration = Duration::from_millis(5);
/// A read beside 1,000 members against one beside none.
const MAX_RATIO: f64 = 1.05;
/// Publishing one VM's page.
const MAX_PUBLISH: Duration = Duration::from_micros(50);

const COLUMNS: [Column; 4] = [
    Column { key: "median_ns", heading: "median ns", decimals: 1 },
    Column { key: "p99_ns", heading: "p99 ns", decimals: 1 },
    Column { key: "limit_ns", heading: "limit ns", decimals: 0 },
    Column { key: "ratio", heading: "ratio", decimals: 3 },
];

/// Measures what timelines cost.
#[derive(Parser)]
#[command(name = "bench-timelines")]
struct Arguments {
    /// Exit with failure beyond the limits
    #[arg(long)]
    check: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let (crowded, empty) = (Daemon::start()?, Daemon::start()?);
    let members = crowded.fill(10, 20, 5)?;
    ensure!(members.len() == 1000, "{} members", members.len());
    let first = first_reads(&crowded)?;
    let client = crowded.client()?;
    let here = client.bind("line3", &Requirement::within(Duration::from_secs(1)))?;
    // The same kind of binding, the only one there.
    let single = empty.fill(1, 1, 1)?;
    let (_, there) = single.first().context("no binding")?;
    let (beside, alone) = reads(here.timeline(), there.timeline())?;
    let ratio = median(&beside) / median(&alone);
    let published = page::publications();
    let lateness = waits(&client)?;
    let limit = |span: Duration| span.as_secs_f64() * 1e9;
    let rows = vec![
        Row::of("bind to first qualified read", &first, limit(MAX_FIRST_READ), f64::NAN),
        Row::of("read, 1 member", &alone, f64::NAN, 1.0),
        Row::of("read, 1,000 members", &beside, f64::NAN, ratio),
        Row::of("publish a VM's page of 18 entries", &published, limit(MAX_PUBLISH), f64::NAN),
        Row::of("wait_until: lateness as reported", &lateness.reported, f64::NAN, f64::NAN),
        Row::of(
            "wait_until: measured after it, less reported",
            &lateness.difference,
            f64::NAN,
            f64::NAN,
        ),
    ];
    let report = Report {
        name: "bench-timelines",
        subject: "what",
        caption: vec![
            "two timevisords, one with 1,000 members on 20 timelines; reads in turns of 1,000"
                .to_owned(),
            format!(
                "lateness before its reported value in {} of {} waits",
                lateness.early,
                lateness.reported.len()
            ),
        ],
        columns: COLUMNS.to_vec(),
        rows,
    };
    print!("{}", report.table());
    report.write(&report.default_path())?;
    let slow = median(&first) > limit(MAX_FIRST_READ)
        || ratio > MAX_RATIO
        || median(&published) > limit(MAX_PUBLISH)
        || lateness.early > 0;
    if arguments.check && slow {
        println!(
            "FAILED: beyond a limit of the table, a ratio above {MAX_RATIO}, or a wait that was reported too late"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// A program that starts: finds the page, connects, binds, reads.
fn first_reads(daemon: &Daemon) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for _ in 0..200 {
        // The daemon answers a user 1,000 times a second.
        std::thread::sleep(Duration::from_millis(5));
        let began = Instant::now();
        let client = daemon.client()?;
        let binding = client.bind("tai", &Requirement::within(Duration::from_secs(1)))?;
        ensure!(binding.now()?.met(), "the first reading is not qualified");
        times.push(began.elapsed().as_secs_f64() * 1e9);
    }
    Ok(times)
}

/// Nanoseconds per read of each, batch by batch.
fn reads(a: &Timeline, b: &Timeline) -> Result<(Vec<f64>, Vec<f64>)> {
    let batch = |timeline: &Timeline| -> Result<f64> {
        let began = Instant::now();
        for _ in 0..1000 {
            std::hint::black_box(timeline.now()?);
        }
        Ok(began.elapsed().as_secs_f64() * 1e6)
    };
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for _ in 0..2000 {
        of_a.push(batch(a)?);
        of_b.push(batch(b)?);
    }
    Ok((of_a, of_b))
}

struct Lateness {
    reported: Vec<f64>,
    difference: Vec<f64>,
    /// A reading right after the wait that is before what the wait reported: impossible on one
    /// clock.
    early: usize,
}

fn waits(client: &Client) -> Result<Lateness> {
    let tai = client.timeline("tai")?;
    let mut lateness = Lateness { reported: Vec::new(), difference: Vec::new(), early: 0 };
    for _ in 0..300 {
        let due = tai.now()?.estimate_ns() + 2_000_000;
        let waited = tai.wait_until(due)?;
        let after = tai.now()?.estimate_ns() - due;
        lateness.reported.push(waited.lateness_ns as f64);
        lateness.difference.push((after - waited.lateness_ns) as f64);
        lateness.early += usize::from(after < waited.lateness_ns || waited.lateness_ns < 0);
    }
    Ok(lateness)
}
