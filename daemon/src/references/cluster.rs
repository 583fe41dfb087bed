//! The hosts of a cluster whose timeline is UTC, as one reference.
//!
//! What the clock gets of it is the interval that all of them allow at the moment of an answer, as if
//! a clock of this machine had been read.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use anyhow::{Context, Result};
use timevisor_cluster::client::Client;
use timevisor_estimate::{Exchange, RateLimits};
use timevisor_protocols::control::{ClusterClock, Reference as Report};
use timevisor_protocols::ntp::refid;
use timevisor_protocols::nts::shared::Sealer;
use timevisor_time::{Duration, Instant, RateError, Utc};

use super::asking::{Asking, Heard, hosts, log, own_address};
use super::tally::Tally;
use super::{Driver, Surroundings, Upstream, random};
use crate::config::{ClusterConfig, ClusterReference, span};

pub struct Cluster {
    settings: ClusterConfig,
    /// Of a cluster with a key.
    sealer: Option<Sealer>,
    /// Where this host serves others; 0 if it does not.
    port: u16,
    unmeasured: RateError,
    tally: Tally,
    /// Made when the counter's calibration is known.
    asking: Option<Asking>,
    start: Duration,
}

impl Cluster {
    pub fn new(config: &ClusterReference, name: String, now: Duration) -> Result<Self> {
        let settings = config.settings.clone();
        let settings =
            settings.with_context(|| format!("there is no [[cluster]] {}", config.cluster))?;
        let sealer = settings.sealer(settings.wire_name())?;
        Ok(Self {
            settings,
            sealer,
            port: config.port,
            unmeasured: RateError::from_ppm(config.unmeasured_rate_ppm),
            tally: Tally::new(name),
            asking: None,
            start: now,
        })
    }

    fn asking(&mut self, now: Duration, around: &Surroundings<'_>) -> &mut Asking {
        let (settings, port, unmeasured) = (&self.settings, self.port, self.unmeasured);
        let sealer = &self.sealer;
        self.asking.get_or_insert_with(|| {
            let (nominal, error) = around.calibration;
            let rate = RateLimits::around(nominal, unmeasured.plus(error));
            let own = own_address(&settings.seeds, around);
            if settings.lists_too_few(own) {
                tracing::warn!(
                    "cluster {}: this host is one of its own seeds, and without it too few are left where {} may lie: it \
                     will have no bounds; list more hosts in seeds, or set master",
                    settings.name,
                    settings.liars
                );
            }
            let node = settings.node(own, rate, nominal, None, random(), now);
            let client = Client::new(node, settings.wire_name(), port);
            Asking::new(client.with_sealer(sealer.clone()))
        })
    }

    fn take(&mut self, heard: &Heard) -> Option<Exchange> {
        for event in &heard.events {
            log(&self.settings.name, event);
        }
        let outcome = self.asking.as_ref()?.known(heard.counter);
        self.tally.take(outcome)
    }

    /// That of the server nearest to the time's source: of UTC, the level that servers state is their
    /// stratum.
    fn stratum(&self) -> Option<u8> {
        self.asking.as_ref()?.client().node().level()?.checked_sub(1)
    }

    fn detail(&self) -> String {
        let Some(asking) = &self.asking else { return "not asked yet".to_owned() };
        let node = asking.client().node();
        let (heard, named) = (node.heard().count(), node.named().count());
        let liars = if named == 0 { String::new() } else { format!(", {named} named as liars") };
        format!("{heard} hosts heard{liars}, {} questions", asking.client().questions())
    }
}

impl Driver for Cluster {
    fn poll_at(&self) -> Duration {
        self.asking.as_ref().map_or(self.start, |asking| asking.client().poll_at())
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.asking.as_ref().map(Asking::fds).unwrap_or_default()
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        if now < self.poll_at() {
            return None;
        }
        let (lost, sent) = self.asking(now, around).ask(now, around);
        if let Err(refused) = sent {
            return self.tally.take(Err(refused));
        }
        lost.and_then(|lost| self.take(&lost))
    }

    fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        let tai = |utc: Instant<Utc>| around.leap.to_tai(utc).ok();
        let heard = self.asking.as_mut().map(|asking| asking.receive(now, around, tai));
        heard.unwrap_or_default().iter().filter_map(|heard| self.take(heard)).collect()
    }

    fn network_changed(&mut self, _now: Duration) {
        self.asking.iter_mut().for_each(Asking::network_changed);
    }

    fn asked(&self) -> Vec<SocketAddr> {
        self.settings.seeds.clone()
    }

    fn restart(&mut self, now: Duration) {
        self.asking = None;
        self.start = now;
    }

    fn upstream(&self) -> Option<Upstream> {
        let answered = self.asking.as_ref()?.answered()?;
        Some(Upstream { stratum: self.stratum()?, id: refid::of_address(answered.ip()) })
    }

    fn cluster(&self, counter: u64) -> Option<ClusterClock> {
        let asking = self.asking.as_ref();
        let bounds = asking.and_then(|asking| asking.known(counter).ok());
        let ns = bounds.and_then(|known| u64::try_from(known.error.ceil_nanos()).ok());
        Some(ClusterClock {
            cluster: self.settings.name.clone(),
            timeline: "utc".to_owned(),
            role: if ns.is_some() { "member" } else { "asking" }.to_owned(),
            level: self.stratum(),
            below_ns: ns,
            above_ns: ns,
            seeds: self.settings.seeds.iter().map(ToString::to_string).collect(),
            questions: asking.map_or(0, |asking| asking.client().questions()),
            hosts: asking.map(|asking| hosts(asking, counter)).unwrap_or_default(),
            ..ClusterClock::default()
        })
    }

    fn report(&self, _now: Duration) -> Report {
        let report = self.tally.report("cluster", &self.detail(), span(self.settings.poll), None);
        Report { stratum: self.stratum(), ..report }
    }
}
