//! The state machine of `timevisor-guest`: many applications' connections, one to the host.
//!
//! | module | owns |
//! | --- | --- |
//! | `ledger` | which binding belongs to which application, and its number at the host |
//! | `upstream` | requests to the host, and its answers |
//!
//! Applications are isolated from each other: each can name its own bindings only, has its own rate
//! limit and queue, and waits for its turn. The bindings of a leaving application are ended before
//! anything else. When the host loses the session (restart, migration), the relay binds everything
//! again and tells applications the new places. If the host refuses, or cannot answer for
//! [`RelayConfig::grace`], the sessions of the affected applications end.
//!
//! What it does not do: open sockets, or identify applications.

mod ledger;
mod upstream;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU64;

use timevisor_time::Duration;

use super::client::{ClientConfig, ClientSession};
use super::message::{Limits, Problem, Request, Response, Welcome};
use super::server::{Over, ServerAction, ServerConfig, ServerSession};
use ledger::Ledger;
use upstream::{Job, Pending};

/// The relay's limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelayConfig {
    /// The introduction for sessions at the host.
    pub client: ClientConfig,
    /// The first number of applications' sessions; choose one that the relay before did not use.
    pub first_session: NonZeroU64,
    /// Most applications at a time.
    pub applications: usize,
    /// Most applications at a time with the same tenant text.
    pub applications_per_tenant: usize,
    /// Limits per application, told to it. The host's own limits hold for all applications
    /// together.
    pub limits: Limits,
    /// How long bindings survive without a session at the host.
    pub grace: Duration,
}

impl RelayConfig {
    /// The defaults.
    #[must_use]
    pub fn new(client: ClientConfig, first_session: NonZeroU64) -> Self {
        let limits =
            Limits { bindings: 64, timelines: 64, requests_per_second: 10, lease_ms: None };
        Self {
            client,
            first_session,
            applications: 64,
            applications_per_tenant: 16,
            limits,
            grace: Duration::from_secs(10),
        }
    }
}

/// What the caller must do or may log, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum RelayAction {
    /// Close this application's connection; the relay has forgotten it.
    CloseApp {
        /// The application.
        app: u64,
        /// The reason.
        over: Over,
    },
    /// The host has begun a session.
    HostBegan(Welcome),
    /// The host's session is gone. The relay tries again if the connection still exists.
    HostLost {
        /// The reason.
        reason: String,
    },
    /// The host refused a session. The relay tries again.
    HostRefused(Problem),
    /// The host does not answer. The relay has tried again.
    HostUnanswered,
}

/// Why an application is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotTaken {
    /// There are too many applications.
    #[error("{0} applications are connected already; close one of them")]
    Applications(usize),
    /// This tenant has too many applications.
    #[error("{0} applications of this user are connected already; close one of them")]
    Tenant(usize),
    /// An error of the caller.
    #[error("an application has this number already; give every connection its own")]
    Number,
}

#[derive(Debug)]
struct App {
    server: ServerSession,
    /// Requests that have not gone to the host yet.
    queue: VecDeque<(u64, Request)>,
    /// Binds that the host has not answered yet, including those of ended sessions.
    making: usize,
}

/// The relay.
#[derive(Debug)]
pub struct Relay {
    config: RelayConfig,
    upstream: ClientSession,
    apps: BTreeMap<u64, App>,
    last_session: NonZeroU64,
    ledger: Ledger,
    /// Requests at the host, by id.
    pending: BTreeMap<u64, Pending>,
    /// The relay's own requests, which go before applications' requests.
    jobs: VecDeque<Job>,
    /// The application whose request was sent last.
    turn: u64,
    /// The time since which bindings have been without a session at the host.
    alone_since: Option<Duration>,
    actions: Vec<RelayAction>,
}

impl Relay {
    /// Makes a relay without applications or a connection to the host.
    #[must_use]
    pub fn new(config: RelayConfig) -> Self {
        Self {
            upstream: ClientSession::new(config.client.clone()),
            apps: BTreeMap::new(),
            last_session: config.first_session,
            config,
            ledger: Ledger::default(),
            pending: BTreeMap::new(),
            jobs: VecDeque::new(),
            turn: 0,
            alone_since: None,
            actions: Vec::new(),
        }
    }

    /// Adds an application; `app` is the caller's number for the connection, `tenant` its identity.
    ///
    /// # Errors
    /// Why the connection must be closed at once.
    pub fn app_connected(&mut self, app: u64, tenant: &str) -> Result<(), NotTaken> {
        let same = self.apps.values().filter(|other| other.server.tenant() == tenant).count();
        if self.apps.contains_key(&app) {
            return Err(NotTaken::Number);
        }
        if self.apps.len() >= self.config.applications {
            return Err(NotTaken::Applications(self.config.applications));
        }
        if same >= self.config.applications_per_tenant {
            return Err(NotTaken::Tenant(self.config.applications_per_tenant));
        }
        // The end of a local socket is visible, so no lease is needed.
        let limits = Limits { lease_ms: None, ..self.config.limits };
        let tenant = tenant.to_owned();
        let server = ServerSession::new(ServerConfig { tenant, page: None, limits });
        self.apps.insert(app, App { server, queue: VecDeque::new(), making: 0 });
        Ok(())
    }

    /// Reads bytes from an application.
    pub fn app_bytes(&mut self, now: Duration, app: u64, bytes: &[u8]) -> Vec<RelayAction> {
        let Some(entry) = self.apps.get_mut(&app) else { return Vec::new() };
        let last_session = &mut self.last_session;
        let mut new_session = || {
            *last_session = last_session.checked_add(1).unwrap_or(NonZeroU64::MIN);
            *last_session
        };
        for action in entry.server.on_bytes(now, bytes, &mut new_session) {
            self.app_action(app, action);
        }
        self.finish(now)
    }

    /// Removes an application whose connection has closed.
    pub fn app_closed(&mut self, now: Duration, app: u64) -> Vec<RelayAction> {
        self.forget(app);
        self.finish(now)
    }

    /// Returns the bytes to write to an application.
    #[must_use]
    pub fn app_output(&self, app: u64) -> &[u8] {
        self.apps.get(&app).map_or(&[], |app| app.server.output())
    }

    /// Removes this many bytes of [`Self::app_output`], which the application's socket has
    /// accepted.
    pub fn app_sent(&mut self, app: u64, count: usize) {
        if let Some(app) = self.apps.get_mut(&app) {
            app.server.sent(count);
        }
    }

    /// Returns the applications by the caller's numbers.
    pub fn apps(&self) -> impl Iterator<Item = u64> {
        self.apps.keys().copied()
    }

    /// Begins on a new connection to the host.
    pub fn upstream_connected(&mut self, now: Duration) -> Vec<RelayAction> {
        self.upstream_gone(now);
        self.upstream.begin(now);
        self.finish(now)
    }

    /// Handles the loss of the connection to the host.
    pub fn upstream_lost(&mut self, now: Duration) -> Vec<RelayAction> {
        self.upstream_gone(now);
        self.upstream.end();
        self.finish(now)
    }

    /// Reads bytes from the host.
    pub fn upstream_bytes(&mut self, now: Duration, bytes: &[u8]) -> Vec<RelayAction> {
        for action in self.upstream.on_bytes(now, bytes) {
            self.upstream_action(now, action);
        }
        self.finish(now)
    }

    /// Returns the bytes to write to the host.
    #[must_use]
    pub fn upstream_output(&self) -> &[u8] {
        self.upstream.output()
    }

    /// Removes this many bytes of [`Self::upstream_output`], which the host's stream has accepted.
    pub fn upstream_sent(&mut self, count: usize) {
        self.upstream.sent(count);
    }

    /// Returns when [`Self::on_timer`] has something to do.
    #[must_use]
    pub fn poll_at(&self) -> Option<Duration> {
        let waiting = !self.jobs.is_empty() || self.apps.values().any(|app| !app.queue.is_empty());
        let turn = self.upstream.ready_at().filter(|_| waiting);
        let grace = self.alone_since.map(|since| since + self.config.grace);
        [self.upstream.poll_at(), turn, grace].into_iter().flatten().reduce(Duration::min)
    }

    /// Times requests out, sends keep-alives, sends what had to wait.
    pub fn on_timer(&mut self, now: Duration) -> Vec<RelayAction> {
        for action in self.upstream.on_timer(now) {
            self.upstream_action(now, action);
        }
        if self.alone_since.is_some_and(|since| now >= since + self.config.grace) {
            self.alone_since = None;
            let reason = format!("the host has not answered for {}", self.config.grace);
            let holders: BTreeSet<u64> = self.ledger.iter().map(|(_, held)| held.app).collect();
            for app in holders {
                self.end_session(app, &reason);
            }
        }
        self.finish(now)
    }

    /// Returns the bindings in force: the application, its number, and the host's number while the
    /// host has the binding.
    pub fn bindings(&self) -> impl Iterator<Item = (u64, u64, Option<u64>)> {
        self.ledger.iter().map(|(local, held)| (held.app, local, held.upstream()))
    }

    fn app_action(&mut self, app: u64, action: ServerAction) {
        match action {
            ServerAction::Began { .. } => {}
            ServerAction::Ended { .. } | ServerAction::Expired { .. } => self.release_all(app),
            ServerAction::Request { id, request, .. } => {
                if let Some(entry) = self.apps.get_mut(&app) {
                    entry.queue.push_back((id, request));
                }
            }
            ServerAction::Close(over) => self.close(app, over),
        }
    }

    /// Answers an application if its session still exists.
    fn answer(&mut self, app: u64, session: u64, id: u64, response: &Response) {
        let Some(entry) = self.apps.get_mut(&app) else { return };
        if let Err(over) = entry.server.respond(session, id, response) {
            self.close(app, over);
        }
    }

    /// Ends an application's session and tells it that its bindings are gone.
    fn end_session(&mut self, app: u64, reason: &str) {
        self.release_all(app);
        let Some(entry) = self.apps.get_mut(&app) else { return };
        let _number = entry.server.end_session(reason);
        if let Some(over) = entry.server.over() {
            self.close(app, over);
        }
    }

    fn close(&mut self, app: u64, over: Over) {
        if self.forget(app) {
            self.actions.push(RelayAction::CloseApp { app, over });
        }
    }

    fn forget(&mut self, app: u64) -> bool {
        self.release_all(app);
        self.apps.remove(&app).is_some()
    }

    /// Forgets the requests and bindings of an application's session.
    fn release_all(&mut self, app: u64) {
        if let Some(entry) = self.apps.get_mut(&app) {
            entry.queue.clear();
        }
        for local in self.ledger.of_app(app) {
            self.release(local);
        }
    }

    /// Finishes every input: sends what can be sent and returns the actions.
    fn finish(&mut self, now: Duration) -> Vec<RelayAction> {
        self.pump(now);
        std::mem::take(&mut self.actions)
    }
}
