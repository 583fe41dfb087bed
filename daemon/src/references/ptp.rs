//! A clock that ptp4l steers: this file reads the clock, and ptp4l's own measurements give the
//! bound.
//!
//! Once per poll it asks ptp4l for its six data sets over the management socket. After the last
//! reply it reads the clock (the PHC, or CLOCK_REALTIME if ptp4l uses software time stamps), and
//! timevisor-protocols' `ptp::bound` and `ptp::timescale` compute the bound and TAI.
//!
//! A clock that jumped although ptp4l measured nothing of the kind was set by somebody else. What
//! ptp4l said before the jump does not hold after it, so its next measurement is waited for.

use std::os::fd::{AsFd, BorrowedFd};

use timevisor_estimate::Exchange;
use timevisor_linux::clock::bracket;
use timevisor_linux::datagram::UnixClient;
use timevisor_linux::phc::{Method, Sample};
use timevisor_protocols::control::Reference as Report;
use timevisor_protocols::ptp::timescale::{self, LEAP_WINDOW};
use timevisor_protocols::ptp::{
    Count, MessageError, OffsetWindow, Query, Reading, Refusal, State, Steered, SteeredRate,
    TableOffsets,
};
use timevisor_time::{Duration, Instant, Tai, Utc};

use super::jump::jump;
use super::phc::{Reader, to_tai};
use super::tally::{PROBING, Refused, Tally};
use super::{Driver, Surroundings};
use crate::config::{PtpConfig, Scale, span};
use crate::leap::Leap;
use crate::state_log::{Said, StateLog};

/// ptp4l answers within a scheduling delay, or not at all.
const TIMEOUT: Duration = Duration::from_secs(1);
const BRACKET_TRIES: usize = 3;

/// The clock that ptp4l steers.
enum Clock {
    Phc(Reader),
    Realtime,
}

pub struct Ptp {
    config: PtpConfig,
    clock: Clock,
    next: Duration,
    socket: Option<UnixClient>,
    query: Query,
    deadline: Option<Duration>,
    window: OffsetWindow,
    last: Option<State>,
    /// What people should know of the timescale.
    remark: Option<String>,
    /// The last exchange, unless ptp4l began a new measurement since.
    before: Option<Exchange>,
    rate: SteeredRate,
    /// The masters that the log has named.
    told: StateLog,
    tally: Tally,
}

impl Ptp {
    pub fn new(config: &PtpConfig, name: String, now: Duration) -> Self {
        let clock = if config.is_realtime() {
            Clock::Realtime
        } else {
            Clock::Phc(Reader::new(config.device.clone()))
        };
        Self {
            clock,
            next: now,
            socket: None,
            query: Query::new(config.domain, config.transport_specific),
            deadline: None,
            window: OffsetWindow::new(config.assumptions()),
            last: None,
            remark: None,
            before: None,
            rate: SteeredRate::default(),
            told: StateLog::default(),
            tally: Tally::new(name),
            config: config.clone(),
        }
    }

    fn ask(&mut self, now: Duration) -> std::io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => UnixClient::connect(&self.config.socket, &self.config.own_directory)?,
        };
        for request in self.query.begin() {
            socket.send(&request)?;
        }
        self.socket = Some(socket);
        self.deadline = Some(now + TIMEOUT);
        Ok(())
    }

    fn give_up(&mut self, refused: Refused) {
        self.socket = None;
        self.deadline = None;
        // It may be another process when it answers again.
        self.window.restart();
        self.tally.take(Err(refused));
    }

    fn read_clock(&mut self, around: &Surroundings<'_>) -> Result<(Sample, Steered), Refused> {
        match &mut self.clock {
            Clock::Phc(reader) => Ok((reader.read(around)?, Steered::Phc)),
            Clock::Realtime => {
                let reading = bracket(around.counter, BRACKET_TRIES);
                let (before, after) = (reading.before, reading.after);
                Ok((Sample { before, time: reading.realtime.relabel(), after }, Steered::Realtime))
            }
        }
    }

    /// Logs each change of the master once; it may be over before the event loop compares states.
    fn tell_master(&mut self, now: Duration, state: &State) {
        if !state.port.follows() || !state.grandmaster_present {
            return;
        }
        let master = state.master.to_string();
        let Some(said) = self.told.observe(now, &master, "") else { return };
        let restless = match said {
            Said::Change => "",
            Said::Restless => "; it changes all the time, which is not logged until it is calm",
        };
        tracing::info!(
            "reference {}: ptp4l follows master {master}, clockClass {}, {} hops away{restless}",
            self.tally.name,
            state.grandmaster_class,
            state.steps_removed
        );
    }

    fn exchange(&mut self, state: &State, around: &Surroundings<'_>) -> Result<Exchange, Refused> {
        let (sample, steered) = self.read_clock(around)?;
        let reading =
            Reading { before: sample.before, clock: sample.time.relabel(), after: sample.after };
        if self.rate.observe(reading, around.calibration.0) {
            // What was measured before a step does not hold after it, whoever made it.
            self.window.restart();
        }
        let judged = self.window.judge(state, sample.time.floor_nanos());
        // Since the measurement the servo may have moved the clock.
        let age = Duration::from_nanos(sample.time.floor_nanos() - state.ingress_ns);
        let moved = self.rate.moved_within(age).ok_or(Refusal::Unmeasured);
        let judged = judged.and_then(|error| Ok(error + moved?));
        if judged.is_err() {
            // If two masters disagree, or ptp4l itself steps the clock, that is for the ensemble to
            // see.
            self.before = None;
        }
        let error = judged.map_err(refused)?;
        let utc = sample.time.relabel::<Utc>();
        let table = table_offsets(around.leap, utc);
        self.remark = timescale::remark(state, steered, table);
        let arbitrary_is_utc = self.config.timescale == Scale::Utc;
        let count = timescale::count(state, steered, arbitrary_is_utc, utc.secs(), table);
        let time: Instant<Tai> = match count.map_err(refused)? {
            Count::Tai => sample.time.relabel(),
            Count::TaiMinus(offset) => {
                (sample.time + Duration::from_secs(i64::from(offset))).relabel()
            }
            Count::Utc => to_tai(utc.relabel(), Scale::Utc, around)?,
        };
        let exchange = Exchange::of_reading(sample.before, time, sample.after, error);
        let before = self.before.replace(exchange);
        if let Some(by) = before.and_then(|before| jump(&before, &exchange, around.calibration.0)) {
            self.before = None;
            self.window.restart();
            self.rate.restart();
            let text = format!(
                "{} jumped by {by} against this machine's counter, which ptp4l's measurements do not explain; \
                 waiting for its next one. Look for another program that sets the clock",
                steered.name()
            );
            return Err(Refused::new("jump", text));
        }
        Ok(exchange)
    }
}

fn refused(refusal: Refusal) -> Refused {
    // At the beginning that is no problem.
    let is_begin = matches!(refusal, Refusal::Unmeasured | Refusal::FewOffsets { .. });
    let word = if is_begin { PROBING } else { refusal.name() };
    Refused::new(word, refusal)
}

/// What the leap table says around a UTC reading; `None` if it does not cover it.
fn table_offsets(leap: &Leap, utc: Instant<Utc>) -> Option<TableOffsets> {
    let before = leap.offset_at(utc - LEAP_WINDOW).ok()?;
    Some(TableOffsets { before, after: leap.offset_at(utc + LEAP_WINDOW).ok()? })
}

impl Driver for Ptp {
    fn poll_at(&self) -> Duration {
        self.deadline.unwrap_or(self.next)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.socket.iter().map(AsFd::as_fd).collect()
    }

    fn on_timer(&mut self, now: Duration, _around: &Surroundings<'_>) -> Option<Exchange> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            let socket = self.config.socket.display();
            let text = format!(
                "ptp4l does not answer all questions at {socket}; check domain and transport_specific"
            );
            self.give_up(Refused::new("no-answer", text));
        }
        if now >= self.next && self.deadline.is_none() {
            self.next = now + span(self.config.poll);
            if let Err(error) = self.ask(now) {
                let socket = self.config.socket.display();
                let text = format!(
                    "cannot ask ptp4l at {socket}: {error}; is it running, and does this daemon run as root?"
                );
                self.give_up(Refused::new("unreachable", text));
            }
        }
        None
    }

    fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        let mut buffer = [0; 1500];
        let mut exchanges = Vec::new();
        // The expected number is six replies, plus one for each further port.
        for _ in 0..64 {
            let Some(socket) = &self.socket else { break };
            let length = match socket.recv(&mut buffer) {
                Ok(Some(length)) => length,
                Ok(None) => break,
                Err(error) => {
                    self.give_up(Refused::new("unreachable", format!("ptp4l has gone: {error}")));
                    break;
                }
            };
            if self.deadline.is_none() {
                continue;
            }
            let outcome = match self.query.on_datagram(&buffer[..length]) {
                Ok(None) | Err(MessageError::NotForUs) => continue,
                Ok(Some(state)) => {
                    self.last = Some(state);
                    self.tell_master(now, &state);
                    self.exchange(&state, around)
                }
                Err(error) => Err(Refused::new("bad-answer", error)),
            };
            self.deadline = None;
            exchanges.extend(self.tally.take(outcome));
        }
        exchanges
    }

    fn restart(&mut self, now: Duration) {
        self.deadline = None;
        self.window.restart();
        self.before = None;
        self.next = now;
    }

    fn burst(&mut self, now: Duration) {
        self.next = now;
    }

    fn report(&self, _now: Duration) -> Report {
        let clock = match &self.clock {
            Clock::Phc(reader) => reader.method().map_or("not open", Method::name),
            Clock::Realtime => "CLOCK_REALTIME",
        };
        let detail = match &self.last {
            Some(state) => format!(
                "{clock}; ptp4l is {}, master {}, offset {} ns, path delay {}{}",
                state.port.name(),
                state.master,
                state.master_offset_ns,
                state.mean_path_delay,
                self.remark.as_ref().map_or_else(String::new, |said| format!("; {said}"))
            ),
            None => clock.to_owned(),
        };
        self.tally.report("ptp", &detail, span(self.config.poll), None)
    }
}

#[cfg(test)]
#[path = "ptp_tests.rs"]
mod tests;
