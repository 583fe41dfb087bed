//! [`Recording`]: publications of a timeline in a file, to convert stamps of any age, offline and on
//! any machine.
//!
//! | file | owns |
//! | --- | --- |
//! | `recorder` | [`Recorder`]: appends to a file |
//! | `format` | the bytes |
//!
//! A recording has a segment for each disruption marker. No conclusions are drawn from one segment
//! about another: a stamp in between is refused. So is one that is newer than the last observation,
//! because the clock may have been disrupted right after it.

mod format;
mod recorder;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use timevisor_clock_page::CounterId;
use timevisor_linux::append_file::open_read;
use timevisor_time::TimescaleId;

use crate::difference::{Stretch, is_before};
use crate::error::{ConvertError, ReadError};
use crate::measured_span::MeasuredSpan;
use crate::reading::Reading;
use crate::snapshot::Snapshot;
use format::{HEADER, MAX_TORN, RECORD, Record, Subject, valid_length};
pub use recorder::Recorder;

/// A recording could not be created, continued or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file could not be opened, read or written. Symbolic links are not followed for
    /// appending.
    #[error("cannot use the recording {path}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a recording.
    #[error("this is no recording of a timeline; `timevisor record` makes one")]
    NotARecording,
    /// A recording of another version.
    #[error("the recording has version {0}, this program knows 1; read it with a newer one")]
    Version(u32),
    /// Bytes of the file have changed, or a record belongs to another clock.
    #[error(
        "the recording is damaged at byte {at}; what is before can be read after `truncate --size {at}`"
    )]
    Damaged {
        /// Where the damaged record, or the header, begins.
        at: u64,
    },
    /// The file belongs to another timeline or machine.
    #[error("the file is a recording of {0}; record into another file")]
    OtherClock(String),
    /// Another program appends to it.
    #[error("{} is being recorded to by another program", .0.display())]
    Busy(PathBuf),
    /// The page could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Why reading ended.
enum Failed {
    Source(std::io::Error),
    Recording(RecordingError),
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self::Source(error)
    }
}

impl From<RecordingError> for Failed {
    fn from(error: RecordingError) -> Self {
        Self::Recording(error)
    }
}

/// Publications under one disruption marker.
#[derive(Debug)]
struct Stored {
    publications: Vec<Snapshot>,
    /// The counter value at the last observation.
    until: u64,
}

/// A part of a recording without a disruption.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The first counter value that can be converted.
    pub since: u64,
    /// The last one.
    pub until: u64,
    /// Number of publications.
    pub publications: usize,
    /// [`Reading::disruption`] of all its publications.
    pub disruption: u64,
}

/// A timeline's past. It needs no page and no timevisord.
///
/// ```
/// use std::time::Duration;
/// use timevisor::Recording;
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("tai.rec");
/// let clock = timevisor::manual::Clock::new(1_000_000_000);
/// let timeline = clock.timeline();
/// let mut recorder = timeline.record_to(&file)?;
/// let begin = timeline.stamp();
/// clock.advance(Duration::from_millis(10));
/// let end = timeline.stamp();
/// recorder.observe()?; // every 100 ms
/// drop(recorder);
///
/// let recording = Recording::open(&file)?; // perhaps years later, on another machine
/// assert_eq!(recording.convert(begin)?.estimate_ns(), 1_000_000_000);
/// assert_eq!(recording.span(begin, end)?.estimate_ns(), 10_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Recording {
    subject: Subject,
    stored: Vec<Stored>,
    origin: u64,
    torn: bool,
}

impl Recording {
    /// Reads a whole recording: 18 MB per day at one publication per second.
    ///
    /// # Errors
    /// When there is no such file, or it is not a recording, has another version, or is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RecordingError> {
        let path = path.as_ref();
        let failed = |source| RecordingError::File { path: path.to_owned(), source };
        let file = open_read(path).map_err(failed)?;
        Self::read(BufReader::new(file)).map_err(|error| match error {
            Failed::Source(source) => failed(source),
            Failed::Recording(error) => error,
        })
    }

    /// As [`Self::open`], from a file's content.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordingError> {
        Self::read(bytes).map_err(|error| match error {
            Failed::Recording(error) => error,
            // Reading a slice does not fail.
            Failed::Source(_) => RecordingError::NotARecording,
        })
    }

    /// Record by record, up to the first bad one.
    fn read(mut source: impl Read) -> Result<Self, Failed> {
        let mut header = Vec::new();
        source.by_ref().take(HEADER as u64).read_to_end(&mut header)?;
        let subject = Subject::decode(&header)?;
        let mut hasher = DefaultHasher::new();
        (subject.host, subject.vm, &subject.name).hash(&mut hasher);
        let origin = hasher.finish();
        let mut recording = Self { subject, stored: Vec::new(), origin, torn: false };
        let (mut at, mut ended) = (HEADER as u64, true);
        let mut bytes = Vec::with_capacity(RECORD);
        loop {
            bytes.clear();
            source.by_ref().take(RECORD as u64).read_to_end(&mut bytes)?;
            let Some(record) = bytes.first_chunk().and_then(Record::decode) else { break };
            let snapshot = Snapshot::of_words(&record.words).ok();
            let Some(snapshot) = snapshot.filter(|_| record.is_of(&recording.subject)) else {
                return Err(RecordingError::Damaged { at }.into());
            };
            ended = recording.add(snapshot, record.seen, ended);
            at += RECORD as u64;
        }
        // The last records were being written when the machine stopped. Other damage is followed by
        // valid records.
        recording.torn = !bytes.is_empty();
        if bytes.len() == RECORD {
            let mut rest = Vec::new();
            source.take(MAX_TORN as u64 + 1).read_to_end(&mut rest)?;
            if rest.len() > MAX_TORN || valid_length(&rest) != 0 {
                return Err(RecordingError::Damaged { at }.into());
            }
        }
        Ok(recording)
    }

    /// Appends a record, and returns whether its segment ends with it because nothing is known any
    /// more.
    fn add(&mut self, snapshot: Snapshot, seen: u64, ended: bool) -> bool {
        if !snapshot.said.has_estimate() {
            return true;
        }
        let seen = if is_before(seen, snapshot.lines.base) { snapshot.lines.base } else { seen };
        if let Some(stored) = self.stored.last_mut().filter(|_| !ended)
            && let Some(last) = stored.publications.last().copied()
            && last.said.disruption == snapshot.said.disruption
            && !is_before(snapshot.lines.base, last.lines.base)
        {
            if last != snapshot {
                stored.publications.push(snapshot);
            }
            if is_before(stored.until, seen) {
                stored.until = seen;
            }
        } else {
            self.stored.push(Stored { publications: vec![snapshot], until: seen });
        }
        false
    }

    /// The timeline's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.subject.name
    }

    /// The timescale of its readings.
    #[must_use]
    pub fn timescale(&self) -> TimescaleId {
        self.subject.timescale
    }

    /// The counter that stamps must come from.
    #[must_use]
    pub fn counter(&self) -> CounterId {
        self.subject.counter
    }

    /// The host where it was started, and the VM; zeroes for a host's own clock.
    #[must_use]
    pub fn machine(&self) -> ([u8; 16], [u8; 16]) {
        (self.subject.host, self.subject.vm)
    }

    /// Whether the last records are incomplete and were skipped, because the machine or the disk
    /// stopped while they were being written.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    /// Its segments, in the order of recording.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        self.stored.iter().map(|stored| Segment {
            since: stored.since(),
            until: stored.until,
            publications: stored.publications.len(),
            disruption: stored.publications.first().map_or(0, |first| first.said.disruption),
        })
    }

    /// The time at which the counter was at `stamp`: [`Timeline::convert`](crate::Timeline::convert).
    ///
    /// # Errors
    /// When the stamp is from before or after the recording, or from a time at which the clock was
    /// disrupted.
    pub fn convert(&self, stamp: u64) -> Result<Reading, ConvertError> {
        self.reading(self.holding(stamp, stamp)?, stamp)
    }

    /// The time of something that happened while the counter went from `first` to `last`:
    /// [`Timeline::convert_between`](crate::Timeline::convert_between).
    ///
    /// # Errors
    /// As [`Self::convert`], of either; [`ConvertError::Disrupted`] between them.
    pub fn convert_between(&self, first: u64, last: u64) -> Result<Reading, ConvertError> {
        let stored = self.holding(first, last)?;
        Reading::between(first, last, |stamp| self.reading(stored, stamp))
    }

    /// How much true time elapsed between two stamps: [`Timeline::span`](crate::Timeline::span).
    ///
    /// # Errors
    /// As [`Self::convert_between`].
    pub fn span(&self, from: u64, to: u64) -> Result<MeasuredSpan, ConvertError> {
        let stretch = self.holding(from, to)?.stretch()?;
        if is_before(to, from) {
            return Ok(MeasuredSpan::back(&stretch.between(to, from)?));
        }
        Ok(MeasuredSpan::ahead(&stretch.between(from, to)?))
    }

    fn reading(&self, stored: &Stored, stamp: u64) -> Result<Reading, ConvertError> {
        let mut reading = Reading::of_stamp(&stored.stretch()?.at(stamp)?, stamp, self.origin);
        reading.met = true;
        Ok(reading)
    }

    /// The segment that contains both stamps.
    fn holding(&self, a: u64, b: u64) -> Result<&Stored, ConvertError> {
        let mut both = self.stored.iter().filter(|stored| stored.has(a) && stored.has(b));
        match (both.next(), both.count()) {
            (Some(stored), 0) => Ok(stored),
            (Some(_), more) => Err(ConvertError::Ambiguous { times: more + 1 }),
            (None, _) => Err(self.why_not(a, b)),
        }
    }

    fn why_not(&self, a: u64, b: u64) -> ConvertError {
        let (Some(first), Some(last)) = (self.stored.first(), self.stored.last()) else {
            return ConvertError::Unknown;
        };
        for stamp in [a, b] {
            if self.stored.iter().any(|stored| stored.has(stamp)) {
                continue;
            }
            let later = self.stored.iter().find(|stored| is_before(stamp, stored.since()));
            return match later {
                None => ConvertError::TooNew { until: last.until },
                Some(_) if is_before(stamp, first.since()) => {
                    ConvertError::TooOld { since: first.since() }
                }
                Some(later) => ConvertError::Disrupted { since: later.since() },
            };
        }
        let later = if is_before(a, b) { b } else { a };
        let after = self.stored.iter().rev().find(|stored| stored.has(later));
        ConvertError::Disrupted { since: after.map_or(later, Stored::since) }
    }
}

impl Stored {
    fn since(&self) -> u64 {
        self.publications.first().map_or(0, |first| first.lines.base)
    }

    fn has(&self, stamp: u64) -> bool {
        !is_before(stamp, self.since()) && !is_before(self.until, stamp)
    }

    fn stretch(&self) -> Result<Stretch<'_>, ConvertError> {
        Stretch::new(&self.publications).ok_or(ConvertError::Unknown)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
