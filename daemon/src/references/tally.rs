//! What a reference records for `timevisor status`: the number of exchanges, the reasons for
//! failures, and the current problem.

use std::collections::BTreeMap;

use timevisor_estimate::Exchange;
use timevisor_protocols::control::Reference as Report;
use timevisor_protocols::ntp::Reach;
use timevisor_time::{Duration, Period};

/// The keyword of a reference that has not been read long enough. That is no problem, so it is
/// neither counted nor logged.
pub const PROBING: &str = "probing";

/// Why there is no exchange: a keyword for programs, and a sentence with the next step for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    pub word: &'static str,
    pub text: String,
}

impl Refused {
    #[expect(clippy::needless_pass_by_value, reason = "an error is passed once and not used again")]
    pub fn new(word: &'static str, text: impl ToString) -> Self {
        Self { word, text: text.to_string() }
    }
}

/// The outcomes of a reference's readings.
pub struct Tally {
    pub name: String,
    accepted: u64,
    refused: BTreeMap<String, u64>,
    problem: Option<Refused>,
    reach: Reach,
    round_trip: Option<u64>,
}

impl Tally {
    pub fn new(name: String) -> Self {
        Self {
            name,
            accepted: 0,
            refused: BTreeMap::new(),
            problem: None,
            reach: Reach::default(),
            round_trip: None,
        }
    }

    /// Counts an outcome; the event loop logs changes.
    pub fn take(&mut self, outcome: Result<Exchange, Refused>) -> Option<Exchange> {
        self.reach = self.reach.pushed(outcome.is_ok());
        match outcome {
            Ok(exchange) => {
                self.accepted += 1;
                self.problem = None;
                self.round_trip = Some(exchange.round_trip());
                Some(exchange)
            }
            Err(refused) if refused.word == PROBING => {
                self.problem = Some(refused);
                None
            }
            Err(refused) => {
                *self.refused.entry(refused.word.to_owned()).or_default() += 1;
                self.problem = Some(refused);
                None
            }
        }
    }

    /// Creates the report. `good` is the detail text while there is no problem.
    pub fn report(&self, kind: &str, good: &str, poll: Duration, period: Option<Period>) -> Report {
        let (status, detail) = match &self.problem {
            Some(problem) => (problem.word, problem.text.as_str()),
            None if self.accepted == 0 => (PROBING, "not read yet"),
            None => ("reachable", good),
        };
        let round_trip = self.round_trip.zip(period).map(|(ticks, p)| p.span_ceil(ticks));
        Report {
            name: self.name.clone(),
            kind: kind.to_owned(),
            status: status.to_owned(),
            detail: detail.to_owned(),
            stratum: None,
            offset_ns: None,
            rtt_ns: round_trip.map(Duration::ceil_nanos),
            accepted: self.accepted,
            rejected: self.refused.clone(),
            reach: self.reach.to_string(),
            poll_s: poll.as_secs_f64(),
            polling: None,
            shares_vote_with: Vec::new(),
            suggestion: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_time::Instant;

    #[test]
    fn problems_are_counted_and_forgotten_when_over() {
        let mut tally = Tally::new("x".to_owned());
        let report = |t: &Tally| t.report("phc", "fine", Duration::from_secs(1), None);
        assert_eq!(report(&tally).status, "probing");
        for _ in 0..2 {
            assert_eq!(tally.take(Err(Refused::new("stale", "plug it in"))), None);
        }
        let told = report(&tally);
        assert_eq!((told.status.as_str(), told.detail.as_str()), ("stale", "plug it in"));
        assert_eq!((told.rejected["stale"], told.reach.as_str()), (2, "0"));
        let time = Instant::from_bits(0);
        let exchange = Exchange { ta: 1, tb: time, te: time, tf: 3, error: Duration::ZERO };
        assert_eq!(tally.take(Ok(exchange)), Some(exchange));
        let told = report(&tally);
        assert_eq!((told.status.as_str(), told.detail.as_str()), ("reachable", "fine"));
        assert_eq!((told.accepted, told.reach.as_str()), (1, "1"));
    }
}
