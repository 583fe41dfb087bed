//! The gdb backend: one request at a time; each reply determines the next one.

use timevisor_time::Duration;

use super::codec::{self, Decoder};
use super::hit::{Hit, Next};
use super::registers::{Registers, included};
use crate::backend::RawEvent;
use crate::backend::{Action, Backend, Input, Refused, State};
use crate::point::{Point, limits};

/// Stops the VM, removes all breakpoints and resumes it, whatever the stub is doing. QEMU must not
/// receive it after a `D`: it would look for a vCPU that it has released.
pub const LAST_WORDS: &[u8] = b"+\x03$D#44";
/// Not meant for QEMU: tells the relay that from this byte on, it no longer has to send
/// [`LAST_WORDS`].
pub const QUIET: u8 = 0;
/// Maximum wait for a reply. QEMU replies at once or not at all, and the VM is stopped meanwhile.
const PATIENCE: Duration = Duration::from_nanos(10_000_000_000);
/// Maximum size of a target description.
const MAX_DESCRIPTION: usize = 256 << 10;
/// SIGTRAP.
const TRAP: u8 = 5;

/// The request whose reply is awaited.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// No connection.
    Away,
    /// The VM has been stopped since the connection began, and no request has been sent.
    Connected,
    Supported,
    Description {
        file: String,
        text: Vec<u8>,
    },
    /// Breakpoint n is being set.
    Setting(usize),
    /// The VM runs.
    Running,
    Selecting(u16),
    Registers(u16),
    Reading(Hit),
    /// A vCPU steps over the instruction with the breakpoint.
    Stepping,
    /// The VM is being stopped so that we can disconnect.
    Interrupting,
    /// Breakpoint n is being removed from a VM that somebody else has stopped.
    Clearing(usize),
    Leaving,
    /// Disconnected; none of our breakpoints is left.
    Left,
    /// Further bytes of this connection are ignored.
    Over,
}

/// The stub of one VM.
#[derive(Debug)]
pub struct Gdb {
    decoder: Decoder,
    phase: Phase,
    places: Option<Registers>,
    points: Vec<Point>,
    /// Remove all points as soon as possible.
    leave: bool,
    next: u64,
    late_at: Option<Duration>,
}

impl Default for Gdb {
    fn default() -> Self {
        Self {
            decoder: Decoder::default(),
            phase: Phase::Away,
            places: None,
            points: Vec::new(),
            leave: false,
            next: 0,
            late_at: None,
        }
    }
}

impl Gdb {
    fn ask(&mut self, body: &str, phase: Phase, now: Duration) -> Vec<Action> {
        self.phase = phase;
        self.late_at = (self.phase != Phase::Running).then_some(now + PATIENCE);
        vec![Action::Send(codec::packet(body))]
    }

    fn close(&mut self, why: &str) -> Vec<Action> {
        (self.phase, self.late_at) = (Phase::Over, None);
        vec![Action::Close(format!("QEMU's gdb stub: {why}"))]
    }

    fn begin(&mut self, now: Duration) -> Vec<Action> {
        self.ask("qSupported:hwbreak+", Phase::Supported, now)
    }

    fn describe(&mut self, file: String, text: Vec<u8>, now: Duration) -> Vec<Action> {
        let body = format!("qXfer:features:read:{file}:{:x},800", text.len());
        self.ask(&body, Phase::Description { file, text }, now)
    }

    /// Sets breakpoint `n`, or resumes the VM when all are set.
    fn set(&mut self, n: usize, now: Duration) -> Vec<Action> {
        if let Some(point) = self.points.get(n) {
            let body = format!("Z1,{:x},1", point.address);
            return self.ask(&body, Phase::Setting(n), now);
        }
        let mut actions = vec![Action::Attached(n)];
        actions.extend(self.go_on(now));
        actions
    }

    fn go_on(&mut self, now: Duration) -> Vec<Action> {
        if self.leave {
            let mut actions = self.ask("D", Phase::Leaving, now);
            if let Some(Action::Send(bytes)) = actions.first_mut() {
                bytes.insert(0, QUIET);
            }
            return actions;
        }
        self.ask("c", Phase::Running, now)
    }

    /// Removes breakpoint `n`, or stops when none is left: the client that stopped the VM has to
    /// resume it.
    fn clear(&mut self, n: usize, now: Duration) -> Vec<Action> {
        if let Some(point) = self.points.get(n) {
            let body = format!("z1,{:x},1", point.address);
            return self.ask(&body, Phase::Clearing(n), now);
        }
        let mut actions = vec![Action::Send(vec![QUIET])];
        actions.extend(
            self.close("somebody else has stopped the VM; it is attached again when it runs"),
        );
        actions
    }

    fn read(&mut self, mut hit: Hit, now: Duration) -> Vec<Action> {
        let (Some(point), Some(places)) = (self.points.get(hit.point), &self.places) else {
            return self.close("a hit of no point");
        };
        match hit.next(point, places) {
            Next::Memory { address, len } => {
                self.ask(&format!("m{address:x},{len:x}"), Phase::Reading(hit), now)
            }
            Next::Complete => {
                let event = RawEvent {
                    sequence: self.next,
                    counter: None,
                    counter_error: 0,
                    point: point.id,
                    vcpu: hit.thread.saturating_sub(1),
                    failed: hit.failed,
                    data: hit.data,
                };
                self.next += 1;
                let mut actions = vec![Action::Event(event)];
                actions.extend(self.step(hit.thread, now));
                actions
            }
            Next::Unwanted => self.step(hit.thread, now),
        }
    }

    /// While one vCPU steps, QEMU does not stop it at a breakpoint, and the other vCPUs stand
    /// still.
    fn step(&mut self, thread: u16, now: Duration) -> Vec<Action> {
        if self.leave {
            return self.go_on(now);
        }
        self.ask(&format!("vCont;s:{thread:x}"), Phase::Stepping, now)
    }

    fn at(&mut self, thread: u16, answer: &[u8], now: Duration) -> Vec<Action> {
        let registers = codec::bytes(answer);
        let rip = registers.as_ref().zip(self.places).and_then(|(all, places)| places.rip(all));
        let (Some(registers), Some(rip)) = (registers, rip) else {
            return self.close("registers that are not as its description says");
        };
        match self.points.iter().position(|point| point.address == rip) {
            Some(point) => self.read(Hit::new(point, thread, registers), now),
            None => self.close("the VM stopped where no point is; does another debugger use it?"),
        }
    }

    fn body(&mut self, body: &[u8], now: Duration) -> Vec<Action> {
        let ok = body == b"OK";
        match core::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Supported => {
                let text = String::from_utf8_lossy(body);
                if text.contains("qXfer:features:read+") && text.contains("vContSupported+") {
                    self.describe("target.xml".to_owned(), Vec::new(), now)
                } else {
                    self.close("it cannot describe its registers, or step one vCPU alone")
                }
            }
            Phase::Description { file, text } => self.description(file, text, body, now),
            Phase::Setting(n) if ok => self.set(n + 1, now),
            Phase::Setting(n) => self.close(&format!(
                "it refuses breakpoint {}; a processor under KVM has four of them",
                n + 1
            )),
            Phase::Running => match codec::stop(body) {
                Some((TRAP, thread)) => {
                    self.ask(&format!("Hg{thread:x}"), Phase::Selecting(thread), now)
                }
                Some(_) => self.clear(0, now),
                None => self.close("an answer to nothing that was asked"),
            },
            Phase::Selecting(thread) if ok => self.ask("g", Phase::Registers(thread), now),
            Phase::Registers(thread) => self.at(thread, body, now),
            Phase::Reading(mut hit) => {
                let wanted = self.points.get(hit.point).map(|point| hit.memory(point, body));
                if wanted == Some(true) { self.read(hit, now) } else { self.step(hit.thread, now) }
            }
            Phase::Stepping => match codec::stop(body) {
                Some((TRAP, _)) => self.go_on(now),
                Some(_) => self.clear(0, now),
                None => self.close("it does not step"),
            },
            // An unfinished hit has not executed its instruction yet: the guest loses nothing, and
            // the event is no longer wanted.
            Phase::Interrupting if codec::stop(body).is_some() => self.go_on(now),
            Phase::Clearing(n) if ok => self.clear(n + 1, now),
            Phase::Leaving if ok => {
                (self.phase, self.late_at) = (Phase::Left, None);
                self.points.clear();
                vec![Action::Detached]
            }
            _ => self.close(&format!("an answer that is none: {:?}", text_of(body))),
        }
    }

    fn description(
        &mut self,
        file: String,
        mut text: Vec<u8>,
        body: &[u8],
        now: Duration,
    ) -> Vec<Action> {
        let (more, part) = match body {
            [b'm', part @ ..] if !part.is_empty() => (true, part),
            [b'l', part @ ..] => (false, part),
            _ => return self.close("it does not describe its registers"),
        };
        text.extend_from_slice(part);
        if text.len() > MAX_DESCRIPTION {
            return self.close("its description does not end");
        }
        if more {
            return self.describe(file, text, now);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        if file == "target.xml"
            && let Some(first) = included(&text)
        {
            return self.describe(first, Vec::new(), now);
        }
        self.places = Registers::parse(&text);
        if self.places.is_none() {
            return self.close("it describes a processor that is not x86-64 with gs_base and cr3");
        }
        self.set(0, now)
    }
}

fn text_of(body: &[u8]) -> String {
    let shown = &body[..body.len().min(40)];
    shown.escape_ascii().to_string()
}

impl Backend for Gdb {
    fn name(&self) -> &'static str {
        "gdb"
    }

    fn state(&self) -> State {
        match self.phase {
            Phase::Away | Phase::Over => State::Away,
            Phase::Connected | Phase::Left => State::Detached,
            Phase::Running
            | Phase::Selecting(_)
            | Phase::Registers(_)
            | Phase::Reading(_)
            | Phase::Stepping
                if !self.leave =>
            {
                State::Attached
            }
            _ => State::Changing,
        }
    }

    fn attach(&mut self, points: &[Point], now: Duration) -> Result<Vec<Action>, Refused> {
        if points.len() > limits::POINTS {
            return Err(Refused::Points(points.len(), limits::POINTS));
        }
        let too_much = |point: &&Point| {
            let data: usize = point.reads.iter().map(|read| usize::from(read.len)).sum();
            point.reads.len() > limits::READS || data > limits::DATA
        };
        if let Some(point) = points.iter().find(too_much) {
            return Err(Refused::Reads(point.id));
        }
        if self.phase != Phase::Connected || points.is_empty() {
            // A connection serves one attachment; the driver reconnects for another.
            return Ok(self.close("points are set once, when it has connected"));
        }
        self.points = points.to_vec();
        Ok(self.begin(now))
    }

    fn detach(&mut self, now: Duration) -> Vec<Action> {
        self.leave = true;
        match self.phase {
            Phase::Running => {
                (self.phase, self.late_at) = (Phase::Interrupting, Some(now + PATIENCE));
                vec![Action::Send(vec![3])]
            }
            Phase::Connected => self.go_on(now),
            // The reply that is awaited leads to it.
            _ => Vec::new(),
        }
    }

    fn handle(&mut self, input: Input<'_>, now: Duration) -> Vec<Action> {
        match input {
            Input::Connected => {
                *self = Self { phase: Phase::Connected, next: self.next, ..Self::default() };
                Vec::new()
            }
            Input::Closed => {
                *self = Self { next: self.next, ..Self::default() };
                Vec::new()
            }
            Input::Bytes(bytes) => {
                let mut actions = Vec::new();
                self.decoder.push(bytes);
                while !matches!(self.phase, Phase::Away | Phase::Over) {
                    match self.decoder.body() {
                        Ok(Some(body)) => {
                            // Must precede anything that resumes the VM: a byte that arrives while
                            // the VM runs stops it.
                            actions.push(Action::Send(b"+".to_vec()));
                            actions.extend(self.body(&body, now));
                        }
                        Ok(None) => break,
                        Err(fault) => actions.extend(self.close(&fault.to_string())),
                    }
                }
                actions
            }
            Input::Timer if self.late_at.is_some_and(|at| at <= now) => {
                self.close("no answer for 10 s")
            }
            // Only KVM uses these.
            Input::Timer | Input::Put | Input::Taken | Input::Dropped(_) => Vec::new(),
        }
    }

    /// Always true: with one request at a time, nothing arrives that was not requested.
    fn may_read(&self, _now: Duration) -> bool {
        true
    }

    fn poll_at(&self, _now: Duration) -> Option<Duration> {
        self.late_at
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
