//! The quality of the readings.

use timevisor_time::Duration;

use super::replay::Reading;

/// Median, 99th percentile and maximum of something, in microseconds: nearest rank, so each is a
/// value that occurred.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Quantiles {
    /// Half of the values are at most this.
    pub median: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// All are at most this.
    pub max: f64,
}

impl Quantiles {
    /// The quantiles of values in any order; `None` if there are none.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let max = *values.last()?;
        let rank = |percent: usize| values[(values.len() * percent).div_ceil(100) - 1];
        Some(Self { median: rank(50), p99: rank(99), max })
    }
}

/// The figures of a set of readings. Errors are those of the estimate against the truth.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Score {
    /// Root mean square error, us.
    pub rms_us: f64,
    /// Mean absolute error, us.
    pub mean_abs_us: f64,
    /// Absolute error, us.
    pub abs_us: Quantiles,
    /// Share of readings with the truth inside the bounds, 0 to 1.
    pub coverage: f64,
    /// Readings that were scored.
    pub seconds: u64,
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

impl Score {
    /// Scores the readings that have a truth; `None` if none has.
    #[must_use]
    pub fn of<'a>(readings: impl IntoIterator<Item = &'a Reading>) -> Option<Self> {
        let (mut errors, mut inside) = (Vec::new(), 0_u64);
        for reading in readings {
            let Some(truth) = reading.truth else { continue };
            errors.push(micros((reading.estimate - truth).abs()));
            inside += u64::from(reading.interval.contains(truth));
        }
        let n = errors.len() as f64;
        let squares: f64 = errors.iter().map(|error| error * error).sum();
        let sum: f64 = errors.iter().sum();
        let seconds = errors.len() as u64;
        Some(Self {
            rms_us: (squares / n).sqrt(),
            mean_abs_us: sum / n,
            coverage: inside as f64 / n,
            seconds,
            abs_us: Quantiles::of(errors)?,
        })
    }
}

/// Half the width of the bounds, us; `None` without readings.
#[must_use]
pub fn half_widths<'a>(readings: impl IntoIterator<Item = &'a Reading>) -> Option<Quantiles> {
    Quantiles::of(readings.into_iter().map(|r| micros(r.interval.width().half())).collect())
}
