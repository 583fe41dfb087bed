//! [`Searching`]: how often a guest's memory may be searched for its kernel.

use timevisor_time::Duration;

/// What the searches of one guest's memory may cost: the guest can make them fail for ever. Ten seconds
/// of a processor at once, and one a minute after that.
pub struct Searching {
    left: f64,
    at: Duration,
    used: Duration,
}

impl Searching {
    const AT_ONCE: f64 = 10.0;
    const A_SECOND: f64 = 1.0 / 60.0;

    /// `used` is what all searches have used so far.
    pub fn new(now: Duration, used: Duration) -> Self {
        Self { left: Self::AT_ONCE, at: now, used }
    }

    /// How long to wait before the next search, if at all; `used` is what all of them have used.
    pub fn pause(&mut self, now: Duration, used: Duration) -> Option<std::time::Duration> {
        let spent = (used - self.used).as_secs_f64();
        let earned = (now - self.at).as_secs_f64() * Self::A_SECOND;
        (self.used, self.at) = (used, now);
        self.left = (self.left - spent + earned).min(Self::AT_ONCE);
        (self.left < 0.0).then(|| std::time::Duration::from_secs_f64(-self.left / Self::A_SECOND))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest whose memory never holds a kernel that runs.
    #[test]
    fn searches_cost_a_second_a_minute_in_the_long_run() {
        let second = Duration::from_secs;
        let mut searching = Searching::new(second(0), second(0));
        let (mut now, mut used) = (0, 0);
        while now < 3600 {
            if searching.pause(second(now), second(used)).is_none() {
                // Each search takes 3 s of a processor.
                (now, used) = (now + 3, used + 3);
            } else {
                now += 1;
            }
        }
        assert!((60..=75).contains(&used), "{used} s of a processor in an hour");
        assert!(searching.pause(second(now + 3600), second(used)).is_none());
    }
}
