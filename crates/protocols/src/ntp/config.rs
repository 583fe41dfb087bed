//! Every tunable of one association, with its unit and the reason for its default.
//!
//! What it does not do: read files. The daemon maps its TOML onto this and calls
//! [`Config::validate`].

use timevisor_time::Duration;

/// A server that answered DENY or RSTR is never asked again sooner. RFC 5905 section 7.4 would stop
/// permanently; after an hour, an operator's fix on the server takes effect without a restart here.
pub const MIN_DENIED_RETRY: Duration = Duration::from_secs(3600);

/// The longest round trip that can be waited for: links by relay (store and forward) take many
/// seconds.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(16);

/// How to ask one server, and which of its answers to refuse. All spans are in our monotonic time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Interval between requests after the burst. Default 16 s. The bound widens with the
    /// oscillator's wander between polls: use 4 s for your own servers, and 64 s or more for public
    /// ones.
    pub poll_min: Duration,
    /// The interval to which RATE kisses may double `poll_min`. Default 1024 s, NTP's customary
    /// maximum (2^10).
    pub poll_max: Duration,
    /// Requests in the burst at the start and after an outage. Default 8, which is enough to
    /// include one packet with little queueing. Up to 16 is polite; 1 means no burst.
    pub burst_count: u32,
    /// Interval between the requests of a burst. Default 2 s, the usual iburst spacing, which rate
    /// limits permit.
    pub burst_spacing: Duration,
    /// An answer that takes longer is late. Default 1.5 s: a round trip r bounds the time to +-r/2
    /// at best, so waiting longer is worth less than the next request. At most [`MAX_TIMEOUT`]. At
    /// most one request is in flight, so a request that is not answered in time delays the next.
    pub request_timeout: Duration,
    /// Answers whose own error budget (root distance) exceeds this are refused. Default 1.5 s,
    /// MAXDIST of RFC 5905 section 14.
    pub max_distance: Duration,
    /// Interval between attempts after DENY or RSTR. Default and minimum [`MIN_DENIED_RETRY`].
    pub denied_retry: Duration,
    /// Use the interleaved mode (RFC 9769), in which each answer of the server tells when its
    /// *previous* answer really left. Servers that do not know the mode give basic answers.
    ///
    /// Default off. The bounds from a basic answer hold at once. An interleaved exchange is
    /// complete only one poll later, and until then the oscillator's uncertainty may have cost more
    /// (at 15 ppm and 16 s: 240 us) than the server's delay between stamping and sending (10 to 100
    /// us). Useful for polls of a second or less.
    pub interleaved: bool,
    /// Ask for bounds in nanoseconds with our extension field ([`super::precise`]). A server that
    /// does not answer such requests is asked without it, so no server is lost. Default off: the
    /// caller knows whether the server may be a Timevisor. Between Timevisors it saves up to 22.9
    /// us of half-width.
    pub precise: bool,
    /// Accept servers that declare that they smear leap seconds. Default off: around a leap second
    /// their time differs from UTC by up to a second, which their error budget does not include.
    pub allow_smear: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            poll_min: Duration::from_secs(16),
            poll_max: Duration::from_secs(1024),
            burst_count: 8,
            burst_spacing: Duration::from_secs(2),
            request_timeout: Duration::from_millis(1500),
            max_distance: Duration::from_millis(1500),
            denied_retry: MIN_DENIED_RETRY,
            interleaved: false,
            precise: false,
            allow_smear: false,
        }
    }
}

/// A configuration with which no association can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// Outside the useful range.
    #[error("{name} is {value}, which is not from {min} to {max}; change it")]
    Span {
        /// The field.
        name: &'static str,
        /// The configured value.
        value: Duration,
        /// Smallest permitted.
        min: Duration,
        /// Largest permitted.
        max: Duration,
    },
    /// Outside 1 to 16.
    #[error("burst_count is {value}, which is not from 1 (no burst) to 16; change it")]
    BurstCount {
        /// The configured value.
        value: u32,
    },
    /// The requests of one poll would run into the next poll.
    #[error(
        "{burst} requests per poll, {spacing} apart, do not fit into the interval of {interval}; send fewer or poll less often"
    )]
    PollBurst {
        /// Requests per poll.
        burst: u32,
        /// Their spacing.
        spacing: Duration,
        /// The interval between polls.
        interval: Duration,
    },
}

impl Config {
    /// Checks every field and their relations.
    ///
    /// # Errors
    /// Reports the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        // 2^-6 s is the fastest that chrony offers; 2^17 s is MAXPOLL of RFC 5905 section 7.2.
        let (fastest, slowest) = (Duration::from_micros(15_625), Duration::from_secs(1 << 17));
        let spans = [
            ("poll_min", self.poll_min, fastest, slowest),
            ("poll_max", self.poll_max, self.poll_min, slowest),
            ("burst_spacing", self.burst_spacing, fastest, slowest),
            ("request_timeout", self.request_timeout, Duration::from_millis(1), MAX_TIMEOUT),
            ("max_distance", self.max_distance, Duration::from_millis(1), Duration::from_secs(16)),
            ("denied_retry", self.denied_retry, MIN_DENIED_RETRY, Duration::from_secs(1 << 20)),
        ];
        for (name, value, min, max) in spans {
            if value < min || value > max {
                return Err(ConfigError::Span { name, value, min, max });
            }
        }
        check_burst_count(self.burst_count)
    }

    /// Checks that a poll of `burst` requests, `burst_spacing` apart, ends before the next poll.
    ///
    /// # Errors
    /// When `burst` is not from 1 to 16, or too large for the interval.
    pub fn check_poll_burst(&self, burst: u32) -> Result<(), ConfigError> {
        check_burst_count(burst)?;
        let spacing = self.burst_spacing;
        let needed: Duration = (1..burst).map(|_| spacing).sum();
        if burst > 1 && needed + spacing > self.poll_min {
            return Err(ConfigError::PollBurst { burst, spacing, interval: self.poll_min });
        }
        Ok(())
    }
}

fn check_burst_count(count: u32) -> Result<(), ConfigError> {
    if (1..=16).contains(&count) { Ok(()) } else { Err(ConfigError::BurstCount { value: count }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        assert_eq!(Config::default().validate(), Ok(()));
    }

    #[test]
    fn every_field_is_checked() {
        type Mistake = fn(&mut Config);
        let wrong: [(&str, Mistake); 8] = [
            ("poll_min is 0 ns", |c| c.poll_min = Duration::ZERO),
            ("poll_max is 15.000 s", |c| c.poll_max = Duration::from_secs(15)),
            ("burst_spacing is -1.000 s", |c| c.burst_spacing = Duration::from_secs(-1)),
            ("request_timeout is 0 ns", |c| c.request_timeout = Duration::ZERO),
            ("max_distance is 17.000 s", |c| c.max_distance = Duration::from_secs(17)),
            ("denied_retry is 3599.000 s", |c| c.denied_retry = Duration::from_secs(3599)),
            ("burst_count is 0", |c| c.burst_count = 0),
            ("request_timeout is 17.000 s", |c| c.request_timeout = Duration::from_secs(17)),
        ];
        for (start, change) in wrong {
            let mut config = Config::default();
            change(&mut config);
            let text = config.validate().unwrap_err().to_string();
            assert!(text.starts_with(start), "{text}");
        }
    }
}
