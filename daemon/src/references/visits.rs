//! What servers said when `timevisor cluster bootstrap --save` asked them: a reference without a network.
//!
//! Each visit is an interval of UTC at one value of this machine's counter. The estimate ages it like
//! everything else that it knows, at the limits that the operator stated, and gets the counter's rate
//! from two visits or more.

use std::collections::VecDeque;
use std::path::PathBuf;

use timevisor_clock_page::Counter;
use timevisor_estimate::Exchange;
use timevisor_linux::counter::CounterHistory;
use timevisor_linux::state_file;
use timevisor_protocols::control::Reference as Report;
use timevisor_protocols::visits::{MOST_BYTES, Visit, Visits};
use timevisor_time::{Duration, Instant, Interval, Tai};

use super::tally::{Refused, Tally};
use super::{Driver, Surroundings};
use crate::config::{VisitsConfig, span};

pub struct VisitsFile {
    file: PathBuf,
    poll: Duration,
    next: Duration,
    tally: Tally,
    /// Visits that the estimate has not got yet.
    waiting: VecDeque<Exchange>,
    /// The counter at the last visit that it has got.
    given: Option<u64>,
    detail: String,
}

impl VisitsFile {
    pub fn new(config: &VisitsConfig, name: String, now: Duration) -> Self {
        Self {
            file: config.file.clone(),
            poll: span(config.poll),
            next: now,
            tally: Tally::new(name),
            waiting: VecDeque::new(),
            given: None,
            detail: String::new(),
        }
    }

    /// Reads the file, and keeps what is new in it.
    fn look(&mut self, around: &Surroundings<'_>) -> Result<(), Refused> {
        let history = CounterHistory::of(around.counter)
            .map_err(|error| Refused::new("boot", format!("cannot read the boot id: {error}")))?;
        let now = around.counter.read_ordered();
        let visits = self.read()?;
        let (mut last, mut why) = (None, None);
        for visit in visits.iter() {
            match exchange(visit, &history, now, around) {
                Ok(exchange) => {
                    last = Some((visit, exchange.tf));
                    if self.given.is_none_or(|given| exchange.tf > given) {
                        self.waiting.push_back(exchange);
                    }
                }
                Err(refused) => why = Some(refused),
            }
        }
        let Some((visit, ticks)) = last else {
            let none =
                || Refused::new("empty", format!("there is no visit in it; {}", again(self)));
            return Err(why.unwrap_or_else(none));
        };
        let age = around.calibration.0.span(now.saturating_sub(ticks)).as_secs_f64();
        self.detail = format!("asked {} {age:.0} s ago, for the last time", visit.server);
        Ok(())
    }

    fn read(&self) -> Result<Visits, Refused> {
        let file = self.file.display();
        let bytes = state_file::read(&self.file, MOST_BYTES).map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                return Refused::new("no-file", format!("there is no {file}; {}", again(self)));
            }
            Refused::new("file", format!("{file}: {error}"))
        })?;
        Visits::parse(&bytes).map_err(|why| Refused::new("file", format!("{file}: {why}")))
    }
}

/// What to do about it.
fn again(of: &VisitsFile) -> String {
    let file = of.file.display();
    format!("run `timevisor cluster bootstrap --seed HOST --save {file}` where there is a network")
}

/// The exchange that proves the same as a visit.
fn exchange(
    visit: &Visit,
    history: &CounterHistory,
    now: u64,
    around: &Surroundings<'_>,
) -> Result<Exchange, Refused> {
    let then = CounterHistory {
        boot_id: visit.boot_id.clone(),
        counter: visit.counter.clone(),
        suspended_ns: visit.suspended_ns,
    };
    then.same_as(history).map_err(|why| {
        Refused::new(
            "old",
            format!("{why}, so the visit to {} says nothing any more", visit.server),
        )
    })?;
    if visit.ticks > now {
        let text = format!("the visit to {} is of another machine's counter", visit.server);
        return Err(Refused::new("future", text));
    }
    let tai = |utc| {
        around.leap.to_tai(utc).map_err(|problem| Refused::new("leap-table", problem.to_string()))
    };
    let interval =
        visit.interval().ok_or_else(|| Refused::new("file", "a visit is no interval"))?;
    let (earliest, latest) = (tai(interval.earliest())?, tai(interval.latest())?);
    let interval = Interval::new(earliest, latest)
        .ok_or_else(|| Refused::new("file", "a visit is no interval of TAI"))?;
    let guess = visit.guess_utc_ns.map(|ns| tai(Instant::from_unix_nanos(i128::from(ns))));
    let (time, ticks) = (guessed(&interval, guess.transpose()?), visit.ticks);
    let error = (interval.latest() - time).max(time - interval.earliest()) + Duration::EPSILON;
    Ok(Exchange { ta: ticks, tb: time, te: time, tf: ticks, error })
}

/// The instant around which the interval is stated. An exchange has one error for both sides, so a guess
/// away from the middle widens the bounds: by a quarter at most.
fn guessed(interval: &Interval<Tai>, guess: Option<Instant<Tai>>) -> Instant<Tai> {
    let half = interval.width().half();
    let (middle, aside) = (interval.earliest() + half, half.half().half());
    guess.map_or(middle, |guess| guess.max(middle - aside).min(middle + aside))
}

impl Driver for VisitsFile {
    fn poll_at(&self) -> Duration {
        self.next
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        if now < self.next {
            return None;
        }
        if self.waiting.is_empty()
            && let Err(refused) = self.look(around)
        {
            self.next = now + self.poll;
            return self.tally.take(Err(refused));
        }
        let exchange = self.waiting.pop_front();
        // One at a time; the others follow at once.
        self.next = if self.waiting.is_empty() { now + self.poll } else { now };
        let exchange = exchange?;
        self.given = Some(exchange.tf);
        self.tally.take(Ok(exchange))
    }

    fn restart(&mut self, now: Duration) {
        self.waiting.clear();
        self.given = None;
        self.next = now;
    }

    fn report(&self, _now: Duration) -> Report {
        self.tally.report("visits", &self.detail, self.poll, None)
    }
}

#[cfg(test)]
#[path = "visits_tests.rs"]
mod tests;
