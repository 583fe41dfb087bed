//! Every tunable of NTS, with its unit and the reason for its default.
//!
//! What it does not do: read files. The daemon maps its TOML onto this and calls
//! [`Config::validate`].

use timevisor_time::Duration;

/// The number of cookies that we want to have (RFC 8915 sections 4.1.6 and 5.7).
pub const COOKIES: usize = 8;

/// How to establish and use one server's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Interval between key establishments when nothing has failed, and the first interval after a
    /// failure. Default 10 s (RFC 8915 section 4.2).
    pub retry_min: Duration,
    /// The longest interval between failing key establishments. Default 1 h. RFC 8915 suggests 5
    /// days, for large numbers of unattended clients; after an hour, a server's new certificate
    /// takes effect the same day.
    pub retry_max: Duration,
    /// Factor from one interval to the next, in percent. Default 150 (RFC 8915 section 4.2).
    pub retry_growth_percent: u16,
    /// A key establishment that takes longer, from name lookup to the last record, has failed.
    /// Default 10 s: a TLS handshake needs a few round trips and some milliseconds of the server's
    /// processor.
    pub exchange_timeout: Duration,
    /// Longest request, in bytes of UDP payload. Default 1232: with 48 bytes of IPv6 and UDP
    /// headers it fits the smallest IPv6 MTU, so neither the request nor the equally long answer is
    /// fragmented. With long cookies, fewer placeholders are sent.
    pub max_request: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            retry_min: Duration::from_secs(10),
            retry_max: Duration::from_secs(3600),
            retry_growth_percent: 150,
            exchange_timeout: Duration::from_secs(10),
            max_request: 1232,
        }
    }
}

/// A configuration with which NTS cannot run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A span outside the useful range.
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
    /// A number outside the useful range.
    #[error("{name} is {value}, which is not from {min} to {max}; change it")]
    Number {
        /// The field.
        name: &'static str,
        /// The configured value.
        value: usize,
        /// Smallest permitted.
        min: usize,
        /// Largest permitted.
        max: usize,
    },
}

impl Config {
    /// Checks every field and their relations.
    ///
    /// # Errors
    /// Reports the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (second, days) = (Duration::from_secs(1), Duration::from_secs(432_000));
        let spans = [
            ("retry_min", self.retry_min, second, days),
            ("retry_max", self.retry_max, self.retry_min, days),
            ("exchange_timeout", self.exchange_timeout, second, Duration::from_secs(60)),
        ];
        for (name, value, min, max) in spans {
            if value < min || value > max {
                return Err(ConfigError::Span { name, value, min, max });
            }
        }
        let numbers = [
            ("retry_growth_percent", usize::from(self.retry_growth_percent), 100, 1000),
            // Below the range, a cookie of usual length (100 bytes) would not fit; above it, no
            // Ethernet frame is large enough.
            ("max_request", self.max_request, 320, 1452),
        ];
        for (name, value, min, max) in numbers {
            if value < min || value > max {
                return Err(ConfigError::Number { name, value, min, max });
            }
        }
        Ok(())
    }
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
        let wrong: [(&str, Mistake); 5] = [
            ("retry_min is 0 ns", |c| c.retry_min = Duration::ZERO),
            ("retry_max is 9.000 s", |c| c.retry_max = Duration::from_secs(9)),
            ("retry_growth_percent is 99", |c| c.retry_growth_percent = 99),
            ("exchange_timeout is 61.000 s", |c| c.exchange_timeout = Duration::from_secs(61)),
            ("max_request is 1453", |c| c.max_request = 1453),
        ];
        for (start, change) in wrong {
            let mut config = Config::default();
            change(&mut config);
            let text = config.validate().unwrap_err().to_string();
            assert!(text.starts_with(start), "{text}");
        }
    }
}
