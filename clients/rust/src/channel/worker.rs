//! The thread behind a channel: one poll(2) over the stream and the callers' flag.
//!
//! After a lost session, the thread renews all bindings. It retries refused ones every few seconds;
//! in the meantime the handle's lease states the reason.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, SendError, TryRecvError};
use std::sync::{Arc, Mutex};

use timevisor_linux::clock::monotonic;
use timevisor_linux::event_fd::EventFd;
use timevisor_linux::poll::{self, PollFd};
use timevisor_protocols::channel::{
    self, Bind, Bound, ClientAction, ClientConfig, ClientSession, Event, HostPage, Problem,
    ProblemCode, Request, RequestError, Response, Update, Welcome,
};
use timevisor_time::Duration;

use super::leases::{Entry, Leases};
use super::stream::{Found, Stream};
use super::{ChannelChoice, Command, Granted, Lease, Reply, Setup, open_place};
use crate::error::BindError;
use crate::requirement::{Need, Requirement};
use crate::timeline::Timeline;
use crate::tried::Tried;
use crate::unpoisoned;

/// Pause between attempts to connect, or to renew refused bindings.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A port whose host has not opened its end always polls as readable.
const NOBODY_PAUSE: Duration = Duration::from_millis(100);

/// A request on its way.
enum Asked {
    Bind(Bind, Reply<Granted>),
    Again(u64),
    Update {
        key: u64,
        requirement: Option<Requirement>,
        best_effort: bool,
        reply: Reply<channel::Achieved>,
    },
    Unbind(Option<Reply<()>>),
    Timelines(Reply<Vec<channel::TimelineRow>>),
}

pub(super) struct Worker {
    setup: Setup,
    commands: Receiver<Command>,
    wake: Arc<EventFd>,
    chosen: Arc<Mutex<Option<ChannelChoice>>>,
    session: ClientSession,
    stream: Option<Stream>,
    /// The index of the address to try next, or of the one that is open.
    address: usize,
    passed_over: Vec<Tried>,
    connect_at: Duration,
    pause: Duration,
    /// The port's other end is closed; the worker checks again at this time.
    quiet_until: Option<Duration>,
    again_at: Option<Duration>,
    page: Option<HostPage>,
    leases: Leases,
    asked: BTreeMap<u64, Asked>,
    /// Requests that wait for an open session.
    waiting: VecDeque<Asked>,
    stopping: bool,
}

impl Worker {
    pub(super) fn new(
        setup: Setup,
        commands: Receiver<Command>,
        wake: Arc<EventFd>,
        chosen: Arc<Mutex<Option<ChannelChoice>>>,
    ) -> Self {
        let timeout = i64::try_from(setup.timeout.as_nanos()).unwrap_or(i64::MAX);
        let now = monotonic();
        let session = ClientSession::new(ClientConfig {
            client: setup.client.clone(),
            first_id: u64::try_from(now.floor_nanos()).unwrap_or(0)
                ^ u64::from(std::process::id()) << 40,
            timeout: Duration::from_nanos(timeout),
        });
        Self {
            setup,
            commands,
            wake,
            chosen,
            session,
            stream: None,
            address: 0,
            passed_over: Vec::new(),
            connect_at: now,
            pause: FIRST_PAUSE,
            quiet_until: None,
            again_at: None,
            page: None,
            leases: Leases::default(),
            asked: BTreeMap::new(),
            waiting: VecDeque::new(),
            stopping: false,
        }
    }

    pub(super) fn run(mut self) {
        loop {
            self.take_commands();
            let now = monotonic();
            if self.is_wanted() && now >= self.connect_at && !self.stopping {
                self.connect(now);
            }
            let actions = self.session.on_timer(now);
            self.handle(now, actions);
            self.bind_again(now);
            self.send_waiting(now);
            self.write();
            if self.stopping {
                return;
            }
            if self.sleep(monotonic()).is_err() {
                return;
            }
            self.read();
        }
    }

    fn take_commands(&mut self) {
        let _ = self.wake.clear();
        loop {
            let asked = match self.commands.try_recv() {
                Err(TryRecvError::Empty) => return,
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
                Ok(Command::Bind(bind, reply)) => Asked::Bind(bind, reply),
                Ok(Command::Update { key, requirement, best_effort, reply }) => {
                    Asked::Update { key, requirement, best_effort, reply }
                }
                Ok(Command::Timelines(reply)) => Asked::Timelines(reply),
                Ok(Command::Unbind { key, reply }) => {
                    let binding = self.leases.remove(key).and_then(|entry| entry.binding);
                    // A binding without a number needs no request.
                    let Some(binding) = binding else {
                        answer_opt(reply, Ok(()));
                        continue;
                    };
                    let request = Request::Unbind(channel::Binding { binding });
                    match self.session.request(monotonic(), &request) {
                        Ok(id) => drop(self.asked.insert(id, Asked::Unbind(reply))),
                        // The request cannot be sent, so end the session, which ends the binding.
                        Err(_) => {
                            answer_opt(reply, Ok(()));
                            self.restart("a binding could not be withdrawn otherwise");
                        }
                    }
                    continue;
                }
            };
            self.waiting.push_back(asked);
            // A caller is waiting, so connect without a pause.
            self.connect_at = monotonic();
        }
    }

    /// Whether a connection is missing and needed.
    fn is_wanted(&self) -> bool {
        self.stream.is_none() && !(self.waiting.is_empty() && self.leases.is_empty())
    }

    /// Tries all addresses, starting with the current one.
    fn connect(&mut self, now: Duration) {
        let count = self.setup.addresses.len();
        for turn in 0..count {
            let index = (self.address + turn) % count;
            let Some(address) = self.setup.addresses.get(index) else { break };
            match address.open() {
                Ok(stream) => {
                    self.stream = Some(stream);
                    self.address = index;
                    self.quiet_until = None;
                    self.session.begin(now);
                    return;
                }
                Err(tried) => self.passed_over.push(tried),
            }
        }
        self.connect_at = now + self.pause;
        self.pause = (self.pause + self.pause).min(LONGEST_PAUSE);
        let tried = core::mem::take(&mut self.passed_over);
        self.fail_waiting(|| BindError::NoChannel { tried: tried.clone() });
    }

    /// Ends the session and drops its stream.
    fn disconnect(&mut self, why: &str) {
        self.stream = None;
        self.session.end();
        self.lost(why);
        self.connect_at = monotonic() + self.pause;
        self.pause = (self.pause + self.pause).min(LONGEST_PAUSE);
    }

    fn lost(&mut self, why: &str) {
        self.leases.lose_all(why);
        self.again_at = None;
        for asked in core::mem::take(&mut self.asked).into_values() {
            asked.fail(|| BindError::Channel(why.to_owned()));
        }
    }

    fn restart(&mut self, why: &str) {
        let now = monotonic();
        let actions = self.session.restart(now, why);
        self.handle(now, actions);
    }

    fn fail_waiting(&mut self, error: impl Fn() -> BindError) {
        for asked in core::mem::take(&mut self.waiting) {
            asked.fail(&error);
        }
    }

    fn handle(&mut self, now: Duration, actions: Vec<ClientAction>) {
        for action in actions {
            match action {
                ClientAction::Began(welcome) => self.began(now, &welcome),
                ClientAction::Refused(problem) => {
                    self.fail_waiting(|| BindError::Refused(Box::new(problem.clone())));
                }
                ClientAction::Unanswered => self.unanswered(),
                ClientAction::Response { id, response } => {
                    if let Some(asked) = self.asked.remove(&id) {
                        self.answered(now, asked, response);
                    }
                }
                ClientAction::TimedOut { id } => {
                    if let Some(asked) = self.asked.remove(&id) {
                        let after = self.setup.timeout;
                        asked.fail(|| BindError::TimedOut(after));
                    }
                    // Whether it was carried out is not known.
                    self.restart("a request was not answered");
                }
                ClientAction::Event(Event::Moved { binding, place }) => {
                    self.moved(binding, place);
                }
                // Both are visible on the page at every read.
                ClientAction::Event(_) => {}
                ClientAction::Lost { reason } => self.lost(&reason),
            }
        }
    }

    fn began(&mut self, now: Duration, welcome: &Welcome) {
        self.page.clone_from(&welcome.page);
        self.pause = FIRST_PAUSE;
        self.again_at = Some(now);
        let passed_over = core::mem::take(&mut self.passed_over);
        let address = self.setup.addresses.get(self.address).cloned();
        let tenant = welcome.tenant.clone();
        *unpoisoned(self.chosen.lock()) =
            address.map(|address| ChannelChoice { address, tenant, passed_over });
    }

    /// Another address may work.
    fn unanswered(&mut self) {
        let after = self.setup.timeout;
        if self.setup.addresses.len() > 1 {
            let here = self.setup.addresses.get(self.address);
            self.passed_over.extend(here.map(|here| Tried::new(here, &"nobody answers there")));
            self.address = (self.address + 1) % self.setup.addresses.len();
            self.disconnect("nobody answers there");
        }
        self.fail_waiting(|| BindError::TimedOut(after));
    }

    fn moved(&mut self, binding: u64, place: channel::Place) {
        let Some(entry) = self.leases.bound(binding) else { return };
        match (entry.shared.upgrade(), open_place(&self.setup, self.page.as_ref(), place)) {
            (Some(shared), Ok(place)) => shared.move_to(place),
            // Readings fail with `Gone`; the lease says why.
            (_, Err(error)) => entry.lost(&error.to_string()),
            (None, _) => {}
        }
    }

    /// Renews bindings after a new session has started, and periodically those refused since.
    fn bind_again(&mut self, now: Duration) {
        if self.session.session().is_none() || self.again_at.is_none_or(|at| now < at) {
            return;
        }
        self.again_at = None;
        let under_way =
            |key: &u64| self.asked.values().any(|a| matches!(a, Asked::Again(k) if k == key));
        let missing: Vec<_> =
            self.leases.unbound().into_iter().filter(|(key, _)| !under_way(key)).collect();
        for (key, wish) in missing {
            match self.session.request(now, &Request::Bind(wish)) {
                Ok(id) => drop(self.asked.insert(id, Asked::Again(key))),
                Err(_) => self.again_at = Some(now + FIRST_PAUSE),
            }
        }
    }

    fn send_waiting(&mut self, now: Duration) {
        while let Some(asked) = self.waiting.pop_front() {
            let request = match &asked {
                Asked::Bind(bind, _) => Request::Bind(bind.clone()),
                Asked::Update { key, requirement, best_effort, .. } => {
                    let Some(binding) = self.leases.get(*key).and_then(|entry| entry.binding)
                    else {
                        // The change is sent when the binding is renewed.
                        asked.fail(|| {
                            BindError::Channel("the binding is lost at present".to_owned())
                        });
                        continue;
                    };
                    let requirement = requirement.map(Requirement::to_channel);
                    Request::Update(Update { binding, requirement, best_effort: *best_effort })
                }
                Asked::Timelines(_) => Request::Timelines,
                Asked::Again(_) | Asked::Unbind(_) => continue,
            };
            match self.session.request(now, &request) {
                Ok(id) => drop(self.asked.insert(id, asked)),
                Err(RequestError::Invalid(error)) => {
                    asked.fail(|| BindError::Channel(error.to_string()));
                }
                Err(RequestError::Encode(error)) => {
                    let text = error.to_string();
                    asked.fail(|| BindError::Channel(text.clone()));
                }
                // There is no session yet, or too many requests are pending: retry later.
                Err(_) => {
                    self.waiting.push_front(asked);
                    return;
                }
            }
        }
    }

    fn answered(&mut self, now: Duration, asked: Asked, response: Response) {
        match (asked, response) {
            (Asked::Bind(bind, reply), Response::Bound(bound)) => {
                let granted = self.granted(bind, bound);
                // The caller has given up. A lease without an owner would make the host poll faster
                // for nothing.
                if let Err(SendError(Ok(granted))) = reply.send(granted)
                    && let Some(Entry { binding: Some(binding), .. }) =
                        self.leases.remove(granted.key)
                {
                    self.unbind(binding);
                }
            }
            (Asked::Again(key), Response::Bound(bound)) => self.bound_again(key, &bound),
            (Asked::Again(key), Response::Problem(problem)) => {
                if let Some(entry) = self.leases.get(key) {
                    entry.lost(&problem.to_string());
                }
                self.again_at = Some(now + LONGEST_PAUSE);
            }
            (Asked::Update { key, requirement, best_effort, reply }, Response::Bound(bound)) => {
                if let Some(entry) = self.leases.get(key) {
                    entry.wish.requirement = requirement.map(Requirement::to_channel);
                    entry.wish.best_effort = best_effort;
                }
                answer(&reply, Ok(bound.achieved));
            }
            (Asked::Unbind(reply), Response::Unbound(_)) => answer_opt(reply, Ok(())),
            (Asked::Timelines(reply), Response::Timelines(rows)) => answer(&reply, Ok(rows)),
            (asked, Response::Problem(problem)) => asked.fail(|| refusal(problem.clone())),
            (asked, _) => {
                let text = "an answer to another question; install the same version on both ends";
                asked.fail(|| BindError::Channel(text.to_owned()));
            }
        }
    }

    fn granted(&mut self, mut wish: Bind, bound: Bound) -> Result<Granted, BindError> {
        let requirement = wish.requirement.map(Requirement::from);
        let need = Need::new(requirement.as_ref())?;
        let place = match open_place(&self.setup, self.page.as_ref(), bound.place) {
            Ok(place) => place,
            Err(error) => {
                self.unbind(bound.binding);
                return Err(error.into());
            }
        };
        let timeline = Timeline::new(&bound.timeline, place, need, None);
        let lease = Arc::new(Mutex::new(Lease::Held));
        // A requirement that was accepted once is restated as best effort; readings tell whether it
        // is met.
        wish.best_effort = true;
        let key = self.leases.add(Entry {
            wish,
            binding: Some(bound.binding),
            shared: Arc::downgrade(&timeline.shared),
            lease: Arc::clone(&lease),
        });
        let (epoch, achieved) = (bound.epoch, bound.achieved);
        Ok(Granted { key, timeline, epoch, achieved, lease })
    }

    /// Withdraws bindings without a handle.
    fn unbind(&mut self, binding: u64) {
        let request = Request::Unbind(channel::Binding { binding });
        match self.session.request(monotonic(), &request) {
            Ok(id) => drop(self.asked.insert(id, Asked::Unbind(None))),
            // The request cannot be sent, so end the session, which ends its bindings.
            Err(_) => self.restart("a binding could not be withdrawn otherwise"),
        }
    }

    fn bound_again(&mut self, key: u64, bound: &Bound) {
        let Some(entry) = self.leases.get(key) else {
            // The caller has given up in the meantime.
            return self.unbind(bound.binding);
        };
        match open_place(&self.setup, self.page.as_ref(), bound.place) {
            Ok(place) => {
                if let Some(shared) = entry.shared.upgrade() {
                    shared.move_to(place);
                }
                entry.held(bound.binding);
            }
            Err(error) => entry.lost(&error.to_string()),
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; 8192];
        loop {
            let Some(stream) = &mut self.stream else { return };
            match stream.read(&mut buffer) {
                Ok(Found::Bytes(count)) => {
                    let now = monotonic();
                    let bytes = buffer.get(..count).unwrap_or_default();
                    let actions = self.session.on_bytes(now, bytes);
                    self.handle(now, actions);
                }
                Ok(Found::Nothing) => return,
                Ok(Found::Nobody) => {
                    self.quiet_until = Some(monotonic() + NOBODY_PAUSE);
                    return;
                }
                Ok(Found::Closed) => return self.disconnect("timevisord closed the connection"),
                Err(error) => return self.disconnect(&error.to_string()),
            }
        }
    }

    fn write(&mut self) {
        while let Some(stream) = &mut self.stream {
            let output = self.session.output();
            if output.is_empty() {
                return;
            }
            match stream.write(output) {
                Ok(0) => return,
                Ok(count) => self.session.sent(count),
                Err(error) => return self.disconnect(&error.to_string()),
            }
        }
    }

    /// Sleeps until the stream is ready, a caller asks, or a timer is due.
    fn sleep(&mut self, now: Duration) -> std::io::Result<()> {
        let connect = self.is_wanted().then_some(self.connect_at);
        let ready = if self.waiting.is_empty() { None } else { self.session.ready_at() };
        let again = self.session.session().and(self.again_at);
        let quiet = self.quiet_until.filter(|until| now < *until);
        let due = [self.session.poll_at(), connect, ready, again, quiet];
        let left = due.into_iter().flatten().reduce(Duration::min).map(|at| {
            let ns = u64::try_from((at - now).ceil_nanos()).unwrap_or(0);
            std::time::Duration::from_nanos(ns)
        });
        let wake = PollFd::readable(self.wake.as_fd());
        match &self.stream {
            Some(stream) if quiet.is_none() => {
                let unsent = !self.session.output().is_empty();
                let fd = stream.as_fd();
                let fd =
                    if unsent { PollFd::readable_or_writable(fd) } else { PollFd::readable(fd) };
                poll::wait(&mut [wake, fd], left)?;
            }
            _ => drop(poll::wait(&mut [wake], left)?),
        }
        Ok(())
    }
}

impl Asked {
    fn fail(self, error: impl FnOnce() -> BindError) {
        match self {
            Self::Bind(_, reply) => answer(&reply, Err(error())),
            Self::Update { reply, .. } => answer(&reply, Err(error())),
            Self::Timelines(reply) => answer(&reply, Err(error())),
            // The session is gone, and the binding with it.
            Self::Unbind(reply) => answer_opt(reply, Ok(())),
            Self::Again(_) => {}
        }
    }
}

fn answer<T>(reply: &Reply<T>, with: Result<T, BindError>) {
    // The caller may have given up.
    let _ = reply.send(with);
}

fn answer_opt<T>(reply: Option<Reply<T>>, with: Result<T, BindError>) {
    if let Some(reply) = reply {
        answer(&reply, with);
    }
}

fn refusal(problem: Problem) -> BindError {
    match (problem.code, problem.achievable.clone()) {
        (ProblemCode::CannotBeMet, achievable) => {
            let (achievable, problem) = (achievable.unwrap_or_default(), Box::new(problem));
            BindError::CannotBeMet { achievable, problem }
        }
        _ => BindError::Refused(Box::new(problem)),
    }
}
