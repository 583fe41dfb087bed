//! Clusters' own timelines: `[[cluster]] timeline`. One host of the cluster is the timeline's master:
//! its counter is the timeline, by definition. The others follow it, and one of them continues when it
//! ends. crates/cluster decides who; this file adds sockets, and a clock for each.
//!
//! A member's clock is that of other timelines: an estimate with hard bounds, for which both crystals
//! may wander. When the timeline's origin changes, everything that was said before is void, and pages
//! say so as a disruption.

use std::os::fd::BorrowedFd;

use anyhow::Result;
use timevisor_clock_page::{ClockStatus, Counter, Line, Lines, Policy};
use timevisor_cluster::client::Client;
use timevisor_cluster::node::{Event, Lead, Node, Origin};
use timevisor_cluster::wire::time_of;
use timevisor_estimate::{Ensemble, Parameters, RateLimits};
use timevisor_host_clock::{ClockState, SubsetClock};
use timevisor_linux::counter::{Calibration, HostCounter};
use timevisor_protocols::control::ClusterClock;
use timevisor_protocols::ntp::precise::RateLimits as WireRate;
use timevisor_protocols::nts::shared::Sealer;
use timevisor_time::{Duration, Period, RateError, Tai};

use crate::clock::HostClock;
use crate::config::{ClusterConfig, Config};
use crate::references::Surroundings;
use crate::references::asking::{Asking, Heard, hosts, log, own_address};
use crate::references::random;
use crate::server::TimelineFacts;

/// All of this host's, in the order of the configuration.
pub struct ClusterTimelines {
    all: Vec<ClusterTimeline>,
}

/// One of them.
struct ClusterTimeline {
    settings: ClusterConfig,
    timeline: String,
    /// Of a cluster with a key.
    sealer: Option<Sealer>,
    /// Where this host serves others; 0 if it does not.
    port: u16,
    /// Of this host's counter, and of every other's that may be master.
    unmeasured: RateError,
    /// How far off any host's counter may have been measured; a host that states more of itself is refused as
    /// master.
    calibrated: RateError,
    parameters: Parameters,
    calibration: Calibration,
    /// Made when there is something to ask with.
    asking: Option<Asking>,
    clock: OwnClock,
    origin: Option<Origin>,
    start: Duration,
}

/// What this host knows of the timeline.
struct OwnClock {
    follows: SubsetClock<Ensemble>,
    leads: Option<Lead>,
    /// Origins that were left, which voided what was said.
    disruptions: u64,
    /// The clock's number; 0 while there is none.
    origin: u64,
    state: ClockState,
}

impl ClusterTimelines {
    /// # Errors
    /// When a cluster's key cannot be read.
    pub fn start(config: &Config, clock: &HostClock, now: Duration) -> Result<Self> {
        let with_timeline = config.clusters.iter().filter(|cluster| cluster.timeline.is_some());
        let all = with_timeline.map(|cluster| ClusterTimeline::new(cluster, config, clock, now));
        Ok(Self { all: all.collect::<Result<_>>()? })
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn poll_at(&self) -> Duration {
        self.all.iter().map(ClusterTimeline::poll_at).min().unwrap_or(Duration::MAX)
    }

    /// Sockets to wait for, with the index of their timeline.
    pub fn fds(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        self.all.iter().enumerate().flat_map(|(index, timeline)| {
            let fds = timeline.asking.as_ref().map(Asking::fds).unwrap_or_default();
            fds.into_iter().map(move |fd| (index, fd))
        })
    }

    pub fn network_changed(&mut self) {
        self.all.iter_mut().filter_map(|t| t.asking.as_mut()).for_each(Asking::network_changed);
    }

    /// Asks, and leads where this host is to. True if there is something to publish.
    pub fn on_timer(
        &mut self,
        now: Duration,
        around: &Surroundings<'_>,
        clock: &HostClock,
    ) -> bool {
        let due = self.all.iter_mut().filter(|timeline| now >= timeline.poll_at());
        due.fold(false, |fresh, timeline| timeline.on_timer(now, around, clock) | fresh)
    }

    /// Reads answers. True if there is something to publish.
    pub fn on_ready(
        &mut self,
        index: usize,
        now: Duration,
        around: &Surroundings<'_>,
        clock: &HostClock,
    ) -> bool {
        self.all.get_mut(index).is_some_and(|timeline| timeline.on_ready(now, around, clock))
    }

    /// What each says from now on.
    pub fn publish(&mut self, counter: &HostCounter, policy: Policy) -> Vec<ClockState> {
        self.all.iter_mut().map(|timeline| timeline.clock.publish(counter, policy)).collect()
    }

    /// The counter was disturbed: who led does not any more, and everybody asks again.
    pub fn start_over(&mut self, clock: &HostClock, now: Duration) {
        for timeline in &mut self.all {
            timeline.asking = None;
            timeline.origin = None;
            timeline.clock.is(None);
            timeline.start = now;
            timeline.clock.begin_anew(None, timeline.ensemble(clock));
        }
    }

    /// For `timevisor cluster status`.
    pub fn report(&self, counter: u64, now: Duration) -> Vec<ClusterClock> {
        self.all.iter().map(|timeline| timeline.report(counter, now)).collect()
    }

    /// For the server's thread.
    pub fn facts(&self) -> Vec<TimelineFacts> {
        self.all.iter().filter_map(ClusterTimeline::facts).collect()
    }
}

impl ClusterTimeline {
    fn new(
        cluster: &ClusterConfig,
        config: &Config,
        clock: &HostClock,
        now: Duration,
    ) -> Result<Self> {
        let port = config.server.listen.first().map_or(0, std::net::SocketAddr::port);
        let timeline = cluster.timeline.clone().unwrap_or_default();
        let calibrated = RateError::from_ppm(cluster.calibration_ppm);
        let parameters = both_wander(config.parameters(), calibrated);
        let names = [timeline.clone()];
        let calibration = clock.calibration;
        if !cluster.allows(calibration.error) {
            tracing::warn!(
                "cluster {}: this host has measured its counter's rate within {:.0} ppm only, and {} are allowed, so it is \
                 never master of {timeline}; restart timevisord when the machine is less busy, or raise calibration_ppm \
                 on all hosts",
                cluster.name,
                calibration.error.ppb() / 1e3,
                cluster.calibration_ppm
            );
        }
        let ensemble = Ensemble::new(&parameters, &names, calibration.period, calibration.error);
        let counter = clock.counter.read_ordered();
        Ok(Self {
            settings: cluster.clone(),
            timeline,
            sealer: cluster.sealer(cluster.wire_timeline().unwrap_or_default())?,
            port: if cluster.serve { port } else { 0 },
            unmeasured: RateError::from_ppm(config.oscillator.unmeasured_rate_ppm),
            calibrated,
            parameters,
            calibration,
            asking: None,
            clock: OwnClock::new(SubsetClock::new(vec![0], ensemble, clock.policy(), counter)),
            origin: None,
            start: now,
        })
    }

    /// An estimate that knows nothing yet.
    fn ensemble(&self, clock: &HostClock) -> Ensemble {
        let names = [self.timeline.clone()];
        Ensemble::new(&self.parameters, &names, clock.calibration.period, clock.calibration.error)
    }

    fn poll_at(&self) -> Duration {
        self.asking.as_ref().map_or(self.start, |asking| asking.client().poll_at())
    }

    fn asking(&mut self, now: Duration, around: &Surroundings<'_>) -> &mut Asking {
        let (settings, sealer, port) = (&self.settings, &self.sealer, self.port);
        let (unmeasured, most) = (self.unmeasured, self.unmeasured.plus(self.calibrated));
        self.asking.get_or_insert_with(|| {
            let (nominal, error) = around.calibration;
            // Our counter against TAI, and the master's.
            let rate = RateLimits::around(nominal, unmeasured.plus(error).against(most));
            let succession = Some(settings.succession(port, error));
            let own = own_address(&settings.seeds, around);
            let node = settings.node(own, rate, nominal, succession, random(), now);
            let timeline = settings.wire_timeline().unwrap_or_default();
            let client = Client::new(node, timeline, port).with_most_rate(most);
            Asking::new(client.with_sealer(sealer.clone()))
        })
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>, clock: &HostClock) -> bool {
        let name = self.settings.name.clone();
        let (lost, sent) = self.asking(now, around).ask(now, around);
        if let Err(refused) = sent {
            tracing::debug!("cluster {name}: {}", refused.text);
        }
        let fresh = lost.is_some_and(|lost| self.take(&lost, clock));
        let asking = self.asking(now, around);
        if !asking.client().node().is_to_lead() {
            return fresh;
        }
        let counter = around.counter.read_ordered();
        let origin = asking.client_mut().lead(counter, random(), now);
        let leads = asking.client().node().leads();
        let timeline = &self.timeline;
        tracing::warn!(
            "cluster {name}: this host is the master of {timeline} now; its origin is {origin}"
        );
        self.origin = Some(origin);
        self.clock.is(self.origin);
        let ensemble = self.ensemble(clock);
        self.clock.begin_anew(leads, ensemble);
        true
    }

    fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>, clock: &HostClock) -> bool {
        let Some(asking) = &mut self.asking else { return false };
        let heard = asking.receive(now, around, |stamp| Some(time_of(stamp)));
        heard.iter().fold(false, |fresh, heard| self.take(heard, clock) | fresh)
    }

    /// True if there is something to publish.
    fn take(&mut self, heard: &Heard, clock: &HostClock) -> bool {
        let Some(asking) = &self.asking else { return false };
        let origin = asking.client().node().origin();
        let exchange = asking.known(heard.counter).ok();
        for event in &heard.events {
            match event {
                Event::BeganAnew => self.say_origin(origin),
                event => log(&self.settings.name, event),
            }
        }
        let other = origin != self.origin;
        if other {
            // The first one voids nothing.
            if self.origin.is_some() {
                let ensemble = self.ensemble(clock);
                self.clock.begin_anew(None, ensemble);
            }
            self.origin = origin;
            self.clock.is(origin);
        }
        let exchange = exchange.filter(|_| self.clock.leads.is_none());
        if let Some(exchange) = exchange {
            self.clock.follows.observe(0, &exchange);
        }
        other || exchange.is_some()
    }

    fn say_origin(&self, origin: Option<Origin>) {
        let Some(origin) = origin else { return };
        let (name, timeline) = (&self.settings.name, &self.timeline);
        tracing::warn!("cluster {name}: {timeline} has another master, and the origin {origin}");
    }

    fn report(&self, counter: u64, now: Duration) -> ClusterClock {
        let node = self.asking.as_ref().map(|asking| asking.client().node());
        let leads = node.is_some_and(|node| node.leads().is_some());
        let at = self.clock.state.lines.map(|lines| lines.at(counter));
        let ns = |span: Duration| u64::try_from(span.ceil_nanos()).ok();
        let silence = node.and_then(|node| node.silence(now));
        let role = match &at {
            _ if leads => "master",
            Some(_) => "member",
            None => "asking",
        };
        ClusterClock {
            cluster: self.settings.name.clone(),
            timeline: self.timeline.clone(),
            role: role.to_owned(),
            level: node.and_then(Node::level),
            origin: self.origin.map(|origin| origin.to_string()),
            below_ns: at.as_ref().and_then(|at| ns(at.estimate - at.earliest)),
            above_ns: at.and_then(|at| ns(at.latest - at.estimate)),
            master_heard_s: silence.map(Duration::as_secs_f64),
            serves: Vec::new(),
            seeds: self.settings.seeds.iter().map(ToString::to_string).collect(),
            questions: self.asking.as_ref().map_or(0, |asking| asking.client().questions()),
            hosts: self.asking.as_ref().map(|a| hosts(a, counter)).unwrap_or_default(),
        }
    }

    fn facts(&self) -> Option<TimelineFacts> {
        let name = self.settings.wire_timeline()?;
        let client = self.asking.as_ref()?.client();
        let node = client.node();
        let heard = if node.leads().is_some() { Some(Duration::MAX) } else { node.master_heard() };
        let own = WireRate::within(self.unmeasured.plus(self.calibration.error));
        // Whom others are referred to states its master's rate, not its own.
        let rate = if node.leads().is_some() { own } else { client.rate().unwrap_or(own) };
        Some(TimelineFacts {
            name,
            lines: self.clock.state.lines,
            status: self.clock.state.status,
            origin: self.origin?,
            level: node.level().unwrap_or(u8::MAX),
            rate,
            heard,
        })
    }
}

impl OwnClock {
    fn new(follows: SubsetClock<Ensemble>) -> Self {
        let state = ClockState {
            lines: None,
            status: ClockStatus::Initializing,
            estimated_error: Duration::MAX,
            as_of: 0,
            disruptions: 0,
            origin: 0,
        };
        Self { follows, leads: None, disruptions: 0, origin: 0, state }
    }

    /// Another origin, perhaps our own: nothing that was said holds.
    fn begin_anew(&mut self, leads: Option<Lead>, ensemble: Ensemble) {
        self.follows.start_over(ensemble);
        self.leads = leads;
        self.disruptions += 1;
        self.state.lines = None;
    }

    /// The clock's number, the same on all hosts of the cluster.
    fn is(&mut self, origin: Option<Origin>) {
        self.origin = origin.map_or(0, |it| (it.epoch ^ u64::from(it.generation)).max(1));
    }

    fn publish(&mut self, counter: &HostCounter, policy: Policy) -> ClockState {
        let origin = self.origin;
        let follows = self.follows.publish(counter);
        let disruptions = self.disruptions + follows.disruptions;
        self.state = match &self.leads {
            Some(lead) => {
                let now = counter.read_ordered();
                ClockState {
                    lines: Some(exact(lead, policy.nominal, policy.expiry(now)).rebased(now)),
                    status: ClockStatus::Synchronized,
                    estimated_error: Duration::ZERO,
                    as_of: now,
                    disruptions,
                    origin,
                }
            }
            None => ClockState { disruptions, origin, ..follows },
        };
        self.state
    }
}

/// A master's timeline: its counter at the nominal period.
fn exact(lead: &Lead, nominal: Period, expiry: u64) -> Lines<Tai> {
    let line = Line { time: lead.time, period: nominal };
    let base = lead.counter;
    Lines { base, expiry, earliest: line, estimate: line, latest: line, holdover: 0 }
}

/// The parameters of an estimate of another host's counter by this one's: both may be off, and both
/// wander, each as far as `[oscillator]` says.
fn both_wander(mut one: Parameters, calibrated: RateError) -> Parameters {
    one.unmeasured_rate = one.unmeasured_rate.against(one.unmeasured_rate).against(calibrated);
    one.measured_rate = one.measured_rate.against(one.measured_rate);
    one.bounds.wander_floor *= 2.0;
    one
}
