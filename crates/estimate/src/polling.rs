//! How often a server has to be asked so that the bound stays as tight as somebody needs it.
//!
//! Right after a good exchange the half-width is at its floor; until the next it grows with what is
//! not known of the rate. A poll interval T is short enough when, even if `losses` polls in a row
//! are lost,
//!
//! ```text
//! floor(n) + rate * (1 + losses) T + wander * ((1 + losses) T)^2 / 2  <=  required
//! floor(n) = best + (typical - best) / n
//! ```
//!
//! n being the requests of a poll: of n exponentially distributed queueing delays the shortest has
//! 1/n of their mean. One request per poll is used while that suffices; where the shortest allowed
//! interval does not, more requests per poll are, as far as the packet budget goes. So a tighter
//! requirement, a wider wander or a less certain rate never lengthens the interval.
//!
//! Where the limits do not admit what is required, the budget is used up; [`keeps`] and [`needed`]
//! tell so, and which interval it would take.
//!
//! What it does not do: send anything.

use timevisor_time::Duration;

/// What limits the polling of one server.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Never more often than this. What the server's operator allows; 2 s is what customary rate
    /// limits admit in bursts.
    pub poll_min: Duration,
    /// Never less often than this: reachability is known to within a few of these. 1024 s is NTP's
    /// customary maximum.
    pub poll_max: Duration,
    /// Requests per poll at most. 8 is the customary burst.
    pub burst_max: u32,
    /// Requests per hour at most, on average over a poll interval.
    pub packets_per_hour: u32,
    /// Polls in a row that may be lost without breaking the requirement.
    pub losses: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            poll_min: Duration::from_secs(2),
            poll_max: Duration::from_secs(1024),
            burst_max: 8,
            packets_per_hour: 450,
            losses: 1,
        }
    }
}

/// Limits that cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} {problem}")]
pub struct InvalidLimit {
    /// The field's name.
    pub name: &'static str,
    /// What is wrong and what would be right.
    pub problem: &'static str,
}

impl Limits {
    /// Checks all limits.
    ///
    /// # Errors
    /// The first that is out of range or at odds with another.
    pub fn validate(&self) -> Result<(), InvalidLimit> {
        let second = Duration::from_secs(1);
        let checks = [
            ("poll_min", self.poll_min >= second, "must be 1 s or more"),
            ("poll_max", self.poll_max >= self.poll_min, "must not be below poll_min"),
            (
                "poll_max",
                self.poll_max <= Duration::from_secs(131_072),
                "must be 131072 s or less, the longest interval that NTP can state",
            ),
            ("burst_max", (1..=16).contains(&self.burst_max), "must be 1 to 16"),
            (
                "packets_per_hour",
                (1..=3600).contains(&self.packets_per_hour),
                "must be 1 to 3600: more than one request a second is not polite",
            ),
            (
                "packets_per_hour",
                self.shortest() <= self.poll_max,
                "allows not even one request per poll_max",
            ),
            ("losses", self.losses <= 8, "must be 8 or less"),
        ];
        match checks.into_iter().find(|(_, good, _)| !good) {
            Some((name, _, problem)) => Err(InvalidLimit { name, problem }),
            None => Ok(()),
        }
    }

    /// The shortest interval: `poll_min`, or what the budget allows for single requests.
    #[must_use]
    pub fn shortest(&self) -> Duration {
        self.poll_min.max(self.per_packet())
    }

    /// The budget's interval per request, rounded up.
    #[must_use]
    pub fn per_packet(&self) -> Duration {
        let packets = i128::from(self.packets_per_hour.max(1));
        Duration::from_bits(((3600_i128 << 64) + packets - 1) / packets)
    }

    /// How many requests the budget allows at this interval.
    fn affordable(&self, interval: Duration) -> u32 {
        let packets = interval.to_bits() / self.per_packet().to_bits();
        u32::try_from(packets).unwrap_or(u32::MAX).clamp(1, self.burst_max)
    }
}

/// What is required and what is known. Spans are half-widths.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Demand {
    /// The tightest bound that somebody requires.
    pub required: Duration,
    /// The bound right after a typical exchange.
    pub typical: Duration,
    /// The bound right after an exchange that met no queue: half the shortest round trip and the
    /// server's own error.
    pub best: Duration,
    /// What is not known of the counter's rate, as a ratio.
    pub rate: f64,
    /// How fast that grows, per second; 0 where `rate` holds for ever.
    pub wander: f64,
}

/// How to poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Between the beginnings of two polls.
    pub interval: Duration,
    /// Requests per poll.
    pub burst: u32,
}

/// The longest interval, and the fewest requests, that keep what is required; within the limits in
/// any case.
#[must_use]
pub fn plan(demand: &Demand, limits: &Limits) -> Plan {
    let shortest = limits.shortest();
    let single = longest_interval(demand, 1, limits.losses);
    if let Some(interval) = single.filter(|interval| *interval >= shortest) {
        let interval = whole_eighths(interval.min(limits.poll_max)).max(shortest);
        return Plan { interval, burst: 1 };
    }
    let most = limits.affordable(shortest);
    let enough = (1..=most).find(|n| {
        longest_interval(demand, *n, limits.losses).is_some_and(|interval| interval >= shortest)
    });
    Plan { interval: shortest, burst: enough.unwrap_or(most) }
}

/// The longest interval of single requests that keeps what is required, whatever the limits; `None`
/// when no interval does.
#[must_use]
pub fn needed(demand: &Demand, losses: u32) -> Option<Duration> {
    longest_interval(demand, 1, losses)
}

/// Whether this plan keeps what is required.
#[must_use]
pub fn keeps(demand: &Demand, plan: &Plan, losses: u32) -> bool {
    longest_interval(demand, plan.burst.max(1), losses)
        .is_some_and(|longest| longest >= plan.interval)
}

/// Rounded down to an eighth of a second, so that noise in what is known does not become another
/// plan each time.
fn whole_eighths(interval: Duration) -> Duration {
    Duration::from_bits(interval.to_bits() >> 61 << 61)
}

/// How long the bound stays within what is required after a poll of n requests; `None` when it
/// never is.
fn longest_interval(demand: &Demand, n: u32, losses: u32) -> Option<Duration> {
    let queueing = (demand.typical - demand.best).max(Duration::ZERO).as_secs_f64();
    let floor = demand.best.as_secs_f64() + queueing / f64::from(n);
    let room = demand.required.as_secs_f64() - floor;
    if room.is_nan() || room <= 0.0 {
        return None;
    }
    let (rate, wander) = (demand.rate.max(0.0), demand.wander.max(0.0));
    // The positive root of wander t^2 / 2 + rate t = room, in the form that loses no digits for
    // small wander.
    let t = 2.0 * room / (rate + (rate * rate + 2.0 * wander * room).sqrt());
    // Nothing grows: as long as can be.
    let t = if t.is_finite() { t } else { 1e9 };
    Some(Duration::from_secs_f64(t / f64::from(1 + losses)))
}

/// Follows the plan without hunting: shortens at once, lengthens only when the plan is half as long
/// again.
#[derive(Clone, Copy, Debug)]
pub struct Controller {
    limits: Limits,
    current: Option<Plan>,
}

impl Controller {
    /// Nothing decided yet.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self { limits, current: None }
    }

    /// The limits it keeps.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The plan to follow from now on, if it is another one.
    pub fn update(&mut self, demand: &Demand) -> Option<Plan> {
        let wanted = plan(demand, &self.limits);
        let keep = self.current.is_some_and(|current| {
            let longer = wanted.interval > current.interval
                && wanted.interval < current.interval + current.interval.half();
            current.burst >= wanted.burst
                && (wanted.interval == current.interval && wanted.burst == current.burst || longer)
        });
        if keep {
            return None;
        }
        self.current = Some(wanted);
        Some(wanted)
    }
}

#[cfg(test)]
#[path = "polling_tests.rs"]
mod tests;
