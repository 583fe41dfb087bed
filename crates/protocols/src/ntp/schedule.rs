//! When the next request of an association is due.
//!
//! A burst at the start and when the server returns after an outage; then one poll of one or more
//! requests per interval. The interval and the requests per poll can change at run time
//! ([`Schedule::set_poll`]), so that a controller can follow the required bound. RATE kisses set a
//! lower limit of the interval that nothing undercuts, and DENY and RSTR leave one attempt per
//! `denied_retry`.
//!
//! What it does not do: match answers with requests, or add jitter.

use timevisor_time::Duration;

use super::config::{Config, ConfigError};

/// The longest interval that the poll field of a RATE kiss can impose above `poll_max`: a forged or
/// mistaken field must not silence a server for a day.
const MAX_ASKED_POLL: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// The configuration, with the last requested interval as `poll_min`.
    config: Config,
    /// Requests of one poll.
    per_poll: u32,
    /// The lower limit of the interval set by RATE kisses; zero without one.
    floor: Duration,
    denied: bool,
    next: Duration,
    last_sent: Option<Duration>,
    /// Requests still to come in this burst or poll.
    left: u32,
    /// The start of the interval to the next poll.
    poll_started: Duration,
    /// True in the burst at the start or after an outage, whose last request starts the interval
    /// instead of its first.
    recovering: bool,
}

impl Schedule {
    pub(super) fn new(config: Config, start: Duration) -> Self {
        Self {
            per_poll: 1,
            floor: Duration::ZERO,
            denied: false,
            next: start,
            last_sent: None,
            left: config.burst_count,
            poll_started: start,
            recovering: true,
            config,
        }
    }

    pub(super) fn next(&self) -> Duration {
        self.next
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// The interval between polls.
    pub(super) fn interval(&self) -> Duration {
        let interval = self.config.poll_min.max(self.floor);
        if self.denied { self.config.denied_retry.max(interval) } else { interval }
    }

    /// Polls every `interval` from now on, with `burst` requests each. A server that limited us
    /// keeps its limit and gets single requests.
    pub(super) fn set_poll(&mut self, interval: Duration, burst: u32) -> Result<(), ConfigError> {
        let config = Config {
            poll_min: interval,
            poll_max: self.config.poll_max.max(interval),
            ..self.config
        };
        config.validate()?;
        config.check_poll_burst(burst)?;
        self.config = config;
        self.per_poll = burst;
        if self.left == 0
            && let Some(sent) = self.last_sent
        {
            // Never sooner than the spacing of a burst, nor than a kiss permits.
            let due = (self.poll_started + self.interval()).max(sent + self.config.burst_spacing);
            self.next = if self.is_limited() { self.next.max(due) } else { due };
        }
        Ok(())
    }

    /// The next request is due at the spacing of a burst after the last one, unless a kiss forbids.
    pub(super) fn ask_soon(&mut self) {
        if let Some(sent) = self.last_sent
            && !self.is_limited()
        {
            self.next = self.next.min(sent + self.config.burst_spacing);
        }
    }

    /// Records that a request leaves now.
    pub(super) fn sent(&mut self, now: Duration) {
        if self.left == 0 {
            self.recovering = false;
            self.left = if self.is_limited() { 1 } else { self.per_poll };
            self.poll_started = now;
        }
        if self.recovering {
            self.poll_started = now;
        }
        self.left -= 1;
        self.last_sent = Some(now);
        self.next = self.after(now);
    }

    /// Returns when the request after the one sent at `sent` is due.
    fn after(&self, sent: Duration) -> Duration {
        let spaced = sent + self.config.burst_spacing;
        if self.left > 0 {
            spaced
        } else if self.recovering || self.per_poll == 1 {
            sent + self.interval()
        } else {
            spaced.max(self.poll_started + self.interval())
        }
    }

    /// Starts a burst, unless the server limited or denied us. `first_done`: its first request was
    /// just answered.
    pub(super) fn burst(&mut self, first_done: bool) {
        if !self.is_limited() {
            self.left = self.config.burst_count - u32::from(first_done);
            self.recovering = true;
        }
    }

    /// Starts the burst at `now`, at the minimum distance from the last request.
    pub(super) fn restart(&mut self, now: Duration) {
        if !self.is_limited() {
            self.burst(false);
            self.next = self.last_sent.map_or(now, |t| now.max(t + self.config.burst_spacing));
        }
    }

    /// Goes on with another server, one request per interval.
    pub(super) fn pass_on(&mut self) {
        self.denied = false;
        (self.left, self.recovering) = (0, false);
        self.next = self.last_sent.map_or(self.next, |sent| sent + self.interval());
    }

    /// Records an accepted answer: a denial is over, and the rest of a burst is due soon.
    pub(super) fn accepted(&mut self) {
        let was_denied = std::mem::take(&mut self.denied);
        if let Some(sent) = self.last_sent
            && (was_denied || self.left > 0)
        {
            self.next = self.next.min(self.after(sent));
        }
    }

    /// Obeys a RATE kiss with this poll field (log2 s): permanently doubles the interval, or sets
    /// it to the field's value if that is more.
    pub(super) fn limited(&mut self, now: Duration, poll: i8) {
        let interval = self.interval();
        let doubled = (interval + interval).min(self.config.poll_max);
        let asked = match poll {
            exponent @ 0..=17 => Duration::from_secs(1 << exponent).min(MAX_ASKED_POLL),
            _ => Duration::ZERO,
        };
        self.floor = interval.max(doubled).max(asked);
        self.pause(now);
    }

    /// Obeys a DENY or RSTR kiss.
    pub(super) fn denied(&mut self, now: Duration) {
        self.denied = true;
        self.pause(now);
    }

    fn pause(&mut self, now: Duration) {
        self.left = 0;
        self.next = now + self.interval();
    }

    fn is_limited(&self) -> bool {
        self.denied || self.floor > Duration::ZERO
    }
}
