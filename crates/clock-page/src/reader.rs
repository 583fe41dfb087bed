//! Reading the page: one sequence-locked snapshot, one counter read, three multiplications; no
//! syscall (but where it waits for long), no allocation.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | [`Reader`] and [`Reading`] |
//! | `reader/ordinary.rs` | the ordinary read, as few instructions as possible |
//! | `reader/announced.rs` | what the host announces, and whether the VM was loaded |
//! | `reader/promise.rs` | what is promised in UTC until the expiry |
//! | `reader/shared.rs` | which clock a timeline is that several hosts have |
//! | `reader/error.rs` | why a page or one read is refused |
//! | `reader/vmclock_words.rs` | the words that a stock guest's driver reads |
//! | `reader/waiting.rs` | how long a read waits for a writer, and how |

mod announced;
mod error;
mod ordinary;
mod promise;
mod shared;
mod vmclock_words;
mod waiting;

use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;

use timevisor_time::{Duration, Instant, Interval, Local, Period, Timescale, TimescaleId};

use crate::abi::{ClockStatus, Meta, PAGE_SIZE, entry, header, vmclock};
use crate::lines::{At, Line, Lines};
use crate::page::Page;
use crate::seqlock::{read_begin, read_valid};
use crate::{Counter, CounterId};

pub use self::error::{OpenError, ReadError};
pub use self::promise::Promise;
pub use self::vmclock_words::Vmclock;
pub(crate) use self::waiting::Waiting;

/// An estimate this far outside of its bounds is rounding, not damage: 2^-30 s, about 1 ns.
const ROUNDING: Duration = Duration::from_bits(1 << 34);

/// What one read says. Instants are on [`Self::timescale`]; [`Self::interval`] types them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The counter value it is valid for.
    pub counter: u64,
    /// True time is not before this.
    pub earliest: Instant<Local>,
    /// The best guess; meaningless unless [`Self::has_estimate`].
    pub estimate: Instant<Local>,
    /// True time is not after this.
    pub latest: Instant<Local>,
    /// Changes when the clock may have stepped.
    pub disruption: u64,
    /// One sigma of the estimate, 2^-64 s, saturated.
    error_bits: u64,
    meta: u64,
    expired: bool,
}

impl Reading {
    /// How far to trust it. Past its expiry a page is free running, whatever status it carries.
    #[inline]
    #[must_use]
    pub fn status(&self) -> ClockStatus {
        match self.meta().status {
            ClockStatus::Synchronized | ClockStatus::Initializing
                if self.expired && self.has_estimate() =>
            {
                ClockStatus::FreeRunning
            }
            other => other,
        }
    }

    /// The timescale of the three instants.
    #[must_use]
    pub fn timescale(&self) -> TimescaleId {
        TimescaleId::from_u8(self.meta().timescale).unwrap_or(TimescaleId::Local)
    }

    #[inline(always)]
    fn meta(&self) -> Meta {
        Meta::unpack(self.meta)
    }

    /// False while nothing is known; earliest and latest then exclude nothing.
    #[must_use]
    pub fn has_estimate(&self) -> bool {
        self.meta().flags & entry::FLAG_ESTIMATE != 0
    }

    /// TAI - UTC in seconds, where known. With a leap second ahead, it is known until the page's
    /// expiry only.
    #[must_use]
    pub fn tai_offset(&self) -> Option<i16> {
        let meta = self.meta();
        let stale = self.expired && meta.flags & entry::FLAG_LEAP_AHEAD != 0;
        meta.tai_offset.filter(|_| !stale)
    }

    /// Changes when the entry is given to another timeline.
    #[inline(always)]
    #[must_use]
    pub fn generation(&self) -> u16 {
        self.meta().generation
    }

    /// The generation and the counter in one number. A reader that sees it change must open the
    /// entry again.
    #[inline(always)]
    #[must_use]
    pub fn place(&self) -> u64 {
        Meta::place(self.meta)
    }

    /// One sigma of the estimate.
    #[must_use]
    pub fn estimated_error(&self) -> Duration {
        if self.error_bits == u64::MAX {
            Duration::MAX
        } else {
            Duration::from_bits(i128::from(self.error_bits))
        }
    }

    /// The larger distance from the estimate to a bound.
    #[must_use]
    pub fn half_width(&self) -> Duration {
        if !self.has_estimate() {
            return Duration::MAX;
        }
        (self.latest - self.estimate).max(self.estimate - self.earliest)
    }

    /// The interval, typed; `None` when the page is on another timescale.
    #[must_use]
    pub fn interval<S: Timescale>(&self) -> Option<Interval<S>> {
        let same = self.timescale() == S::ID;
        if same { Interval::new(self.earliest.relabel(), self.latest.relabel()) } else { None }
    }
}

/// Reads one timeline entry of one page.
pub struct Reader<P, C> {
    page: P,
    index: usize,
    counter: C,
}

impl<P: Deref<Target = Page>, C: Counter> Reader<P, C> {
    /// Opens entry `index` of a page.
    ///
    /// # Errors
    /// The reader refuses whatever it does not know; it never guesses.
    pub fn open(page: P, counter: C, index: usize) -> Result<Self, OpenError> {
        if index >= check(&page)? || !in_use(&page, index) {
            return Err(OpenError::NoSuchEntry);
        }
        let wants = counter_of(&page, index);
        if wants != counter.id() {
            return Err(OpenError::Counter { page: wants, reader: counter.id() });
        }
        Ok(Self { page, index, counter })
    }

    /// Now: the counter is read after everything that came before this call.
    ///
    /// # Errors
    /// [`ReadError::WriterStalled`] when the writer died inside an update,
    /// [`ReadError::OutOfOrder`] on a damaged page.
    #[inline(always)]
    pub fn read(&self) -> Result<Reading, ReadError> {
        self.read_with(|| self.counter.read_ordered())
    }

    /// The estimate now, without bounds and status; `None` while nothing is known. Cheaper than
    /// [`Self::read`], for spans that are measured often, as on the timeline `elapsed`.
    ///
    /// # Errors
    /// As [`Self::read`].
    #[inline(always)]
    pub fn read_estimate(&self) -> Result<Option<Instant<Local>>, ReadError> {
        let entry = self.page.entry(self.index);
        let word = |index: usize| entry[index].load(Relaxed);
        if let Some(even) = read_begin(&entry[entry::SEQUENCE]) {
            let ticks = self.counter.read_ordered().wrapping_sub(word(entry::BASE));
            let meta = word(entry::META);
            let line = |at: usize| {
                let time = Instant::<Local>::from_words(word(at), word(at + 1));
                time + Period::from_bits(word(at + 2)).span(ticks)
            };
            let (earliest, estimate, latest) =
                (line(entry::EARLIEST), line(entry::ESTIMATE), line(entry::LATEST));
            let (there, written) = self.markers();
            let whole = read_valid(&entry[entry::SEQUENCE], even);
            let plain = ticks >> 63 == 0 && there == written && Meta::has_estimate(meta);
            // The full read handles every special case.
            if whole && plain && earliest <= estimate && estimate <= latest {
                return Ok(Some(estimate));
            }
        }
        let reading = self.read()?;
        Ok(reading.has_estimate().then_some(reading.estimate))
    }

    /// Now, but the processor may reorder the counter read. For dense time stamps that need no
    /// order.
    ///
    /// # Errors
    /// As [`Self::read`].
    #[inline(always)]
    pub fn read_unordered(&self) -> Result<Reading, ReadError> {
        self.read_with(|| self.counter.read_unordered())
    }

    /// Evaluates the lines now in force at a counter value, which may be from the recent past: the
    /// bounds widen backwards.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn convert(&self, counter: u64) -> Result<Reading, ReadError> {
        self.read_with(|| counter)
    }

    /// The lines in force, as published.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn lines(&self) -> Result<Lines<Local>, ReadError> {
        let found = self.snapshot(|| 0)?;
        if found.is_loaded() {
            return Ok(Lines::NOTHING);
        }
        let at = found.lines.at(found.lines.base);
        if !is_ordered(&at) && Meta::has_estimate(found.meta) {
            return Err(ReadError::OutOfOrder);
        }
        Ok(found.lines)
    }

    /// The whole entry in force, copied under its sequence, to be kept and decoded later with
    /// [`decode`]. The sequence itself is 0 in the copy. An entry of a page that was loaded with
    /// the VM says nothing, as in [`Self::read`].
    ///
    /// # Errors
    /// [`ReadError::WriterStalled`] when the writer died inside an update.
    pub fn words(&self) -> Result<EntryWords, ReadError> {
        let entry = self.page.entry(self.index);
        let mut waiting = Waiting::default();
        loop {
            if let Some(even) = read_begin(&entry[entry::SEQUENCE]) {
                let mut words: EntryWords = core::array::from_fn(|at| entry[at].load(Relaxed));
                let (there, written) = self.markers();
                if read_valid(&entry[entry::SEQUENCE], even) {
                    words[entry::SEQUENCE] = 0;
                    if there != written && written != 0 {
                        words[entry::META] = Meta::without_time(words[entry::META]);
                        words[entry::DISRUPTION] =
                            words[entry::DISRUPTION].wrapping_add(there.wrapping_sub(written));
                    }
                    return Ok(words);
                }
            }
            if self.gave_up(&mut waiting) {
                return Err(ReadError::WriterStalled);
            }
        }
    }

    /// The page itself.
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// The counter this reader reads.
    pub fn counter(&self) -> &C {
        &self.counter
    }

    /// What is required of this timeline, as a half-width; `None` without a requirement.
    #[must_use]
    pub fn required_ns(&self) -> Option<u64> {
        let required = self.page.entry(self.index)[entry::REQUIRED].load(Relaxed);
        (required != 0).then_some(required)
    }

    /// The entry's generation now.
    #[must_use]
    pub fn generation(&self) -> u16 {
        Meta::unpack(self.page.entry(self.index)[entry::META].load(Relaxed)).generation
    }

    /// [`Reading::place`] of readings from now on.
    #[must_use]
    pub fn place(&self) -> u64 {
        Meta::place(self.page.entry(self.index)[entry::META].load(Relaxed))
    }

    /// The page's epoch: changes when a writer takes the page over.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        epoch_of(&self.page)
    }

    /// The page's host, VM and epoch. Changes when this process is restored on another host.
    #[must_use]
    pub fn identity(&self) -> [u64; 5] {
        const _: () = assert!(header::AT_EPOCH == header::AT_HOST_ID + 4 * size_of::<u64>());
        core::array::from_fn(|index| {
            self.page.word(header::AT_HOST_ID + index * size_of::<u64>()).load(Relaxed)
        })
    }

    #[inline(always)]
    fn read_with(&self, counter: impl Fn() -> u64) -> Result<Reading, ReadError> {
        let Some(even) = read_begin(&self.page.entry(self.index)[entry::SEQUENCE]) else {
            return self.wait(counter);
        };
        let value = counter();
        match self.ordinary(even, value) {
            Some(reading) => Ok(reading),
            None => self.finish(even, value, counter),
        }
    }

    /// Reads what [`Self::ordinary`] leaves.
    #[cold]
    #[inline(never)]
    fn finish(
        &self,
        even: u64,
        value: u64,
        counter: impl Fn() -> u64,
    ) -> Result<Reading, ReadError> {
        match self.snapshot_at(even, value) {
            Some(found) => self.reading_of(&found),
            None => self.wait(counter),
        }
    }

    /// Reads while somebody writes.
    #[cold]
    #[inline(never)]
    fn wait(&self, counter: impl Fn() -> u64) -> Result<Reading, ReadError> {
        self.reading_of(&self.snapshot(counter)?)
    }

    fn reading_of(&self, found: &Snapshot) -> Result<Reading, ReadError> {
        if found.is_loaded() {
            let (there, written) = found.markers;
            let marker = found.disruption.wrapping_add(there.wrapping_sub(written));
            return Ok(unknown(found.counter, found.meta, marker));
        }
        reading_of(found)
    }

    /// All that is said at a counter value that was read after the sequence was found `even`;
    /// `None` if somebody has written since.
    #[inline(always)]
    fn snapshot_at(&self, even: u64, counter: u64) -> Option<Snapshot> {
        let entry = self.page.entry(self.index);
        let word = |index: usize| entry[index].load(Relaxed);
        let line = |at: usize| Line {
            time: Instant::from_words(word(at), word(at + 1)),
            period: Period::from_bits(word(at + 2)),
        };
        let found = Snapshot {
            counter,
            lines: Lines {
                base: word(entry::BASE),
                expiry: word(entry::EXPIRY),
                earliest: line(entry::EARLIEST),
                estimate: line(entry::ESTIMATE),
                latest: line(entry::LATEST),
                holdover: word(entry::HOLDOVER),
            },
            meta: word(entry::META),
            error_bits: word(entry::ESTIMATED_ERROR),
            disruption: word(entry::DISRUPTION),
            markers: self.markers(),
        };
        read_valid(&entry[entry::SEQUENCE], even).then_some(found)
    }

    fn snapshot(&self, counter: impl Fn() -> u64) -> Result<Snapshot, ReadError> {
        let sequence = &self.page.entry(self.index)[entry::SEQUENCE];
        let mut waiting = Waiting::default();
        loop {
            let found = read_begin(sequence).and_then(|even| self.snapshot_at(even, counter()));
            if let Some(found) = found {
                return Ok(found);
            }
            if self.gave_up(&mut waiting) {
                return Err(ReadError::WriterStalled);
            }
        }
    }

    /// The page's disruption marker, and the marker that timevisord wrote. QEMU increments the
    /// first one when it loads the page with the VM. Where they differ, the page's content was true
    /// on another host or at another time.
    #[inline(always)]
    fn markers(&self) -> (u64, u64) {
        let word = |at: usize| self.page.word(at).load(Relaxed);
        (word(vmclock::AT_DISRUPTION), word(header::AT_MARKER))
    }
}

/// Earliest, estimate and latest are in this order, but for rounding.
#[inline(always)]
fn is_ordered(at: &At<Local>) -> bool {
    at.earliest <= at.estimate + ROUNDING && at.estimate <= at.latest + ROUNDING
}

/// The words of one entry, as published: docs/reference/page-abi.md.
pub type EntryWords = [u64; entry::SIZE / 8];

/// What an entry's words say at their base, and the lines themselves.
///
/// # Errors
/// [`ReadError::OutOfOrder`] for an entry that is damaged.
pub fn decode(words: &EntryWords) -> Result<(Lines<Local>, Reading), ReadError> {
    let meta = words[entry::META];
    let line = |at: usize| Line {
        time: Instant::from_words(words[at], words[at + 1]),
        period: Period::from_bits(words[at + 2]),
    };
    let lines = if Meta::has_estimate(meta) {
        Lines {
            base: words[entry::BASE],
            expiry: words[entry::EXPIRY],
            earliest: line(entry::EARLIEST),
            estimate: line(entry::ESTIMATE),
            latest: line(entry::LATEST),
            holdover: words[entry::HOLDOVER],
        }
    } else {
        Lines::NOTHING
    };
    let found = Snapshot {
        lines,
        counter: lines.base,
        meta,
        error_bits: words[entry::ESTIMATED_ERROR],
        disruption: words[entry::DISRUPTION],
        markers: (0, 0),
    };
    Ok((lines, reading_of(&found)?))
}

/// What a snapshot says at its counter value.
#[inline(always)]
fn reading_of(found: &Snapshot) -> Result<Reading, ReadError> {
    let Snapshot { lines, counter, meta, error_bits, disruption, .. } = *found;
    let at = lines.at(counter);
    if !is_ordered(&at) && Meta::has_estimate(meta) {
        return Err(ReadError::OutOfOrder);
    }
    let At { earliest, estimate, latest } = at.outward();
    let expired = lines.is_expired(counter);
    Ok(Reading { counter, earliest, estimate, latest, disruption, error_bits, meta, expired })
}

/// One publication of an entry, and a counter value that was read while it was in force.
struct Snapshot {
    lines: Lines<Local>,
    counter: u64,
    meta: u64,
    error_bits: u64,
    disruption: u64,
    /// As of [`Reader::markers`].
    markers: (u64, u64),
}

impl Snapshot {
    /// True when the page was loaded with the VM and not written again.
    #[inline(always)]
    fn is_loaded(&self) -> bool {
        let (there, written) = self.markers;
        there != written && written != 0
    }
}

/// The reading of a page that was loaded with the VM: only the timeline's identity is still known.
#[cold]
#[inline(never)]
fn unknown(counter: u64, meta: u64, disruption: u64) -> Reading {
    let meta = Meta::without_time(meta);
    let At { earliest, estimate, latest } = Lines::NOTHING.at(counter);
    let expired = Lines::<Local>::NOTHING.is_expired(counter);
    Reading { counter, earliest, estimate, latest, disruption, error_bits: u64::MAX, meta, expired }
}

/// Checks that this is a Timevisor page of a known version, and returns the number of its entries.
///
/// # Errors
/// The reader refuses whatever it does not know; it never guesses.
pub fn check(page: &Page) -> Result<usize, OpenError> {
    if page.head(vmclock::AT_MAGIC).load(Relaxed) != vmclock::MAGIC {
        return Err(OpenError::NotAPage);
    }
    if page.word(header::AT_MAGIC).load(Relaxed) != header::MAGIC {
        return Err(OpenError::NotTimevisor);
    }
    let shape = page.word(header::AT_VERSION).load(Relaxed);
    let [v0, v1, v2, v3, s0, s1, c0, c1] = shape.to_le_bytes();
    let (version, size) = (u32::from_le_bytes([v0, v1, v2, v3]), u16::from_le_bytes([s0, s1]));
    if version != header::VERSION || usize::from(size) != entry::SIZE {
        return Err(OpenError::Version(version));
    }
    Ok(usize::from(u16::from_le_bytes([c0, c1])).min(entry::CAPACITY))
}

/// The page's disruption marker now: a single load. QEMU moves it on when it loads a VM.
#[must_use]
pub fn marker(page: &Page) -> u64 {
    page.word(vmclock::AT_DISRUPTION).load(Relaxed)
}

/// True when the entry has a timeline.
fn in_use(page: &Page, index: usize) -> bool {
    index == 0 || page.entry(index)[entry::ID].load(Relaxed) != 0
}

/// The entry of the timeline with this name. Compare the generation when you read it: the entry may
/// change hands.
///
/// # Errors
/// As [`check`], or [`OpenError::NoSuchEntry`].
pub fn find(page: &Page, name: &str) -> Result<usize, OpenError> {
    let wanted = name_words(name);
    let named = |index: &usize| {
        let words = page.entry(*index)[entry::NAME..].iter().take(wanted.len());
        in_use(page, *index) && words.map(|w| w.load(Relaxed)).eq(wanted)
    };
    (0..check(page)?).find(named).ok_or(OpenError::NoSuchEntry)
}

/// A timeline's name as stored on the page, cut after 32 bytes.
pub(crate) fn name_words(name: &str) -> [u64; 4] {
    let mut words = [0; 4];
    for (index, byte) in name.bytes().take(32).enumerate() {
        words[index / 8] |= u64::from(byte) << (index % 8 * 8);
    }
    words
}

/// The counter that a page's entry is written for, so that a reader can choose its own. Call
/// [`check`] first.
#[must_use]
pub fn counter_of(page: &Page, index: usize) -> CounterId {
    CounterId::from_u8(Meta::unpack(page.entry(index)[entry::META].load(Relaxed)).counter)
}

/// The page's epoch. Call [`check`] first.
#[must_use]
pub fn epoch_of(page: &Page) -> u64 {
    page.word(header::AT_EPOCH).load(Relaxed)
}

const _: () = assert!(entry::AT_FIRST + entry::CAPACITY * entry::SIZE <= PAGE_SIZE);
