//! The earliest time of the next key establishment (RFC 8915 section 4.2).
//!
//! The interval grows with every attempt until keys were *used* successfully: a server whose keys
//! never work is asked as rarely as one that does not answer.
//!
//! What it does not do: establish keys.

use timevisor_time::Duration;

use super::config::Config;

/// The schedule of attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry {
    config: Config,
    /// When the last attempt began.
    last: Option<Duration>,
    /// The interval after the attempts since the last success.
    grown: Option<Duration>,
}

impl Retry {
    /// Makes a schedule without attempts: the first may begin at any time.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self { config, last: None, grown: None }
    }

    /// Returns when the next attempt may begin; far in the past for the first.
    #[must_use]
    pub fn at(&self) -> Duration {
        let interval = self.grown.unwrap_or(self.config.retry_min);
        self.last.map_or(Duration::from_bits(i128::MIN), |last| last + interval)
    }

    /// Records that an attempt begins.
    pub fn began(&mut self, now: Duration) {
        self.last = Some(now);
        let percent = i128::from(self.config.retry_growth_percent);
        self.grown = Some(match self.grown {
            None => self.config.retry_min,
            Some(interval) => {
                Duration::from_bits(interval.to_bits() * percent / 100).min(self.config.retry_max)
            }
        });
    }

    /// Records that an answer was authenticated with the keys of the last attempt.
    pub fn succeeded(&mut self) {
        self.grown = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(retry: &mut Retry, count: usize) -> Vec<f64> {
        let mut gaps = Vec::new();
        for _ in 0..count {
            let began = retry.at().max(Duration::ZERO);
            retry.began(began);
            gaps.push((retry.at() - began).as_secs_f64());
        }
        gaps
    }

    /// RFC 8915 section 4.2: t = min(10 * 1.5^(n-1), maximum).
    #[test]
    fn intervals_grow_by_half_to_the_maximum() {
        let mut retry = Retry::new(Config::default());
        assert!(retry.at() < Duration::from_secs(-1_000_000), "the first may begin at once");
        assert_eq!(gaps(&mut retry, 5), [10.0, 15.0, 22.5, 33.75, 50.625]);
        assert_eq!(gaps(&mut retry, 20).last(), Some(&3600.0));
    }

    #[test]
    fn only_use_resets_the_interval() {
        let mut retry = Retry::new(Config::default());
        gaps(&mut retry, 4);
        retry.succeeded();
        assert_eq!(gaps(&mut retry, 2), [10.0, 15.0]);
    }
}
