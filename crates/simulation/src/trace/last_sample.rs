//! The simplest clock: the newest exchange's offset, and the average rate since the first.

use timevisor_estimate::{Estimate, Estimator, Exchange};
use timevisor_time::{Duration, Instant, Period, Tai};

/// Trusts the newest exchange. This is the baseline that filtering has to beat.
#[derive(Clone, Copy, Debug)]
pub struct LastSample {
    nominal: Period,
    first: Option<(u64, Instant<Tai>)>,
    newest: Option<(u64, Instant<Tai>, u64)>,
}

impl LastSample {
    /// `nominal` is the counter's period until the second exchange measures it.
    #[must_use]
    pub fn new(nominal: Period) -> Self {
        Self { nominal, first: None, newest: None }
    }

    fn period(&self) -> Period {
        let (Some((then, before)), Some((now, after, _))) = (self.first, self.newest) else {
            return self.nominal;
        };
        Period::from_ratio(after - before, now.wrapping_sub(then)).unwrap_or(self.nominal)
    }
}

impl Estimator for LastSample {
    fn observe(&mut self, exchange: &Exchange) {
        let time = exchange.tb + (exchange.te - exchange.tb).half();
        let middle = exchange.middle();
        self.first.get_or_insert((middle, time));
        self.newest = Some((middle, time, exchange.round_trip()));
    }

    fn at(&self, now: u64) -> Option<Estimate> {
        let (middle, time, round_trip) = self.newest?;
        let period = self.period();
        let error: Duration = period.span(round_trip).half();
        Some(Estimate { time: time + period.span(now.wrapping_sub(middle)), period, error })
    }
}
