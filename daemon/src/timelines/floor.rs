//! What could be had of a clock: the best of the last while. The base of admission: a requirement below it cannot be met,
//! however often references are asked.

use timevisor_time::Duration;

use super::clocks::State;

/// The best is remembered for one to two of these: a path that became worse is known to be so after that.
const WINDOW: Duration = Duration::from_secs(600);

/// One quality, rounded up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Best {
    pub below_ns: u64,
    pub above_ns: u64,
    pub estimated_error_ns: Option<u64>,
}

/// Two windows: this one and the one before.
#[derive(Clone, Debug, Default)]
pub struct Floor {
    before: Option<Best>,
    this: Option<Best>,
    began: Option<Duration>,
}

impl Floor {
    /// Takes a publication in, at this value of the counter.
    pub fn observe(&mut self, now: Duration, state: &State, counter: u64) {
        let began = *self.began.get_or_insert(now);
        if now - began >= WINDOW {
            (self.before, self.this) = (self.this.take(), None);
            self.began = Some(now);
        }
        let Some(lines) = &state.lines else { return };
        let at = lines.at(counter);
        let ns = |span: Duration| u64::try_from(span.ceil_nanos()).unwrap_or(0);
        let error = state.estimated_error;
        let seen = Best {
            below_ns: ns(at.estimate - at.earliest),
            above_ns: ns(at.latest - at.estimate),
            estimated_error_ns: (error < Duration::MAX).then(|| ns(error)),
        };
        self.this = Some(self.this.map_or(seen, |best| best.or(seen)));
    }

    /// The best of the last one to two windows; `None` while nothing was known.
    pub fn best(&self) -> Option<Best> {
        match (self.before, self.this) {
            (Some(before), Some(this)) => Some(before.or(this)),
            (one, other) => one.or(other),
        }
    }
}

impl Best {
    /// Side by side.
    fn or(self, other: Self) -> Self {
        let errors = self.estimated_error_ns.into_iter().chain(other.estimated_error_ns);
        Self {
            below_ns: self.below_ns.min(other.below_ns),
            above_ns: self.above_ns.min(other.above_ns),
            estimated_error_ns: errors.min(),
        }
    }
}

#[cfg(test)]
mod tests {
    use timevisor_clock_page::{ClockStatus, Line, Lines};
    use timevisor_time::{Instant, Period};

    use super::*;

    fn state(half_width_ns: i64) -> State {
        let period = Period::from_hz(1_000_000_000).unwrap();
        let line =
            |ns: i64| Line { time: Instant::from_bits(0) + Duration::from_nanos(ns), period };
        State {
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
        }
    }

    #[test]
    fn the_best_is_remembered_for_a_while_and_then_forgotten() {
        let mut floor = Floor::default();
        assert_eq!(floor.best(), None);
        let below = |floor: &Floor| floor.best().map(|best| best.below_ns);
        for (seconds, width, best) in
            [(0, 50, 51), (1, 20, 21), (2, 90, 21), (700, 90, 21), (1299, 90, 21), (1400, 90, 91)]
        {
            floor.observe(Duration::from_secs(seconds), &state(width), 0);
            assert_eq!(below(&floor), Some(best), "after {seconds} s");
        }
        assert_eq!(floor.best().unwrap().estimated_error_ns, None);
        let nothing = State { lines: None, ..state(1) };
        floor.observe(Duration::from_secs(1401), &nothing, 0);
        assert_eq!(below(&floor), Some(91), "rounded up");
    }
}
