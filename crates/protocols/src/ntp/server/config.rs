//! Every tunable of the server, with its unit and the reason for its default.
//!
//! What it does not do: read files. The daemon maps its TOML onto this and calls
//! [`Config::validate`].

use timevisor_time::Duration;

use super::access::{Prefix, local_networks};

/// Which clients the server answers, and how often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Address prefixes that are answered. Default: this machine, its links and private networks,
    /// so that a server on a public address is not open to the world by accident.
    pub allow: Vec<Prefix>,
    /// Address prefixes that are not answered, where they are longer than an allowed one. Default:
    /// none.
    pub deny: Vec<Prefix>,
    /// How many clients (addresses) are remembered for the rate limit and the interleaved mode; 160
    /// bytes each, allocated once. A new client replaces the one that was silent longest. Default
    /// 8192.
    pub clients: usize,
    /// Each address gets one answer per this span in the long run; zero turns the limit off.
    /// Default 500 ms: twice as often as the fastest usual poll (1 s).
    pub rate_interval: Duration,
    /// The number of requests that may come at once. Default 16: two initial bursts of eight.
    pub rate_burst: u32,
    /// Answer in the interleaved mode (RFC 9769) when a client asks for it. Default on: only such
    /// clients cost anything.
    pub interleaved: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            allow: local_networks(),
            deny: Vec::new(),
            clients: 8192,
            rate_interval: Duration::from_millis(500),
            rate_burst: 16,
            interleaved: true,
        }
    }
}

/// A configuration with which no server can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// Too few to be useful, or too much memory.
    #[error("clients is {0}, which is not from 16 to 1048576; change it")]
    Clients(usize),
    /// Negative, or so large that no client is served.
    #[error("rate_interval is {0}, which is not from 0 (no limit) to 1024 s; change it")]
    RateInterval(Duration),
    /// Nothing would be answered, or the limit would be meaningless.
    #[error("rate_burst is {0}, which is not from 1 to 1024; change it")]
    RateBurst(u32),
}

impl Config {
    /// Checks every field.
    ///
    /// # Errors
    /// Reports the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !(16..=1 << 20).contains(&self.clients) {
            return Err(ConfigError::Clients(self.clients));
        }
        if self.rate_interval.is_negative() || self.rate_interval > Duration::from_secs(1024) {
            return Err(ConfigError::RateInterval(self.rate_interval));
        }
        if !(1..=1024).contains(&self.rate_burst) {
            return Err(ConfigError::RateBurst(self.rate_burst));
        }
        Ok(())
    }

    /// Returns the poll field of replies, log2 s: the smallest that the rate limit permits
    /// permanently.
    pub(super) fn suggested_poll(&self) -> i8 {
        let fits = |poll: &i8| super::super::format::log2_span(*poll) >= self.rate_interval;
        (-6..=10).find(fits).unwrap_or(10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_every_field_is_checked() {
        assert_eq!(Config::default().validate(), Ok(()));
        type Mistake = fn(&mut Config);
        let wrong: [(&str, Mistake); 5] = [
            ("clients is 15", |c| c.clients = 15),
            ("clients is 1048577", |c| c.clients = (1 << 20) + 1),
            ("rate_interval is -1.000 s", |c| c.rate_interval = Duration::from_secs(-1)),
            ("rate_interval is 1025.000 s", |c| c.rate_interval = Duration::from_secs(1025)),
            ("rate_burst is 0", |c| c.rate_burst = 0),
        ];
        for (start, change) in wrong {
            let mut config = Config::default();
            change(&mut config);
            let text = config.validate().unwrap_err().to_string();
            assert!(text.starts_with(start), "{text}");
        }
    }

    #[test]
    fn the_poll_suggested_keeps_within_the_limit() {
        for (millis, poll) in [(0, -6), (500, -1), (501, 0), (1000, 0), (8000, 3), (1_024_000, 10)]
        {
            let config =
                Config { rate_interval: Duration::from_millis(millis), ..Config::default() };
            assert_eq!(config.suggested_poll(), poll, "{millis} ms");
        }
    }
}
