//! References that are read at once, without waiting for an answer: a clock read between two
//! counter reads.

use timevisor_estimate::Exchange;
use timevisor_protocols::control::Reference as Report;
use timevisor_time::Duration;

use super::tally::{Refused, Tally};
use super::{Driver, Surroundings};

/// A clock that can be read now.
pub trait Source {
    /// The reference's kind in status output.
    fn kind(&self) -> &'static str;
    /// What is read and trusted, for status output.
    fn detail(&self) -> String;
    /// Lines for the configuration that solve this problem.
    fn suggestion(&self, _problem: &str) -> Option<String> {
        None
    }
    /// Reads the clock.
    fn sample(&mut self, around: &Surroundings<'_>) -> Result<Exchange, Refused>;
    /// Returns true once after the counter's relation to time was broken (a guest was migrated).
    fn take_disruption(&mut self) -> bool {
        false
    }
}

/// A clock with its poll schedule.
pub struct Sampled<S> {
    source: S,
    tally: Tally,
    poll: Duration,
    next: Duration,
}

impl<S: Source> Sampled<S> {
    pub fn new(source: S, name: String, poll: Duration, now: Duration) -> Self {
        Self { source, tally: Tally::new(name), poll, next: now }
    }
}

impl<S: Source> Driver for Sampled<S> {
    fn poll_at(&self) -> Duration {
        self.next
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        if now < self.next {
            return None;
        }
        self.next = now + self.poll;
        let outcome = self.source.sample(around);
        self.tally.take(outcome)
    }

    fn restart(&mut self, now: Duration) {
        self.next = now;
    }

    fn take_disruption(&mut self) -> bool {
        self.source.take_disruption()
    }

    fn report(&self, _now: Duration) -> Report {
        let (kind, detail) = (self.source.kind(), self.source.detail());
        let report = self.tally.report(kind, &detail, self.poll, None);
        Report { suggestion: self.source.suggestion(&report.status), ..report }
    }
}
