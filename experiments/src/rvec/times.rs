//! Tables 1 and 2 and figure 2, by `lab-rvec times`.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};
use timevisor_lab::plot::{self, Series};

use super::{NAME, Setting, paper};
use crate::job;
use crate::statistics::Summary;

/// The paper's number of runs, each with 10,000 blocks.
const MOST_RUNS: u32 = 100;

pub(super) fn run(setting: &Setting, span: Duration) -> anyhow::Result<Vec<Value>> {
    let page = setting.page();
    let times = |runs: u32| job::native(&setting.program, &["times", &page, &runs.to_string()]);
    // The duration of one run determines how many fit.
    let began = Instant::now();
    times(1)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    let fit = (span.as_secs_f64() / began.elapsed().as_secs_f64()).min(f64::from(MOST_RUNS)) as u32;
    let runs = fit.max(2);
    let found = times(runs)?;
    println!("  {runs} runs of 10,000 blocks of 5,000 arithmetic instructions (paper: 100 runs)");
    let mut rows = cost(&found)?;
    rows.extend(precision(&found)?);
    Ok(rows)
}

fn runs_of(row: &Value) -> Vec<f64> {
    row["runs_us"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn rows_of<'a>(found: &'a Value, table: &str) -> anyhow::Result<&'a Vec<Value>> {
    found[table].as_array().with_context(|| format!("no {table}"))
}

fn cost(found: &Value) -> anyhow::Result<Vec<Value>> {
    println!(
        "\ntable 1: one read in the middle of a block, us a block over the runs\nclock                mean       sd   median  over Base (medians)  | paper: mean     sd  over Base"
    );
    let mut rows = Vec::new();
    let mut base = None;
    for (row, (clock, mean, sd)) in rows_of(found, "table_1")?.iter().zip(paper::TABLE_1) {
        let summary = Summary::of(&runs_of(row));
        let base = *base.get_or_insert(summary.median);
        let over = (summary.median / base - 1.0) * 100.0;
        let paper_over = (mean / paper::TABLE_1[0].1 - 1.0) * 100.0;
        println!(
            "{clock:<16} {:>8.3} {:>8.3} {:>8.3} {over:>18.2} %  | {mean:>11.3} {sd:>6.3} {paper_over:>8.2} %",
            summary.mean, summary.sd, summary.median
        );
        rows.push(json!({"table": 1, "clock": row["clock"], "runs": summary.count, "mean_us": summary.mean, "sd_us": summary.sd,
                         "median_us": summary.median, "over_base_percent": over, "paper": {"mean_us": mean, "sd_us": sd}}));
    }
    Ok(rows)
}

fn precision(found: &Value) -> anyhow::Result<Vec<Value>> {
    println!(
        "\ntable 2: every block timed by the clock itself, us\nclock                             n     mean       sd   median      p99  not later  | paper: mean     sd"
    );
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for row in rows_of(found, "table_2")? {
        let clock = row["clock"].as_str().context("a row without a clock")?;
        let moves = row["moves"] == true;
        let us = |name: &str| row[name].as_f64().with_context(|| format!("no {name}"));
        let whole = |name: &str| row[name].as_u64().with_context(|| format!("no {name}"));
        let paper = paper::TABLE_2.iter().find(|p| p.0 == clock && p.1 == moves);
        let name = if moves { format!("{clock}, moves") } else { clock.to_owned() };
        println!(
            "{name:<24} {:>10} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>10}  | {}",
            whole("count")?,
            us("mean_us")?,
            us("sd_us")?,
            us("median_us")?,
            us("p99_us")?,
            whole("not_later")?,
            paper.map_or("-".into(), |p| format!("{:>11.3} {:>6.3}", p.2, p.3))
        );
        let mut out = row.clone();
        out["table"] = json!(2);
        out["paper"] = paper.map_or(Value::Null, |p| json!({"mean_us": p.2, "sd_us": p.3}));
        let runs = runs_of(row);
        out.as_object_mut().map(|o| o.remove("runs_us"));
        rows.push(out);
        // Figure 2 shows these clocks.
        if clock == "TSC" && !moves || clock == "elapsed" {
            let points = runs.iter().enumerate().map(|(n, us)| (n as f64, *us)).collect();
            series.push(Series { name, points });
        }
    }
    let title = format!("{NAME}: mean of each run (figure 2)");
    plot::write(
        &format!("{NAME}-figure-2"),
        &plot::lines(&title, ["run", "us a block"], series, false),
    )?;
    Ok(rows)
}
