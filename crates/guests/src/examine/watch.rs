//! [`Watch`]: what one helper was asked, for how long, and whose process is to blame when it hangs.
//!
//! A helper answers in order, so the oldest question is the one that it is at. When that takes too
//! long, or the helper ends over it, the process in question is left alone for a while, longer each
//! time, and the questions behind it are asked again of another helper. Pure: it neither starts nor
//! kills anything.

use std::collections::{HashMap, VecDeque};

use timevisor_linux::process::Process;
use timevisor_time::Duration;

use super::message::{Asked, Question};

/// An answer takes less than a millisecond, and some more on a busy host.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for a helper that computes or waits for a processor, and does not hang.
const PATIENCE_WHILE_RUNNING: Duration = Duration::from_secs(10);
/// How long a process is left alone after the first time, the second, and so on.
const LEFT_ALONE_S: [i64; 4] = [10, 60, 300, 3600];
/// Questions that one helper may have before it.
const MOST: usize = 1024;

/// A question cannot be asked now, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Its process has been to blame, and is left alone for this long. (The text is the same all the
    /// while: what changes would be said again.)
    #[error("the process keeps its memory or its files from being read; it is asked again later")]
    LeftAlone(Duration),
    /// The helper has too many questions.
    #[error("too many questions wait for answers")]
    Busy,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    times: usize,
    until: Duration,
}

/// What is to be done when a helper did not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hung {
    /// Whose process is to blame, and the number of the question; `None` when nothing was asked.
    pub culprit: Option<(Process, u64)>,
    /// The questions that have to be asked again.
    pub again: Vec<Asked>,
}

/// The questions of one helper.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    asked: VecDeque<Asked>,
    /// Since when the helper is at the oldest question.
    since: Duration,
    faults: HashMap<Process, Fault>,
}

impl Watch {
    /// A question, with this number, to be sent now.
    ///
    /// # Errors
    /// When it must not be asked.
    pub fn ask(
        &mut self,
        number: u64,
        process: Process,
        question: Question,
        now: Duration,
    ) -> Result<Asked, Refused> {
        if let Some(fault) = self.faults.get(&process).filter(|fault| now < fault.until) {
            return Err(Refused::LeftAlone(fault.until - now));
        }
        if self.asked.len() >= MOST {
            return Err(Refused::Busy);
        }
        if self.asked.is_empty() {
            self.since = now;
        }
        let asked = Asked { number, process, question };
        self.asked.push_back(asked.clone());
        Ok(asked)
    }

    /// The questions without an answer, in order.
    pub fn waiting(&self) -> impl Iterator<Item = &Asked> {
        self.asked.iter()
    }

    /// Takes an answer in. Returns whose process it is about; `None` when nothing like it was asked.
    pub fn answered(&mut self, number: u64, now: Duration) -> Option<Process> {
        if self.asked.front()?.number != number {
            return None;
        }
        self.since = now;
        self.asked.pop_front().map(|asked| asked.process)
    }

    /// When to look whether the helper hangs.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        (!self.asked.is_empty()).then(|| self.since + PATIENCE)
    }

    /// Whether the helper hangs. `runs`: it computes or waits for a processor.
    #[must_use]
    pub fn hangs(&self, now: Duration, runs: bool) -> bool {
        let patience = if runs { PATIENCE_WHILE_RUNNING } else { PATIENCE };
        !self.asked.is_empty() && now >= self.since + patience
    }

    /// The helper hangs, or has ended: the oldest question is to blame.
    pub fn blame(&mut self, now: Duration) -> Hung {
        // Processes that were to blame long ago have ended, or were forgiven.
        let longest = Duration::from_secs(LEFT_ALONE_S[LEFT_ALONE_S.len() - 1]);
        self.faults.retain(|_, fault| now < fault.until + longest);
        let oldest = self.asked.pop_front();
        if let Some(Asked { process, .. }) = &oldest {
            let times = self.faults.get(process).map_or(0, |fault| fault.times);
            let seconds = LEFT_ALONE_S[times.min(LEFT_ALONE_S.len() - 1)];
            let until = now + Duration::from_secs(seconds);
            self.faults.insert(*process, Fault { times: times + 1, until });
        }
        self.since = now;
        let culprit = oldest.map(|asked| (asked.process, asked.number));
        Hung { culprit, again: self.asked.iter().cloned().collect() }
    }

    /// Nothing is asked any more. Returns what was.
    pub fn give_up(&mut self) -> Vec<Asked> {
        self.asked.drain(..).collect()
    }

    /// Whether it has to be kept: something is asked, or somebody was to blame lately.
    #[must_use]
    pub fn remembers(&self, now: Duration) -> bool {
        let longest = Duration::from_secs(LEFT_ALONE_S[LEFT_ALONE_S.len() - 1]);
        !self.asked.is_empty() || self.faults.values().any(|fault| now < fault.until + longest)
    }

    /// Forgives a process: root has said that it be examined.
    pub fn forgive(&mut self, process: Process) {
        self.faults.remove(&process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: i64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn answers_come_in_order_and_others_are_not_taken() {
        let mut watch = Watch::default();
        let (a, b) = (Process::new(10), Process::new(11));
        watch.ask(1, a, Question::Examine, at(0)).unwrap();
        watch.ask(2, b, Question::Examine, at(1)).unwrap();
        assert_eq!(watch.deadline(), Some(at(2)));
        assert_eq!((watch.answered(2, at(1)), watch.answered(7, at(1))), (None, None));
        assert_eq!(watch.answered(1, at(1)), Some(a));
        assert_eq!((watch.answered(1, at(1)), watch.deadline()), (None, Some(at(3))));
        assert_eq!(watch.answered(2, at(2)), Some(b));
        assert_eq!((watch.deadline(), watch.answered(2, at(2))), (None, None));
    }

    #[test]
    fn the_oldest_question_is_to_blame_and_the_others_are_asked_again() {
        let mut watch = Watch::default();
        let (bad, good) = (Process::new(10), Process::new(11));
        watch.ask(1, bad, Question::Examine, at(0)).unwrap();
        let second = watch.ask(2, good, Question::Examine, at(0)).unwrap();
        assert!(!watch.hangs(at(1), false) && watch.hangs(at(2), false));
        assert!(!watch.hangs(at(9), true) && watch.hangs(at(10), true));
        let hung = watch.blame(at(2));
        assert_eq!(hung, Hung { culprit: Some((bad, 1)), again: vec![second] });
        assert!(watch.remembers(at(3600)) && !Watch::default().remembers(at(2)));
        assert!(!watch.hangs(at(3), false), "the next helper has its time");
        assert_eq!(watch.answered(2, at(3)), Some(good));
        // Left alone ever longer.
        assert_eq!(watch.ask(3, bad, Question::Examine, at(3)), Err(Refused::LeftAlone(at(9))));
        let mut now = at(12);
        for longer in [60, 300, 3600, 3600] {
            watch.ask(4, bad, Question::Examine, now).unwrap();
            assert_eq!(watch.blame(now).culprit, Some((bad, 4)));
            now += at(longer);
            assert!(watch.ask(5, bad, Question::Examine, now - at(1)).is_err());
        }
        watch.forgive(bad);
        assert!(watch.ask(6, bad, Question::Examine, now - at(1)).is_ok());
    }

    #[test]
    fn a_helper_that_ends_without_a_question_blames_nobody() {
        let mut watch = Watch::default();
        assert_eq!(watch.blame(at(1)), Hung { culprit: None, again: Vec::new() });
        for number in 0..1024 {
            watch.ask(number, Process::new(1), Question::Examine, at(1)).unwrap();
        }
        let more = watch.ask(1024, Process::new(1), Question::Examine, at(1));
        assert_eq!(more, Err(Refused::Busy));
        assert_eq!((watch.give_up().len(), watch.deadline()), (1024, None));
    }
}
