//! Exchanges in order, through the production clock and one estimator; a reading at every whole
//! second.
//!
//! After row i, the clocks know only rows 0 to i, from `tf_i` on. With a truth, the readings are at
//! whole true seconds; without one, at whole seconds of the counter, and there is nothing to
//! compare them with.

use std::collections::BTreeMap;

use timevisor_estimate::{Discard, Estimator, Observation, Parameters, ReferenceClock};
use timevisor_time::{Duration, Instant, Interval, RateError, Tai};

use super::parse::Row;
use super::truth::Truth;
use super::{COUNTER_HZ, Method, Trace, nominal_period};

/// The replay's options.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The method whose estimate is read. The bounds are always the production clock's.
    pub method: Method,
    /// Readings start this long after the truth does (or after the first exchange, without a
    /// truth).
    pub skip: Duration,
    /// The production clock's parameters.
    pub parameters: Parameters,
}

impl Default for ReplayOptions {
    /// The production clock, without the two hours of convergence that no table counts.
    fn default() -> Self {
        Self {
            method: Method::Default,
            skip: Duration::from_secs(7200),
            parameters: Parameters::default(),
        }
    }
}

/// What a reader saw.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reading {
    /// The second's number: true seconds as the truth counts them, or counter seconds since the
    /// first exchange.
    pub second: i64,
    /// The counter then.
    pub counter: u64,
    /// True time then, if known.
    pub truth: Option<Instant<Tai>>,
    /// The estimator's best estimate.
    pub estimate: Instant<Tai>,
    /// The production clock's bounds.
    pub interval: Interval<Tai>,
    /// Whether the production clock trusted them.
    pub trusted: bool,
}

/// All readings, and the outcome of the exchanges.
#[derive(Clone, Debug)]
pub struct Replay {
    /// One per second after the skipped ones at which there was a clock.
    pub readings: Vec<Reading>,
    /// Seconds after the skipped ones without any clock: nothing had been exchanged yet.
    pub unread: u64,
    /// Exchanges that were used.
    pub used: u64,
    /// Exchanges that were not, by reason.
    pub discarded: BTreeMap<Discard, u64>,
    /// Exchanges that contradicted the bounds, or cast doubt on them.
    pub contradictions: u64,
}

struct Clocks {
    production: ReferenceClock,
    estimator: Option<Box<dyn Estimator>>,
    used: u64,
    discarded: BTreeMap<Discard, u64>,
    contradictions: u64,
}

impl Clocks {
    fn new(options: &ReplayOptions) -> Self {
        let nominal = nominal_period();
        Self {
            production: ReferenceClock::new(&options.parameters, nominal, RateError::ZERO),
            estimator: options.method.estimator(nominal),
            used: 0,
            discarded: BTreeMap::new(),
            contradictions: 0,
        }
    }

    fn observe(&mut self, row: &Row) {
        match self.production.observe(&row.exchange) {
            Observation::Discarded(reason) => {
                *self.discarded.entry(reason).or_default() += 1;
                return;
            }
            Observation::Used => {}
            // A contradiction or a doubt: anything that makes the bounds untrustworthy.
            _ => self.contradictions += 1,
        }
        self.used += 1;
        if let Some(estimator) = &mut self.estimator {
            estimator.observe(&row.exchange);
        }
    }

    fn read(&self, second: i64, counter: u64, truth: Option<Instant<Tai>>) -> Option<Reading> {
        let view = self.production.at(counter)?;
        let estimate = match &self.estimator {
            Some(estimator) => estimator.at(counter)?.time,
            None => view.estimate,
        };
        let (interval, trusted) = (view.interval, view.trusted);
        Some(Reading { second, counter, truth, estimate, interval, trusted })
    }
}

/// When to read: second, counter value, true time.
type Second = (i64, u64, Option<Instant<Tai>>);

fn true_seconds(truth: &Truth, skip: i64) -> impl Iterator<Item = Second> + '_ {
    let first = truth.first_second().saturating_add(skip);
    let seconds = truth.seconds().filter(move |(second, ..)| *second >= first);
    seconds.map(|(second, counter, time)| (second, counter, Some(time)))
}

fn counter_seconds(rows: &[Row], skip: i64) -> impl Iterator<Item = Second> + use<> {
    let first = rows.first().map_or(0, |row| row.exchange.tf);
    let last = rows.iter().map(|row| row.exchange.tf).max().unwrap_or(first);
    let skip = u64::try_from(skip).unwrap_or(0);
    let numbers = (skip..).map_while(move |n| Some((n, first.checked_add(n * COUNTER_HZ)?)));
    let numbers = numbers.take_while(move |(_, counter)| *counter <= last);
    numbers.map(|(n, counter)| (i64::try_from(n).unwrap_or(i64::MAX), counter, None))
}

/// Replays a trace.
#[must_use]
pub fn replay(trace: &Trace, options: &ReplayOptions) -> Replay {
    let skip = options.skip.to_bits().max(0) >> 64;
    let skip = i64::try_from(skip).unwrap_or(i64::MAX);
    let seconds: Box<dyn Iterator<Item = Second>> = match &trace.truth {
        Some(truth) => Box::new(true_seconds(truth, skip)),
        None => Box::new(counter_seconds(&trace.rows, skip)),
    };
    let mut clocks = Clocks::new(options);
    let mut rows = trace.rows.iter().peekable();
    let (mut readings, mut unread) = (Vec::new(), 0);
    for (second, counter, truth) in seconds {
        while let Some(row) = rows.next_if(|row| row.exchange.tf <= counter) {
            clocks.observe(row);
        }
        match clocks.read(second, counter, truth) {
            Some(reading) => readings.push(reading),
            None => unread += 1,
        }
    }
    rows.for_each(|row| clocks.observe(row));
    let Clocks { used, discarded, contradictions, .. } = clocks;
    Replay { readings, unread, used, discarded, contradictions }
}
