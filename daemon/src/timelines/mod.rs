//! Timelines as the daemon serves them: which client is bound to which timeline, over which
//! connection, and which page shows it. crates/host-clock decides what a timeline says.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | connects the registry (crates/timelines) to connections, clocks and pages |
//! | `connections.rs` | the host's socket, VMs' ports, vsock |
//! | `cluster.rs` | clusters' own timelines |
//! | `ages.rs` | the ages of the host and of each VM |
//! | `entries.rs` | timelines as entries of pages, and their accuracy |
//! | `pages.rs` | the host's further pages |

mod ages;
mod cluster;
mod connections;
mod entries;
mod pages;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use anyhow::Result;
use timevisor_clock_page::Counter;
use timevisor_estimate::{Ensemble, Exchange, Slot};
use timevisor_guests::entries::TimelineEntry;
use timevisor_host_clock::{Achievable, Publication, SubsetClock, TimelineClocks};
use timevisor_linux::clock::monotonic;
use timevisor_protocols::channel::{
    Achieved, Event, HostPage, Problem, Request, Response, ServerConfig,
};
use timevisor_protocols::control::Timelines as ControlTimelines;
use timevisor_time::Duration;
use timevisor_timelines::{ClockId, Owner, Registry, Scale, Source, Tenant, Timeline};

use self::ages::Ages;
use self::connections::{ConnectionId, Connections, Demand};
use self::entries::achieved as accuracy;
use self::pages::FurtherPages;
use crate::announce::Announcer;
use crate::clock::HostClock;
use crate::config::Config;
use crate::grid;
use crate::vms::Vms;

pub use cluster::ClusterTimelines;
pub use connections::Token;

/// How often the daemon looks for new ports of VMs.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long clients are served before the event loop turns to everything else.
const SLICE: Duration = Duration::from_millis(1);

pub struct Timelines {
    config: Config,
    registry: Registry,
    connections: Connections,
    subsets: Vec<SubsetClock<Ensemble>>,
    /// Their clocks come after those of the subsets.
    pub clusters: ClusterTimelines,
    /// The host's clock first, then the clocks of reference subsets.
    achievable: Vec<Achievable>,
    clocks: TimelineClocks,
    ages: Ages,
    further: FurtherPages,
    /// The last problem with them.
    told: Announcer,
    next_look: Duration,
    disruptions: Vec<u64>,
    /// For each owner, the change number that its page shows.
    written: BTreeMap<Owner, u64>,
    /// How many clients have been served.
    turn: usize,
}

impl Timelines {
    pub fn start(config: &Config, clock: &HostClock, now: Duration) -> Result<Self> {
        let (setup, subsets) = config.timeline_setup()?;
        let mut registry = Registry::new(setup, now)?;
        registry.add_owner(&Owner::Host, Scale::Tai, first_generation());
        let connections = Connections::listen(&config.run_directory.join("timelines"))?;
        let subset = |references: Vec<usize>| {
            let estimate = clock.ensemble(&names_of(config, &references));
            SubsetClock::new(references, estimate, clock.policy(), clock.counter.read_ordered())
        };
        let subsets: Vec<_> = subsets.into_iter().map(subset).collect();
        let clusters = ClusterTimelines::start(config, clock, now)?;
        let clocks = 1 + subsets.len() + clusters.len();
        Ok(Self {
            registry,
            connections,
            achievable: vec![Achievable::default(); clocks],
            disruptions: vec![0; clocks],
            subsets,
            clusters,
            clocks: TimelineClocks::new(clock.calibration.period),
            ages: Ages::default(),
            further: FurtherPages::in_directory(&config.run_directory, clock),
            told: Announcer::default(),
            next_look: now,
            written: BTreeMap::new(),
            turn: 0,
            config: config.clone(),
        })
    }

    pub fn fds(&self) -> impl Iterator<Item = (Token, BorrowedFd<'_>, bool)> {
        self.connections.fds()
    }

    pub fn poll_at(&self, vms: &Vms) -> Duration {
        // A host without VMs has no ports to look for, nor any to close.
        let looks = vms.len() > 0 || self.written.keys().any(|owner| *owner != Owner::Host);
        self.connections.poll_at().min(if looks { self.next_look } else { Duration::MAX })
    }

    /// Feeds an exchange with reference `index` to the timelines that follow only some references.
    pub fn observe(&mut self, index: usize, exchange: &Exchange) {
        self.subsets.iter_mut().for_each(|subset| subset.observe(index, exchange));
    }

    /// Forgets what reference `index` reported, because it is now another server.
    pub fn forget(&mut self, index: usize) {
        self.subsets.iter_mut().for_each(|subset| subset.forget(index));
    }

    /// Other references are configured; every timeline follows those of the same names.
    ///
    /// # Errors
    /// A timeline follows a reference that is gone. Nothing has changed then.
    pub fn configure(&mut self, config: &Config, slots: &[Slot]) -> Result<()> {
        let (_, followed) = config.timeline_setup()?;
        for (subset, references) in self.subsets.iter_mut().zip(followed) {
            subset.rearrange(slots, references, config.stale_after());
        }
        self.config = config.clone();
        Ok(())
    }

    /// Which references are one witness.
    pub fn set_witnesses(&mut self, witnesses: &[usize]) {
        self.subsets.iter_mut().for_each(|subset| subset.set_witnesses(witnesses));
    }

    /// Handles a disturbance of the counter: everything known about it is void, including local
    /// timelines.
    pub fn start_over(&mut self, clock: &HostClock) {
        for subset in &mut self.subsets {
            subset.start_over(clock.ensemble(&names_of(&self.config, subset.references())));
        }
        self.clusters.start_over(clock, monotonic());
        self.clocks.forget_local();
        self.ages.start_over();
    }

    /// Returns the tightest required bound of all timelines that reference `index` feeds.
    pub fn required(&self, index: usize) -> Option<Duration> {
        let follows =
            |n: &usize| *n == 0 || self.subsets.get(n - 1).is_some_and(|s| s.follows(index));
        let clocks = (0..=self.subsets.len()).filter(follows);
        let demands = clocks.filter_map(|n| self.registry.demand(ClockId(n)));
        demands.filter_map(|demand| demand.sufficient_half_width()).min()
    }

    /// Updates every timeline on every page after a publication of the host's clock.
    pub fn publish(&mut self, publication: &Publication, clock: &mut HostClock, vms: &mut Vms) {
        let mut states = vec![publication.clock];
        states.extend(self.subsets.iter_mut().map(|subset| subset.publish(&clock.counter)));
        states.extend(self.clusters.publish(&clock.counter, clock.policy()));
        let now = clock.counter.read_ordered();
        let monotonic = monotonic();
        for (index, (state, best)) in states.iter().zip(&mut self.achievable).enumerate() {
            best.observe(monotonic, state, now);
            if std::mem::replace(&mut self.disruptions[index], state.disruptions)
                != state.disruptions
            {
                for (session, event) in self.registry.clock_disrupted(ClockId(index)) {
                    self.connections.tell(session, &event);
                }
            }
        }
        self.ages.update(publication, clock, vms, now);
        self.clocks.trust_counter(clock.is_counter_trusted());
        self.clocks.update(states, now, clock.policy().expiry(now), publication.leap);
        self.begin_local(clock);
        self.write(clock, vms);
        self.tell_quality(vms);
        self.finish(clock, vms);
    }

    /// Sets the origin of local timelines that have begun, and clears it for those that have ended.
    fn begin_local(&mut self, clock: &HostClock) {
        let lives = |timeline: &Timeline| match timeline.source() {
            Source::Local { life, .. } => Some(life.0),
            _ => None,
        };
        let alive: Vec<_> = self.registry.timelines().filter_map(|(t, _)| lives(t)).collect();
        self.clocks.keep(|life| alive.contains(&life));
        for life in alive {
            self.clocks.begin(life, clock.counter.read_ordered());
        }
    }

    /// Updates the other entries of a VM's page immediately after an event of the VM changed the
    /// page, instead of with the next publication.
    pub fn follow(&mut self, clock: &mut HostClock, vms: &mut Vms) {
        let Some(publication) = vms.take_rewritten().copied() else { return };
        let now = clock.counter.read_ordered();
        self.ages.update(&publication, clock, vms, now);
        self.clocks.advance(now);
        for name in vms.names().map(str::to_owned).collect::<Vec<_>>() {
            self.write_owner(&Owner::vm(&name), clock, vms);
        }
    }

    /// Writes every page's entries.
    fn write(&mut self, clock: &mut HostClock, vms: &mut Vms) {
        let owners = std::iter::once(Owner::Host).chain(vms.names().map(Owner::vm));
        for owner in owners.collect::<Vec<_>>() {
            self.write_owner(&owner, clock, vms);
        }
    }

    fn write_owner(&mut self, owner: &Owner, clock: &mut HostClock, vms: &mut Vms) {
        if let Some(changes) = self.registry.changes(owner) {
            self.written.insert(owner.clone(), changes);
        }
        let mut pages: Vec<Vec<TimelineEntry>> = vec![Vec::new(); 1 + self.further.len()];
        let mut required = 0;
        for entry in self.registry.entries(owner) {
            if entry.place.entry == 0 {
                required = entry.required_half_width_ns.unwrap_or(0);
                continue;
            }
            let page = usize::try_from(entry.place.page).unwrap_or(0);
            if pages.len() <= page {
                pages.resize(page + 1, Vec::new());
            }
            if entry.source == Source::Elapsed {
                self.ages.before_reading(owner, clock, vms);
            }
            pages[page].push(entries::entry(&self.clocks, &entry, self.ages.lines(owner)));
        }
        match owner {
            Owner::Host => {
                for (number, entries) in pages.iter().enumerate() {
                    let updates: Vec<_> = entries.iter().map(TimelineEntry::on_host).collect();
                    if number == 0 {
                        clock.write_entries(required, &updates);
                    } else {
                        let problem = self.further.write(number, &updates, clock).err();
                        let problem = problem.map(|error| format!("{error:#}")).unwrap_or_default();
                        if self.told.changed(monotonic(), &problem) && !problem.is_empty() {
                            tracing::warn!("{problem}");
                        }
                    }
                }
            }
            Owner::Vm(name) => vms.write_entries(name, required, &pages[0], &clock.counter),
        }
    }

    fn tell_quality(&mut self, vms: &Vms) {
        let (clocks, ages) = (&self.clocks, &self.ages);
        let events =
            self.registry.quality(|timeline, owner| achieved(clocks, ages, vms, timeline, owner));
        for (session, event) in events {
            self.connections.tell(session, &event);
        }
    }

    /// Answers `timelines`.
    pub fn report(&mut self, clock: &HostClock, vms: &Vms) -> ControlTimelines {
        self.clocks.advance(clock.counter.read_ordered());
        let (clocks, ages) = (&self.clocks, &self.ages);
        let gives =
            |timeline: &Timeline, owner: &Owner| achieved(clocks, ages, vms, timeline, owner);
        ControlTimelines { timelines: self.registry.report(gives) }
    }

    /// Whether the file of one of the host's further pages was truncated.
    pub fn has_lost_page(&self) -> bool {
        self.further.has_lost_page()
    }

    /// Accepts connections, and reads from those that are ready, for no longer than [`SLICE`]:
    /// hundreds of clients must not delay the clock or the administrator. What is left is ready
    /// again at the next turn, which begins with the next client.
    pub fn on_ready(&mut self, ready: &[Token], clock: &mut HostClock, vms: &mut Vms) {
        if ready.is_empty() {
            return;
        }
        let until = monotonic() + SLICE;
        let connected = |token: &&Token| matches!(token, Token::Connection(_));
        for listener in ready.iter().filter(|token| !connected(token)) {
            self.one_ready(*listener, clock, vms);
        }
        let mut clients: Vec<_> = ready.iter().filter(connected).collect();
        let first = self.turn % clients.len().max(1);
        clients.rotate_left(first);
        for client in clients {
            self.one_ready(*client, clock, vms);
            self.turn = self.turn.wrapping_add(1);
            if monotonic() >= until {
                break;
            }
        }
        self.finish(clock, vms);
    }

    /// Reads requests and answers them.
    fn one_ready(&mut self, token: Token, clock: &mut HostClock, vms: &mut Vms) {
        match token {
            Token::Listener => {
                if let Some((stream, tenant)) = self.connections.accept() {
                    let path = self.config.run_directory.join("clock").display().to_string();
                    let page = HostPage { path, epoch: clock.writer().identity().epoch };
                    let config = self.config_of(&tenant, Some(page));
                    self.connections.add_host(stream, tenant, config);
                }
            }
            Token::Vsock => {
                let accepted = self.connections.accept_vsock(|cid| vms.with_vsock(cid));
                if let Some((stream, name)) = accepted {
                    let config = self.config_of(&Tenant::vm(&name), None);
                    self.connections.add_vsock(stream, &name, config);
                }
            }
            Token::Connection(id) => {
                for demand in self.connections.serve(id, monotonic()) {
                    self.take(id, demand, clock, vms);
                }
            }
        }
    }

    fn config_of(&self, tenant: &Tenant, page: Option<HostPage>) -> ServerConfig {
        ServerConfig { tenant: tenant.to_string(), page, limits: self.registry.limits(tenant) }
    }

    pub fn on_timer(&mut self, now: Duration, clock: &mut HostClock, vms: &mut Vms) {
        if now >= self.next_look {
            self.next_look = grid::next(now, LOOK_INTERVAL);
            self.look_for_ports(vms, now);
        }
        for session in self.connections.on_timer(now) {
            self.registry.close(session, now);
        }
        self.finish(clock, vms);
    }

    /// Gives a new VM its pages and its port, and removes them for a VM that has gone.
    fn look_for_ports(&mut self, vms: &Vms, now: Duration) {
        let gone: Vec<Owner> =
            self.written.keys().filter(|owner| !is_served(owner, vms)).cloned().collect();
        for owner in gone {
            self.written.remove(&owner);
            self.registry.remove_owner(&owner, now);
            self.connections.close_all(|c| c.owner == owner);
        }
        let ended = self.connections.close_all(|c| c.pid.is_some_and(|pid| vms.pid_is_gone(pid)));
        for session in ended {
            self.registry.close(session, now);
        }
        for name in vms.names() {
            let owner = Owner::vm(name);
            self.registry.add_owner(&owner, vms.scale(name), first_generation());
            self.written.entry(owner).or_default();
        }
        for (name, pid, stream) in vms.connect_ports(|pid| self.connections.has_port_of(pid)) {
            let config = self.config_of(&Tenant::vm(&name), None);
            self.connections.add_port(stream, &name, pid, config);
            if self.connections.may_log(&Tenant::vm(&name)) {
                tracing::info!("VM {name}: its port for requests is connected");
            }
        }
    }

    fn take(&mut self, id: ConnectionId, demand: Demand, clock: &mut HostClock, vms: &mut Vms) {
        let now = monotonic();
        match demand {
            Demand::Began { session } => {
                let Some(connection) = self.connections.get(id) else { return };
                let (tenant, owner) = (connection.tenant.clone(), connection.owner.clone());
                if let Err(problem) = self.registry.open(session, tenant, &owner) {
                    let reason = problem.to_string();
                    self.connections.tell(session, &Event::Closing { reason });
                }
            }
            Demand::Gone { session } => {
                self.registry.close(session, now);
            }
            Demand::Request { session, id: number, request } => {
                let response = self.respond(session, request, now, clock, vms);
                let response = response.unwrap_or_else(Response::Problem);
                self.connections.respond(id, session, number, &response);
            }
        }
    }

    fn respond(
        &mut self,
        session: u64,
        request: Request,
        now: Duration,
        clock: &mut HostClock,
        vms: &mut Vms,
    ) -> Result<Response, Problem> {
        self.clocks.advance(clock.counter.read_ordered());
        let (clocks, ages, best) = (&self.clocks, &self.ages, &self.achievable);
        let gives =
            |timeline: &Timeline, owner: &Owner| achieved(clocks, ages, vms, timeline, owner);
        let could = |timeline: &Timeline, _: &Owner| achievable(clocks, best, timeline);
        let response = match request {
            Request::Bind(bind) => {
                // A new timeline has no lines yet, so they are written before its quality is
                // computed.
                let bound = self.registry.bind(session, &bind, now, gives, could)?;
                self.begin_local(clock);
                self.write_changed(clock, vms);
                let again = timevisor_protocols::channel::Update {
                    binding: bound.binding,
                    requirement: bind.requirement,
                    best_effort: true,
                };
                let (clocks, ages) = (&self.clocks, &self.ages);
                let gives = |timeline: &Timeline, owner: &Owner| {
                    achieved(clocks, ages, vms, timeline, owner)
                };
                Response::Bound(self.registry.update(session, &again, gives, gives)?)
            }
            Request::Update(update) => {
                let bound = self.registry.update(session, &update, gives, could)?;
                self.write_changed(clock, vms);
                Response::Bound(bound)
            }
            Request::Unbind(binding) => {
                Response::Unbound(self.registry.unbind(session, binding, now)?)
            }
            Request::Timelines => Response::Timelines(self.registry.rows(session, gives)?),
            Request::Hello(_) | Request::KeepAlive => Response::Alive,
        };
        Ok(response)
    }

    /// Writes changed pages immediately, so that a newly bound client can read.
    fn write_changed(&mut self, clock: &mut HostClock, vms: &mut Vms) {
        let changed: Vec<Owner> = self
            .written
            .iter()
            .filter(|(owner, seen)| self.registry.changes(owner).is_some_and(|now| now != **seen))
            .map(|(owner, _)| owner.clone())
            .collect();
        for owner in changed {
            self.write_owner(&owner, clock, vms);
        }
    }

    /// Sends pending messages. Clients that cannot be reached lose their leases, and the pages are
    /// updated.
    fn finish(&mut self, clock: &mut HostClock, vms: &mut Vms) {
        let now = monotonic();
        for session in self.connections.flush() {
            self.registry.close(session, now);
        }
        if self.registry.has_disrupted() {
            self.begin_local(clock);
            self.tell_quality(vms);
            for session in self.connections.flush() {
                self.registry.close(session, now);
            }
        }
        self.write_changed(clock, vms);
    }
}

/// Returns the names of the references with these indices.
fn names_of(config: &Config, references: &[usize]) -> Vec<String> {
    references.iter().map(|index| config.references[*index].name()).collect()
}

fn is_served(owner: &Owner, vms: &Vms) -> bool {
    match owner {
        Owner::Host => true,
        Owner::Vm(name) => vms.names().any(|served| *served == **name),
    }
}

/// Creates the entry of a VM's page. The entry states nothing while the relation between the VM's
/// counter and the host's is unknown.
fn achieved(
    clocks: &TimelineClocks,
    ages: &Ages,
    vms: &Vms,
    timeline: &Timeline,
    owner: &Owner,
) -> Achieved {
    match owner {
        Owner::Vm(name) if !vms.is_readable(name) => Achieved::default(),
        _ => accuracy(clocks, timeline.source(), timeline.epoch(), ages.lines(owner).0),
    }
}

/// Evaluates a binding's requirement. Unknown quality is no reason to refuse: the binding is made
/// and reported as unmet.
fn achievable(clocks: &TimelineClocks, best: &[Achievable], timeline: &Timeline) -> Achieved {
    let now = accuracy(clocks, timeline.source(), timeline.epoch(), None);
    let unknown = Achieved {
        below_ns: Some(0),
        above_ns: Some(0),
        estimated_error_ns: Some(0),
        ..now.clone()
    };
    match timeline.source() {
        Source::Clock(ClockId(index)) => {
            best.get(index).and_then(Achievable::best).map_or(unknown, |best| Achieved {
                below_ns: Some(best.below_ns),
                above_ns: Some(best.above_ns),
                estimated_error_ns: best.estimated_error_ns.or(Some(0)),
                ..now
            })
        }
        Source::Local { .. } | Source::Elapsed | Source::Undefined => unknown,
    }
}

/// The first generation number of this daemon. Readers compare generations, and this daemon does
/// not know how far the previous one had counted.
fn first_generation() -> u16 {
    let number = getrandom::u64().unwrap_or_else(|_| crate::clock::epoch());
    u16::try_from(number & 0xffff).unwrap_or(0)
}

const _: () = assert!(
    timevisor_timelines::ENTRIES_PER_PAGE as usize == timevisor_clock_page::abi::entry::CAPACITY
);
