//! RADclock, the published feed-forward estimator: the baseline that anyone can verify.
//!
//! | module | owns |
//! | --- | --- |
//! | this file | [`Radclock`]: the order of the steps; the uncorrected clock |
//! | `parameters` | [`RadclockParameters`]: the three published profiles |
//! | `windows` | windows in stamps and thresholds, derived from the parameters |
//! | `history` | the stamps that are still needed |
//! | `round_trip` | the minimum round trip, its sliding history, upward shifts |
//! | `period` | the global period, in and after the warmup; the local period |
//! | `offset` | the weighted offset |
//!
//! The absolute clock is `Ca(c) = C(c) - theta`, where C is an uncorrected clock of constant period
//! that is continuous when the period changes. Sources: Veitch, Ridoux, Korada, "Robust
//! synchronization of absolute and difference clocks over networks", IEEE/ACM ToN 17(2), 2009;
//! behaviour and constants follow `radclock/sync_bidir.c` and `sync_algo.h` of
//! github.com/RADicalsync/RADclock (none of its code is used here); docs/explanation/estimation.md,
//! "RADclock".
//!
//! Intentional differences, because the original behaviour is a mistake: differences of round trips
//! saturate instead of wrapping; a minimum that leaves its sliding window is replaced by the
//! minimum of all the others, including the newest; stamps older than a shift keep the minimum of
//! their time in the error of the local period as well; the far window of the local period has a
//! fixed place from the start; the reported error is called an estimate, not a bound, because it
//! does not include asymmetry.
//!
//! Not supported: changing the poll interval at runtime, choosing between servers, and tracking
//! one-way delays (which RADclock does for its server selection, not for its clock).

mod history;
mod offset;
mod parameters;
mod period;
mod round_trip;
mod windows;

pub use parameters::RadclockParameters;

use timevisor_time::{Duration, Instant, Period, Tai};

use super::{Estimate, Estimator};
use crate::exchange::Exchange;
use history::{History, Stamp};
use offset::{Offset, Phase};
use period::GlobalPeriod;
use round_trip::RoundTrip;
use windows::{Thresholds, Windows};

/// A clock without corrections: time `time` at counter value `counter`, and a period.
#[derive(Clone, Copy, Debug)]
struct Uncorrected {
    counter: u64,
    time: Instant<Tai>,
    period: Period,
}

impl Uncorrected {
    fn at(&self, counter: u64) -> Instant<Tai> {
        let ahead = counter.wrapping_sub(self.counter);
        if ahead >> 63 == 0 {
            self.time + self.period.span(ahead)
        } else {
            self.time - self.period.span(ahead.wrapping_neg())
        }
    }

    /// Uses another period from here on; the clock is continuous at `counter`.
    fn turn(&mut self, counter: u64, period: Period) {
        *self = Self { counter, time: self.at(counter), period };
    }

    /// This clock minus the reference: the mean over both directions, s.
    fn offset_to(&self, stamp: &Stamp) -> f64 {
        ((self.at(stamp.ta) - stamp.tb) + (self.at(stamp.tf) - stamp.te)).half().as_secs_f64()
    }
}

/// The state after the first stamp.
#[derive(Clone, Debug)]
struct Running {
    clock: Uncorrected,
    round_trip: RoundTrip,
    /// `None` during the warmup.
    global: Option<GlobalPeriod>,
    /// Relative error of the period during the warmup.
    warmup_error: f64,
    local: Option<Period>,
    offset: Offset,
    /// The stamp number at which the history slides next.
    history_end: u64,
}

/// The estimator. Its state consists of a few hundred stamps.
#[derive(Clone, Debug)]
pub struct Radclock {
    parameters: RadclockParameters,
    windows: Windows,
    thresholds: Thresholds,
    nominal: Period,
    history: History,
    running: Option<Running>,
}

impl Radclock {
    /// `nominal` is the counter's nominal period, which is used until the second stamp measures the
    /// period.
    #[must_use]
    pub fn new(parameters: &RadclockParameters, nominal: Period) -> Self {
        let windows = Windows::new(parameters);
        let held = windows.warmup.max(windows.local + 2 * windows.local_ends);
        Self {
            parameters: parameters.clone(),
            windows,
            thresholds: Thresholds::new(parameters),
            nominal,
            history: History::new(held.max(windows.offset).max(windows.shift)),
            running: None,
        }
    }

    /// True until the windows are full and the full algorithm runs.
    #[must_use]
    pub fn is_warming_up(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.global.is_none())
    }

    /// The difference clock: the time that passed between `from` and `to` on the counter, by the
    /// global period alone. It is meant for intervals below the constant-rate scale, where the
    /// corrections of the absolute clock would only add noise.
    #[must_use]
    pub fn difference(&self, from: u64, to: u64) -> Option<Duration> {
        let clock = &self.running.as_ref()?.clock;
        Some(clock.at(to) - clock.at(from))
    }

    fn start(&mut self, exchange: &Exchange) {
        let stamp = Stamp::new(exchange, exchange.round_trip());
        self.history.push(stamp);
        let half = self.nominal.span(stamp.round_trip()).half().as_secs_f64();
        self.running = Some(Running {
            clock: Uncorrected { counter: stamp.ta, time: stamp.tb, period: self.nominal },
            round_trip: RoundTrip::new(stamp.round_trip()),
            global: None,
            warmup_error: self.parameters.unmeasured_rate.ppb() * 1e-9,
            local: None,
            offset: Offset { value: 0.0, error: half, at: stamp.tf },
            history_end: self.windows.history - 1,
        });
    }

    fn warm_up(&mut self, exchange: &Exchange) {
        let Some(running) = &mut self.running else { return };
        let before = self.history.newest().map_or(exchange.ta, |stamp| stamp.ta);
        running.round_trip.observe(exchange.round_trip());
        let minimum = running.round_trip.minimum();
        self.history.push(Stamp::new(exchange, minimum));
        let ratio = self.parameters.warmup_ratio;
        if let Some((period, error)) = period::during_warmup(&self.history, ratio, minimum) {
            running.clock.turn(before, period);
            running.warmup_error = error;
        }
        running.find_offset(&mut self.history, &self.windows, &self.thresholds);
        if self.history.count() == self.windows.warmup {
            self.end_warm_up();
        }
    }

    fn end_warm_up(&mut self) {
        let Some(running) = &mut self.running else { return };
        let minimum = running.round_trip.minimum();
        self.history.correct_minimum(self.windows.warmup, minimum);
        running.global = GlobalPeriod::after_warmup(
            &self.history,
            minimum,
            running.warmup_error,
            &self.thresholds,
        );
        running.local = Some(running.clock.period);
        let shortest = running.clock.period.span(minimum);
        self.thresholds.calibrate(shortest, &self.parameters);
    }

    fn run(&mut self, exchange: &Exchange) {
        let Some(running) = &mut self.running else { return };
        let before = self.history.newest().map_or(exchange.ta, |stamp| stamp.ta);
        let number = self.history.count();
        running.slide(number, exchange, &self.windows);
        running.round_trip.observe(exchange.round_trip());
        self.history.push(Stamp::new(exchange, running.round_trip.minimum()));
        running.detect_shift(number, &mut self.history, &self.windows, self.thresholds.shift);
        running.find_period(number, before, &self.history, &self.thresholds);
        running.find_local_period(number, &self.history, &self.windows, &self.thresholds);
        running.find_offset(&mut self.history, &self.windows, &self.thresholds);
    }
}

impl Running {
    /// Half-way through a history, starts preparing the values that will be in force after it
    /// slides.
    fn slide(&mut self, number: u64, exchange: &Exchange, windows: &Windows) {
        let Some(global) = &mut self.global else { return };
        let round_trip = exchange.round_trip();
        let stamp = Stamp::new(exchange, self.round_trip.minimum().min(round_trip));
        let period = self.clock.period;
        if number == windows.history / 2 {
            self.round_trip.begin_successor(round_trip);
            global.begin_successor(number, &stamp, windows.warmup, period);
        }
        if number == self.history_end {
            self.history_end += windows.history / 2;
            self.round_trip.slide(round_trip);
            global.slide(number, &stamp, windows.warmup, period);
        }
    }

    fn detect_shift(&mut self, number: u64, history: &mut History, w: &Windows, above: Duration) {
        let period = self.clock.period;
        if self.round_trip.detect_shift(history, w, above, period)
            && let Some(global) = &mut self.global
        {
            let first = (number + 1).saturating_sub(w.shift);
            global.correct_minimum(first, self.round_trip.minimum(), period);
        }
    }

    /// Uses a new global period if the newest stamp gives a better one; the clock changes its
    /// period at the stamp `before`.
    fn find_period(&mut self, number: u64, before: u64, history: &History, t: &Thresholds) {
        let (Some(global), Some(stamp)) = (&mut self.global, history.newest()) else { return };
        global.offer_successor(number, stamp, self.clock.period);
        if let Some(period) = global.observe(stamp, self.clock.period, t) {
            self.clock.turn(before, period);
        }
    }

    fn find_local_period(&mut self, number: u64, history: &History, w: &Windows, t: &Thresholds) {
        let width = w.local_ends;
        let Some(far_end) = number.checked_sub(w.local + width / 2) else { return };
        let far = (far_end + 1 - width.min(far_end + 1), far_end);
        let near = (number + 1 - width, number);
        let in_force = self.local.unwrap_or(self.clock.period);
        if let Some(period) = period::local(history, far, near, in_force, t) {
            self.local = Some(period);
        }
    }

    fn find_offset(&mut self, history: &mut History, windows: &Windows, t: &Thresholds) {
        let Some(newest) = history.newest_mut() else { return };
        newest.naive_offset = self.clock.offset_to(newest);
        let newest = *newest;
        // The first stamp started the uncorrected clock, so its own offset is zero by definition.
        let last = history.count() - 1;
        let first = history.count().saturating_sub(windows.offset).max(1);
        let phase = match &self.global {
            None => Phase::Warmup { minimum: self.round_trip.minimum() },
            Some(_) => Phase::Steady { local: self.local },
        };
        self.offset.observe(history.range(first, last), &newest, self.clock.period, phase, t);
    }
}

impl Estimator for Radclock {
    fn observe(&mut self, exchange: &Exchange) {
        if self.running.is_none() {
            self.start(exchange);
        } else if self.is_warming_up() && self.history.count() < self.windows.warmup {
            self.warm_up(exchange);
        } else {
            self.run(exchange);
        }
    }

    fn at(&self, now: u64) -> Option<Estimate> {
        let Running { clock, offset, warmup_error, global, .. } = self.running.as_ref()?;
        let age = history::seconds(offset.at, now, clock.period);
        let rate = match global {
            None => warmup_error.max(self.thresholds.rate_error),
            Some(_) => self.thresholds.rate_error,
        };
        Some(Estimate {
            time: clock.at(now) - Duration::from_secs_f64(offset.value),
            period: clock.period,
            error: Duration::from_secs_f64(offset.error + age * rate),
        })
    }
}

#[cfg(test)]
mod tests;
