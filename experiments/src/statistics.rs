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

/// Student's t for 95 % and 1 to 30 degrees of freedom (two-sided); from there on the normal distribution's.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Mean of repeated measurements, and half the width of its 95 % confidence interval (Student's t);
/// infinite for fewer than two.
pub(super) fn confidence_95(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let Some(freedom) = values.len().checked_sub(1).filter(|n| *n > 0) else {
        return (mean, f64::INFINITY);
    };
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / freedom as f64;
    let t = T_95.get(freedom - 1).copied().unwrap_or(1.960);
    (mean, t * (variance / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_its_interval() {
        // scipy.stats.t.interval(0.95, 4, loc=3, scale=sem): 1.037 to 4.963.
        let (mean, half) = confidence_95(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((mean - 3.0).abs() < 1e-9 && (half - 1.963).abs() < 1e-3, "{mean} {half}");
        assert!(confidence_95(&[1.0]).1.is_infinite());
        let many: Vec<f64> = (0..1000).map(|n| f64::from(n % 2)).collect();
        assert!((confidence_95(&many).1 - 1.96 * 0.5 / 1000_f64.sqrt()).abs() < 1e-4);
    }

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
