//! One NTP server as the event loop drives it: the association of `ntp.rs`, with a poll interval
//! that follows the required bound.
//!
//! Without a required bound, the configured interval stays. With one, timevisor-estimate's
//! `polling` chooses the interval from the quality of this server's exchanges and from the error of
//! the counter's rate. The quality is half the round trip plus the server's error: the best and the
//! mean of the last 64.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use anyhow::Result;
use timevisor_estimate::Exchange;
use timevisor_estimate::polling::{Controller, Demand, Limits};
use timevisor_protocols::control::Reference as Report;
use timevisor_time::{Duration, Period};

use super::ntp::Ntp;
use super::{Driver, Need, Surroundings, Upstream};
use crate::config::ReferenceConfig;

/// Exchanges remembered: a quarter of an hour at 16 s, which is long enough to include an empty
/// queue.
const REMEMBERED: usize = 64;
/// How often the interval is chosen again.
const REVIEW: Duration = Duration::from_secs(4);

pub struct Server {
    ntp: Ntp,
    controller: Controller,
    /// Half-widths proved by single exchanges.
    proved: VecDeque<Duration>,
    review_at: Duration,
    /// The configured interval and one request per poll, for when no timeline requires a bound.
    configured: Option<(Duration, u32)>,
    required: Option<Duration>,
}

impl Server {
    pub fn new(config: &ReferenceConfig, address: &str, now: Duration) -> Result<Self> {
        let mut server = Self::around(Ntp::of(config, address, now)?, config.poll_limits(), now);
        server.configured = config.ntp_config().ok().map(|c| (c.poll_min, 1));
        Ok(server)
    }

    fn around(ntp: Ntp, limits: Limits, now: Duration) -> Self {
        let proved = VecDeque::with_capacity(REMEMBERED);
        let controller = Controller::new(limits);
        Self { ntp, controller, proved, review_at: now, configured: None, required: None }
    }

    /// Returns false while this server gives no time.
    pub fn serves(&self) -> bool {
        self.ntp.serves()
    }

    fn remember(&mut self, exchange: &Exchange, period: Period) {
        let round_trip = period.span_ceil(exchange.round_trip()) - (exchange.te - exchange.tb);
        if self.proved.len() == REMEMBERED {
            self.proved.pop_front();
        }
        self.proved.push_back(round_trip.max(Duration::ZERO).half() + exchange.error);
    }

    /// Returns to the configured interval when no timeline requires a bound any more.
    fn poll_as_configured(&mut self) {
        let Some((interval, burst)) = self.configured else { return };
        self.controller = Controller::new(*self.controller.limits());
        if let Err(error) = self.ntp.set_poll(interval, burst) {
            tracing::warn!("reference {}: {error:#}", self.ntp.name());
        }
    }

    fn demand(&self, need: &Need) -> Option<Demand> {
        let (required, rate) = need.required.zip(need.rate)?;
        let best = self.proved.iter().copied().min()?;
        let count = i128::try_from(self.proved.len()).ok()?;
        let sum: Duration = self.proved.iter().copied().sum();
        let typical = Duration::from_bits(sum.to_bits() / count);
        Some(Demand { required, typical, best, rate, wander: 0.0 })
    }
}

impl Driver for Server {
    fn poll_at(&self) -> Duration {
        self.ntp.poll_at()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.ntp.fd()
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        self.ntp.on_timer(now, around);
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

    fn require(&mut self, now: Duration, need: &Need) {
        let changed = need.required != self.required;
        if now < self.review_at && !changed {
            return;
        }
        self.required = need.required;
        self.review_at = now + REVIEW;
        if changed && need.required.is_none() {
            return self.poll_as_configured();
        }
        let Some(demand) = self.demand(need) else { return };
        let Some(plan) = self.controller.update(&demand) else { return };
        // The requests of a poll keep a minimum distance, so fewer may fit than the budget allows.
        for burst in (1..=plan.burst).rev() {
            if self.ntp.set_poll(plan.interval, burst).is_ok() {
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

    fn report(&self, now: Duration) -> Report {
        self.ntp.report(now)
    }
}
