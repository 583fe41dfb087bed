//! References that are read immediately, without waiting for a reply: a clock read between two
//! counter reads.

use timevisor_estimate::Exchange;
use timevisor_protocols::control::Reference as Report;
use timevisor_time::Duration;

use super::tally::{Refused, Tally};
use super::{Driver, Surroundings};

/// A clock that can be read immediately.
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
    /// Returns when to read again after a refusal, if that is before the next poll.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
    /// Returns how often [`Self::take_disruption`] must be called, between polls as well.
    fn watch_interval(&self) -> Option<Duration> {
        None
    }
    /// Returns true once after the counter's relation to time was broken (a guest was migrated).
    fn take_disruption(&mut self) -> bool {
        false
    }
    /// Forgets what earlier readings said of this machine's counter.
    fn restart(&mut self) {}
}

/// A clock with its poll schedule.
pub struct Sampled<S> {
    source: S,
    tally: Tally,
    poll: Duration,
    next: Duration,
    /// The event loop must run by then, so that a disruption is noticed.
    next_look: Duration,
}

impl<S: Source> Sampled<S> {
    pub fn new(source: S, name: String, poll: Duration, now: Duration) -> Self {
        Self { source, tally: Tally::new(name), poll, next: now, next_look: now }
    }
}

impl<S: Source> Driver for Sampled<S> {
    fn poll_at(&self) -> Duration {
        self.source.watch_interval().map_or(self.next, |_| self.next.min(self.next_look))
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        self.next_look = now + self.source.watch_interval().unwrap_or(self.poll);
        if now < self.next {
            return None;
        }
        let outcome = self.source.sample(around);
        let retry = self.source.retry_after().filter(|_| outcome.is_err());
        self.next = now + retry.map_or(self.poll, |retry| retry.min(self.poll));
        self.tally.take(outcome)
    }

    fn restart(&mut self, now: Duration) {
        self.source.restart();
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Watched;

    impl Source for Watched {
        fn kind(&self) -> &'static str {
            "watched"
        }
        fn detail(&self) -> String {
            String::new()
        }
        fn sample(&mut self, _: &Surroundings<'_>) -> Result<Exchange, Refused> {
            Err(Refused::new("test", "nothing to read"))
        }
        fn watch_interval(&self) -> Option<Duration> {
            Some(Duration::from_millis(50))
        }
    }

    #[test]
    fn a_watched_source_wakes_the_loop_between_its_polls() {
        let now = Duration::from_secs(5);
        let mut sampled = Sampled::new(Watched, String::new(), Duration::from_secs(64), now);
        assert_eq!(sampled.poll_at(), now);
        sampled.next = now + sampled.poll;
        sampled.next_look = now + Duration::from_millis(50);
        assert_eq!(sampled.poll_at(), now + Duration::from_millis(50));
    }
}
