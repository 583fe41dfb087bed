//! The TCG backend: the wanted points, the points that the plugin has, and events.

use timevisor_protocols::channel::bucket::{Bucket, interval};
use timevisor_time::Duration;

use crate::backend::{Action, Backend, Input, Refused, State};

use super::codec::{self, Decoder, Message};
use crate::point::Point;

/// Maximum events of one guest: per second, and in a burst.
const RATE_HZ: u32 = 20_000;
const BURST: u32 = 20_000;
/// How long to wait before the VM is paused so that its points can change: a guest that is never
/// idle and translates no new code would not change them otherwise.
const PATIENCE: Duration = Duration::from_millis(300);

/// One VM's plugin.
#[derive(Debug)]
pub struct Tcg {
    decoder: Decoder,
    /// The hello has arrived.
    greeted: bool,
    connected: bool,
    /// Further bytes of this connection are ignored.
    over: bool,
    points: Vec<Point>,
    generation: u32,
    installed: bool,
    /// When to request a pause.
    pause_at: Option<Duration>,
    next: u64,
    dropped_before: u64,
    limit: Bucket,
}

impl Default for Tcg {
    fn default() -> Self {
        Self::new(RATE_HZ, BURST)
    }
}

impl Tcg {
    /// Replaces the default limit of 20,000 events a second.
    #[must_use]
    pub fn new(rate_hz: u32, burst: u32) -> Self {
        Self {
            decoder: Decoder::default(),
            greeted: false,
            connected: false,
            over: false,
            points: Vec::new(),
            generation: 0,
            installed: true,
            pause_at: None,
            next: 0,
            dropped_before: 0,
            limit: Bucket::new(interval(rate_hz), burst),
        }
    }

    /// The sequence number of the next event.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.next
    }

    /// Sends the wanted points.
    fn ask(&mut self, now: Duration) -> Vec<Action> {
        // `attach` has already encoded these points successfully.
        let Ok(bytes) = codec::points(self.generation, &self.points) else { return Vec::new() };
        self.pause_at = Some(now + PATIENCE);
        self.installed = false;
        vec![Action::Send(bytes)]
    }

    fn change(&mut self, now: Duration) -> Vec<Action> {
        self.generation = self.generation.wrapping_add(1);
        self.installed = false;
        if self.greeted { self.ask(now) } else { Vec::new() }
    }

    fn close(&mut self, why: &str) -> Action {
        self.over = true;
        self.pause_at = None;
        Action::Close(format!(
            "the TCG plugin: {why}; build the plugin again (make -C plugins/tcg) and restart the VM with it"
        ))
    }

    fn message(&mut self, message: Message, now: Duration) -> Vec<Action> {
        match message {
            Message::Hello { .. } if self.greeted => vec![self.close("it greets twice")],
            Message::Hello { version, .. } if version != codec::VERSION => {
                let why = format!("it speaks version {version}, not {}", codec::VERSION);
                vec![self.close(&why)]
            }
            Message::Hello { next, dropped, .. } => {
                (self.greeted, self.next, self.dropped_before) = (true, next, dropped);
                if self.points.is_empty() {
                    self.installed = true;
                    Vec::new()
                } else {
                    self.ask(now)
                }
            }
            _ if !self.greeted => vec![self.close("it does not greet")],
            Message::Installed { generation, count } if generation == self.generation => {
                self.pause_at = None;
                self.installed = true;
                match usize::from(count) {
                    count if count != self.points.len() => vec![self.close("it lost a point")],
                    0 => vec![Action::Detached],
                    count => vec![Action::Attached(count)],
                }
            }
            Message::Refused { generation, .. } if generation == self.generation => {
                vec![self.close("it refuses the points")]
            }
            Message::Mismatch { generation, point, found } if generation == self.generation => {
                vec![Action::Changed { point, found }]
            }
            // Refers to an earlier set of points.
            Message::Installed { .. } | Message::Refused { .. } | Message::Mismatch { .. } => {
                Vec::new()
            }
            Message::Event { event, .. } if event.sequence != self.next => {
                vec![self.close("it lost an event")]
            }
            Message::Event { event, dropped } => {
                self.next = self.next.wrapping_add(1);
                self.limit.charge(now);
                let mut actions = self.dropped(dropped);
                // Events that were in flight when their point was removed are ignored.
                if self.points.iter().any(|point| point.id == event.point) {
                    actions.push(Action::Event(event));
                }
                actions
            }
            Message::Status { dropped, .. } => self.dropped(dropped),
        }
    }

    fn dropped(&mut self, now: u64) -> Vec<Action> {
        let more = now.saturating_sub(self.dropped_before);
        if more == 0 || self.points.is_empty() { Vec::new() } else { vec![Action::Dropped(more)] }
    }
}

impl Backend for Tcg {
    fn name(&self) -> &'static str {
        "tcg"
    }

    fn state(&self) -> State {
        match (self.greeted, self.installed) {
            (false, _) => State::Away,
            (true, false) => State::Changing,
            (true, true) if self.points.is_empty() => State::Detached,
            (true, true) => State::Attached,
        }
    }

    fn attach(&mut self, points: &[Point], now: Duration) -> Result<Vec<Action>, Refused> {
        codec::points(0, points)?;
        self.points = points.to_vec();
        Ok(self.change(now))
    }

    fn detach(&mut self, now: Duration) -> Vec<Action> {
        self.points.clear();
        self.change(now)
    }

    fn handle(&mut self, input: Input<'_>, now: Duration) -> Vec<Action> {
        match input {
            Input::Connected | Input::Closed => {
                self.connected = input == Input::Connected;
                (self.greeted, self.over, self.installed) = (false, false, false);
                self.decoder = Decoder::default();
                self.pause_at = None;
                Vec::new()
            }
            Input::Bytes(bytes) => {
                let mut actions = Vec::new();
                self.decoder.push(bytes);
                while !self.over && self.connected {
                    match self.decoder.message() {
                        Ok(Some(message)) => actions.extend(self.message(message, now)),
                        Ok(None) => break,
                        Err(fault) => actions.push(self.close(&fault.to_string())),
                    }
                }
                actions
            }
            Input::Timer if self.pause_at.is_some_and(|at| at <= now) => {
                self.pause_at = Some(now + PATIENCE);
                vec![Action::Pause]
            }
            // Only KVM uses these.
            Input::Timer | Input::Put | Input::Taken | Input::Dropped(_) => Vec::new(),
        }
    }

    fn may_read(&self, now: Duration) -> bool {
        self.limit.ready_at() <= now
    }

    fn poll_at(&self, now: Duration) -> Option<Duration> {
        let ready = Some(self.limit.ready_at()).filter(|at| *at > now);
        [self.pause_at, ready].into_iter().flatten().reduce(Duration::min)
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
