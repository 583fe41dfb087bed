//! Whether a helper is alive: it answers a ping a second. Pure: bytes and processes are others'.

use timevisor_time::Duration;

/// Time between an answer and the next ping.
const INTERVAL: Duration = Duration::from_secs(1);
/// An answer takes less than a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same for a helper that computes, waits for a processor or for its program from the disk, and
/// does not hang.
const PATIENCE_WHILE_RUNNING: Duration = Duration::from_secs(20);
/// Time between the first doubt and the verdict: the daemon itself may have been late, and an answer
/// may wait to be read.
const DOUBT: Duration = Duration::from_millis(250);

/// The pings of one helper.
#[derive(Debug)]
pub(super) struct Heartbeat {
    last: u64,
    /// When the last one was sent, if its answer is not there.
    asked: Option<Duration>,
    /// When it was last found missing.
    doubted: Option<Duration>,
    next: Duration,
}

impl Heartbeat {
    /// The first ping is due now.
    pub(super) fn new(now: Duration) -> Self {
        Self { last: 0, asked: None, doubted: None, next: now }
    }

    /// The ping to be sent now, if any.
    pub(super) fn ping(&mut self, now: Duration) -> Option<u64> {
        if self.asked.is_some() || now < self.next {
            return None;
        }
        self.last += 1;
        self.asked = Some(now);
        Some(self.last)
    }

    /// Takes in an answer. Returns false if it was not asked for.
    pub(super) fn answered(&mut self, number: u64, now: Duration) -> bool {
        let expected = self.asked.is_some() && number == self.last;
        if expected {
            (self.asked, self.doubted) = (None, None);
            self.next = now + INTERVAL;
        }
        expected
    }

    /// Whether the helper hangs. `runs`: it computes, or waits for a processor or the disk.
    pub(super) fn hangs(&mut self, now: Duration, runs: impl FnOnce() -> bool) -> bool {
        let Some(asked) = self.asked.filter(|_| now >= self.poll_at()) else { return false };
        if self.doubted.replace(now).is_none() {
            return false;
        }
        now >= asked + PATIENCE_WHILE_RUNNING || !runs()
    }

    /// When to look again.
    pub(super) fn poll_at(&self) -> Duration {
        let missing = |asked| self.doubted.map_or(asked + PATIENCE, |doubted| doubted + DOUBT);
        self.asked.map_or(self.next, missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: i64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn one_ping_at_a_time_and_one_a_second() {
        let mut heart = Heartbeat::new(at(0));
        assert_eq!((heart.ping(at(0)), heart.ping(at(1))), (Some(1), None));
        assert_eq!(heart.poll_at(), at(1000));
        assert!(!heart.answered(2, at(2)) && heart.answered(1, at(2)) && !heart.answered(1, at(2)));
        assert_eq!((heart.poll_at(), heart.ping(at(1001))), (at(1002), None));
        assert_eq!(heart.ping(at(1002)), Some(2));
    }

    #[test]
    fn silence_is_doubted_and_then_a_hang() {
        let mut heart = Heartbeat::new(at(0));
        assert!(!heart.hangs(at(10_000), || false), "nothing was asked");
        heart.ping(at(0));
        assert!(!heart.hangs(at(999), || false) && !heart.hangs(at(1000), || false));
        assert_eq!(heart.poll_at(), at(1250));
        assert!(!heart.hangs(at(1249), || false) && heart.hangs(at(1250), || false));
    }

    #[test]
    fn a_busy_helper_has_longer() {
        let mut heart = Heartbeat::new(at(0));
        heart.ping(at(0));
        for ms in (1000..20_000).step_by(250) {
            assert!(!heart.hangs(at(ms), || true));
            assert_eq!(heart.poll_at(), at(ms + 250));
        }
        assert!(heart.hangs(at(20_000), || true));
    }

    /// A daemon that stood still for a minute finds the answer in time.
    #[test]
    fn a_late_daemon_blames_nobody() {
        let mut heart = Heartbeat::new(at(0));
        heart.ping(at(0));
        assert!(!heart.hangs(at(60_000), || false));
        assert!(heart.answered(1, at(60_001)) && !heart.hangs(at(62_000), || false));
    }
}
