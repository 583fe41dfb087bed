//! One NTP server as the event loop drives it: the association of `ntp.rs`, with a poll interval
//! that follows the required bound.
//!
//! Without a required bound, the interval is the configured one, or the default for the server's
//! operator (`config/politeness.rs`), which is known once the name has been resolved. With a
//! required bound, timevisor-estimate's `polling` chooses the interval from the quality of this
//! server's exchanges and from the error of the counter's rate. The quality is half the round trip
//! plus the server's error: the best and the mean of the last 64.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use anyhow::Result;
use timevisor_estimate::Exchange;
use timevisor_estimate::polling::{self, Controller, Demand, Limits, Plan};
use timevisor_protocols::control::{Polling, Reference as Report};
use timevisor_protocols::ntp::Source;
use timevisor_time::{Duration, Period};

use super::ntp::Ntp;
#[cfg(test)]
use super::path::Path;
use super::{Details, Driver, Need, Surroundings, Upstream};
use crate::config::{PollPolicy, ReferenceConfig, ServerAddress};

/// Number of remembered exchanges: four minutes at 4 s, an hour at 64 s; enough to include an
/// exchange without queueing.
const REMEMBERED: usize = 64;
/// Lower limit of `poll_min`.
const SHORTEST_POLL_MIN: Duration = Duration::from_secs(1);
/// How often the interval is recomputed.
const REVIEW: Duration = Duration::from_secs(4);
/// A vote lost by chance is over within this time.
const OUTVOTED_PATIENCE: Duration = Duration::from_secs(60);

pub struct Server {
    ntp: Ntp,
    config: ReferenceConfig,
    /// The address for which `policy` was made.
    peer: Option<IpAddr>,
    policy: PollPolicy,
    controller: Controller,
    /// Half-widths proved by single exchanges.
    proved: VecDeque<Duration>,
    review_at: Duration,
    required: Option<Duration>,
    /// The demand for which the current plan was made.
    demand: Option<Demand>,
    /// The plan for a requirement.
    plan: Option<Plan>,
    outvoted_since: Option<Duration>,
    /// A falseticker has been left: what it said must be forgotten.
    replaced: bool,
}

impl Server {
    pub fn new(config: &ReferenceConfig, address: &str, now: Duration) -> Result<Self> {
        let peer = address.parse::<ServerAddress>().ok().and_then(|address| address.ip());
        let policy = config.poll_policy(peer);
        Ok(Self {
            ntp: Ntp::of(config, address, policy.interval, now)?,
            config: config.clone(),
            peer,
            policy,
            controller: Controller::new(policy.limits),
            proved: VecDeque::with_capacity(REMEMBERED),
            review_at: now,
            required: None,
            demand: None,
            plan: None,
            outvoted_since: None,
            replaced: false,
        })
    }

    /// Routes or addresses of this machine changed. Returns true if that concerns this server.
    pub fn concerned(&mut self, now: Duration) -> bool {
        self.ntp.network_changed(now)
    }

    /// Returns false while this server provides no time.
    pub fn serves(&self) -> bool {
        self.ntp.serves()
    }

    /// The way to it.
    #[cfg(test)]
    pub fn path(&mut self) -> &mut Path {
        self.ntp.path()
    }

    /// A name that stands for several servers and leads to one that the others outvote is asked for
    /// another.
    fn leave_falseticker(&mut self, now: Duration, falseticker: bool) {
        if !falseticker {
            self.outvoted_since = None;
            return;
        }
        let since = *self.outvoted_since.get_or_insert(now);
        if now - since >= OUTVOTED_PATIENCE && self.ntp.leave(now) {
            self.outvoted_since = None;
            self.replaced = true;
            self.ntp.forget();
            self.proved.clear();
        }
    }

    fn remember(&mut self, exchange: &Exchange, period: Period) {
        let round_trip = period.span_ceil(exchange.round_trip()) - (exchange.te - exchange.tb);
        if self.proved.len() == REMEMBERED {
            self.proved.pop_front();
        }
        self.proved.push_back(round_trip.max(Duration::ZERO).half() + exchange.error);
    }

    /// Chooses the default interval and the limits when the server's address becomes known.
    fn learn_peer(&mut self, now: Duration) {
        let peer = self.ntp.peer().map(|peer| peer.ip());
        if peer.is_none() || peer == self.peer {
            return;
        }
        self.peer = peer;
        let policy = self.config.poll_policy(peer);
        if policy != self.policy {
            self.policy = policy;
            self.poll_by_default();
            self.review_at = now;
        }
    }

    /// Polls at the rate that applies without a requirement.
    fn poll_by_default(&mut self) {
        self.controller = Controller::new(self.policy.limits);
        (self.demand, self.plan) = (None, None);
        if let Err(error) = self.ntp.set_poll(self.policy.interval, 1) {
            tracing::warn!("reference {}: {error:#}", self.ntp.name());
        }
    }

    fn demand(&self, need: &Need) -> Option<Demand> {
        let (required, rate) = need.required.zip(need.rate)?;
        let best = self.proved.iter().copied().min()?;
        let count = i128::try_from(self.proved.len()).ok()?;
        let sum: Duration = self.proved.iter().copied().sum();
        let typical = Duration::from_bits(sum.to_bits() / count);
        Some(Demand { required, typical, best, rate, wander: need.wander })
    }

    /// Why the server is polled at this rate, for `timevisor status`.
    fn polling(&self) -> Polling {
        let Some((demand, plan)) = self.demand.zip(self.plan) else {
            return Polling {
                reason: self.policy.reason.to_owned(),
                required_ns: self.required.map(Duration::ceil_nanos),
                needed_s: None,
                problem: None,
            };
        };
        let limits = self.controller.limits();
        let in_force = Plan { interval: plan.interval.max(self.ntp.interval()), ..plan };
        let needed = polling::needed(&demand, limits.losses);
        let kept = polling::keeps(&demand, &in_force, limits.losses);
        Polling {
            reason: "requirement".to_owned(),
            required_ns: Some(demand.required.ceil_nanos()),
            needed_s: needed.map(Duration::as_secs_f64),
            problem: (!kept).then(|| obstacle(&demand, needed, limits)),
        }
    }
}

/// What prevents the requirement from being met, and which keys to change.
fn obstacle(demand: &Demand, needed: Option<Duration>, limits: &Limits) -> String {
    let Some(needed) = needed else {
        return format!(
            "no poll is sure to keep it with this server, whose answers typically prove {}; add a nearer server or a PTP clock",
            demand.typical
        );
    };
    if needed < SHORTEST_POLL_MIN {
        let ppm = demand.rate * 1e6;
        return format!(
            "it takes a poll of {needed} with this server and a counter whose rate is known to {ppm:.1} ppm (the least poll_min \
             is 1 s); wait until the rate is known better, or add a nearer server or a PTP clock"
        );
    }
    // Rounded so that the needed interval is allowed.
    let milliseconds = needed.floor_nanos() / 1_000_000;
    let seconds = needed.as_secs_f64();
    let mut keys = Vec::new();
    if limits.poll_min > needed {
        keys.push(format!("poll_min = \"{milliseconds}ms\""));
    }
    if limits.per_packet() > needed {
        let packets = (3_600_000 / milliseconds.max(1) + 1).min(3600);
        keys.push(format!("max_packets_per_hour = {packets}"));
    }
    if keys.is_empty() {
        return format!(
            "it takes a poll of {seconds:.1} s, and the server limits our polls; use another one"
        );
    }
    let keys = keys.join(" and ");
    format!("it takes a poll of {seconds:.1} s; set {keys} if the server's operator permits that")
}

impl Driver for Server {
    fn poll_at(&self) -> Duration {
        self.ntp.poll_at()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.ntp.fd().into_iter().collect()
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        self.ntp.on_timer(now, around);
        self.learn_peer(now);
        None
    }

    fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        let exchanges = self.ntp.on_ready(now, around);
        for exchange in &exchanges {
            self.remember(exchange, around.calibration.0);
        }
        exchanges
    }

    fn restart(&mut self, now: Duration) {
        self.ntp.restart(now);
    }

    fn network_changed(&mut self, now: Duration) {
        self.concerned(now);
    }

    fn take_replacement(&mut self) -> bool {
        std::mem::take(&mut self.replaced)
    }

    fn witness(&self) -> Option<SocketAddr> {
        self.ntp.peer()
    }

    fn sources(&self) -> Vec<Source> {
        self.ntp.sources()
    }

    fn inherit(&mut self, before: &dyn Driver, now: Duration) {
        self.ntp.inherit(before.sources(), now);
    }

    fn certificates(&self) -> Vec<&[u8]> {
        self.ntp.certificates()
    }

    fn duplicate(&self) -> Option<SocketAddr> {
        self.ntp.duplicate()
    }

    fn require(&mut self, now: Duration, need: &Need) {
        self.leave_falseticker(now, need.falseticker);
        let changed = need.required != self.required;
        if now < self.review_at && !changed {
            return;
        }
        self.required = need.required;
        self.review_at = now + REVIEW;
        if changed && need.required.is_none() {
            return self.poll_by_default();
        }
        let Some(demand) = self.demand(need) else { return };
        self.demand = Some(demand);
        let Some(plan) = self.controller.update(&demand) else { return };
        // However little is required, a lost answer or two must not make the clock run free.
        let longest =
            need.stale_after.map_or(plan.interval, |s| Duration::from_bits(s.to_bits() / 3));
        let interval = plan.interval.min(longest.max(self.policy.interval));
        let plan = Plan { interval, ..plan };
        // The requests of a poll keep a minimum spacing, so fewer may fit than the budget allows.
        for burst in (1..=plan.burst).rev() {
            if self.ntp.set_poll(plan.interval, burst).is_ok() {
                self.plan = Some(Plan { burst, ..plan });
                tracing::debug!(
                    "reference {}: polls {burst} every {}",
                    self.ntp.name(),
                    plan.interval
                );
                return;
            }
        }
    }

    fn upstream(&self) -> Option<Upstream> {
        self.ntp.upstream()
    }

    fn burst(&mut self, now: Duration) {
        self.ntp.burst(now);
    }

    fn details(&self, now: Duration) -> Details {
        self.ntp.details(now)
    }

    fn report(&self, now: Duration) -> Report {
        Report { polling: Some(self.polling()), ..self.ntp.report(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(lines: &str, address: &str) -> Server {
        let config: ReferenceConfig =
            toml::from_str(&format!("type = \"ntp\"\naddress = {address:?}\n{lines}")).unwrap();
        Server::new(&config, address, Duration::ZERO).unwrap()
    }

    fn need(required_us: i64) -> Need {
        Need {
            required: Some(Duration::from_micros(required_us)),
            rate: Some(15e-6),
            wander: 0.0,
            falseticker: false,
            stale_after: Some(Duration::from_secs(80)),
        }
    }

    /// The status report for a server whose exchanges prove 40 us.
    fn told(server: &mut Server, need: &Need) -> (f64, Polling) {
        server.proved = [Duration::from_micros(40)].into();
        server.require(Duration::ZERO, need);
        let report = server.report(Duration::ZERO);
        (report.poll_s, report.polling.unwrap())
    }

    #[test]
    fn status_says_which_poll_is_in_force_and_why() {
        let free = Need::default();
        for (lines, address, poll, reason) in [
            ("", "10.0.0.1", 4.0, "own-server"),
            ("", "192.0.2.1", 64.0, "public-server"),
            ("", "ntp.example", 64.0, "public-server"),
            ("poll = \"16s\"", "10.0.0.1", 16.0, "configured"),
        ] {
            let (interval, polling) = told(&mut server(lines, address), &free);
            assert_eq!((interval, polling.reason.as_str()), (poll, reason), "{address}");
            assert_eq!((polling.needed_s, polling.problem), (None, None));
        }
    }

    #[test]
    fn a_requirement_drives_the_poll_within_the_limits() {
        // (340 - 40) us / 15 ppm, halved for one loss: 10 s, even with a configured poll.
        for (lines, address) in
            [("", "10.0.0.1"), ("", "192.0.2.1"), ("poll = \"64s\"", "10.0.0.1")]
        {
            let mut server = server(lines, address);
            let (interval, polling) = told(&mut server, &need(340));
            assert!((9.8..=10.0).contains(&interval), "{interval}");
            assert_eq!((polling.reason.as_str(), polling.problem), ("requirement", None));
            assert!((polling.needed_s.unwrap() - 10.0).abs() < 1e-3);
            // When the requirement ends, the earlier interval is restored.
            let before = server.policy.interval.as_secs_f64();
            assert_eq!(told(&mut server, &Need::default()).0, before);
        }
    }

    /// 100 ms were a reason to ask every 1024 s, and the clock ran free after 80 s.
    #[test]
    fn a_loose_requirement_does_not_make_the_clock_run_free() {
        for (lines, address, longest) in [
            ("", "10.0.0.1", 80.0 / 3.0),
            ("poll = \"1s\"", "10.0.0.1", 80.0 / 3.0),
            ("", "192.0.2.1", 64.0),
        ] {
            let (interval, polling) = told(&mut server(lines, address), &need(100_000));
            assert!((interval - longest).abs() < 1.0, "{address}: {interval} s");
            assert_eq!(polling.reason, "requirement");
        }
    }

    #[test]
    fn wander_shortens_the_poll_that_a_requirement_takes() {
        // 340 - 40 = 300 us = 15 ppm t + 3e-8 /s t^2 / 2 at t = 19.6 s, halved for one loss; with
        // 0.3 ppm instead of 15 at t = 131.8 s instead of 1,000 s.
        let wander = 3e-8;
        for (rate, needed) in [(15e-6, 9.81), (0.3e-6, 65.9)] {
            let need = Need { rate: Some(rate), wander, ..need(340) };
            let (_, polling) = told(&mut server("", "10.0.0.1"), &need);
            let found = polling.needed_s.unwrap();
            assert!((found - needed).abs() < 0.1, "{found}");
        }
    }

    #[test]
    fn status_names_the_keys_that_keep_a_requirement_from_being_met() {
        // 100 us - 40 us: 2 s. A public server's 450 packets an hour are one every 8 s.
        let (interval, polling) = told(&mut server("", "192.0.2.1"), &need(100));
        assert_eq!(interval, 8.0);
        let problem = polling.problem.unwrap();
        assert!(problem.contains("takes a poll of 2.0 s"), "{problem}");
        assert_eq!(polling.required_ns, Some(100_000));
        assert!(problem.contains("max_packets_per_hour = 180"), "{problem}");
        // 1.5 s.
        let (interval, polling) = told(&mut server("", "10.0.0.1"), &need(85));
        assert_eq!(interval, 2.0);
        let problem = polling.problem.unwrap();
        assert!(problem.contains("poll_min = \"1") && problem.contains("ms\""), "{problem}");
        assert!(!problem.contains("max_packets_per_hour"), "{problem}");
        // 0.33 s.
        let (_, polling) = told(&mut server("", "10.0.0.1"), &need(50));
        let problem = polling.problem.unwrap();
        assert!(problem.contains("a poll of 333.") && problem.contains("15.0 ppm"), "{problem}");
        // Less than a single exchange can prove.
        let (_, polling) = told(&mut server("", "10.0.0.1"), &need(30));
        assert_eq!(polling.needed_s, None);
        assert!(polling.problem.unwrap().contains("nearer server"));
    }
}
