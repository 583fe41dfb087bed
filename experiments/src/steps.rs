//! A run in steps with a different load each: samples, table, rows and pictures.

use serde_json::{Value, json};
use timevisor_lab::plot;
use timevisor_lab::scenario::Context;

use super::pictures;
use super::report::{self, Accuracy};
use super::watch::{CLOCKS, Sample};

/// The samples under one load.
pub(super) struct Step {
    /// Label in the table.
    pub(super) label: String,
    /// Description in the result file.
    pub(super) facts: Value,
    pub(super) samples: Vec<Sample>,
}

/// Prints the table, and writes the result file, the samples and a picture of each clock.
pub(super) fn report(ctx: &Context, name: &str, steps: &[Step]) -> anyhow::Result<()> {
    println!(
        "\nerror against the truth (mean +- sd, largest) and median half-width, us; * the bounds did not always hold the truth"
    );
    print!("{:<28}", "load");
    for clock in CLOCKS {
        print!(" | {:<38}", clock.title());
    }
    println!();
    let mut rows = Vec::new();
    for step in steps {
        let all = Accuracy::of_all(&step.samples);
        print!("{:<28}", step.label);
        for a in &all {
            let e = &a.error;
            let star = if a.held < e.count { '*' } else { ' ' };
            print!(
                " | {:>7.1} +- {:>6.1}, {:>7.1}; {:>8.1}{star}  ",
                e.mean, e.sd, e.max, a.half_width_us.0
            );
        }
        println!();
        let mut row = step.facts.clone();
        row["clocks"] = json!(all.iter().map(Accuracy::json).collect::<Vec<_>>());
        rows.push(row);
    }
    let samples: Vec<Sample> = steps.iter().flat_map(|s| s.samples.iter().copied()).collect();
    std::fs::write(ctx.path("samples.csv"), report::csv(&samples))?;
    let events: Vec<f64> = steps.iter().filter_map(|s| s.samples.first()).map(|s| s.at_s).collect();
    for clock in CLOCKS {
        let svg = pictures::bounds(name, &samples, clock, &events);
        plot::write(&format!("{name}-{}", clock.id()), &svg)?;
    }
    report::write(name, rows)
}
