//! Figure 3, by `lab-rvec steps`.

use anyhow::Context as _;
use serde_json::{Value, json};
use timevisor_lab::plot::{self, Series};

use super::{NAME, Setting};
use crate::job;
use crate::spread::Spread;

/// The paper draws the first fifteen readings, 10 ms apart.
const DRAWN: usize = 15;
const DRAWN_PAUSE_US: u64 = 10_000;

pub(super) fn run(setting: &Setting) -> anyhow::Result<Vec<Value>> {
    let found = job::native(&setting.program, &["steps", &setting.page()])?;
    println!(
        "\nfigure 3: readings of elapsed with pauses, us\npause, ms  readings  not later | step: min    median       p99 | less CLOCK_MONOTONIC's step: median |.|   p99"
    );
    let mut rows = Vec::new();
    for row in found["rows"].as_array().context("no rows")? {
        let values = |name: &str| -> Vec<f64> {
            row[name].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let (steps, pause) = (values("steps_us"), row["pause_us"].as_u64().context("no pause")?);
        let whole = |name: &str| row[name].as_u64().with_context(|| format!("no {name}"));
        let apart: Vec<f64> = values("apart_us").iter().map(|a| a.abs()).collect();
        let (step, apart) = (Spread::of(&steps), Spread::of(&apart));
        println!(
            "{:>9} {:>9} {:>10} | {:>9.2} {:>9.1} {:>9.1} | {:>39.3} {:>5.2}",
            pause / 1000,
            whole("readings")?,
            whole("not_later")?,
            step.min,
            step.median,
            step.p99,
            apart.median,
            apart.p99
        );
        rows.push(json!({"figure": 3, "pause_us": pause, "readings": row["readings"], "not_later": row["not_later"],
                         "step_us": step.json(), "apart_us": apart.json()}));
        if pause == DRAWN_PAUSE_US {
            let mut sum = 0.0;
            let points = steps.iter().take(DRAWN).enumerate().map(|(n, step)| {
                sum += step / 1e3;
                ((n + 1) as f64, sum)
            });
            let series = vec![Series { name: "elapsed".into(), points: points.collect() }];
            let title = format!("{NAME}: readings 10 ms apart (figure 3)");
            let axes = ["reading", "since the first, ms"];
            plot::write(&format!("{NAME}-figure-3"), &plot::lines(&title, axes, series, false))?;
        }
    }
    Ok(rows)
}
