//! What is written where: appends, rotation, torn lines and lost records.
//!
//! A state machine without files. Its caller carries out one [`Action`] at a time and says how that
//! went; after a failure it shows what the files contain now, and goes on. Nothing is ever truncated
//! or written over, so the files may be append-only for the file system, too (`chattr +a`).
//!
//! | after | the log goes on with |
//! | --- | --- |
//! | kill -9 or a power failure in the middle of a line | a line feed, and a `torn` line that counts and hashes the torn bytes |
//! | a full disk | the same, and what was recorded meanwhile; if that was too much, a `gap` line with the number |
//! | a file that is full | another file, whose first line has the hash of this one's last |

use std::collections::VecDeque;

use crate::event::{Event, FORMAT};
use crate::file_name;
use crate::line::{Head, Line, hash};
use crate::stamp::Stamp;

/// Records that wait for a disk; the oldest are lost first.
const MOST_WAITING: usize = 2_000;
/// Bytes of one append, about.
const MOST_AT_ONCE: usize = 64 << 10;

/// Which files stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// This many, with the one that is written.
    Files(u64),
    /// Those that were written to within this many ns.
    Age(i64),
}

/// How files are rotated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// A file that would exceed this many bytes is full.
    pub rotate: u64,
    /// Which files stay.
    pub keep: Keep,
}

/// What to do with the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Append to this file, and make the data durable (fdatasync).
    Append {
        /// The file's number.
        file: u64,
        /// What to write, in one write(2).
        bytes: Vec<u8>,
    },
    /// Create this file, which must not exist, with this content, and make it durable.
    Create {
        /// The file's number.
        file: u64,
        /// The content.
        bytes: Vec<u8>,
    },
    /// Delete this file.
    Remove {
        /// The file's number.
        file: u64,
    },
}

/// A file of the log that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its number.
    pub number: u64,
    /// When it was last written to, ns since 1970.
    pub modified_ns: i64,
    /// Its length, bytes.
    pub length: u64,
}

/// The bytes after a file's last line that are none.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Torn {
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Lost {
    count: u64,
    since: Stamp,
    until: Stamp,
}

/// One line of an append, and what no longer waits once it is there.
#[derive(Clone, Debug)]
struct Step {
    head: Head,
    written: usize,
    names_lost: bool,
}

/// What an action leads to.
#[derive(Debug)]
enum Pending {
    Removal,
    Lines { steps: Vec<Step>, file: Found, is_new: bool },
}

/// The writing end of a log.
#[derive(Debug)]
pub struct Journal {
    settings: Settings,
    head: Head,
    /// Ascending; the last one is written.
    files: Vec<Found>,
    torn: Option<Torn>,
    /// The last line is whole but for its line feed.
    lacks_line_feed: bool,
    waiting: VecDeque<(Stamp, Event)>,
    lost: Option<Lost>,
    pending: Option<Pending>,
    /// The lines of an append that failed, as far as is known.
    attempt: Vec<Step>,
    /// Why the last action failed, until one succeeds.
    trouble: Option<String>,
    /// When a file last became full: old ones may have to go.
    tidy: Option<Stamp>,
}

impl Journal {
    /// A log of which nothing is known yet: [`Self::find`] comes first.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            head: Head::default(),
            files: Vec::new(),
            torn: None,
            lacks_line_feed: false,
            waiting: VecDeque::new(),
            lost: None,
            pending: None,
            attempt: Vec::new(),
            trouble: None,
            tidy: None,
        }
    }

    /// Takes in what is there, at the start and after each failure. `end_of` reads the last bytes of
    /// a file: all of it, or at least [`crate::line::LONGEST`] times four.
    ///
    /// # Errors
    /// Those of `end_of`; nothing has changed then.
    pub fn find<E>(
        &mut self,
        mut files: Vec<Found>,
        mut end_of: impl FnMut(&Found) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        files.sort_by_key(|file| file.number);
        let mut torn = Vec::new();
        let mut head = Head::default();
        self.lacks_line_feed = false;
        for (age, file) in files.iter().rev().enumerate() {
            let bytes = end_of(file)?;
            let (found, rest) = last_line(&bytes);
            if age == 0 {
                self.lacks_line_feed =
                    rest.is_empty() && !bytes.is_empty() && !bytes.ends_with(b"\n");
                torn = rest;
            }
            if let Some(found) = found {
                head = found;
                break;
            }
        }
        self.torn = (!torn.is_empty()).then_some(Torn { bytes: torn });
        (self.files, self.head, self.pending) = (files, head, None);
        // What failed may have reached the file nevertheless: the disk did not say that it is durable.
        for step in std::mem::take(&mut self.attempt) {
            if step.head == self.head {
                self.waiting.drain(..step.written);
                self.lost = self.lost.take().filter(|_| !step.names_lost);
            }
        }
        Ok(())
    }

    /// The last line that was written.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The number of the file that is written; `None` before the first.
    #[must_use]
    pub fn file(&self) -> Option<u64> {
        self.files.last().map(|file| file.number)
    }

    /// How many torn bytes the next line will name.
    #[must_use]
    pub fn torn_bytes(&self) -> usize {
        self.torn.as_ref().map_or(0, |torn| torn.bytes.len())
    }

    /// How many records wait, and how many are lost.
    #[must_use]
    pub fn backlog(&self) -> (usize, u64) {
        (self.waiting.len(), self.lost.as_ref().map_or(0, |lost| lost.count))
    }

    /// A record, to be written as soon as possible.
    pub fn push(&mut self, stamp: Stamp, event: Event) {
        self.waiting.push_back((stamp, event));
        // One that is being written may have reached the disk: it is not lost.
        let may_drop = self.pending.is_none() && self.attempt.is_empty();
        if self.waiting.len() > MOST_WAITING && may_drop {
            let Some((stamp, _)) = self.waiting.pop_front() else { return };
            let lost = self.lost.get_or_insert(Lost { count: 0, since: stamp, until: stamp });
            (lost.count, lost.until) = (lost.count + 1, stamp);
        }
    }

    /// The next thing to do; `None` when nothing is due. [`Self::done`] must follow.
    pub fn next_action(&mut self) -> Option<Action> {
        if let Some(file) = self.outdated() {
            self.pending = Some(Pending::Removal);
            return Some(Action::Remove { file });
        }
        let stamp = self.waiting.front()?.0;
        let current = self.files.last();
        if let Some(current) = current {
            // What repairs a file stays in it, whatever its size.
            let whole = current.length == 0 || self.torn.is_some();
            let header = (current.length == 0).then(|| self.files.iter().rev().nth(1));
            let (steps, bytes) = self.composed(stamp, header);
            let length = current.length + bytes.len() as u64;
            if whole || length <= self.settings.rotate {
                let file = Found { number: current.number, modified_ns: stamp.latest_ns, length };
                let action = Action::Append { file: file.number, bytes };
                self.pending = Some(Pending::Lines { steps, file, is_new: false });
                return Some(action);
            }
        }
        let number = current.map_or(1, |file| file.number + 1);
        let (steps, bytes) = self.composed(stamp, Some(current));
        let file = Found { number, modified_ns: stamp.latest_ns, length: bytes.len() as u64 };
        self.pending = Some(Pending::Lines { steps, file, is_new: true });
        Some(Action::Create { file: number, bytes })
    }

    /// The next lines. `header`: a file begins with them, after this one if there was one.
    fn composed(&self, stamp: Stamp, header: Option<Option<&Found>>) -> (Vec<Step>, Vec<u8>) {
        let (mut head, mut bytes, mut steps) = (self.head.clone(), Vec::new(), Vec::new());
        let mut add = |stamp, event: &Event, written, names_lost, bytes: &mut Vec<u8>| {
            head.append(stamp, event, bytes);
            steps.push(Step { head: head.clone(), written, names_lost });
        };
        if self.lacks_line_feed && header.is_none() {
            bytes.push(b'\n');
        }
        if let Some(Torn { bytes: torn }) = &self.torn {
            let mut region = torn.clone();
            if !region.ends_with(b"\n") {
                bytes.push(b'\n');
                region.push(b'\n');
            }
            let event = Event::Torn { bytes: region.len() as u64, sha256: hash(&region) };
            add(stamp, &event, 0, false, &mut bytes);
        }
        if let Some(previous) = header {
            let previous = previous.map(|file| file_name(file.number));
            add(stamp, &Event::File { format: FORMAT, previous }, 0, false, &mut bytes);
        }
        if let Some(lost) = &self.lost {
            let gap = Event::Gap {
                lost: lost.count,
                since: lost.since.interval(),
                until: lost.until.interval(),
                reason: self.trouble.clone().unwrap_or_else(|| "not known".to_owned()),
            };
            add(stamp, &gap, 0, true, &mut bytes);
        }
        for (index, (stamp, event)) in self.waiting.iter().enumerate() {
            if index > 0 && bytes.len() >= MOST_AT_ONCE {
                break;
            }
            add(*stamp, event, index + 1, true, &mut bytes);
        }
        (steps, bytes)
    }

    /// What became of the last action. After an error, [`Self::find`] comes before the next one.
    pub fn done(&mut self, outcome: Result<(), String>) {
        match (self.pending.take(), outcome) {
            (None, _) => {}
            // It stays, and is looked at again after the next rotation.
            (Some(Pending::Removal), Err(_)) => self.tidy = None,
            (Some(Pending::Removal), Ok(())) => drop(self.files.remove(0)),
            (Some(Pending::Lines { steps, .. }), Err(reason)) => {
                (self.trouble, self.attempt) = (Some(reason), steps);
            }
            (Some(Pending::Lines { steps, file, is_new }), Ok(())) => {
                let written = steps.last().map_or(0, |step| step.written);
                let stamp = self.waiting.drain(..written).next_back().map(|(stamp, _)| stamp);
                if is_new {
                    self.tidy = stamp;
                } else {
                    self.files.pop();
                }
                self.files.push(file);
                if let Some(step) = steps.into_iter().next_back() {
                    self.head = step.head;
                }
                (self.torn, self.lost, self.trouble) = (None, None, None);
                self.lacks_line_feed = false;
            }
        }
    }

    /// The oldest file, if it need not stay.
    fn outdated(&self) -> Option<u64> {
        let now = self.tidy?;
        let oldest = self.files.first().filter(|_| self.files.len() > 1)?;
        let is_outdated = match self.settings.keep {
            Keep::Files(most) => self.files.len() as u64 > most,
            // A clock that is not vouched for could be years ahead.
            Keep::Age(span) => now.vouched && now.earliest_ns - oldest.modified_ns > span,
        };
        is_outdated.then_some(oldest.number)
    }
}

/// The last line of a file, and the bytes behind it.
fn last_line(bytes: &[u8]) -> (Option<Head>, Vec<u8>) {
    let mut end = bytes.len();
    // From the back: complete lines, the last one first.
    let mut is_end = bytes.ends_with(b"\n");
    loop {
        let text_end = if is_end { end.saturating_sub(1) } else { end };
        let start =
            bytes[..text_end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if let Ok(line) = Line::parse(&bytes[start..text_end]) {
            let head = Head { seq: line.seq, hash: hash(&bytes[start..text_end]) };
            return (Some(head), bytes[end..].to_vec());
        }
        if start == 0 {
            return (None, bytes.to_vec());
        }
        (end, is_end) = (start, true);
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
