//! Several NTP servers behind one name. Each address is one reference, and an address that does not
//! serve is replaced.
//!
//! The number of references is fixed (`servers`), because the vote needs it; member n is `NAME#n`
//! in status output. A thread resolves the name, and does so again whenever a member needs another
//! address. An address that was given up is not used again for an hour. Members for whom the name
//! has no address share the vote of one that has.
//!
//! A member is replaced when its successor has answered, not before: while the whole network is
//! silent, every member stays, and what it said stays true and ages. Only what an outvoted server
//! said is forgotten.
//!
//! Limitation: it does not detect that two addresses belong to one server (its IPv4 and IPv6
//! addresses, for instance), unless both name the same upstream (crates/protocols, `ntp/witnesses.rs`).

use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use anyhow::{Context, Result};
use timevisor_estimate::Exchange;
use timevisor_protocols::control::Reference as Report;
use timevisor_protocols::ntp::Source;
use timevisor_time::Duration;

use super::addresses::Addresses;
use super::resolver::Resolver;
use super::server::Server;
use super::sources::Sources;
use super::tally::{Refused, Tally};
use super::{Details, Driver, Need, Surroundings, Upstream};
use crate::announce::Budget;
use crate::config::ReferenceConfig;

/// A pool's name resolves to other addresses after a minute or two (the usual TTL is 130 s).
const RESOLVE_AGAIN: Duration = Duration::from_secs(130);
/// A name that did not resolve is tried again after this time, to notice when a name server is back.
const RESOLVE_RETRY: Duration = Duration::from_secs(10);
/// How often the daemon checks for the resolver's answer or a free address.
const LOOK: Duration = Duration::from_millis(250);
/// How often it does so for a member whose server is of no use.
const LOOK_FOR_SUCCESSOR: Duration = Duration::from_secs(5);
/// A server that has been useless for this long gets a successor. By then its state machine has
/// sent eight requests and reported it unreachable, and a vote lost by chance is over.
const PATIENCE: Duration = Duration::from_secs(60);
/// A successor that has not answered by then is given back.
const TRIAL: Duration = Duration::from_secs(20);

/// A pool that its members share within one thread.
pub type Shared = Rc<RefCell<Pool>>;

/// One pool.
pub struct Pool {
    name: String,
    addresses: Addresses,
    resolver: Option<Resolver>,
    pause: Duration,
    /// When the name was last resolved.
    heard_at: Option<Duration>,
    problem: Option<String>,
}

impl Pool {
    pub fn new(name: &str) -> Result<Shared> {
        let target = name.parse().with_context(|| format!("pool {name}"))?;
        Ok(Rc::new(RefCell::new(Self {
            name: name.to_owned(),
            addresses: Addresses::default(),
            resolver: Some(Resolver::new(target)),
            pause: Duration::ZERO,
            heard_at: None,
            problem: None,
        })))
    }

    /// Returns a free address, once the name has been looked up lately or cannot be.
    fn take(&mut self, now: Duration, taken: &[SocketAddr]) -> Option<SocketAddr> {
        self.hear(now);
        let recent = self.heard_at.is_some_and(|at| now - at < RESOLVE_AGAIN);
        if recent && let Some(address) = self.addresses.take(taken) {
            return Some(address);
        }
        if let Some(resolver) = &mut self.resolver {
            let failed = resolver.ask(now, self.pause).err();
            self.problem = failed.map(|error| format!("{error:#}")).or(self.problem.take());
        }
        if self.is_resolving() { None } else { self.addresses.take(taken) }
    }

    /// A server of another member, for one to which the name gives none.
    fn shared(&self) -> Option<SocketAddr> {
        self.heard_at.and(self.addresses.shared())
    }

    fn hear(&mut self, now: Duration) {
        let Some(found) = self.resolver.as_mut().and_then(Resolver::answer) else { return };
        match found {
            Ok(found) => {
                (self.problem, self.pause) = (None, RESOLVE_AGAIN);
                self.heard_at = Some(now);
                self.addresses.learn(&found, now);
            }
            Err(error) => {
                (self.problem, self.pause) = (Some(format!("{error:#}")), RESOLVE_RETRY);
            }
        }
    }

    fn is_resolving(&self) -> bool {
        self.resolver.as_ref().is_some_and(Resolver::is_running)
    }
}

/// One of the pool's references.
pub struct Member {
    name: String,
    config: ReferenceConfig,
    pool: Shared,
    server: Option<(SocketAddr, Server)>,
    /// Takes the server's place as soon as it has answered.
    successor: Option<Successor>,
    look_at: Duration,
    useless_since: Option<Duration>,
    /// The sources of servers before this one, whose facts still count.
    sources: Sources,
    falseticker: bool,
    replaced: bool,
    /// How often replacements may still be logged.
    told: Budget,
    tally: Tally,
}

/// A server on trial.
struct Successor {
    address: SocketAddr,
    server: Server,
    since: Duration,
}

impl Member {
    pub fn new(config: &ReferenceConfig, pool: Shared, now: Duration) -> Self {
        Self {
            name: config.name(),
            config: config.clone(),
            pool,
            server: None,
            successor: None,
            look_at: now,
            useless_since: None,
            sources: Sources::default(),
            falseticker: false,
            replaced: false,
            told: Budget::default(),
            tally: Tally::new(config.name()),
        }
    }

    /// Finds an address if this member has none, and a successor if the current server is useless.
    fn look(&mut self, now: Duration, taken: &[SocketAddr]) {
        let waits =
            self.server.is_none() || self.successor.is_none() && self.pool.borrow().is_resolving();
        self.look_at = now + if waits { LOOK } else { LOOK_FOR_SUCCESSOR };
        let Some((_, server)) = &self.server else {
            let Some((address, server)) = self.take(now, taken) else { return };
            self.server = Some((address, server));
            return;
        };
        if server.serves() && !self.falseticker {
            self.useless_since = None;
            return self.end_trial();
        }
        let since = *self.useless_since.get_or_insert(now);
        if self.successor.as_ref().is_some_and(|trial| now - trial.since >= TRIAL) {
            self.end_trial();
            // Nobody answers, it seems: the next trial waits.
            self.useless_since = Some(now);
            return;
        }
        if self.successor.is_none() && now - since >= PATIENCE {
            self.successor = self.take(now, taken).map(|(address, server)| {
                tracing::debug!("reference {}: trying {address}", self.name);
                Successor { address, server, since: now }
            });
        }
    }

    /// A free address with a server that has not been asked yet.
    fn take(&mut self, now: Duration, taken: &[SocketAddr]) -> Option<(SocketAddr, Server)> {
        let Some(address) = self.pool.borrow_mut().take(now, taken) else {
            if self.server.is_none() {
                self.tell_waiting();
            }
            return None;
        };
        match Server::new(&self.config, &address.to_string(), now) {
            Ok(server) => Some((address, server)),
            Err(error) => {
                self.tally.take(Err(Refused::new("unreachable", format!("{error:#}"))));
                None
            }
        }
    }

    fn end_trial(&mut self) {
        if let Some(trial) = self.successor.take() {
            self.pool.borrow_mut().addresses.give_back(trial.address);
        }
    }

    /// The successor has answered.
    fn succeed(&mut self, now: Duration) {
        let Some(Successor { address, server, .. }) = self.successor.take() else { return };
        if let Some((old, before)) = self.server.replace((address, server)) {
            if self.falseticker {
                self.sources.clear();
            } else {
                self.inherit(&before, now);
            }
            let why = if self.falseticker { "is outvoted" } else { "does not serve" };
            if self.told.take(now) {
                tracing::info!("reference {}: {old} {why} and is replaced by {address}", self.name);
            }
            self.pool.borrow_mut().addresses.give_up(old, now);
            // What an outvoted server said was wrong; what a silent one said stays true.
            self.replaced = self.falseticker;
        }
        (self.useless_since, self.falseticker) = (None, false);
    }

    fn tell_waiting(&mut self) {
        let pool = self.pool.borrow();
        let text = match &pool.problem {
            Some(problem) => problem.clone(),
            None if pool.is_resolving() => return,
            None => format!(
                "{} has fewer addresses than `servers` (it is asked again every {RESOLVE_AGAIN}): this one shares the vote \
                 of another; set `servers` to their number",
                pool.name
            ),
        };
        drop(pool);
        self.tally.take(Err(Refused { word: "no-address", text }));
    }
}

/// A member that is removed leaves its addresses to the others.
impl Drop for Member {
    fn drop(&mut self) {
        self.end_trial();
        if let Some((address, _)) = self.server.take() {
            self.pool.borrow_mut().addresses.give_back(address);
        }
    }
}

impl Driver for Member {
    fn poll_at(&self) -> Duration {
        let Some((_, server)) = &self.server else { return self.look_at };
        let trial = self.successor.as_ref().map(|trial| trial.server.poll_at());
        // A server that refuses us is asked again in an hour: its successor is looked for before.
        let useless = !server.serves() || self.falseticker;
        let look = useless.then_some(self.look_at);
        [Some(server.poll_at()), trial, look].into_iter().flatten().min().unwrap_or(self.look_at)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let server = self.server.iter().flat_map(|(_, server)| server.fds());
        server.chain(self.successor.iter().flat_map(|trial| trial.server.fds())).collect()
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        if now >= self.look_at {
            self.look(now, around.taken);
        }
        if let Some(trial) = &mut self.successor {
            trial.server.on_timer(now, around);
        }
        self.server.as_mut().and_then(|(_, server)| server.on_timer(now, around))
    }

    fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        let trial = self.successor.as_mut();
        let new = trial.map_or_else(Vec::new, |trial| trial.server.on_ready(now, around));
        if !new.is_empty() {
            self.succeed(now);
            return new;
        }
        let Some((_, server)) = &mut self.server else { return Vec::new() };
        let exchanges = server.on_ready(now, around);
        if !exchanges.is_empty() {
            self.sources.replace_old(now);
        }
        exchanges
    }

    fn network_changed(&mut self, now: Duration) {
        if let Some((_, server)) = &mut self.server
            && server.concerned(now)
        {
            self.useless_since = None;
        }
        if let Some(trial) = &mut self.successor {
            trial.server.concerned(now);
        }
    }

    fn witness(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(|(address, _)| *address)
    }

    fn asked(&self) -> Vec<SocketAddr> {
        let trial = self.successor.as_ref().map(|trial| trial.address);
        self.witness().into_iter().chain(trial).collect()
    }

    fn duplicate(&self) -> Option<SocketAddr> {
        if self.server.is_some() { None } else { self.pool.borrow().shared() }
    }

    fn sources(&self) -> Vec<Source> {
        let server = self.server.iter().flat_map(|(_, server)| server.sources());
        self.sources.iter().chain(server).collect()
    }

    fn inherit(&mut self, before: &dyn Driver, now: Duration) {
        before.sources().into_iter().for_each(|source| self.sources.heard(source, now));
    }

    fn restart(&mut self, now: Duration) {
        self.useless_since = None;
        self.sources.clear();
        self.end_trial();
        if let Some((_, server)) = &mut self.server {
            server.restart(now);
        }
    }

    fn take_replacement(&mut self) -> bool {
        std::mem::take(&mut self.replaced)
    }

    fn require(&mut self, now: Duration, need: &Need) {
        self.falseticker = need.falseticker;
        if let Some((_, server)) = &mut self.server {
            // The pool has the successor, so the server itself need not look for one.
            server.require(now, &Need { falseticker: false, ..*need });
        }
    }

    fn upstream(&self) -> Option<Upstream> {
        self.server.as_ref()?.1.upstream()
    }

    fn burst(&mut self, now: Duration) {
        if let Some((_, server)) = &mut self.server {
            server.burst(now);
        }
    }

    fn details(&self, now: Duration) -> Details {
        self.server.as_ref().map_or_else(Details::default, |(_, server)| server.details(now))
    }

    fn pool(&self) -> Option<Shared> {
        Some(Rc::clone(&self.pool))
    }

    fn report(&self, now: Duration) -> Report {
        let name = self.name.clone();
        match &self.server {
            Some((address, server)) => {
                let report = server.report(now);
                Report { name, detail: format!("{address}: {}", report.detail), ..report }
            }
            None => self.tally.report("ntp", "", Duration::ZERO, None),
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
