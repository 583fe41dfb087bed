//! A host in memory: a counter that a test sets, a page, a journal that remembers when it was
//! written, and an estimate that says what a test wants.

#![expect(clippy::unwrap_used, reason = "a test that finds no page has failed")]

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

use timevisor_clock_page::{
    Counter, CounterId, Identity, Lines, Page, Policy, Reader, Reading, WritablePage,
};
use timevisor_estimate::ensemble::Clock;
use timevisor_estimate::{Exchange, Knowledge, Observation, Quality, RateLimits, Slot};
use timevisor_host_clock::{
    Action, Event, Host, HostClock, JournalEntry, Publication, Settings, Start, Synchronizer,
};
use timevisor_time::{
    Duration, Instant, Interval, LeapTable, Leaps, Local, Period, RateError, Tai, TimescaleId,
};

/// Ticks per second of the counter: a power of two, so that its period is exact.
pub const HZ: u64 = 1 << 30;
/// The time at counter value 0, s.
pub const EPOCH: i64 = 1_700_000_000;

pub fn nominal() -> Period {
    Period::from_hz(HZ).unwrap()
}

pub fn limits(ppm: u32) -> RateLimits {
    RateLimits::around(nominal(), RateError::from_ppm(ppm))
}

/// True time at a counter value.
pub fn truth(counter: u64) -> Instant<Tai> {
    Instant::from_bits(0) + Duration::from_secs(EPOCH) + nominal().span(counter)
}

/// A counter that moves on by `step` at every read, so that a writer that reads it too early is
/// caught.
#[derive(Clone, Default)]
pub struct Ticker {
    pub value: Rc<Cell<u64>>,
    pub step: Rc<Cell<u64>>,
}

impl Counter for Ticker {
    fn id(&self) -> CounterId {
        CounterId::MonotonicRaw
    }
    fn read_ordered(&self) -> u64 {
        let value = self.value.get();
        self.value.set(value + self.step.get());
        value
    }
}

#[derive(Clone, Default)]
pub struct SharedPage(pub Rc<Page>);

impl Deref for SharedPage {
    type Target = Page;
    fn deref(&self) -> &Page {
        &self.0
    }
}

impl WritablePage for SharedPage {}

/// What an estimate says next.
#[derive(Clone)]
pub struct Said {
    pub quality: Quality,
    /// Estimate - truth and half-width, ns; `None`: nothing is known.
    pub clock: Option<(i64, i64)>,
    pub disruptions: u64,
    pub adopted: Option<RateLimits>,
    pub observed: Vec<usize>,
    pub slots: Vec<Slot>,
    pub observation: Observation,
}

/// An estimate that says what a test wants.
#[derive(Clone)]
pub struct Scripted(pub Rc<RefCell<Said>>);

impl Scripted {
    pub fn new() -> Self {
        Self(Rc::new(RefCell::new(Said {
            quality: Quality::Nothing,
            clock: None,
            disruptions: 0,
            adopted: None,
            observed: Vec::new(),
            slots: Vec::new(),
            observation: Observation::Used,
        })))
    }

    pub fn say(&self, quality: Quality, offset_ns: i64, half_ns: i64) {
        let mut said = self.0.borrow_mut();
        (said.quality, said.clock) = (quality, Some((offset_ns, half_ns)));
    }
}

impl Synchronizer for Scripted {
    fn observe(&mut self, index: usize, _: &Exchange) -> Observation {
        let mut said = self.0.borrow_mut();
        said.observed.push(index);
        said.observation
    }
    fn forget(&mut self, index: usize) {
        self.0.borrow_mut().observed.retain(|observed| *observed != index);
    }
    fn set_witnesses(&mut self, _witnesses: &[usize]) {}
    fn rearrange(&mut self, slots: &[Slot], _stale_after: Duration) {
        self.0.borrow_mut().slots = slots.to_vec();
    }
    fn at(&mut self, counter: u64) -> Knowledge {
        let said = self.0.borrow();
        let clock = said.clock.map(|(offset, half)| {
            let estimate = truth(counter) + Duration::from_nanos(offset);
            Clock {
                interval: Interval::around(estimate, Duration::from_nanos(half)),
                estimate,
                slopes: limits(1),
                limits: limits(15),
                period: nominal(),
                estimated_error: Duration::from_nanos(half / 10),
                as_of: counter,
            }
        });
        let (quality, reason) = (said.quality, None);
        Knowledge { at: counter, quality, reason, clock, falsetickers: vec![] }
    }
    fn disruptions(&self) -> u64 {
        self.0.borrow().disruptions
    }
    fn adopt_rate(&mut self, measured: &RateLimits) {
        self.0.borrow_mut().adopted = Some(*measured);
    }
}

/// The machine under a daemon.
#[derive(Default)]
pub struct Machine {
    pub counter: Ticker,
    pub page: SharedPage,
    pub journal: Option<JournalEntry>,
    /// For each entry: the estimate that readers saw while it was written.
    pub seen_while_journaling: Vec<Option<Instant<Local>>>,
    pub cleared: u32,
    /// Without one, TAI - UTC is 37 s for good.
    pub leap: Option<LeapTable>,
}

impl Host for Machine {
    type Counter = Ticker;
    fn counter(&self) -> &Ticker {
        &self.counter
    }
    fn monotonic(&self) -> Duration {
        nominal().span(self.counter.value.get())
    }
    fn tai_offset(&self) -> Option<i16> {
        None
    }
    fn leaps(&self, at: Instant<Tai>) -> Option<Leaps> {
        match &self.leap {
            Some(table) => table.around(at).ok(),
            None => Some(Leaps::constant(37)),
        }
    }
    fn journal(&mut self, entry: Option<&JournalEntry>) {
        let seen = self.reader().and_then(|r| r.read().ok()).filter(Reading::has_estimate);
        self.seen_while_journaling.push(seen.map(|reading| reading.estimate));
        self.journal = entry.copied();
        self.cleared += u32::from(entry.is_none());
    }
}

pub type Clocked = HostClock<Scripted, SharedPage>;

impl Machine {
    pub fn at(&self, counter: u64) {
        self.counter.value.set(counter);
    }

    pub fn reader(&self) -> Option<Reader<SharedPage, Ticker>> {
        Reader::open(self.page.clone(), self.counter.clone(), 0).ok()
    }

    pub fn read(&self) -> Reading {
        self.reader().unwrap().read().unwrap()
    }

    pub fn lines(&self) -> Lines<Local> {
        self.reader().unwrap().lines().unwrap()
    }

    /// A daemon that starts on this machine.
    pub fn boot(&self, estimate: &Scripted) -> Clocked {
        let start = Start {
            page: self.page.clone(),
            identity: Identity {
                counter: CounterId::MonotonicRaw,
                timescale: TimescaleId::Tai,
                host: [0; 16],
                vm: [0; 16],
                timeline: "tai",
                epoch: self.counter.value.get(),
            },
            settings: Settings {
                policy: Policy { nominal: nominal(), validity: Duration::from_secs(10) },
                stale_after: Duration::from_secs(80),
                publish_interval: Duration::from_secs(1),
                save_interval: Some(Duration::from_secs(60)),
            },
            estimate: estimate.clone(),
            journaled: self.journal.and_then(|j| j.resume_at(self.counter.value.get()).ok()),
        };
        HostClock::start(start, self)
    }

    pub fn handle(&mut self, clock: &mut Clocked, event: Event<Scripted>) -> Vec<Action> {
        clock.handle(event, self)
    }

    pub fn publish(&mut self, clock: &mut Clocked) -> Publication {
        published(&self.handle(clock, Event::Publish))
    }
}

pub fn published(actions: &[Action]) -> Publication {
    match actions.last() {
        Some(Action::Published(publication)) => **publication,
        other => panic!("the last action is {other:?}"),
    }
}
