//! One measurement as a table and as JSON. It does not judge: limits belong to the benchmark.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Map, Value, json};
use timevisor_results::Results;

/// A column: its key in the JSON rows and its heading and decimals in the table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The JSON key, snake_case with its unit.
    pub key: &'static str,
    /// The table's heading.
    pub heading: &'static str,
    /// Decimals in the table; the JSON has them all.
    pub decimals: usize,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// A value per column, or why it could not be measured here.
    pub values: Result<Vec<f64>, String>,
}

impl Row {
    /// The median and the 99th percentile of values, and what they are held against.
    #[must_use]
    pub fn of(name: &str, values: &[f64], limit: f64, ratio: f64) -> Self {
        let values = vec![median(values), quantile(values, 0.99), limit, ratio];
        Self { name: name.to_owned(), values: Ok(values) }
    }
}

/// The middle value; NaN if there is none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a length is an index"
)]
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

/// A whole table.
#[derive(Clone, Debug)]
pub struct Report {
    /// The benchmark's name, also the file's.
    pub name: &'static str,
    /// What the rows are called, heading and JSON key of their names.
    pub subject: &'static str,
    /// How it was measured, one statement per line.
    pub caption: Vec<String>,
    /// The columns after the name.
    pub columns: Vec<Column>,
    /// The lines.
    pub rows: Vec<Row>,
}

impl Report {
    /// `target/results/NAME.json`, below the current directory.
    #[must_use]
    pub fn default_path(&self) -> PathBuf {
        timevisor_results::path(Path::new(""), self.name)
    }

    /// The table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let results = self.results();
        self.table_of(&results.machine, &results.commit)
    }

    fn table_of(&self, machine: &str, commit: &str) -> String {
        let names = self.rows.iter().map(|row| row.name.chars().count());
        let width = names.chain([self.subject.len()]).max().unwrap_or(0);
        let mut out = format!("{}: {machine} ({commit})\n", self.name);
        out.extend(self.caption.iter().map(|line| format!("  {line}\n")));
        out += &format!("{:width$}", self.subject);
        out.extend(self.columns.iter().map(|column| format!("  {:>10}", column.heading)));
        for row in &self.rows {
            out += &format!("\n{:width$}", row.name);
            match &row.values {
                Ok(values) => out.extend(
                    self.columns
                        .iter()
                        .zip(values)
                        .map(|(column, value)| cell(*value, column.decimals)),
                ),
                Err(reason) => out += &format!("  not measured: {reason}"),
            }
        }
        out + "\n"
    }

    /// The same for machines; a row that could not be measured has `unavailable` with the reason.
    #[must_use]
    pub fn results(&self) -> Results {
        let row = |row: &Row| {
            let mut object = Map::new();
            object.insert(self.subject.to_owned(), json!(row.name));
            match &row.values {
                Ok(values) => object.extend(
                    self.columns
                        .iter()
                        .zip(values)
                        .map(|(column, value)| (column.key.to_owned(), json!(value))),
                ),
                Err(reason) => drop(object.insert("unavailable".to_owned(), json!(reason))),
            }
            Value::Object(object)
        };
        Results::new(self.name, self.rows.iter().map(row).collect())
            .with_caption(self.caption.clone())
    }

    /// Writes the JSON, creating the folder.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        Ok(self.results().write(path)?)
    }
}

/// What is not known is no number.
fn cell(value: f64, decimals: usize) -> String {
    if value.is_nan() { format!("  {:>10}", "-") } else { format!("  {value:>10.decimals$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_json_have_the_same_rows() {
        let report = Report {
            name: "bench-x",
            subject: "clock",
            caption: vec!["how".into()],
            columns: vec![Column { key: "median_ns", heading: "median ns", decimals: 1 }],
            rows: vec![
                Row { name: "fast".into(), values: Ok(vec![1.25]) },
                Row { name: "absent".into(), values: Err("no such file".into()) },
                Row { name: "new".into(), values: Ok(vec![f64::NAN]) },
            ],
        };
        let table = "bench-x: m (c)\n  how\nclock    median ns\n\
                     fast           1.2\nabsent  not measured: no such file\nnew              -\n";
        assert_eq!(report.table_of("m", "c"), table);
        let rows = json!([
            {"clock": "fast", "median_ns": 1.25},
            {"clock": "absent", "unavailable": "no such file"},
            {"clock": "new", "median_ns": null},
        ]);
        assert_eq!(json!(report.results().rows), rows);
        assert_eq!(report.default_path(), Path::new("target/results/bench-x.json"));
    }
}
