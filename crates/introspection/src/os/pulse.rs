//! Detects that a kernel other than the introspected one runs. No event reports a kexec: the old
//! kernel stays in memory with all trap points, and only its heartbeat stops.

use timevisor_time::Duration;

/// How long a heartbeat may stand still. Even an idle kernel ticks every few seconds.
pub const SILENCE: Duration = Duration::from_nanos(10_000_000_000);
/// Longest wait between two searches for another kernel. A search of a large guest takes seconds of
/// processor time, so the wait doubles after every search that finds none.
const LONGEST: Duration = Duration::from_nanos(640_000_000_000);

/// How often the heartbeat is read.
const INTERVAL: Duration = Duration::from_nanos(1_000_000_000);

/// What a reading of the heartbeat means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    /// The kernel runs, or may still run.
    Well,
    /// The heartbeat decreased: the guest has booted again, with its kernel at the same address.
    Restarted,
    /// The heartbeat has stood still for a while: the kernel is idle or paused, or another one
    /// runs. The caller should look for one.
    Silent,
}

/// The history of a kernel's heartbeat.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pulse {
    last: Option<u64>,
    due_at: Duration,
    /// When to search for another kernel, and the wait before that search.
    look: Option<(Duration, Duration)>,
}

impl Pulse {
    /// Whether to read the heartbeat now; true once per interval.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.due_at;
        if is_due {
            self.due_at = now + INTERVAL;
        }
        is_due
    }

    /// Takes a reading; `None` if the guest has no heartbeat, or it cannot be read.
    pub fn take(&mut self, heartbeat: Option<u64>, now: Duration) -> Sign {
        let Some(beat) = heartbeat else { return Sign::Well };
        match self.last.replace(beat) {
            Some(last) if beat < last => return Sign::Restarted,
            Some(last) if beat == last => {}
            _ => self.look = Some((now + SILENCE, SILENCE)),
        }
        match &mut self.look {
            Some((at, wait)) if now >= *at => {
                *wait = LONGEST.min(*wait + *wait);
                *at = now + *wait;
                Sign::Silent
            }
            _ => Sign::Well,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Duration {
        Duration::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn one_that_stands_still_is_looked_after_less_and_less() {
        let mut pulse = Pulse::default();
        let silent: Vec<i64> =
            (0..2000).filter(|s| pulse.take(Some(7), at(*s)) == Sign::Silent).collect();
        assert_eq!(silent, [10, 30, 70, 150, 310, 630, 1270, 1910]);
        // After a single beat, the wait starts at its minimum again.
        assert_eq!(pulse.take(Some(8), at(2000)), Sign::Well);
        assert_eq!(pulse.take(Some(8), at(2009)), Sign::Well);
        assert_eq!(pulse.take(Some(8), at(2010)), Sign::Silent);
    }

    #[test]
    fn it_is_read_once_a_second() {
        let mut pulse = Pulse::default();
        let ms = |ms: i64| Duration::from_nanos(ms * 1_000_000);
        let read = (0..5000).step_by(20).filter(|now| pulse.is_due(ms(*now))).count();
        assert_eq!(read, 5);
    }

    #[test]
    fn one_that_beats_is_well() {
        let mut pulse = Pulse::default();
        assert!((0..100).all(|s| pulse.take(Some(s / 5), at(s.cast_signed())) == Sign::Well));
        assert_eq!(pulse.take(Some(3), at(100)), Sign::Restarted);
        let mut without = Pulse::default();
        assert!((0..100).all(|s| without.take(None, at(s)) == Sign::Well));
    }
}
