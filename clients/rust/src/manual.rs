//! [`Clock`]: a clock that a test drives by hand, with the same handle type as a real one. [`Bus`]: a bus for groups.
//!
//! It fills a page in this process's memory, so everything except finding the page is production
//! code. Waits on it wake as soon as it is moved, and nothing sleeps. It does not talk to a
//! timevisord: requirements are judged with
//! [`Timeline::with_requirement`].

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration as Span;

use timevisor_clock_page::{
    ClockStatus, CounterId, Identity, Line, Lines, Page, PageWriter, Slew, Update, WritablePage,
};
use timevisor_time::{Duration, Instant, Local, Period, RateError, TimescaleId};

use crate::requirement::Need;
use crate::source::{CounterRef, OwnPage, PageRef};
use crate::timeline::{Place, Timeline};
use crate::unpoisoned;
use crate::waiters::Waiters;

pub use crate::group::manual_bus::Bus;

/// Where the counter starts; not at 0, so that there is a past.
const START_TICKS: u64 = 1 << 40;
/// So large that nothing expires.
const VALIDITY_TICKS: u64 = 1 << 61;
/// TAI - UTC since 2017.
const TAI_OFFSET: i16 = 37;

/// A clock that stands still until it is moved. Clones refer to the same clock.
///
/// ```
/// use std::time::Duration;
/// use timevisor::manual::Clock;
/// let clock = Clock::new(1_000);
/// let timeline = clock.timeline();
/// let waiter = std::thread::spawn(move || timeline.wait_until(5_000));
/// clock.advance(Duration::from_nanos(4_250));
/// let waited = waiter.join().expect("no panic")?;
/// assert_eq!(waited.lateness_ns, 250);
/// # Ok::<(), timevisor::WaitError>(())
/// ```
#[derive(Clone)]
pub struct Clock {
    inner: Arc<Inner>,
}

struct Inner {
    count: Arc<AtomicU64>,
    page: WritableOwnPage,
    state: Mutex<State>,
    waiters: Arc<Waiters>,
    timeline: Timeline,
}

struct State {
    /// `None` while nothing is known.
    now_ns: Option<i64>,
    below: Duration,
    above: Duration,
    sigma: Duration,
    growth: RateError,
    status: ClockStatus,
    identity: Identity,
    writer: PageWriter<WritableOwnPage>,
}

#[derive(Clone)]
struct WritableOwnPage(Arc<OwnPage>);

impl Deref for WritableOwnPage {
    type Target = Page;
    fn deref(&self) -> &Page {
        &self.0.0
    }
}

impl WritablePage for WritableOwnPage {}

impl core::fmt::Debug for Clock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Clock").field("now_ns", &self.now_ns()).finish_non_exhaustive()
    }
}

impl Clock {
    /// A synchronized TAI clock at `now_ns`, ns since 1970-01-01 00:00:00 TAI, accurate to 1 ns.
    #[must_use]
    pub fn new(now_ns: i64) -> Self {
        Self::on(TimescaleId::Tai, now_ns)
    }

    /// As [`Self::new`], on its own local timescale.
    #[must_use]
    pub fn local(now_ns: i64) -> Self {
        Self::on(TimescaleId::Local, now_ns)
    }

    /// As [`Self::new`], on any timescale.
    #[must_use]
    pub fn on(timescale: TimescaleId, now_ns: i64) -> Self {
        static CLOCKS: AtomicU64 = AtomicU64::new(1);
        // Every clock represents a separate host, so local readings of two clocks have no order.
        let number = CLOCKS.fetch_add(1, Ordering::Relaxed);
        let mut host = [0; 16];
        host[..8].copy_from_slice(&number.to_le_bytes());
        let identity = Identity {
            counter: CounterId::MonotonicRaw,
            timescale,
            host,
            vm: [0; 16],
            timeline: timescale.name(),
            epoch: number,
        };
        let page = WritableOwnPage(Arc::new(OwnPage::default()));
        let count = Arc::new(AtomicU64::new(START_TICKS));
        let waiters = Arc::new(Waiters::default());
        let mut state = State {
            now_ns: Some(now_ns),
            below: Duration::from_nanos(1),
            above: Duration::from_nanos(1),
            sigma: Duration::from_nanos(1),
            growth: RateError::ZERO,
            status: ClockStatus::Synchronized,
            identity,
            writer: PageWriter::take_over(page.clone(), identity, Some(TAI_OFFSET)),
        };
        let counter = CounterRef::Manual(Arc::clone(&count));
        state.publish_stepped(&counter);
        let place = Place::open(PageRef::Memory(Arc::clone(&page.0)), counter, 0, None)
            .expect("a page that was just written by this version");
        let timeline =
            Timeline::new(timescale.name(), place, Need::NONE, Some(Arc::clone(&waiters)));
        Self { inner: Arc::new(Inner { count, page, state: Mutex::new(state), waiters, timeline }) }
    }

    /// A handle like that of a real timeline.
    #[must_use]
    pub fn timeline(&self) -> Timeline {
        self.inner.timeline.clone()
    }

    /// Where it stands, ns; `None` after [`Self::forget`].
    #[must_use]
    pub fn now_ns(&self) -> Option<i64> {
        unpoisoned(self.inner.state.lock()).now_ns
    }

    /// Advances time, and the counter with it.
    pub fn advance(&self, by: Span) {
        let ticks = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.change(|state| {
            self.inner.count.fetch_add(ticks, Ordering::SeqCst);
            let ns = i64::try_from(ticks).unwrap_or(i64::MAX);
            state.now_ns = state.now_ns.map(|now| now.saturating_add(ns));
            let grown = state.growth.over(Duration::from_nanos(ns));
            state.below += grown;
            state.above += grown;
        });
    }

    /// True time is within this of the estimate, on either side; at least 1 ns.
    pub fn set_error(&self, half_width: Span) {
        self.set_errors(half_width, half_width);
    }

    /// True time is at most `below` before and at most `above` after the estimate; at least 1 ns
    /// each.
    pub fn set_errors(&self, below: Span, above: Span) {
        self.change(|state| (state.below, state.above) = (duration(below), duration(above)));
    }

    /// The bounds widen at this rate as time passes, in parts per billion (1,000 is 1 us per
    /// second).
    pub fn set_growth_ppb(&self, ppb: u32) {
        self.change(|state| state.growth = RateError::from_ppb(ppb));
    }

    /// One sigma of the estimate.
    pub fn set_estimated_error(&self, sigma: Span) {
        self.change(|state| state.sigma = duration(sigma));
    }

    /// Sets the clock's status.
    pub fn set_status(&self, status: ClockStatus) {
        self.change(|state| state.status = status);
    }

    /// Steps the clock forward or backward, and signals a disruption.
    pub fn step(&self, to_ns: i64) {
        let mut state = unpoisoned(self.inner.state.lock());
        state.now_ns = Some(to_ns);
        state.writer.disrupt();
        state.publish_stepped(&self.counter());
        drop(state);
        self.inner.waiters.wake();
    }

    /// Forgets the time, which is a disruption. [`Self::step`] ends it.
    pub fn forget(&self) {
        let mut state = unpoisoned(self.inner.state.lock());
        state.now_ns = None;
        state.writer.withdraw(ClockStatus::Unknown, Some(TAI_OFFSET));
        drop(state);
        self.inner.waiters.wake();
    }

    /// Makes this clock's timeline read from another clock's page from now on.
    #[cfg(test)]
    pub(crate) fn continue_on(&self, other: &Self) {
        let page = PageRef::Memory(Arc::clone(&other.inner.page.0));
        let place = Place::open(page, other.counter(), 0, None).unwrap();
        self.inner.timeline.shared.move_to(place);
    }

    /// Advances the counter without publishing, as after the death of a daemon.
    #[cfg(test)]
    pub(crate) fn let_counter_run(&self, by: Span) {
        let ticks = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.inner.count.fetch_add(ticks, Ordering::SeqCst);
    }

    /// How often a wait looked at this clock and continued to wait.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> usize {
        self.inner.waiters.looks.load(core::sync::atomic::Ordering::SeqCst)
    }

    /// How many waits are under way.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.inner.waiters.count()
    }

    fn counter(&self) -> CounterRef {
        CounterRef::Manual(Arc::clone(&self.inner.count))
    }

    fn change(&self, what: impl FnOnce(&mut State)) {
        let mut state = unpoisoned(self.inner.state.lock());
        what(&mut state);
        if let Some(update) = state.update(&self.counter()) {
            // Not `publish`, because it nests new bounds within earlier ones, and a test may set
            // any bounds.
            let page = self.inner.page.clone();
            state.writer = PageWriter::recover(page, state.identity, &update, &self.counter());
        }
        drop(state);
        self.inner.waiters.wake();
    }
}

impl State {
    fn publish_stepped(&mut self, counter: &CounterRef) {
        if let Some(update) = self.update(counter) {
            self.writer.publish(&update, counter);
        }
    }

    fn update(&self, counter: &CounterRef) -> Option<Update> {
        use timevisor_clock_page::Counter as _;
        let base = counter.read_ordered();
        let period = Period::from_hz(1_000_000_000)?;
        let estimate = instant(self.now_ns?);
        let least = Duration::from_nanos(1);
        // Rounding up twice (here and when a writer rebases) would be visible as a nanosecond.
        let above = self.above.max(least) - Duration::from_bits(2);
        let line = |time, period| Line { time, period };
        let target = Lines {
            base,
            expiry: base.wrapping_add(VALIDITY_TICKS),
            earliest: line(estimate - self.below.max(least), period.slowest_time(self.growth)),
            estimate: line(estimate, period),
            latest: line(estimate + above, period.fastest_time(self.growth)),
            holdover: 0,
        };
        Some(Update {
            target,
            status: self.status,
            estimated_error: self.sigma,
            as_of: base,
            tai_offset: Some(TAI_OFFSET),
            slew: Slew { horizon: 1, jump: Duration::MAX },
        })
    }
}

/// The first instant whose `floor_nanos` is `ns`.
fn instant(ns: i64) -> Instant<Local> {
    let below = Instant::from_unix_nanos(i128::from(ns));
    if below.floor_nanos() < ns { below + Duration::EPSILON } else { below }
}

fn duration(span: Span) -> Duration {
    Duration::from_nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
#[path = "manual_tests.rs"]
mod tests;
