//! The best accuracy that a clock had in the last minutes: the base of admission. A requirement
//! below it cannot be met, however often references are asked.

use timevisor_clock_page::Lines;
use timevisor_time::Duration;

use crate::publication::ClockState;

/// The best is remembered for one to two of these, so a path that got worse is known to be so after
/// that time.
const WINDOW: Duration = Duration::from_secs(600);

/// How accurate lines are at one counter value, rounded up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accuracy {
    /// Estimate - earliest, ns.
    pub below_ns: u64,
    /// Latest - estimate, ns.
    pub above_ns: u64,
    /// One sigma of the estimate, ns, where known.
    pub estimated_error_ns: Option<u64>,
}

impl Accuracy {
    /// Of these lines at this counter value; an error of [`Duration::MAX`] is not known.
    #[must_use]
    pub fn of<S>(lines: &Lines<S>, estimated_error: Duration, counter: u64) -> Self {
        let at = lines.at(counter);
        let ns = |span: Duration| u64::try_from(span.ceil_nanos()).unwrap_or(0);
        Self {
            below_ns: ns(at.estimate - at.earliest),
            above_ns: ns(at.latest - at.estimate),
            estimated_error_ns: (estimated_error < Duration::MAX).then(|| ns(estimated_error)),
        }
    }

    /// The better of each figure.
    fn or(self, other: Self) -> Self {
        let errors = self.estimated_error_ns.into_iter().chain(other.estimated_error_ns);
        Self {
            below_ns: self.below_ns.min(other.below_ns),
            above_ns: self.above_ns.min(other.above_ns),
            estimated_error_ns: errors.min(),
        }
    }
}

/// The best accuracy in two windows: the present one and the one before.
#[derive(Clone, Debug, Default)]
pub struct Achievable {
    previous: Option<Accuracy>,
    present: Option<Accuracy>,
    began: Option<Duration>,
}

impl Achievable {
    /// Takes in a publication. `now` is monotonic time, `counter` the value to judge the lines at.
    pub fn observe(&mut self, now: Duration, state: &ClockState, counter: u64) {
        let began = *self.began.get_or_insert(now);
        if now - began >= WINDOW {
            (self.previous, self.present) = (self.present.take(), None);
            self.began = Some(now);
        }
        let Some(lines) = &state.lines else { return };
        let seen = Accuracy::of(lines, state.estimated_error, counter);
        self.present = Some(self.present.map_or(seen, |best| best.or(seen)));
    }

    /// The best of the last one to two windows; `None` while nothing was known.
    #[must_use]
    pub fn best(&self) -> Option<Accuracy> {
        match (self.previous, self.present) {
            (Some(previous), Some(present)) => Some(previous.or(present)),
            (one, other) => one.or(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use timevisor_clock_page::{ClockStatus, Line};
    use timevisor_time::{Instant, Period};

    use super::*;

    fn state(half_width_ns: i64) -> ClockState {
        let period = Period::from_hz(1_000_000_000).unwrap();
        let line =
            |ns: i64| Line { time: Instant::from_bits(0) + Duration::from_nanos(ns), period };
        ClockState {
            lines: Some(Lines {
                base: 0,
                expiry: 1 << 40,
                earliest: line(-half_width_ns),
                estimate: line(0),
                latest: line(2 * half_width_ns),
                holdover: 0,
            }),
            status: ClockStatus::Synchronized,
            estimated_error: Duration::MAX,
            as_of: 0,
            disruptions: 0,
            origin: 0,
        }
    }

    #[test]
    fn the_best_is_remembered_for_a_while_and_then_forgotten() {
        let mut achievable = Achievable::default();
        assert_eq!(achievable.best(), None);
        let below = |achievable: &Achievable| achievable.best().map(|best| best.below_ns);
        for (seconds, width, best) in
            [(0, 50, 51), (1, 20, 21), (2, 90, 21), (700, 90, 21), (1299, 90, 21), (1400, 90, 91)]
        {
            achievable.observe(Duration::from_secs(seconds), &state(width), 0);
            assert_eq!(below(&achievable), Some(best), "after {seconds} s");
        }
        assert_eq!(achievable.best().unwrap().estimated_error_ns, None);
        let nothing = ClockState { lines: None, ..state(1) };
        achievable.observe(Duration::from_secs(1401), &nothing, 0);
        assert_eq!(below(&achievable), Some(91), "rounded up");
    }
}
