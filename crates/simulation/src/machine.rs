//! The simulated machine as the publisher sees it: the parts that outlive a daemon.
//!
//! The page lies in ordinary memory and is written and read by the production writer and reader.
//! The journal is one entry in memory. A warm restart goes through the production recovery from
//! both.
//!
//! What it does not do: VMs' pages ([`crate::utc_page`]), or the parsing of the journal's file.

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

use timevisor_clock_page::{Counter, CounterId, Identity, OpenError, Page, Reader, WritablePage};
use timevisor_host_clock::{Host, JournalEntry};
use timevisor_time::{Duration, Instant, Leaps, Period, Tai, TimescaleId};

use crate::calendar::Calendar;

/// The simulated counter, set by the world before anyone reads it.
#[derive(Clone, Debug, Default)]
pub struct SimulatedCounter(Rc<Cell<u64>>);

impl SimulatedCounter {
    /// Sets the value that it shows from now on.
    pub fn set(&self, value: u64) {
        self.0.set(value);
    }
}

impl Counter for SimulatedCounter {
    fn id(&self) -> CounterId {
        CounterId::MonotonicRaw
    }

    fn read_ordered(&self) -> u64 {
        self.0.get()
    }
}

/// A page that outlives its writers, as the file in /run does.
#[derive(Clone, Default)]
pub struct SharedPage(Rc<Page>);

impl Deref for SharedPage {
    type Target = Page;
    fn deref(&self) -> &Page {
        &self.0
    }
}

impl WritablePage for SharedPage {}

/// A machine without its daemon.
pub struct Machine {
    /// Its counter.
    pub counter: SimulatedCounter,
    /// The host's page.
    pub page: SharedPage,
    /// The recovery journal, as on disk.
    pub journal: Option<JournalEntry>,
    nominal: Period,
    counter_start: u64,
    calendar: Calendar,
}

impl Machine {
    /// A freshly booted machine. Its counter starts at `counter_start` and ticks about once per
    /// `nominal`.
    #[must_use]
    pub fn new(nominal: Period, counter_start: u64, calendar: Calendar) -> Self {
        let counter = SimulatedCounter::default();
        counter.set(counter_start);
        Self {
            counter,
            page: SharedPage::default(),
            journal: None,
            nominal,
            counter_start,
            calendar,
        }
    }

    /// The identity that a new daemon writes on the page.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity {
            counter: self.counter.id(),
            timescale: TimescaleId::Tai,
            host: [0; 16],
            vm: [0; 16],
            timeline: "tai",
            epoch: self.counter.read_ordered(),
        }
    }
}

impl Host for Machine {
    type Counter = SimulatedCounter;

    fn counter(&self) -> &SimulatedCounter {
        &self.counter
    }

    /// The counter converted at the nominal rate.
    fn monotonic(&self) -> Duration {
        self.nominal.span(self.counter.read_ordered().wrapping_sub(self.counter_start))
    }

    /// A freshly booted machine does not know the time.
    fn tai_offset(&self) -> Option<i16> {
        None
    }

    fn leaps(&self, at: Instant<Tai>) -> Option<Leaps> {
        self.calendar.leaps(at)
    }

    fn journal(&mut self, entry: Option<&JournalEntry>) {
        self.journal = entry.copied();
    }
}

/// A reader of `page`, like that of any client.
///
/// # Errors
/// As [`Reader::open`], before the first daemon has taken the page over.
pub fn reader(
    page: &SharedPage,
    counter: &SimulatedCounter,
) -> Result<Reader<SharedPage, SimulatedCounter>, OpenError> {
    Reader::open(page.clone(), counter.clone(), 0)
}
