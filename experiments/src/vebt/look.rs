//! A host's page compared with the truth at one value of the machine's TSC, and the table's row for
//! many such errors.

use anyhow::Context as _;
use serde_json::{Value, json};
use timevisor_lab::reader::HostPage;
use timevisor_lab::truth::Truth;
use timevisor_linux::counter::Tsc;

use crate::spread::Spread;
use crate::statistics::Summary;

/// Instants are whole ns here, and an oscillator is computed in doubles.
const ROUNDING_US: f64 = 0.1;

/// The truth at one value of the machine's TSC.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) tsc: u64,
    true_ns: i64,
    /// How far the truth itself may be off: on a busy machine a look at the clock takes long.
    within_us: f64,
}

impl Moment {
    pub(super) fn now() -> anyhow::Result<Self> {
        let ((), truth) = Truth::around(&Tsc::unchecked(), || Ok(()))?;
        let tsc = truth.end();
        Ok(Self { tsc, true_ns: truth.at(tsc), within_us: truth.uncertainty_ns() as f64 / 1e3 })
    }
}

/// A page's estimate and bounds minus the truth, us.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) error_us: f64,
    pub(super) earliest_us: f64,
    pub(super) latest_us: f64,
    /// How far the truth, and this arithmetic, may be off.
    pub(super) within_us: f64,
}

impl Look {
    /// `counter` is the page's own counter at that moment.
    pub(super) fn at(page: &HostPage, counter: u64, moment: &Moment) -> anyhow::Result<Self> {
        let reading = page.convert(counter)?;
        anyhow::ensure!(reading.has_estimate(), "the page knows no time");
        let tai = i64::from(reading.tai_offset().context("no TAI - UTC")?) * 1_000_000_000;
        let us = |instant: timevisor_time::Instant<_>| {
            (instant.floor_nanos() - tai - moment.true_ns) as f64 / 1e3
        };
        Ok(Self {
            error_us: us(reading.estimate),
            earliest_us: us(reading.earliest),
            latest_us: us(reading.latest),
            within_us: moment.within_us + ROUNDING_US,
        })
    }

    /// False if the bounds certainly excluded the truth.
    pub(super) fn holds(&self) -> bool {
        self.earliest_us <= self.within_us && self.latest_us >= -self.within_us
    }

    /// Whether the bounds of two pages have a time in common, as they must if both are right.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.earliest_us <= other.latest_us && other.earliest_us <= self.latest_us
    }

    /// Half-width of the bounds.
    pub(super) fn half_width_us(&self) -> f64 {
        (self.latest_us - self.earliest_us) / 2.0
    }
}

/// Prints the header of [`row`].
pub(super) fn head(title: &str) {
    println!(
        "\n{:<46} {:>6} {:>9} {:>9} {:>9} {:>11} {:>9}",
        format!("{title}, us"),
        "n",
        "median",
        "IQR",
        "sd",
        "p99 of |e|",
        "max |e|"
    );
}

/// Prints signed values as one row, and returns it for the result file.
pub(super) fn row(name: &str, values: &[f64]) -> Value {
    let (summary, spread) = (Summary::of(values), Spread::of(values));
    println!(
        "{name:<46} {:>6} {:>9.2} {:>9.2} {:>9.2} {:>11.2} {:>9.2}",
        summary.count,
        summary.median,
        spread.iqr(),
        summary.sd,
        summary.p99,
        summary.max
    );
    json!({"row": name, "error": summary.json(), "spread_us": spread.json()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(earliest_us: f64, latest_us: f64) -> Look {
        Look { error_us: 0.0, earliest_us, latest_us, within_us: ROUNDING_US }
    }

    #[test]
    fn bounds_hold_the_truth_or_not() {
        assert!(look(-3.0, 5.0).holds() && look(0.05, 3.0).holds());
        assert!(!look(0.2, 3.0).holds() && !look(-3.0, -0.2).holds());
        assert_eq!(look(-3.0, 5.0).half_width_us(), 4.0);
    }

    #[test]
    fn bounds_meet_or_not() {
        assert!(look(-3.0, 1.0).meets(&look(0.5, 4.0)) && look(-9.0, 9.0).meets(&look(1.0, 2.0)));
        assert!(!look(-3.0, 0.0).meets(&look(0.5, 4.0)) && !look(0.5, 4.0).meets(&look(-3.0, 0.0)));
    }
}
