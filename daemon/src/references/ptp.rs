//! A clock that ptp4l steers: this file reads the clock, and ptp4l's own measurements give the
//! bound.
//!
//! Once per poll it asks ptp4l for its five data sets over the management socket. After the last
//! reply it reads the clock (the PHC, or CLOCK_REALTIME if ptp4l uses software time stamps), and
//! timevisor-protocols' `ptp::bound` computes the bound.

use std::os::fd::{AsFd, BorrowedFd};

use timevisor_estimate::Exchange;
use timevisor_linux::clock::bracket;
use timevisor_linux::datagram::UnixClient;
use timevisor_linux::phc::{Method, Sample};
use timevisor_protocols::control::Reference as Report;
use timevisor_protocols::ptp::{MessageError, OffsetWindow, Query, State};
use timevisor_time::{Duration, Tai};

use super::phc::{Reader, to_tai};
use super::tally::{Refused, Tally};
use super::{Driver, Surroundings};
use crate::config::{PtpConfig, Scale, span};

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
        self.tally.take(Err(refused));
    }

    fn read_clock(&mut self, around: &Surroundings<'_>) -> Result<(Sample, Scale), Refused> {
        match &mut self.clock {
            Clock::Phc(reader) => Ok((reader.read(around)?, self.config.timescale)),
            Clock::Realtime => {
                let reading = bracket(around.counter, BRACKET_TRIES);
                let (before, after) = (reading.before, reading.after);
                Ok((Sample { before, time: reading.realtime.relabel(), after }, Scale::Utc))
            }
        }
    }

    fn exchange(&mut self, state: &State, around: &Surroundings<'_>) -> Result<Exchange, Refused> {
        let (sample, scale) = self.read_clock(around)?;
        let offset = self
            .window
            .judge(state, sample.time.floor_nanos())
            .map_err(|refusal| Refused::new(refusal.name(), refusal))?;
        // The clock's lead over true time lies in `offset`: subtract the midpoint, and use half the
        // width as the error.
        let half = (offset.most - offset.least).half() + Duration::EPSILON;
        let corrected = sample.time - (offset.least + half);
        let time = to_tai(corrected.relabel::<Tai>(), scale, around)?;
        Ok(Exchange { ta: sample.before, tb: time, te: time, tf: sample.after, error: half })
    }
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

    fn on_ready(&mut self, _now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        let mut buffer = [0; 1500];
        let mut exchanges = Vec::new();
        // The expected number is five replies, plus one for each further port.
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
        self.window = OffsetWindow::new(self.config.assumptions());
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
                "{clock}; ptp4l is {}, offset {} ns, path delay {}",
                state.port.name(),
                state.master_offset_ns,
                state.mean_path_delay
            ),
            None => clock.to_owned(),
        };
        self.tally.report("ptp", &detail, span(self.config.poll), None)
    }
}
