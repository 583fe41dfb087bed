//! [`Recorder`]: appends what a timeline's page says to a file.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use timevisor_clock_page::abi::entry;
use timevisor_linux::append_file::open_append;
use timevisor_time::{Duration, Period};

use super::RecordingError;
use super::format::{HEADER, RECORD, Record, Subject};
use crate::timeline::Timeline;

/// A publication that stays in force this long is written again, with the time until which it was.
const STILL: Duration = Duration::from_secs(10);

/// Appends to a recording: [`Timeline::record_to`]. Call [`Self::observe`] about every 100 ms. A
/// publication that is missed makes conversions wider, never wrong.
#[derive(Debug)]
pub struct Recorder {
    timeline: Timeline,
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
        let length = begin(&mut file, &self.subject()?, &path)?;
        let timeline = self.clone();
        let mut recorder =
            Recorder { timeline, path, file, length, last: None, still: None, closed: false };
        recorder.observe()?;
        Ok(recorder)
    }
}

/// Writes the header of a new file, or checks an old one's and cuts off a record that was not
/// written to its end. Returns the length.
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
    if !found.is_same_machine(subject) {
        let of = format!("{:?} on another machine or counter", found.name);
        return Err(RecordingError::OtherClock(of));
    }
    let whole = length - (length - HEADER as u64) % RECORD as u64;
    let whole = if ends_well(file, whole).map_err(failed)? { whole } else { whole - RECORD as u64 };
    if whole != length {
        file.set_len(whole).map_err(failed)?;
    }
    Ok(whole)
}

/// False when the last record does not have its check: it would be damage inside the file once
/// something is behind it.
fn ends_well(file: &mut File, length: u64) -> std::io::Result<bool> {
    if length == HEADER as u64 {
        return Ok(true);
    }
    let mut record = [0; RECORD];
    file.seek(SeekFrom::Start(length - RECORD as u64))?;
    file.read_exact(&mut record)?;
    Ok(Record::decode(&record).is_some())
}

impl Recorder {
    /// Looks at the page, and appends what it says if that is new. True when something was
    /// appended.
    ///
    /// # Errors
    /// The page cannot be read, or the file not be written.
    pub fn observe(&mut self) -> Result<bool, RecordingError> {
        let record = self.timeline.published()?;
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

    /// Writes until when the last publication was in force, and hands everything to the disk.
    /// Dropping the recorder does the same without saying whether it worked.
    ///
    /// # Errors
    /// As [`Self::observe`].
    pub fn close(mut self) -> Result<(), RecordingError> {
        self.closed = true;
        let _ = self.observe()?;
        self.finish()?;
        self.file.sync_data().map_err(|source| self.failed(source))
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

    /// What is on the page, with a counter value at which it was.
    fn published(&self) -> Result<Record, RecordingError> {
        // Follows a timeline that has moved, and notices one that has ended.
        let before = self.now()?.counter();
        let words = self.words()?;
        let base = words[entry::BASE];
        let seen = if crate::difference::is_before(before, base) { base } else { before };
        Ok(Record { seen, words })
    }
}
