//! Reads the time of a running chronyd: CLOCK_REALTIME with chronyd's correction and chronyd's
//! bound.
//!
//! chronyd answers with `correction`, which must be added to CLOCK_REALTIME now, and with its root
//! delay and dispersion at the time of the answer. Meanwhile it slews the correction away. Between
//! its reading and ours the correction may therefore have moved by the slew rate times the duration
//! of the query; this is added to the bound.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use anyhow::{Context, Result};
use timevisor_estimate::Exchange;
use timevisor_linux::clock::{Bracket, bracket};
use timevisor_linux::datagram::UnixClient;
use timevisor_linux::udp::UdpClient;
use timevisor_protocols::chrony::{Tracking, parse_reply, request};
use timevisor_protocols::control::Reference as Report;
use timevisor_protocols::ntp::{Port, Source};
use timevisor_time::{Duration, Period};

use super::sources::Sources;
use super::tally::{Refused, Tally};
use super::{Driver, Surroundings, random};
use crate::config::{ChronyAddress, ChronyConfig, span};

/// chronyd is on the same machine; an answer that takes longer has been lost.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The resolutions: CLOCK_REALTIME's whole nanoseconds, and the 25 bits of chronyd's numbers.
const GRANULARITY: Duration = Duration::from_nanos(2);
const BRACKET_TRIES: usize = 3;

enum Link {
    Unix(UnixClient),
    Udp(UdpClient),
}

struct Asked {
    sequence: u32,
    before: Bracket,
    deadline: Duration,
}

pub struct Chrony {
    address: ChronyAddress,
    own_directory: PathBuf,
    poll: Duration,
    next: Duration,
    link: Option<Link>,
    asked: Option<Asked>,
    last: Option<Tracking>,
    /// The servers that chronyd followed, as far as its facts count.
    sources: Sources,
    tally: Tally,
}

impl Chrony {
    pub fn new(config: &ChronyConfig, now: Duration) -> Result<Self> {
        Ok(Self {
            address: config.address()?,
            own_directory: config.own_directory.clone(),
            poll: span(config.poll),
            next: now,
            link: None,
            asked: None,
            last: None,
            sources: Sources::default(),
            tally: Tally::new("chrony".to_owned()),
        })
    }

    fn ask(&mut self, now: Duration, around: &Surroundings<'_>) -> Result<()> {
        if self.link.is_none() {
            self.link = Some(match &self.address {
                ChronyAddress::Unix(path) => {
                    Link::Unix(UnixClient::connect(path, &self.own_directory).with_context(|| {
                        format!(
                            "{} cannot be used; is chronyd running, and this daemon root? (or use 127.0.0.1:323)",
                            path.display()
                        )
                    })?)
                }
                ChronyAddress::Udp(address) => Link::Udp(UdpClient::open(*address, around.sockets)?),
            });
        }
        #[expect(clippy::cast_possible_truncation, reason = "any 32 of 64 random bits will do")]
        let sequence = random() as u32;
        let before = bracket(around.counter, BRACKET_TRIES);
        match self.link.as_mut() {
            Some(Link::Unix(socket)) => socket.send(&request(sequence))?,
            Some(Link::Udp(socket)) => socket.send(&request(sequence))?,
            None => {}
        }
        self.asked = Some(Asked { sequence, before, deadline: now + TIMEOUT });
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        Ok(match self.link.as_mut() {
            Some(Link::Unix(socket)) => socket.recv(buffer)?,
            Some(Link::Udp(socket)) => {
                // The kernel stamps what was sent, and poll reports a stamp until it is taken.
                let _ = socket.take_stamps();
                socket.recv(buffer)?.map(|r| r.len.min(buffer.len()))
            }
            None => None,
        })
    }

    fn give_up(&mut self, word: &'static str, text: String) {
        self.link = None;
        self.asked = None;
        self.tally.take(Err(Refused { word, text }));
    }
}

impl Driver for Chrony {
    fn poll_at(&self) -> Duration {
        self.asked.as_ref().map_or(self.next, |asked| asked.deadline)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let fd = self.link.as_ref().map(|link| match link {
            Link::Unix(socket) => socket.as_fd(),
            Link::Udp(socket) => socket.as_fd(),
        });
        fd.into_iter().collect()
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        if self.asked.as_ref().is_some_and(|asked| now >= asked.deadline) {
            self.give_up("no-answer", "chronyd does not answer; is it running?".to_owned());
        }
        if now >= self.next && self.asked.is_none() {
            self.next = now + self.poll;
            if let Err(error) = self.ask(now, around) {
                self.give_up("unreachable", format!("{error:#}"));
            }
        }
        None
    }

    fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        let mut exchanges = Vec::new();
        let mut buffer = [0; 512];
        loop {
            let length = match self.receive(&mut buffer) {
                Ok(Some(length)) => length,
                Ok(None) => return exchanges,
                Err(error) => {
                    self.give_up(
                        "unreachable",
                        format!("chronyd cannot be asked ({error:#}); is it running?"),
                    );
                    return exchanges;
                }
            };
            let after = bracket(around.counter, BRACKET_TRIES);
            // A late answer to an earlier request needs no log line.
            let Some(asked) = self.asked.take() else { continue };
            let outcome = match parse_reply(&buffer[..length], asked.sequence) {
                Ok(tracking) => {
                    self.last = Some(tracking);
                    exchange(&tracking, &asked.before, &after, around)
                }
                Err(error) => Err(Refused::new("bad-answer", error)),
            };
            if let Some(tracking) = self.last.filter(|_| outcome.is_ok()) {
                self.sources.heard(source(&tracking), now);
            }
            exchanges.extend(self.tally.take(outcome));
        }
    }

    /// The server that chronyd follows is the same witness.
    fn sources(&self) -> Vec<Source> {
        self.sources.iter().collect()
    }

    fn restart(&mut self, now: Duration) {
        self.asked = None;
        self.next = now;
    }

    fn report(&self, _now: Duration) -> Report {
        let detail = "CLOCK_REALTIME with chronyd's correction and root distance";
        Report {
            stratum: self.last.and_then(|t| u8::try_from(t.stratum).ok()),
            ..self.tally.report("chrony", detail, self.poll, None)
        }
    }
}

/// chronyd as a server that follows another one.
fn source(tracking: &Tracking) -> Source {
    let stratum = u8::try_from(tracking.stratum).unwrap_or(u8::MAX);
    let own = Ipv4Addr::LOCALHOST.into();
    Source::new(own, stratum, tracking.reference_id.to_be_bytes()).on_this_machine(Port::Command)
}

/// chronyd slews by at most `maxslewrate`, which the kernel limits to a tenth; an eighth leaves
/// room for the frequency.
fn slewed(span: Duration) -> Duration {
    span.half().half().half() + Duration::EPSILON
}

/// True if CLOCK_REALTIME advanced by more or less than slewing can explain.
fn is_stepped(before: &Bracket, after: &Bracket, period: Period) -> bool {
    let most = period.span_ceil(after.after.wrapping_sub(before.before));
    let least = period.span(after.before.saturating_sub(before.after));
    let elapsed = after.realtime - before.realtime;
    elapsed > most + slewed(most) + GRANULARITY || elapsed < least - slewed(least) - GRANULARITY
}

fn exchange(
    tracking: &Tracking,
    before: &Bracket,
    after: &Bracket,
    around: &Surroundings<'_>,
) -> Result<Exchange, Refused> {
    let error = tracking.error().map_err(|e| Refused::new("unsynchronized", e))?;
    let counted = around.calibration.0.span_ceil(after.after.wrapping_sub(before.before));
    if is_stepped(before, after, around.calibration.0) {
        let text = "CLOCK_REALTIME was stepped while chronyd was asked; the next answer will do";
        return Err(Refused::new("stepped", text));
    }
    let corrected = after.realtime + tracking.correction;
    let time = around.leap.to_tai(corrected).map_err(|e| Refused::new("leap-table", e))?;
    let error = error + slewed(counted) + GRANULARITY;
    Ok(Exchange::of_reading(after.before, time, after.after, error))
}

#[cfg(test)]
#[path = "chrony_tests.rs"]
mod tests;
