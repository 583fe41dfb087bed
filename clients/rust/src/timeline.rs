//! [`Timeline`]: a handle to read, convert (`conversions`) and wait (`wait`). Reading is a counter
//! read and three multiplications; no system call (but where an update takes longer than 20 us: it sleeps
//! then), no allocation, no lock, and any number of threads may do so.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use timevisor_clock_page::abi::header;
use timevisor_clock_page::{Counter, CounterId, EntryWords, Reader};
use timevisor_protocols::channel::InvalidRequirement;
use timevisor_time::Period;

use crate::error::{ReadError, TimelineError};
use crate::history::History;
use crate::reading::Reading;
use crate::requirement::{Need, NeedCell, Requirement};
use crate::snapshot::Snapshot;
use crate::source::{CounterRef, PageRef, counter_for};
use crate::waiters::Waiters;
use crate::{Comparison, unpoisoned};

/// A timeline's place on a page, and where it moved to later. A reader walks the chain, which
/// almost always has length one: a timeline moves only when its VM moves to another host.
pub(crate) struct Place {
    reader: Reader<PageRef, CounterRef>,
    page: PageRef,
    /// Generation and counter: [`Reader::place`].
    place: u64,
    /// Whose page it is.
    identity: [u64; 5],
    /// Whether only the page's identity reveals that its counter is a different one:
    /// CLOCK_MONOTONIC_RAW of a process that was restored in a time namespace.
    by_identity: bool,
    pub(crate) origin: u64,
    history: Mutex<History>,
    /// Nanoseconds per tick, rounded up; 0 if not known yet.
    tick_ns: AtomicU64,
    next: OnceLock<Box<Place>>,
}

impl Place {
    /// `generation` is the one that the server named; without it, the page's current one is used.
    pub(crate) fn open(
        page: PageRef,
        counter: CounterRef,
        index: usize,
        generation: Option<u16>,
    ) -> Result<Self, TimelineError> {
        let by_identity = counter.id() == CounterId::MonotonicRaw;
        let reader = Reader::open(page.clone(), counter, index)?;
        let (found, place) = (reader.generation(), reader.place());
        let generation = generation.unwrap_or(found);
        let mut hasher = DefaultHasher::new();
        reader.page().bytes()[header::AT_HOST_ID..header::AT_EPOCH].hash(&mut hasher);
        (index, generation).hash(&mut hasher);
        let place = Self {
            identity: reader.identity(),
            reader,
            page,
            // No reading has all bits set; the entry already belongs to another timeline.
            place: if generation == found { place } else { u64::MAX },
            by_identity,
            origin: hasher.finish(),
            history: Mutex::default(),
            tick_ns: AtomicU64::new(0),
            next: OnceLock::new(),
        };
        Ok(place)
    }

    fn snapshot(&self) -> Result<Snapshot, ReadError> {
        let snapshot = Snapshot::take(&self.reader).map_err(|error| self.explain(error))?;
        if self.is_another(snapshot.said.place()) {
            return Err(self.explain(ReadError::Gone));
        }
        if !snapshot.said.has_estimate() && self.page.is_lost() {
            return Err(ReadError::Truncated);
        }
        if snapshot.said.has_estimate() {
            self.tick_ns.store(snapshot.tick_ns(), Relaxed);
        }
        Ok(snapshot)
    }

    /// The history for conversions, including the publication that is in force now.
    pub(crate) fn noted(&self) -> Result<MutexGuard<'_, History>, ReadError> {
        let snapshot = self.snapshot()?;
        let mut history = unpoisoned(self.history.lock());
        history.note(snapshot);
        Ok(history)
    }

    /// Whether a reading from there belongs to another timeline, another counter, or another host's
    /// page.
    #[inline(always)]
    fn is_another(&self, place: u64) -> bool {
        place != self.place || (self.by_identity && self.reader.identity() != self.identity)
    }

    /// A page whose file was truncated looks damaged, or like another timeline's.
    #[cold]
    fn explain(&self, error: impl Into<ReadError>) -> ReadError {
        if self.page.is_truncated() { ReadError::Truncated } else { error.into() }
    }

    /// Used only by requirements on the resolution.
    #[cold]
    fn tick_ns(&self) -> u64 {
        match self.tick_ns.load(Relaxed) {
            0 => self.snapshot().map_or(u64::MAX, |snapshot| snapshot.tick_ns()),
            ns => ns,
        }
    }

    pub(crate) fn judge(&self, mut reading: Reading, need: &Need) -> Reading {
        let tick_ns = if need.tick_ns == u64::MAX { 0 } else { self.tick_ns() };
        reading.met = need.is_met(&reading, tick_ns);
        reading
    }
}

/// What all handles of one timeline share.
pub(crate) struct Shared {
    name: String,
    place: Place,
    /// A manually driven clock wakes its waiters; a page cannot.
    pub(crate) waiters: Option<Arc<Waiters>>,
}

impl Shared {
    #[inline]
    pub(crate) fn place(&self) -> &Place {
        let mut place = &self.place;
        while let Some(next) = place.next.get() {
            place = next;
        }
        place
    }

    /// From now on the timeline is read there.
    pub(crate) fn move_to(&self, place: Place) {
        let mut place = Box::new(place);
        let mut last = self.place();
        while let Err(other) = last.next.set(place) {
            place = other;
            last = self.place();
        }
    }
}

/// A handle to one timeline: cheap to clone, and usable from any thread. Reading sends no messages.
///
/// ```
/// use timevisor::{Status, manual::Clock};
/// let clock = Clock::new(1_000_000_000);
/// clock.set_error(std::time::Duration::from_micros(50));
/// let reading = clock.timeline().now()?;
/// assert_eq!(reading.estimate_ns(), 1_000_000_000);
/// assert_eq!((reading.earliest_ns(), reading.latest_ns()), (999_950_000, 1_000_050_000));
/// assert_eq!(reading.status(), Status::Synchronized);
/// # Ok::<(), timevisor::ReadError>(())
/// ```
#[derive(Clone)]
pub struct Timeline {
    pub(crate) shared: Arc<Shared>,
    need: Arc<NeedCell>,
}

impl core::fmt::Debug for Timeline {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Timeline").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl Timeline {
    pub(crate) fn new(name: &str, place: Place, need: Need, waiters: Option<Arc<Waiters>>) -> Self {
        let timeline = Self {
            shared: Arc::new(Shared { name: name.to_owned(), place, waiters }),
            need: Arc::new(NeedCell::new(need)),
        };
        // Stamps taken from now on can be converted. If the page has no living writer, the first
        // read reports it.
        let _ = timeline.observe();
        timeline
    }

    /// The timeline's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The same timeline, judged by another requirement: [`Reading::met`] and the events of
    /// [`Self::watch`]. The host is not informed; bind to make it meet the requirement.
    ///
    /// # Errors
    /// When the requirement is not meaningful.
    pub fn with_requirement(&self, requirement: &Requirement) -> Result<Self, InvalidRequirement> {
        let need = Need::new(Some(requirement))?;
        Ok(Self { shared: Arc::clone(&self.shared), need: Arc::new(NeedCell::new(need)) })
    }

    pub(crate) fn set_need(&self, need: Need) {
        self.need.set(need);
    }

    pub(crate) fn need(&self) -> Need {
        self.need.get()
    }

    /// The current time: the counter is read after everything that precedes this call. No system
    /// call, no allocation.
    ///
    /// # Errors
    /// When the page's writer died during an update, the timeline has ended, or the page's file was
    /// truncated.
    #[inline]
    pub fn now(&self) -> Result<Reading, ReadError> {
        let place = self.shared.place();
        let raw = place.reader.read().map_err(|error| place.explain(error))?;
        if place.is_another(raw.place()) || !raw.has_estimate() {
            return self.unusual(place);
        }
        Ok(place.judge(Reading::of_page(&raw, place.origin), &self.need.get()))
    }

    /// A reading without a time, or of another timeline: of a page that is lost, perhaps. It is
    /// read again here, because a reading that is passed on costs every other one some nanoseconds.
    #[cold]
    fn unusual(&self, place: &Place) -> Result<Reading, ReadError> {
        let raw = place.reader.read().map_err(|error| place.explain(error))?;
        if place.page.is_lost() {
            return Err(ReadError::Truncated);
        }
        if place.is_another(raw.place()) {
            return self.find_again(place).map_err(|error| place.explain(error));
        }
        Ok(place.judge(Reading::of_page(&raw, place.origin), &self.need.get()))
    }

    /// If the page now belongs to another host, the process was restored there, and the global
    /// timelines continue.
    #[cold]
    fn find_again(&self, place: &Place) -> Result<Reading, ReadError> {
        let name = self.name();
        let global = ["tai", "utc"].contains(&name);
        if !global || place.reader.identity() == place.identity {
            return Err(ReadError::Gone);
        }
        let index = timevisor_clock_page::find(&place.page, name).map_err(|_| ReadError::Gone)?;
        let counter = counter_for(&place.page, index).map_err(|_| ReadError::Gone)?;
        let there = Place::open(place.page.clone(), counter, index, None);
        self.shared.move_to(there.map_err(|_| ReadError::Gone)?);
        let place = self.shared.place();
        let raw = place.reader.read()?;
        if place.is_another(raw.place()) {
            return Err(ReadError::Gone);
        }
        Ok(place.judge(Reading::of_page(&raw, place.origin), &self.need.get()))
    }

    /// The counter in ticks, to be converted later: the cheapest possible stamp.
    #[inline]
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.shared.place().reader.counter().read_ordered()
    }

    /// Records the current publication for later conversions. Waits, watches and conversions also
    /// do this; a program that only takes stamps should call it every few seconds. A stamp cannot
    /// be converted if no publication was recorded around it for more than a minute.
    ///
    /// # Errors
    /// As [`Self::now`].
    pub fn observe(&self) -> Result<(), ReadError> {
        let place = self.shared.place();
        let snapshot = place.snapshot()?;
        unpoisoned(place.history.lock()).note(snapshot);
        Ok(())
    }

    /// A reading, and the publication in force a moment later, noted for conversions.
    pub(crate) fn look(&self) -> Result<(Reading, Snapshot), ReadError> {
        loop {
            let reading = self.now()?;
            let place = self.shared.place();
            let snapshot = place.snapshot()?;
            if snapshot.said.disruption == reading.disruption {
                unpoisoned(place.history.lock()).note(snapshot);
                return Ok((reading, snapshot));
            }
        }
    }

    /// Which clock a reading that was just taken is of: the same number on all hosts that have that clock, or one of this
    /// host's. `None` if the page has been written since for another clock.
    pub(crate) fn clock_of(&self, reading: &Reading) -> Option<u64> {
        let (clock, disruption) = self.shared.place().reader.clock().ok()?;
        let is_of_it = disruption == reading.disruption;
        is_of_it.then_some(if clock == 0 { reading.origin } else { clock })
    }

    /// The timeline's raw entry on the page.
    pub(crate) fn words(&self) -> Result<EntryWords, ReadError> {
        let place = self.shared.place();
        let words = place.reader.words().map_err(|error| place.explain(error))?;
        let said = Snapshot::of_words(&words)?.said;
        if place.is_another(said.place()) || place.page.is_lost() {
            return Err(place.explain(ReadError::Gone));
        }
        Ok(words)
    }

    /// The shortest and the longest period of the counter; `None` while nothing is known.
    pub(crate) fn rate_limits(&self) -> Result<Option<(Period, Period)>, ReadError> {
        let snapshot = self.shared.place().snapshot()?;
        Ok(snapshot.said.has_estimate().then(|| snapshot.lines.rate_limits()))
    }

    /// For queries about the page and the counter, not about the time.
    pub(crate) fn with_reader<T>(&self, ask: impl FnOnce(&Reader<PageRef, CounterRef>) -> T) -> T {
        ask(&self.shared.place().reader)
    }

    /// The identity of the page it is read from.
    pub(crate) fn identity(&self) -> [u64; 5] {
        self.shared.place().reader.identity()
    }

    /// Is it surely before `t_ns` now, surely after it, or is that not known? See
    /// [`Reading::compare_to`].
    ///
    /// # Errors
    /// As [`Self::now`].
    pub fn compare_to(&self, t_ns: i64) -> Result<Comparison, ReadError> {
        self.now().map(|reading| reading.compare_to(t_ns))
    }

    /// Whether `t_ns` has surely not come yet: latest < t.
    ///
    /// # Errors
    /// As [`Self::now`].
    pub fn is_surely_before(&self, t_ns: i64) -> Result<bool, ReadError> {
        self.compare_to(t_ns).map(|order| order == Comparison::Before)
    }

    /// Whether `t_ns` has surely passed: earliest > t.
    ///
    /// # Errors
    /// As [`Self::now`].
    pub fn is_surely_past(&self, t_ns: i64) -> Result<bool, ReadError> {
        self.compare_to(t_ns).map(|order| order == Comparison::After)
    }

    /// Until when true time stays within `half_width` of the estimate if nothing new is learned:
    /// from the slopes of the bounds and, beyond their expiry, the holdover.
    ///
    /// ```
    /// use std::time::Duration;
    /// use timevisor::ValidUntil;
    /// let clock = timevisor::manual::Clock::new(0);
    /// clock.set_error(Duration::from_micros(50));
    /// clock.set_growth_ppb(1_000); // 1 us a second
    /// let ValidUntil::Until { estimate_ns, .. } = clock.timeline().valid_until(Duration::from_micros(60))? else {
    ///     panic!("it grows, and is within 60 us now");
    /// };
    /// assert!((9_999_000_000..=10_000_000_000).contains(&estimate_ns));
    /// # Ok::<(), timevisor::ReadError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::now`].
    pub fn valid_until(&self, half_width: Duration) -> Result<ValidUntil, ReadError> {
        let ns = u64::try_from(half_width.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX - 1);
        let need = Need { below_ns: ns, above_ns: ns, ..Need::NONE };
        let (reading, snapshot) = self.look()?;
        Ok(ValidUntil::of(&need, &reading, &snapshot))
    }
}

/// For how long a bound holds if nothing new is learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValidUntil {
    /// It does not hold now.
    Exceeded,
    /// Up to here.
    Until {
        /// The estimate at that moment, ns since the timescale's epoch.
        estimate_ns: i64,
        /// The counter at that moment, ticks.
        counter: u64,
    },
    /// Longer than the counter runs: the bounds do not grow beyond the limit.
    Unlimited,
}

impl ValidUntil {
    pub(crate) fn of(need: &Need, reading: &Reading, snapshot: &Snapshot) -> Self {
        if !reading.is_trustworthy() {
            return if need.is_none() { Self::Unlimited } else { Self::Exceeded };
        }
        match snapshot.valid_until(need, reading.counter) {
            Err(()) => Self::Exceeded,
            Ok(None) => Self::Unlimited,
            Ok(Some(counter)) => {
                Self::Until { estimate_ns: snapshot.estimate_ns(counter), counter }
            }
        }
    }

    /// The estimate at that moment, where there is one.
    #[must_use]
    pub fn estimate_ns(&self) -> Option<i64> {
        match self {
            Self::Until { estimate_ns, .. } => Some(*estimate_ns),
            Self::Exceeded | Self::Unlimited => None,
        }
    }
}
