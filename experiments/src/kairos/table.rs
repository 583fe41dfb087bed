//! The results of lab-call-costs, by how a guest is introspected.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::statistics::quantile;

const CALLS: [&str; 6] =
    ["sched_setattr", "sched_yield", "sched_getattr", "getppid", "read", "write"];

/// One way to introspect a guest, or no introspection.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The program's output of each run.
    pub(super) said: Vec<Value>,
}

impl Row {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, said: Vec::new() }
    }

    /// The median of the runs' medians, ticks.
    pub(super) fn median(&self, call: &str) -> anyhow::Result<f64> {
        let of = |said: &Value| said[call]["median"].as_f64().with_context(|| said.to_string());
        let all = self.said.iter().map(of).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(quantile(&all, 0.5))
    }
}

/// Prints the rows beside the first one, and returns them for a result file.
pub(super) fn print(rows: &[&Row], base: &Row) -> anyhow::Result<Vec<Value>> {
    let trapped = |call: &str| base.said.first().is_some_and(|said| said[call]["trapped"] == true);
    let mark = |call: &str| format!("{call}{}", if trapped(call) { "*" } else { "" });
    let head: String = CALLS.iter().map(|call| format!("{:>18}", mark(call))).collect();
    println!("{:<34}{head}", "");
    let mut told = Vec::new();
    for row in rows {
        let mut text = String::new();
        for call in CALLS {
            let (ticks, ratio) = (row.median(call)?, row.median(call)? / base.median(call)?);
            text += &format!("{:>18}", format!("{ticks:.0} ({ratio:.2})"));
            told.push(
                json!({"row": row.name, "call": call, "median_ticks": ticks, "ratio": ratio}),
            );
        }
        println!("{:<34}{text}", row.name);
        told.push(json!({"row": row.name, "said": row.said}));
    }
    println!(
        "  median ticks of the TSC, and how many times what it takes without introspection; * is trapped by ours"
    );
    Ok(told)
}

/// Prints what figure 6 has: the mean of all calls, the least and the most, ticks.
pub(super) fn print_spread(rows: &[&Row]) -> anyhow::Result<()> {
    println!("\n{:<34}{}", "", CALLS.map(|call| format!("{call:>26}")).concat());
    for row in rows {
        let mut text = String::new();
        for call in CALLS {
            let of = |said: &Value, what: &str| {
                said[call][what].as_f64().with_context(|| said.to_string())
            };
            let all = |what| {
                row.said.iter().map(|said| of(said, what)).collect::<anyhow::Result<Vec<_>>>()
            };
            let (means, least, most) = (all("mean")?, all("min")?, all("max")?);
            let mean = means.iter().sum::<f64>() / means.len() as f64;
            let (least, most) = (quantile(&least, 0.0), quantile(&most, 1.0));
            text += &format!("{:>26}", format!("{mean:.0} ({least:.0} {most:.0})"));
        }
        println!("{:<34}{text}", row.name);
    }
    println!("  mean ticks of the TSC, and in brackets the least and the most that a call took");
    Ok(())
}

/// The ratios between the costs of untrapped calls and those of the base: minimum and maximum.
pub(super) fn untrapped(row: &Row, base: &Row) -> anyhow::Result<[f64; 2]> {
    let mut all = [f64::MAX, 0.0];
    for call in &CALLS[2..] {
        let ratio = row.median(call)? / base.median(call)?;
        all = [all[0].min(ratio), all[1].max(ratio)];
    }
    Ok(all)
}

/// The cost that the trap adds to sched_yield, ticks.
pub(super) fn trap(row: &Row, base: &Row) -> anyhow::Result<f64> {
    Ok(row.median("sched_yield")? - base.median("sched_yield")?)
}

/// The ratio between the added cost of the trap and that of the same trap of `bare` in the same
/// round: minimum, median and maximum over all rounds.
pub(super) fn times(row: &Row, bare: &Row, base: &Row) -> anyhow::Result<[f64; 3]> {
    let of =
        |said: &Value| said["sched_yield"]["median"].as_f64().with_context(|| said.to_string());
    let mut all = Vec::new();
    for ((row, bare), base) in row.said.iter().zip(&bare.said).zip(&base.said) {
        all.push((of(row)? - of(base)?) / (of(bare)? - of(base)?));
    }
    Ok([0.0, 0.5, 1.0].map(|q| quantile(&all, q)))
}
