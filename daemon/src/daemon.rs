//! The event loop: one thread, one poll(2), no runtime.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the loop, and who is told what when |
//! | `answering.rs` | which part answers which request |
//! | `auditing.rs` | when the audit log looks at what |
//! | `changes.rs` | references and configurations that change while it runs |
//! | `directory.rs` | the run directory: ours alone |
//! | `following.rs` | what references have to say of themselves, and are told |

mod answering;
mod auditing;
mod changes;
mod directory;
mod following;

use std::fs::File;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use timevisor_linux::clock::{boot_id, monotonic};

use timevisor_linux::notify::Notifier;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::route_watch::RouteWatch;
use timevisor_linux::signals::{Signal, Signals};
use timevisor_linux::udp::Sockets;
use timevisor_linux::{descriptors, truncation};
use timevisor_protocols::control::{OBSERVE_NAME, SOCKET_NAME};
use timevisor_time::Duration;

use self::changes::ServerDue;
use self::directory::take_directory;
use crate::ages::Ages;
use crate::audit::Audit;
use crate::clock::{Disturbance, HostClock, hex};
use crate::clockbound::ClockBound;
use crate::config::{Config, span};
use crate::control::Control;
use crate::discipline::Discipline;
use crate::grid;
use crate::introspection::Introspection;
use crate::notices::Notices;
use crate::observers::Observers;
use crate::parser::Parser;
use crate::references::{Reference, Surroundings};
use crate::reservations::Reservations;
use crate::server::{self, Server, Told};
use crate::state_log::{Said, StateLog};
use crate::timelines::{Timelines, Token as TimelineToken};
use crate::vms::{Token as VmToken, Vms};

/// The owner of a descriptor that became ready.
#[derive(Clone, Copy)]
enum Token {
    Signal,
    Network,
    Listener,
    Client(usize),
    Reference(usize),
    /// A cluster's own timeline.
    Cluster(usize),
    Vm(VmToken),
    Timeline(TimelineToken),
    Introspector,
    /// The thread of the read-only socket has a question.
    Observers,
}

/// Routes and addresses come in several messages.
const NETWORK_SETTLES: Duration = Duration::from_millis(500);
/// Open files that this daemon may have at most: thousands of clients and VMs need fewer.
const MOST_DESCRIPTORS: u64 = 65_536;
/// An answer of a server that is not parsed by then counts as lost.
const PARSER_PATIENCE: std::time::Duration = std::time::Duration::from_millis(200);

/// Reads the configuration again: the file, and the command line above it.
pub type Load = Box<dyn Fn() -> Result<(Config, String)>>;

pub struct Daemon {
    config: Config,
    load: Load,
    clock: HostClock,
    references: Vec<Reference>,
    /// Where their answers are parsed.
    parser: Parser,
    /// What the log says of each reference.
    told_references: Vec<StateLog>,
    tell_references_at: Duration,
    /// Which references are one witness, as the clocks were told.
    witnesses: Vec<usize>,
    /// `None` where netlink is not available.
    routes: Option<RouteWatch>,
    /// When to look at what a change of the network means.
    network_changed_at: Option<Duration>,
    discipline: Option<Discipline>,
    vms: Vms,
    notices: Notices,
    timelines: Timelines,
    reservations: Reservations,
    introspection: Introspection,
    /// `None` on hosts whose counter is invariant.
    ages: Option<Ages>,
    /// `None` unless one is configured.
    audit: Option<Audit>,
    control: Control,
    observers: Observers,
    server: Option<Server>,
    server_due: Option<ServerDue>,
    /// Why there is none although the configuration wants one.
    server_problem: Option<String>,
    /// `None` unless configured.
    clockbound: Option<ClockBound>,
    signals: Signals,
    notifier: Notifier,
    started: Duration,
    next_publication: Duration,
    /// What the log says of the clock.
    told: StateLog,
    /// What systemd shows of it.
    notified: String,
    /// Held for the life of the daemon: only one daemon may write these pages.
    _lock: File,
}

impl Daemon {
    /// Does everything that can fail. On return this daemon owns the pages.
    pub fn start(config: Config, load: Load) -> Result<Self> {
        let lock = take_directory(&config.run_directory)?;
        truncation::survive().context("cannot install the handler of SIGBUS")?;
        let files = descriptors::raise_limit(MOST_DESCRIPTORS)
            .context("cannot raise the limit of open files")?;
        tracing::debug!("up to {files} open files");
        let signals = Signals::install().context("cannot install signal handlers")?;
        let notifier = Notifier::from_environment().context("NOTIFY_SOCKET is not usable")?;
        let now = monotonic();
        let references = Reference::all(&config.references, now)?;
        let names = config.references.iter().map(crate::config::ReferenceConfig::name).collect();
        let audit = Audit::start(&config.audit)?;
        let mut clock = HostClock::start(&config, names)?;
        if let Some(audit) = &audit {
            audit.begin(&clock);
        }
        let boot = boot_id().map(|id| hex(&id)).context("cannot read the boot id")?;
        let discipline = Discipline::start(&config, boot, &clock, now);
        let control = Control::listen(&config.run_directory.join(SOCKET_NAME))?;
        let observers = Observers::listen(&config.run_directory.join(OBSERVE_NAME))?;
        let (serves, directory) = (&config.server, &config.run_directory);
        let server = Server::start(serves, &config.clusters, directory, clock.calibration)?;
        let clockbound = ClockBound::start(&config.clockbound, directory)?;
        let timelines = Timelines::start(&config, &clock, now)?;
        let mut vms = Vms::new(&config);
        // What the journal knows is on each VM's page as soon as that is ours.
        if let Some(publication) = clock.publish() {
            vms.publish(publication, &clock);
        }
        vms.resume(&clock);
        let reservations = Reservations::start(&config.run_directory, &config.reservations());
        let introspection = Introspection::start(&config.run_directory, &config.introspection);
        let routes = RouteWatch::open()
            .inspect_err(|error| {
                tracing::info!("changes of the network are noticed by lost answers only: {error}");
            })
            .ok();
        let ages = Ages::start(&config, &clock)?;
        notifier.ready().context("cannot tell systemd")?;
        Ok(Self {
            config,
            load,
            clock,
            told_references: vec![StateLog::default(); references.len()],
            references,
            parser: Parser::new("parse-ntp", PARSER_PATIENCE),
            tell_references_at: now,
            witnesses: Vec::new(),
            routes,
            network_changed_at: None,
            discipline,
            vms,
            notices: Notices::default(),
            timelines,
            reservations,
            introspection,
            ages,
            audit,
            control,
            observers,
            server,
            server_due: None,
            server_problem: None,
            clockbound,
            signals,
            notifier,
            started: now,
            next_publication: now,
            told: StateLog::default(),
            notified: String::new(),
            _lock: lock,
        })
    }

    /// Runs the event loop until SIGTERM.
    pub fn run(mut self) -> Result<()> {
        loop {
            let ready = self.wait()?;
            // Sockets first: their counter reads contribute to the bounds.
            for token in &ready {
                match token {
                    Token::Reference(index) => self.reference_ready(*index),
                    Token::Cluster(index) => {
                        let around = surroundings(&self.clock, &[], &self.parser);
                        let heard = self.timelines.clusters.on_ready(
                            *index,
                            monotonic(),
                            &around,
                            &self.clock,
                        );
                        if heard {
                            self.publish();
                        }
                    }
                    _ => {}
                }
            }
            let mut timelines = Vec::new();
            for token in ready {
                match token {
                    Token::Signal => {
                        if self.signalled() {
                            return self.stop();
                        }
                    }
                    Token::Network => {
                        if self.routes.as_mut().is_some_and(RouteWatch::take) {
                            self.network_changed_at.get_or_insert(monotonic() + NETWORK_SETTLES);
                        }
                    }
                    Token::Listener => {
                        if let Some(slot) = self.control.accept(monotonic()) {
                            self.client_ready(slot);
                        }
                    }
                    Token::Introspector => self.introspection.on_ready(
                        monotonic(),
                        &mut self.vms,
                        &mut self.reservations,
                        &self.clock,
                    ),
                    Token::Client(slot) => self.client_ready(slot),
                    Token::Observers => self.observers_ready(),
                    Token::Vm(token) => {
                        self.vms.on_ready(token, &self.clock);
                        self.timelines.follow(&mut self.clock, &mut self.vms);
                    }
                    // After everything else: there may be thousands.
                    Token::Timeline(token) => timelines.push(token),
                    Token::Reference(_) | Token::Cluster(_) => {}
                }
            }
            self.timelines.on_ready(&timelines, &mut self.clock, &mut self.vms);
            self.on_time();
            if self.clock.has_lost_page() || self.timelines.has_lost_page() {
                let directory = self.config.run_directory.clone();
                self.stop()?;
                bail!(
                    "a page file in {} was truncated, and its readers have lost it; start timevisord again, which repairs it",
                    directory.display()
                );
            }
        }
    }

    fn wait(&mut self) -> Result<Vec<Token>> {
        let now = monotonic();
        let due = self
            .references
            .iter()
            .map(Reference::poll_at)
            .chain([self.next_publication, self.clock.watch_at()])
            .chain([self.vms.poll_at(), self.timelines.poll_at(&self.vms), self.control.poll_at()])
            .chain([self.timelines.clusters.poll_at()])
            .chain([self.notices.poll_at()])
            .chain([self.reservations.poll_at(), self.introspection.poll_at()])
            .chain(self.discipline.as_ref().map(Discipline::poll_at))
            .chain(self.network_changed_at)
            .chain(self.server_due.as_ref().map(|due| due.next));
        let next = due.min().unwrap_or(self.next_publication);
        let timeout =
            std::time::Duration::from_nanos(u64::try_from((next - now).ceil_nanos()).unwrap_or(0));
        let mut tokens = vec![Token::Signal];
        let mut fds = vec![PollFd::readable(std::os::fd::AsFd::as_fd(&self.signals))];
        if let Some(routes) = &self.routes {
            tokens.push(Token::Network);
            fds.push(PollFd::readable(std::os::fd::AsFd::as_fd(routes)));
        }
        for (slot, fd) in self.control.fds() {
            tokens.push(slot.map_or(Token::Listener, Token::Client));
            fds.push(PollFd::readable(fd));
        }
        tokens.push(Token::Observers);
        fds.push(PollFd::readable(self.observers.fd()));
        for (index, reference) in self.references.iter().enumerate() {
            for fd in reference.fds() {
                tokens.push(Token::Reference(index));
                fds.push(PollFd::readable(fd));
            }
        }
        for (index, fd) in self.timelines.clusters.fds() {
            tokens.push(Token::Cluster(index));
            fds.push(PollFd::readable(fd));
        }
        for (token, fd) in self.vms.fds() {
            tokens.push(Token::Vm(token));
            fds.push(PollFd::readable(fd));
        }
        if let Some(fd) = self.introspection.fd() {
            tokens.push(Token::Introspector);
            fds.push(PollFd::readable(fd));
        }
        for (token, fd, writes) in self.timelines.fds() {
            tokens.push(Token::Timeline(token));
            fds.push(if writes { PollFd::readable_or_writable(fd) } else { PollFd::readable(fd) });
        }
        wait(&mut fds, Some(timeout)).context("poll failed")?;
        let is_ready = |fd: &PollFd<'_>| {
            let ready = fd.ready();
            ready.readable || ready.writable || ready.error || ready.hangup
        };
        let ready: Vec<_> =
            fds.iter().zip(tokens).filter(|(fd, _)| is_ready(fd)).map(|(_, token)| token).collect();
        Ok(ready)
    }

    fn reference_ready(&mut self, index: usize) {
        let around = surroundings(&self.clock, &[], &self.parser);
        let now = monotonic();
        let exchanges = self.references[index].on_ready(now, &around);
        // Replies to requests from before a disruption are void.
        if self.heed_references(now) {
            return self.publish();
        }
        self.heed_witnesses();
        for exchange in &exchanges {
            self.clock.observe(index, exchange);
            self.timelines.observe(index, exchange);
        }
        if !exchanges.is_empty() {
            self.publish();
        }
    }

    fn on_time(&mut self) {
        let now = monotonic();
        self.control.on_timer(now);
        // A reference that knows why the counter jumped (a migration) comes first.
        let mut fresh = self.heed_references(now);
        match self.clock.watch_counter(now) {
            Disturbance::None => {}
            Disturbance::Doubt => fresh = true,
            Disturbance::StartedOver => {
                self.restart(now);
                fresh = true;
            }
        }
        if std::mem::take(&mut fresh) {
            self.publish();
        }
        if self.network_changed_at.take_if(|at| now >= *at).is_some() {
            self.references.iter_mut().for_each(|reference| reference.network_changed(now));
            self.timelines.clusters.network_changed();
        }
        for index in 0..self.references.len() {
            if now < self.references[index].poll_at() {
                continue;
            }
            let taken = self.taken_by_others(index);
            let around = surroundings(&self.clock, &taken, &self.parser);
            if let Some(exchange) = self.references[index].on_timer(now, &around) {
                self.clock.observe(index, &exchange);
                self.timelines.observe(index, &exchange);
                fresh = true;
            }
        }
        fresh |= self.heed_references(now);
        if now >= self.timelines.clusters.poll_at() {
            let around = surroundings(&self.clock, &[], &self.parser);
            fresh |= self.timelines.clusters.on_timer(now, &around, &self.clock);
        }
        if fresh || now >= self.next_publication {
            self.publish();
        }
        self.tell_references(now);
        self.log_references(now);
        self.heed_witnesses();
        self.clock.leap.on_timer(now, self.clock.present());
        if let Some(discipline) = &mut self.discipline {
            discipline.on_timer(now, &self.clock);
        }
        let drift = self.discipline.as_ref().and_then(Discipline::drift_ppb);
        self.clockbound.iter().for_each(|door| door.tell(drift));
        self.start_server(now);
        if now >= self.vms.poll_at() {
            self.vms.on_timer(now, &self.clock);
            self.timelines.follow(&mut self.clock, &mut self.vms);
        }
        self.vms.tell(&mut self.notices, now);
        if now >= self.reservations.poll_at() {
            self.reservations.on_timer(&self.vms);
        }
        self.reservations.follow_moves(&mut self.vms);
        if now >= self.introspection.poll_at() {
            self.introspection.on_timer(now, &mut self.vms, &mut self.reservations, &self.clock);
        }
        if now >= self.timelines.poll_at(&self.vms) {
            self.timelines.on_timer(now, &mut self.clock, &mut self.vms);
        }
        self.look_for_audit(false);
    }

    /// The servers that other references than this one ask.
    fn taken_by_others(&self, index: usize) -> Vec<SocketAddr> {
        let others = self.references.iter().enumerate().filter(|(other, _)| *other != index);
        others.flat_map(|(_, reference)| reference.asked()).collect()
    }

    fn publish(&mut self) {
        self.sample_for_audit();
        let published = self.clock.publish();
        self.sample_for_audit();
        let Some(publication) = published else { return };
        self.vms.publish(publication, &self.clock);
        self.timelines.publish(&publication, &mut self.clock, &mut self.vms);
        if let Some(server) = &self.server {
            let facts = server::facts(&self.clock, &self.references);
            server.tell(Told { facts, timelines: self.timelines.clusters.facts() });
        }
        self.clockbound.iter().for_each(ClockBound::renew);
        let now = monotonic();
        let regular = grid::next(now, span(self.config.clock.publish_interval));
        let renewal = self.clock.until_renewal();
        self.next_publication = if renewal < regular - now { now + renewal } else { regular };
        self.tell();
    }

    /// Notifies systemd and logs whenever the state changes.
    fn tell(&mut self) {
        let status = self.clock.writer().status();
        let reason = self.clock.reason().unwrap_or_default();
        let state =
            format!("{}{}{reason}", status.name(), if reason.is_empty() { "" } else { ": " });
        if let Some(said) = self.told.observe(monotonic(), status.name(), "initializing") {
            tracing::info!("clock {state}{}", restless(said));
        }
        // The reason may contain a duration that changes all the time, so only the first word of
        // the state is compared.
        if !self.notified.starts_with(status.name()) {
            let _ = self.notifier.status(&state);
            self.notified = state;
        }
        let _ = self.notifier.watchdog();
    }

    /// Returns true if a signal asks the daemon to end.
    fn signalled(&mut self) -> bool {
        while let Some(signal) = self.signals.take() {
            match signal {
                Signal::Terminate => return true,
                Signal::Reload => {
                    if let Err(error) = self.reload() {
                        tracing::error!("nothing has changed: {error:#}");
                    }
                }
            }
        }
        false
    }

    fn stop(mut self) -> Result<()> {
        tracing::info!("ending: pages stay free running, with growing bounds");
        let _ = self.notifier.stopping();
        if let Some(discipline) = &mut self.discipline {
            discipline.stop();
        }
        if let Some(ages) = &mut self.ages {
            ages.stop();
        }
        self.sample_for_audit();
        if let Some(publication) = self.clock.publish_last() {
            self.vms.publish(publication, &self.clock);
        }
        if let Some(audit) = &mut self.audit {
            audit.end(&self.clock);
        }
        self.clockbound = None;
        Ok(())
    }
}

fn surroundings<'a>(
    clock: &'a HostClock,
    taken: &'a [SocketAddr],
    parser: &'a Parser,
) -> Surroundings<'a> {
    let calibration = (clock.calibration.period, clock.calibration.error);
    Surroundings {
        counter: &clock.counter,
        calibration,
        leap: &clock.leap,
        known: clock.known(),
        sockets: Sockets::Stamped,
        taken,
        own_server: clock.own_server(),
        parser,
    }
}

fn restless(said: Said) -> &'static str {
    match said {
        Said::Change => "",
        Said::Restless => {
            "; this state changes all the time, which is not said again until it is calm (timevisor status has it)"
        }
    }
}
