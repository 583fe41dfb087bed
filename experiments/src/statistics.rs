//! Statistics of many errors. Nothing here knows what a clock is.

use serde_json::{Value, json};

/// Summary of a set of samples, us.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Summary {
    pub(super) count: usize,
    pub(super) mean: f64,
    pub(super) sd: f64,
    pub(super) median: f64,
    /// 99th percentile of the magnitude.
    pub(super) p99: f64,
    /// Largest magnitude.
    pub(super) max: f64,
}

impl Summary {
    /// Summarizes signed values; all zero if there are none.
    pub(super) fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        let magnitudes: Vec<f64> = values.iter().map(|v| v.abs()).collect();
        Self {
            count: values.len(),
            mean,
            sd: variance.sqrt(),
            median: quantile(values, 0.5),
            p99: quantile(&magnitudes, 0.99),
            max: quantile(&magnitudes, 1.0),
        }
    }

    /// The row for a result file.
    pub(super) fn json(&self) -> Value {
        json!({"count": self.count, "mean_us": self.mean, "sd_us": self.sd, "median_us": self.median,
               "p99_abs_us": self.p99, "max_abs_us": self.max})
    }
}

/// The quantile by nearest rank; 0 if there are no values.
pub(super) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let index = (sorted.len().saturating_sub(1) as f64 * q).round() as usize;
    sorted.get(index).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_known_samples() {
        let values: Vec<f64> = (-50..=50).map(f64::from).collect();
        let summary = Summary::of(&values);
        assert_eq!((summary.count, summary.mean, summary.median), (101, 0.0, 0.0));
        assert_eq!((summary.p99, summary.max), (50.0, 50.0));
        // The variance of -n..=n is n (n + 1) / 3.
        assert!((summary.sd - 850f64.sqrt()).abs() < 1e-9, "{}", summary.sd);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(Summary::of(&[]), Summary::default());
    }
}
