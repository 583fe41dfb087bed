//! [`Recorder`]: appends what a timeline's page says to a file.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use timevisor_clock_page::abi::entry;
use timevisor_linux::append_file::open_append;
use timevisor_time::{Duration, Period};

use super::RecordingError;
use super::format::{HEADER, MAX_TORN, RECORD, Record, Subject, valid_length};
use crate::timeline::Timeline;

/// A publication that stays in force this long is written again, with the time until which it was.
const STILL: Duration = Duration::from_secs(10);

/// Appends to a recording: [`Timeline::record_to`]. Call [`Self::observe`] about every 100 ms.
/// Publications that are missed for up to a minute make conversions wider. After longer, stamps
/// from inside the gap are refused, and a span across it is only the difference of two conversions.
#[derive(Debug)]
pub struct Recorder {
    timeline: Timeline,
    /// Of the file's header.
    subject: Subject,
    /// Of the page that was compared with the header.
    identity: [u64; 5],
    path: PathBuf,
    /// Locked: two writers would mix up the order of publications.
    file: File,
    /// Bytes of the file that are whole records.
    length: u64,
    last: Option<Record>,
    /// A later counter value at which the last record was still in force.
    still: Option<u64>,
    /// Everything is written.
    closed: bool,
}

impl Timeline {
    /// Records the timeline from now on into a file, so that stamps of any age can be converted
    /// later with [`Recording`](crate::Recording), on any machine. A file that is there already is
    /// continued. It is made with mode 0644, and not through a symbolic link.
    ///
    /// # Errors
    /// A file that cannot be written, is something else, or is of another timeline; a page that
    /// cannot be read.
    pub fn record_to(&self, path: impl AsRef<Path>) -> Result<Recorder, RecordingError> {
        let path = path.as_ref().to_owned();
        let failed = |source| RecordingError::File { path: path.clone(), source };
        let mut file = open_append(&path).map_err(failed)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => RecordingError::Busy(path.clone()),
            TryLockError::Error(source) => failed(source),
        })?;
        let identity = self.identity();
        let subject = self.subject()?;
        let length = begin(&mut file, &subject, &path)?;
        let mut recorder = Recorder {
            timeline: self.clone(),
            subject,
            identity,
            path,
            file,
            length,
            last: None,
            still: None,
            closed: false,
        };
        recorder.observe()?;
        Ok(recorder)
    }
}

/// Writes the header of a new file, or checks an old one's and cuts off what a power failure left
/// behind the last valid record. Returns the length.
fn begin(file: &mut File, subject: &Subject, path: &Path) -> Result<u64, RecordingError> {
    let failed = |source| RecordingError::File { path: path.to_owned(), source };
    let length = file.metadata().map_err(failed)?.len();
    if length == 0 {
        file.write_all(&subject.encode()).map_err(failed)?;
        return Ok(HEADER as u64);
    }
    let mut header = Vec::new();
    Read::by_ref(file).take(HEADER as u64).read_to_end(&mut header).map_err(failed)?;
    let found = Subject::decode(&header)?;
    is_same(&found, subject)?;
    let (valid, looked) = valid_end(file, length).map_err(failed)?;
    // Somebody else's data, perhaps: nothing is cut off.
    let whole = valid.ok_or(RecordingError::Damaged { at: looked })?;
    if whole != length {
        file.set_len(whole).map_err(failed)?;
    }
    Ok(whole)
}

/// Refuses a page of another timeline, machine or counter than the file's.
fn is_same(found: &Subject, subject: &Subject) -> Result<(), RecordingError> {
    if found.is_same_machine(subject) { Ok(()) } else { Err(other_clock(found)) }
}

fn other_clock(found: &Subject) -> RecordingError {
    RecordingError::OtherClock(format!("{:?} on another machine or counter", found.name))
}

/// Where the last valid record ends, and from where on was looked for it. `None` if that is too far
/// from the file's end for a power failure.
fn valid_end(file: &mut File, length: u64) -> std::io::Result<(Option<u64>, u64)> {
    let (header, record) = (HEADER as u64, RECORD as u64);
    let whole = length.saturating_sub(header) / record;
    // One record more, which has to be valid.
    let from = header + whole.saturating_sub((MAX_TORN / RECORD) as u64 + 1) * record;
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    Read::by_ref(file).take((MAX_TORN + 2 * RECORD) as u64).read_to_end(&mut bytes)?;
    let valid = valid_length(&bytes);
    let found = (valid > 0 || from == header).then_some(from + valid as u64);
    Ok((found, from))
}

impl Recorder {
    /// Looks at the page, and appends what it says if that is new. True when something was
    /// appended.
    ///
    /// # Errors
    /// The page cannot be read, or is another machine's now; the file cannot be written.
    pub fn observe(&mut self) -> Result<bool, RecordingError> {
        let record = self.published()?;
        let Some(last) = self.last else { return self.append(record) };
        if record.says_the_same(&last) {
            self.still = Some(record.seen);
            let period = Period::from_bits(record.words[entry::ESTIMATE + 2]);
            let soon = record.seen.wrapping_sub(last.seen) < period.ticks_in(STILL);
            // A page that knows no time has no period either, and need not say so twice.
            let known = period != Period::from_bits(0);
            return if soon || !known { Ok(false) } else { self.append(record) };
        }
        if record.words[entry::DISRUPTION] != last.words[entry::DISRUPTION] {
            self.finish()?;
        }
        self.append(record)
    }

    /// Bytes in the file.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Writes until when the last publication was in force, and hands everything to the disk, also
    /// when the page cannot be read any more. Dropping the recorder does the same without the sync,
    /// and does not say whether it worked.
    ///
    /// # Errors
    /// As [`Self::observe`].
    pub fn close(mut self) -> Result<(), RecordingError> {
        let looked = self.observe().map(drop);
        let finished = self.finish();
        let synced = self.file.sync_data().map_err(|source| self.failed(source));
        self.closed = true;
        looked.and(finished).and(synced)
    }

    /// What is on the page, with a counter value at which it was.
    fn published(&mut self) -> Result<Record, RecordingError> {
        // Follows a timeline that has moved, and notices one that has ended.
        let before = self.timeline.now()?.counter();
        let words = self.timeline.words()?;
        let identity = self.timeline.identity();
        if identity != self.identity {
            // Another host's page, or another daemon's. A VM stays the same when it migrates.
            is_same(&self.subject, &self.timeline.subject()?)?;
            self.identity = identity;
        }
        let base = words[entry::BASE];
        let seen = if crate::difference::is_before(before, base) { base } else { before };
        let record = Record { seen, words };
        if record.is_of(&self.subject) { Ok(record) } else { Err(other_clock(&self.subject)) }
    }

    fn finish(&mut self) -> Result<(), RecordingError> {
        if let (Some(seen), Some(last)) = (self.still, self.last) {
            self.append(Record { seen, ..last })?;
        }
        Ok(())
    }

    fn append(&mut self, record: Record) -> Result<bool, RecordingError> {
        if let Err(source) = self.file.write_all(&record.encode()) {
            // Half a record must not end up inside the file. If this fails, too, the next recorder
            // does it.
            let _ = self.file.set_len(self.length);
            return Err(self.failed(source));
        }
        self.length += RECORD as u64;
        (self.last, self.still) = (Some(record), None);
        Ok(true)
    }

    fn failed(&self, source: std::io::Error) -> RecordingError {
        RecordingError::File { path: self.path.clone(), source }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if !self.closed {
            let _ = self.observe();
            let _ = self.finish();
        }
    }
}

impl Timeline {
    pub(super) fn subject(&self) -> Result<Subject, RecordingError> {
        self.observe()?;
        Ok(self
            .with_reader(|reader| {
                use timevisor_clock_page::Counter as _;
                let timescale = reader.read().map(|reading| reading.timescale());
                timescale.map(|timescale| {
                    Subject::of_page(reader.page(), self.name(), reader.counter().id(), timescale)
                })
            })
            .map_err(crate::ReadError::from)?)
    }
}
