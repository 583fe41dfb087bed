//! The state machine of `timevisor-guest`: many applications' connections, one to the host.
//!
//! | module | owns |
//! | --- | --- |
//! | `ledger` | which binding belongs to which application, and its number at the host |
//! | `upstream` | what goes to the host and what its answers mean |
//!
//! Applications are strangers to each other: each names its own bindings only, has a rate and a queue of its own, and waits
//! for its turn; what a leaving one had bound is unbound first of all. When the host loses the session (restart,
//! migration), everything is bound again, and applications are told where it is now; what the host then refuses, or
//! cannot answer for [`RelayConfig::grace`], ends the sessions of the applications concerned.
//!
//! What it does not do: open sockets, or find out who an application is.

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

/// What the relay grants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelayConfig {
    /// How it begins its sessions at the host.
    pub client: ClientConfig,
    /// Where the numbers of applications' sessions begin: best one that the relay before did not use.
    pub first_session: NonZeroU64,
    /// Applications at the same time.
    pub applications: usize,
    /// Of these, with the same tenant text.
    pub applications_per_tenant: usize,
    /// Per application, told to it. The host's own limits hold for all of them together.
    pub limits: Limits,
    /// How long bindings outlive the host's session.
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

/// What the caller has to do or may log, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum RelayAction {
    /// Close this application's connection; the relay has forgotten it.
    CloseApp {
        /// Which.
        app: u64,
        /// Why.
        over: Over,
    },
    /// The host has begun a session.
    HostBegan(Welcome),
    /// The host's session is gone; the next attempt comes by itself if the connection is still there.
    HostLost {
        /// Why.
        reason: String,
    },
    /// The host does not want a session; the next attempt comes by itself.
    HostRefused(Problem),
    /// The host does not answer; the next attempt has been made.
    HostUnanswered,
}

/// An application that is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotTaken {
    /// All places are in use.
    #[error("{0} applications are connected already; close one of them")]
    Applications(usize),
    /// All places of this tenant are.
    #[error("{0} applications of this user are connected already; close one of them")]
    Tenant(usize),
    /// The caller's own mistake.
    #[error("an application has this number already; give every connection its own")]
    Number,
}

#[derive(Debug)]
struct App {
    server: ServerSession,
    /// Requests that were not sent to the host yet.
    queue: VecDeque<(u64, Request)>,
    /// Binds that the host has not answered yet, of ended sessions too.
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
    /// What the host was asked, by the id.
    pending: BTreeMap<u64, Pending>,
    /// Precedes applications' requests.
    jobs: VecDeque<Job>,
    /// The application that was served last.
    turn: u64,
    /// Since when bindings have been without a host.
    alone_since: Option<Duration>,
    actions: Vec<RelayAction>,
}

impl Relay {
    /// Without applications or a connection to the host.
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

    /// An application has connected; `app` is the caller's number for the connection, `tenant` who it is.
    ///
    /// # Errors
    /// It is to be closed at once.
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
        // A local socket is seen to close: no lease is needed.
        let limits = Limits { lease_ms: None, ..self.config.limits };
        let tenant = tenant.to_owned();
        let server = ServerSession::new(ServerConfig { tenant, page: None, limits });
        self.apps.insert(app, App { server, queue: VecDeque::new(), making: 0 });
        Ok(())
    }

    /// An application has sent something.
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

    /// An application's connection has closed.
    pub fn app_closed(&mut self, now: Duration, app: u64) -> Vec<RelayAction> {
        self.forget(app);
        self.finish(now)
    }

    /// What to write to an application.
    #[must_use]
    pub fn app_output(&self, app: u64) -> &[u8] {
        self.apps.get(&app).map_or(&[], |app| app.server.output())
    }

    /// The application's socket has taken so many bytes of [`Self::app_output`].
    pub fn app_sent(&mut self, app: u64, count: usize) {
        if let Some(app) = self.apps.get_mut(&app) {
            app.server.sent(count);
        }
    }

    /// The applications, by the caller's numbers.
    pub fn apps(&self) -> impl Iterator<Item = u64> {
        self.apps.keys().copied()
    }

    /// The connection to the host is there.
    pub fn upstream_connected(&mut self, now: Duration) -> Vec<RelayAction> {
        self.upstream_gone(now);
        self.upstream.begin(now);
        self.finish(now)
    }

    /// The connection to the host is gone.
    pub fn upstream_lost(&mut self, now: Duration) -> Vec<RelayAction> {
        self.upstream_gone(now);
        self.upstream.end();
        self.finish(now)
    }

    /// The host has sent something.
    pub fn upstream_bytes(&mut self, now: Duration, bytes: &[u8]) -> Vec<RelayAction> {
        for action in self.upstream.on_bytes(now, bytes) {
            self.upstream_action(now, action);
        }
        self.finish(now)
    }

    /// What to write to the host.
    #[must_use]
    pub fn upstream_output(&self) -> &[u8] {
        self.upstream.output()
    }

    /// The host's stream has taken so many bytes of [`Self::upstream_output`].
    pub fn upstream_sent(&mut self, count: usize) {
        self.upstream.sent(count);
    }

    /// When [`Self::on_timer`] has something to do.
    #[must_use]
    pub fn poll_at(&self) -> Option<Duration> {
        let waiting = !self.jobs.is_empty() || self.apps.values().any(|app| !app.queue.is_empty());
        let turn = self.upstream.ready_at().filter(|_| waiting);
        let grace = self.alone_since.map(|since| since + self.config.grace);
        [self.upstream.poll_at(), turn, grace].into_iter().flatten().reduce(Duration::min)
    }

    /// Times out, keeps alive, sends what had to wait.
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

    /// The bindings in force: the application, its number for it, and the host's, while the host has it.
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

    /// Answers an application in the session that it asked in.
    fn answer(&mut self, app: u64, session: u64, id: u64, response: &Response) {
        let Some(entry) = self.apps.get_mut(&app) else { return };
        if let Err(over) = entry.server.respond(session, id, response) {
            self.close(app, over);
        }
    }

    /// Tells an application that its bindings are gone, and makes it so.
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

    /// Forgets what an application's session has asked and bound.
    fn release_all(&mut self, app: u64) {
        if let Some(entry) = self.apps.get_mut(&app) {
            entry.queue.clear();
        }
        for local in self.ledger.of_app(app) {
            self.release(local);
        }
    }

    /// The end of every input: what can be sent is sent, and the caller is told.
    fn finish(&mut self, now: Duration) -> Vec<RelayAction> {
        self.pump(now);
        std::mem::take(&mut self.actions)
    }
}
