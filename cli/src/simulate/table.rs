//! Results of simulated runs as text.

use timevisor_results::Results;
use timevisor_simulation::checks::Point;
use timevisor_simulation::{Summary, Verdict};

/// For machines.
pub fn results(rows: &[Summary]) -> serde_json::Result<Results> {
    let rows = rows.iter().map(serde_json::to_value).collect::<serde_json::Result<_>>()?;
    Ok(Results::new("simulate", rows))
}

/// One line per scenario, what it missed below.
pub fn table(rows: &[Summary]) -> String {
    let width = rows.iter().map(|row| row.scenario.len()).max().unwrap_or(0).max("scenario".len());
    let mut out = format!(
        "{:width$} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>5} {:>6} {:<13} {:>8}  {}\n",
        "scenario",
        "runs",
        "rms us",
        "p99 us",
        "max us",
        "half us",
        "coverage",
        "disr",
        "false",
        "at end",
        "detected",
        "verdict"
    );
    rows.iter().for_each(|row| out += &line(row, width));
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    out += &format!(
        "{} ok, {} with known failures, {} FAILED; with several runs: the worst of each figure\n",
        count(Verdict::Ok),
        count(Verdict::KnownFailure),
        count(Verdict::Failed)
    );
    out
}

fn line(row: &Summary, width: usize) -> String {
    let detected = row.detected.map_or("-".to_owned(), |share| format!("{share:.3}"));
    let verdict = match row.verdict {
        Verdict::Ok => "ok".to_owned(),
        Verdict::KnownFailure => "known failure".to_owned(),
        Verdict::Failed => format!("FAILED {} of {}", row.runs - row.passed, row.runs),
    };
    let mut out = format!(
        "{:width$} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>5} {:>6} {:<13} {:>8}  {verdict}\n",
        row.scenario,
        row.runs,
        figure(row.rms_us),
        figure(row.p99_us),
        figure(row.max_us),
        figure(row.halfwidth_median_us),
        share(row.coverage),
        row.disruptions,
        row.false_alarms,
        row.at_end.join(","),
        detected,
    );
    out.extend(row.failures.iter().map(|failure| format!("    {failure}\n")));
    if let Some(reason) = &row.known_failure {
        out += &if row.is_outdated {
            "    the known failure is none any more: remove known_failure from the file\n"
                .to_owned()
        } else {
            format!("    known: {reason}\n")
        };
    }
    out
}

/// As many digits as a row has room for.
fn figure(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.2}"),
        us => format!("{us:.0}"),
    }
}

/// 1 only for exactly 1.
fn share(share: f64) -> String {
    if share == 1.0 { "1".to_owned() } else { format!("{:.6}", share.min(0.999_999)) }
}

/// One line per true second.
pub fn csv(points: &[Point]) -> String {
    let mut out = "t_s,offset_us,earliest_us,latest_us,sigma_us,status\n".to_owned();
    for p in points {
        out += &format!(
            "{},{:.4},{:.4},{:.4},{:.4},{}\n",
            p.t_s,
            p.offset_us,
            p.earliest_us,
            p.latest_us,
            p.sigma_us,
            p.status.name()
        );
    }
    out
}
