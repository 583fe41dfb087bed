//! Arguments, the tables, the JSON and the verdict.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use serde_json::json;
use timevisor_benches::report::{Column, Report, Row};
use timevisor_results::Results;

use crate::cost::{self, Cost};
use crate::days::{self, Days};
use crate::limits;
use crate::measure::{Measured, OURS, measure};
use crate::published::{self, Published};

const ACCURACY: [Column; 5] = [
    Column { key: "rms_us", heading: "RMS us", decimals: 2 },
    Column { key: "published_rms_us", heading: "published", decimals: 2 },
    Column { key: "worst_seed_rms_us", heading: "worst seed", decimals: 2 },
    Column { key: "p99_us", heading: "p99 us", decimals: 2 },
    Column { key: "max_us", heading: "max us", decimals: 2 },
];
const BOUNDS: [Column; 4] = [
    Column { key: "halfwidth_median_us", heading: "median us", decimals: 1 },
    Column { key: "halfwidth_p99_us", heading: "p99 us", decimals: 1 },
    Column { key: "coverage", heading: "coverage", decimals: 6 },
    Column { key: "contradictions", heading: "alarms", decimals: 0 },
];
const COST: [Column; 5] = [
    Column { key: "cpu_ns_per_exchange", heading: "mean ns", decimals: 0 },
    Column { key: "cpu_p99_ns", heading: "p99 ns", decimals: 0 },
    Column { key: "state_bytes", heading: "bytes", decimals: 0 },
    Column { key: "growth_bytes", heading: "growth B", decimals: 0 },
    Column { key: "allocations_per_exchange", heading: "allocs", decimals: 2 },
];
const CHRONY: &str = "chrony (published)";
const CLOCKBOUND: &str = "ClockBound 3 (formula)";
const UNKNOWN: f64 = f64::NAN;

/// Scores estimate and bounds over days of exchanges with known truth.
#[derive(Parser)]
#[command(name = "bench-sync")]
struct Arguments {
    /// Traces with truth, NAME_sSEED.csv[.gz] and NAME_sSEED.truth.csv[.gz]; simulated days without
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Write the JSON here instead of target/results/bench-sync.json
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Exit with status 1 unless all limits hold
    #[arg(long)]
    check: bool,
}

/// The program.
pub(crate) fn run() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let (days, source) = match &arguments.traces {
        Some(folder) => (days::recorded(folder)?, format!("recorded, {}", folder.display())),
        None => {
            let source = "simulated by our own generators under the laws of the recorded traces: published \
                          figures are of other random numbers";
            (days::simulated(), source.to_owned())
        }
    };
    let costs = costs(&days)?;
    let measured: Vec<Measured> = days.iter().flat_map(measure).collect();

    let tables = [accuracy(&measured, &days, &source), bounds(&measured), cost(&costs)];
    for table in &tables {
        println!("{}", table.table());
    }
    let path = arguments.json.unwrap_or_else(|| tables[0].default_path());
    merged(&tables, &source).write(&path)?;
    if !arguments.check {
        return Ok(ExitCode::SUCCESS);
    }
    let ours: Vec<Cost> = costs.iter().filter(|c| c.estimator == OURS).map(|c| c.cost).collect();
    let broken = limits::broken(&measured, &ours);
    for limit in &broken {
        eprintln!("bench-sync: {limit}");
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(name: &'static str, caption: Vec<String>, columns: &[Column], rows: Vec<Row>) -> Report {
    let subject = "condition / estimator";
    let columns = columns.to_vec();
    Report { name, subject, caption, columns, rows }
}

/// A row's name in the tables; the JSON has both parts.
fn row(condition: &str, estimator: &str, values: Vec<f64>) -> Row {
    Row { name: format!("{condition} / {estimator}"), values: Ok(values) }
}

fn published_rms(published: Option<&Published>, estimator: &str) -> f64 {
    let rms = published.and_then(|p| p.rms);
    let seeds = rms.and_then(|rms| match estimator {
        "RADclock good" => Some(rms.radclock_good),
        "RADclock poor" => Some(rms.radclock_poor),
        "last sample" => Some(rms.last_sample),
        _ => None,
    });
    seeds.map_or(UNKNOWN, published::pooled)
}

fn larger(seeds: [f64; 2]) -> f64 {
    seeds[0].max(seeds[1])
}

fn accuracy(measured: &[Measured], days: &[Days], source: &str) -> Report {
    let mut rows = Vec::new();
    for m in measured {
        let published = published::of(&m.condition);
        for a in &m.accuracy {
            let published = published_rms(published, a.estimator);
            let s = &a.pooled;
            let values = vec![s.rms_us, published, a.worst_rms_us, s.abs_us.p99, s.abs_us.max];
            rows.push(row(&m.condition, a.estimator, values));
        }
        if let Some(c) = published.map(|p| &p.chrony) {
            let rms = published::pooled(c.rms_us);
            let values = vec![rms, rms, larger(c.rms_us), larger(c.p99_us), larger(c.max_us)];
            rows.push(row(&m.condition, CHRONY, values));
        }
    }
    let traces: usize = days.iter().map(|days| days.traces.len()).sum();
    let caption = vec![
        format!("Error of the estimate, read at every true second after 2 h. {traces} days of exchanges, {source}."),
        "Seeds are pooled; published: the same estimator's published figure. e_route_after: from 30 min after the change on.".to_owned(),
        "chrony: minpoll 4 maxpoll 4, not run here; p99 and max are the larger of its two seeds'.".to_owned(),
        "The last sample's rate is the mean since the start, where the published one keeps the rate that it began with.".to_owned(),
    ];
    report("bench-sync", caption, &ACCURACY, rows)
}

fn bounds(measured: &[Measured]) -> Report {
    let mut rows = Vec::new();
    for m in measured {
        let b = &m.bounds;
        let (median, p99) = (b.half_widths.median, b.half_widths.p99);
        let alarms = b.contradictions as f64;
        rows.push(row(&m.condition, OURS, vec![median, p99, b.coverage, alarms]));
        if let Some(c) = published::of(&m.condition).map(|p| &p.chrony) {
            let median = f64::midpoint(c.median_bound_us[0], c.median_bound_us[1]);
            let coverage = f64::midpoint(c.coverage[0], c.coverage[1]);
            rows.push(row(&m.condition, CHRONY, vec![median, UNKNOWN, coverage, UNKNOWN]));
        }
        if let Some(c) = m.clockbound {
            rows.push(row(&m.condition, CLOCKBOUND, vec![c.median, c.p99, UNKNOWN, UNKNOWN]));
        }
    }
    let caption = vec![
        "Half-width of the bounds at every true second after 2 h; coverage: share of them with the truth inside.".to_owned(),
        "alarms: contradictions and doubts over all seeds while nothing was wrong but what the condition says.".to_owned(),
        "chrony: claimed bound |system time| + root delay / 2 + root dispersion, median of seeds.".to_owned(),
        "ClockBound 3: the largest RTT / 2 of the last 1024 s (without RTT > 5 x the smallest) + 15 ppm since the exchange.".to_owned(),
    ];
    report("bench-sync bounds", caption, &BOUNDS, rows)
}

/// What one estimator costs in one condition.
struct Costs {
    condition: String,
    estimator: &'static str,
    cost: Cost,
}

/// Ours in every condition, for a change of route is dearer than a quiet day; RADclock once, for
/// comparison.
fn costs(days: &[Days]) -> Result<Vec<Costs>> {
    let mut costs = Vec::new();
    for days in days {
        let Some(trace) = days.traces.first() else { continue };
        let condition = || days.condition.clone();
        if costs.is_empty() {
            let cost = cost::radclock(trace)?;
            costs.push(Costs { condition: condition(), estimator: "RADclock good", cost });
        }
        costs.push(Costs { condition: condition(), estimator: OURS, cost: cost::ours(trace)? });
    }
    Ok(costs)
}

fn cost(costs: &[Costs]) -> Report {
    let rows = costs.iter().map(|Costs { condition, estimator, cost: c }| {
        row(
            condition,
            estimator,
            vec![c.mean_ns, c.p99_ns, c.state_bytes, c.growth_bytes, c.allocations],
        )
    });
    let caption = vec![
        "CPU time of one exchange through estimator and bounds (RADclock has none), fastest of 5 passes over a day."
            .to_owned(),
        "Memory of one reference after the day, all heap included; allocations per exchange once its windows are full."
            .to_owned(),
    ];
    report("bench-sync cost", caption, &COST, rows.collect())
}

/// All tables' rows in one file, each with its table, condition and estimator.
fn merged(tables: &[Report; 3], source: &str) -> Results {
    let names = ["accuracy", "bounds", "cost"];
    let mut rows = Vec::new();
    for (table, name) in tables.iter().zip(names) {
        for mut row in table.results().rows {
            let subject = row[table.subject].as_str().unwrap_or_default().to_owned();
            let (condition, estimator) = subject.split_once(" / ").unwrap_or((&subject, ""));
            if let Some(object) = row.as_object_mut() {
                object.remove(table.subject);
                object.insert("table".to_owned(), json!(name));
                object.insert("condition".to_owned(), json!(condition));
                object.insert("estimator".to_owned(), json!(estimator));
            }
            rows.push(row);
        }
    }
    Results::new("bench-sync", rows).with_caption(vec![format!("Traces: {source}.")])
}
