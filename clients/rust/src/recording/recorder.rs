//! [`Recorder`]: appends the publications on a timeline's page to a file.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use timevisor_clock_page::abi::entry;
use timevisor_linux::append_file::open_append;
use timevisor_time::{Duration, Period};

use super::RecordingError;
use super::format::{HEADER, MAX_TORN, RECORD, Record, Subject, valid_length};
use crate::timeline::Timeline;

/// A publication that stays in force this long is written again, with the time at which it was last
/// seen in force.
const STILL: Duration = Duration::from_secs(10);

/// Appends to a recording: [`Timeline::record_to`]. Call [`Self::observe`] about every 100 ms. If
/// publications are missed for up to a minute, conversions become wider. After a longer time,
/// stamps inside the gap are refused, and a span across it is only the difference of two
/// conversions.
#[derive(Debug)]
pub struct Recorder {
    timeline: Timeline,
    /// The subject in the file's header.
    subject: Subject,
    /// The identity of the page that was compared with the header.
    identity: [u64; 5],
    path: PathBuf,
    /// Locked, because two writers would mix up the order of publications.
    file: File,
    /// Length of the file up to the last complete record.
    length: u64,
    last: Option<Record>,
    /// A later counter value at which the last record was still in force.
    still: Option<u64>,
    /// Whether everything has been written.
    closed: bool,
}

impl Timeline {
    /// Records the timeline from now on into a file, so that stamps of any age can be converted
    /// later with [`Recording`](crate::Recording), on any machine. An existing file is continued. A
    /// new one is created with mode 0644; symbolic links are not followed.
    ///
    /// # Errors
    /// When the file cannot be written, is not a recording, or belongs to another timeline, or when
    /// the page cannot be read.
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

/// Writes the header of a new file, or checks that of an existing one and truncates what a power
/// failure left after the last valid record. Returns the length.
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
    // This may be other data, so do not truncate it.
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

/// The end of the last valid record, and where the search started. `None` if it is too far from the
/// file's end to be explained by a power failure.
fn valid_end(file: &mut File, length: u64) -> std::io::Result<(Option<u64>, u64)> {
    let (header, record) = (HEADER as u64, RECORD as u64);
    let whole = length.saturating_sub(header) / record;
    // Include one more record, which must be valid.
    let from = header + whole.saturating_sub((MAX_TORN / RECORD) as u64 + 1) * record;
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    Read::by_ref(file).take((MAX_TORN + 2 * RECORD) as u64).read_to_end(&mut bytes)?;
    let valid = valid_length(&bytes);
    let found = (valid > 0 || from == header).then_some(from + valid as u64);
    Ok((found, from))
}

impl Recorder {
    /// Reads the page, and appends its publication if that is new. Returns whether something was
    /// appended.
    ///
    /// # Errors
    /// When the page cannot be read or now belongs to another machine, or the file cannot be
    /// written.
    pub fn observe(&mut self) -> Result<bool, RecordingError> {
        let record = self.published()?;
        let Some(last) = self.last else { return self.append(record) };
        if record.says_the_same(&last) {
            self.still = Some(record.seen);
            let period = Period::from_bits(record.words[entry::ESTIMATE + 2]);
            let soon = record.seen.wrapping_sub(last.seen) < period.ticks_in(STILL);
            // A page without a known time has no period either; it need not be recorded twice.
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

    /// Writes the time until which the last publication was in force, and syncs everything to disk,
    /// even when the page can no longer be read. Dropping the recorder does the same without the
    /// sync, and does not report errors.
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

    /// The publication on the page, with a counter value at which it was in force.
    fn published(&mut self) -> Result<Record, RecordingError> {
        // Follows a timeline that has moved, and notices one that has ended.
        let before = self.timeline.now()?.counter();
        let words = self.timeline.words()?;
        let identity = self.timeline.identity();
        if identity != self.identity {
            // The page belongs to another host or another daemon. A VM stays the same when it
            // migrates.
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
            // The file must not contain a partial record. If this fails, too, the next recorder
            // truncates it.
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
