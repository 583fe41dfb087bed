//! [`Tally`]: aggregates many cases, as a table and as JSON. What it does not do: run them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use timevisor_schedule::Policy;

use super::claims::Claim;
use super::examine::{Examined, World};
use super::sets::{Case, part_of};

/// Number of broken guarantees that are described; all are counted.
const TOLD: usize = 10;

/// Results by claim and policy.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    rows: BTreeMap<(Claim, bool), Row>,
    /// Descriptions of the first broken guarantees.
    pub told: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Row {
    cases: u64,
    schedulable: u64,
    broken: u64,
    seen: Vec<f64>,
    pessimism: [Vec<f64>; 3],
}

impl Tally {
    /// Adds a case.
    pub fn add(&mut self, case: &Case, claim: Claim, examined: &Examined) {
        let row = self.rows.entry((claim, case.set.policy() == Policy::Edf)).or_default();
        row.cases += 1;
        row.schedulable += u64::from(examined.schedulable);
        row.broken += u64::from(!examined.broken.is_empty());
        row.seen.extend(&examined.seen);
        for (all, ratio) in row.pessimism.iter_mut().zip(examined.pessimism) {
            all.extend(ratio);
        }
        let room = TOLD.saturating_sub(self.told.len());
        self.told.extend(examined.broken.iter().take(room).cloned());
    }

    /// Adds another tally.
    pub fn merge(&mut self, other: Self) {
        for (key, from) in other.rows {
            let row = self.rows.entry(key).or_default();
            row.cases += from.cases;
            row.schedulable += from.schedulable;
            row.broken += from.broken;
            row.seen.extend(from.seen);
            for (all, more) in row.pessimism.iter_mut().zip(from.pessimism) {
                all.extend(more);
            }
        }
        let room = TOLD.saturating_sub(self.told.len());
        self.told.extend(other.told.into_iter().take(room));
    }

    /// Number of cases in which a guarantee was broken.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.rows.values().map(|row| row.broken).sum()
    }

    /// Number of cases for which the analysis gave a guarantee.
    #[must_use]
    pub fn schedulable(&self) -> u64 {
        self.rows.values().map(|row| row.schedulable).sum()
    }

    /// A table for people.
    #[must_use]
    pub fn table(&mut self) -> String {
        let mut out = format!(
            "{:<15} {:<5} {:>8} {:>8} {:>7}  {:<20} {:<22} {:<22} {:<22}\n",
            "supply",
            "",
            "cases",
            "fit",
            "broken",
            "response seen",
            "budget: theory",
            "sleeping guest",
            "hog in the guest"
        );
        let of = |list: &mut Vec<f64>, ends: [f64; 3]| {
            let [a, b, c] = ends.map(|part| quantile(list, part));
            if list.is_empty() { "-".to_owned() } else { format!("{a:.4} {b:.4} {c:.4}") }
        };
        for ((claim, edf), row) in &mut self.rows {
            let policy = if *edf { "EDF" } else { "fixed" };
            let seen = of(&mut row.seen, [0.0, 0.05, 0.5]);
            let [a, b, c] = &mut row.pessimism;
            let [a, b, c] = [a, b, c].map(|list| of(list, [0.5, 0.95, 1.0]));
            // Writing to a String does not fail.
            let _ = writeln!(
                out,
                "{:<15} {policy:<5} {:>8} {:>8} {:>7}  {seen:<20} {a:<22} {b:<22} {c:<22}",
                claim.name(),
                row.cases,
                row.schedulable,
                row.broken
            );
        }
        out.push_str("response seen: of the predicted worst one; least, 5 %, median. budget: the analysis' least over the simulator's; median, 95 %, most\n");
        out
    }

    /// JSON with a row for each claim and policy.
    #[must_use]
    pub fn json_rows(&mut self) -> Vec<Value> {
        let rows = self.rows.iter_mut().map(|((claim, edf), row)| {
            let worlds =
                World::ALL.iter().zip(&mut row.pessimism).filter(|(_, list)| !list.is_empty());
            let budgets: serde_json::Map<String, Value> = worlds
                .map(|(world, list)| {
                    let [median, p95, most] = [0.5, 0.95, 1.0].map(|part| quantile(list, part));
                    (
                        format!("{world:?}").to_lowercase(),
                        json!({"median": median, "p95": p95, "most": most}),
                    )
                })
                .collect();
            let [least, p5, median] = [0.0, 0.05, 0.5].map(|part| quantile(&mut row.seen, part));
            json!({
                "supply": claim.name(), "policy": if *edf { "edf" } else { "fixed-priority" },
                "cases": row.cases, "schedulable": row.schedulable, "broken": row.broken,
                "response_seen": {"least": least, "p5": p5, "median": median},
                "budget_ratio": budgets,
            })
        });
        rows.collect()
    }
}

fn quantile(list: &mut [f64], part: f64) -> f64 {
    list.sort_unstable_by(f64::total_cmp);
    let index = (list.len() as u64).saturating_sub(1);
    let index = usize::try_from(part_of(part, index)).unwrap_or(0);
    list.get(index).copied().unwrap_or(f64::NAN)
}
