//! Which changes of a state are worth a line in the log.
//!
//! For the states that come back by themselves: of the clock and of its references (`announce.rs`
//! is for everything else). Each change is said once. A state that changes all the time is said to do so, and then nothing
//! until it has been calm: a log that repeats itself for months hides everything else. `timevisor
//! status` always has the present state.

use timevisor_time::Duration;

/// Lines about one state before it counts as restless.
const LINES: u32 = 3;
/// A restless state is calm again after this long without a change.
const CALM: Duration = Duration::from_secs(600);
/// A calm state gets a new line to spend after this time.
const REFILL: Duration = Duration::from_secs(3600);

/// What to log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// The state as it is now.
    Change,
    /// The state as it is now, and that its changes are not said any more until it is calm.
    Restless,
}

/// One state, by a word.
#[derive(Clone, Debug, Default)]
pub struct StateLog {
    seen: String,
    seen_at: Duration,
    told: String,
    lines: u32,
    refilled_at: Duration,
    restless: bool,
}

impl StateLog {
    /// Notes the state `word` and returns what to log, if anything. `first` is the state of a thing
    /// of which nothing is known yet, which is not worth a line.
    pub fn observe(&mut self, now: Duration, word: &str, first: &str) -> Option<Said> {
        if self.seen.is_empty() {
            first.clone_into(&mut self.told);
        }
        if self.seen != word {
            word.clone_into(&mut self.seen);
            self.seen_at = now;
        }
        let calm = now - self.seen_at >= CALM;
        if calm && now - self.refilled_at >= REFILL {
            self.refilled_at = now;
            self.lines = self.lines.saturating_sub(1);
        }
        self.restless &= !calm;
        if self.told == word || self.restless {
            return None;
        }
        word.clone_into(&mut self.told);
        self.lines += 1;
        self.restless = !calm && self.lines >= LINES;
        Some(if self.restless { Said::Restless } else { Said::Change })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words that are logged when the state takes these words at these seconds.
    fn logged(states: impl IntoIterator<Item = (i64, &'static str)>) -> Vec<(i64, Said)> {
        let mut log = StateLog::default();
        let mut said = Vec::new();
        for (second, word) in states {
            let now = Duration::from_secs(second);
            said.extend(log.observe(now, word, "probing").map(|s| (second, s)));
        }
        said
    }

    #[test]
    fn each_change_is_said_once() {
        let day = (0..86_400).map(|s| {
            (
                s,
                if s < 10 {
                    "probing"
                } else if s < 50_000 {
                    "reachable"
                } else {
                    "unreachable"
                },
            )
        });
        assert_eq!(logged(day), [(10, Said::Change), (50_000, Said::Change)]);
    }

    #[test]
    fn a_day_of_alternation_is_three_lines_and_its_end_another() {
        let words = ["reachable", "falseticker"];
        let day = (0..86_400).map(|s| (s, words[usize::from(s / 16 % 2 == 1)]));
        let night = (86_400..90_000).map(|s| (s, "falseticker"));
        let said = logged(day.chain(night));
        assert_eq!(said[..3], [(0, Said::Change), (16, Said::Change), (32, Said::Restless)]);
        assert_eq!(said[3..], [(86_384 + 600, Said::Change)]);
    }

    #[test]
    fn rare_changes_are_always_said() {
        let words = ["reachable", "unreachable"];
        // Every two hours for a month.
        let month = (0..360).flat_map(|n| {
            (0..120).map(move |m| (n * 7200 + m * 60, words[usize::from(n % 2 == 1)]))
        });
        let said = logged(month);
        assert_eq!(said.len(), 360);
        assert!(said.iter().all(|(_, what)| *what == Said::Change));
    }
}
