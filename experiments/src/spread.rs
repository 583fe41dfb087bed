//! Quartiles and percentiles, as in box plots. Independent of any unit.

use serde_json::{Value, json};

/// Summary of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Spread {
    pub(super) count: usize,
    pub(super) min: f64,
    pub(super) p25: f64,
    pub(super) median: f64,
    pub(super) p75: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Computes them by nearest rank; all zero if there are no values.
    pub(super) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        // In per mille, so that the rank is computed in integers.
        let at =
            |per_mille: usize| sorted.get((last * per_mille + 500) / 1000).copied().unwrap_or(0.0);
        Self {
            count: sorted.len(),
            min: at(0),
            p25: at(250),
            median: at(500),
            p75: at(750),
            p99: at(990),
            max: at(1000),
        }
    }

    /// Interquartile range.
    pub(super) fn iqr(&self) -> f64 {
        self.p75 - self.p25
    }

    /// The header of [`Self::line`], after a name column of 44 characters.
    pub(super) const HEAD: &str =
        "     n      min      p25   median      p75      IQR      p99       max";

    /// A row of text.
    pub(super) fn line(&self) -> String {
        format!(
            "{:>6} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>9.1}",
            self.count,
            self.min,
            self.p25,
            self.median,
            self.p75,
            self.iqr(),
            self.p99,
            self.max
        )
    }

    /// The row for a result file.
    pub(super) fn json(&self) -> Value {
        json!({"count": self.count, "min": self.min, "p25": self.p25, "median": self.median, "p75": self.p75,
               "iqr": self.iqr(), "p99": self.p99, "max": self.max})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_known_values() {
        let values: Vec<f64> = (0..=1000).rev().map(f64::from).collect();
        let spread = Spread::of(&values);
        assert_eq!((spread.count, spread.min, spread.max), (1001, 0.0, 1000.0));
        assert_eq!(
            (spread.p25, spread.median, spread.p75, spread.p99),
            (250.0, 500.0, 750.0, 990.0)
        );
        assert_eq!(spread.iqr(), 500.0);
        assert_eq!(Spread::of(&[]), Spread::default());
        assert_eq!(Spread::of(&[3.0]).median, 3.0);
    }
}
