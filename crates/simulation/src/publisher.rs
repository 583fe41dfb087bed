//! From what the estimate knows to what readers see: a real page in ordinary memory, written by the production writer and
//! read by the production reader.
//!
//! How lines are made of knowledge, what is continued from and when the clock steps are production's, too
//! ([`timevisor_clock_page::Policy`]); the daemon's own order of events around them (daemon/src/clock.rs) sits behind
//! system calls and is repeated here.
//!
//! What it does not do: VMs' pages, and the journal on disk (a warm restart resumes from the page).

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

use timevisor_clock_page::{
    ClockStatus, Counter, CounterId, Identity, Known, Line, Lines, OpenError, Page, PageWriter,
    Policy, Reader, Reading, Update, WritablePage,
};
use timevisor_estimate::{Knowledge, Quality, RateLimits};
use timevisor_time::{Duration, Local, Period, Tai, TimescaleId};

/// The daemon's default `clock.validity`: a page that is not written for this long is free running.
const VALIDITY: Duration = Duration::from_secs(10);

/// The simulated counter, set by the world before anyone reads it.
#[derive(Clone, Debug, Default)]
pub struct SimulatedCounter(Rc<Cell<u64>>);

impl SimulatedCounter {
    /// It shows this from now on.
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

/// The daemon's publishing half.
pub struct Publisher {
    page: SharedPage,
    counter: SimulatedCounter,
    policy: Policy,
    stale_after: Duration,
    writer: PageWriter<SharedPage>,
    recovered: Option<Lines<Tai>>,
    seen_disruptions: u64,
    own_disruptions: u64,
    started: u64,
}

/// What a publication needs to know of one counter value and period.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Nominal period of the counter.
    pub nominal: Period,
    /// The daemon's `clock.stale_after`.
    pub stale_after: Duration,
    /// Continue from the lines on the page.
    pub warm: bool,
}

impl Publisher {
    /// A new daemon on `page`: takes it over, or resumes from what it says.
    #[must_use]
    pub fn start(page: &SharedPage, counter: &SimulatedCounter, start: Start) -> Self {
        let identity = Identity {
            counter: counter.id(),
            timescale: TimescaleId::Tai,
            host: [0; 16],
            vm: [0; 16],
            timeline: "tai",
            epoch: counter.read_ordered(),
        };
        let recovered = start.warm.then(|| resumable(page, counter)).flatten();
        let policy = Policy { nominal: start.nominal, validity: VALIDITY };
        let writer = match &recovered {
            Some(lines) => {
                let update = Update {
                    target: lines.shifted(Duration::ZERO),
                    status: ClockStatus::FreeRunning,
                    estimated_error: Duration::MAX,
                    as_of: lines.base,
                    tai_offset: None,
                    slew: policy.slew(),
                };
                PageWriter::recover(page.clone(), identity, &update, counter)
            }
            None => PageWriter::take_over(page.clone(), identity, None),
        };
        Self {
            page: page.clone(),
            counter: counter.clone(),
            policy,
            stale_after: start.stale_after,
            writer,
            recovered,
            seen_disruptions: 0,
            own_disruptions: 0,
            started: counter.read_ordered(),
        }
    }

    /// The limits of the rate in the lines of the daemon before, if they were resumed.
    #[must_use]
    pub fn recovered_rate(&self) -> Option<RateLimits> {
        let lines = self.recovered.as_ref()?;
        let bits = |line: &Line<Tai>| line.period.to_bits();
        Some(RateLimits {
            shortest: Period::from_bits(bits(&lines.earliest).saturating_sub(lines.holdover)),
            longest: Period::from_bits(bits(&lines.latest).saturating_add(lines.holdover)),
        })
    }

    /// Publishes `knowledge`, which is of the present counter value; `disruptions` is the estimate's count.
    pub fn publish(&mut self, knowledge: &Knowledge, disruptions: u64) {
        let now = self.counter.read_ordered();
        let (target, status) = self.target(knowledge, now);
        let Some(target) = target else {
            if self.writer.in_force().is_some() || self.writer.status() != status {
                self.writer.withdraw(status, None);
            }
            return;
        };
        self.note_contradiction(&target, now);
        let disruptions = self.own_disruptions + disruptions;
        if disruptions != self.seen_disruptions {
            self.seen_disruptions = disruptions;
            self.writer.disrupt();
        }
        let clock = knowledge.clock.as_ref();
        let old = self.writer.in_force().map(|lines| lines.shifted(Duration::ZERO));
        let expected = self.policy.next(old.as_ref(), &target, now);
        let update = Update {
            target: expected.shifted(Duration::ZERO),
            status,
            estimated_error: clock.map_or(Duration::MAX, |c| c.estimated_error),
            as_of: clock.map_or(now, |c| c.as_of),
            tai_offset: None,
            slew: self.policy.slew(),
        };
        self.writer.publish(&update, &self.counter);
    }

    fn target(&self, knowledge: &Knowledge, now: u64) -> (Option<Lines<Tai>>, ClockStatus) {
        if let Some(clock) = &knowledge.clock {
            let pair = |r: &RateLimits| (r.shortest, r.longest);
            let known = Known {
                interval: clock.interval,
                estimate: clock.estimate,
                period: clock.period,
                slopes: pair(&clock.slopes),
                limits: pair(&clock.limits),
            };
            return (Some(self.policy.lines(now, &known)), page_status(knowledge.quality));
        }
        let waited = self.policy.nominal.span(now.wrapping_sub(self.started)) > self.stale_after;
        let status = match (&self.recovered, waited) {
            (Some(_), _) => ClockStatus::FreeRunning,
            (None, false) => ClockStatus::Initializing,
            (None, true) => ClockStatus::Unknown,
        };
        (self.recovered.map(|lines| self.policy.free_running(now, &lines)), status)
    }

    fn note_contradiction(&mut self, target: &Lines<Tai>, now: u64) {
        let Some(old) = self.writer.in_force() else { return };
        if self.policy.must_step(&old.shifted(Duration::ZERO), target, now) {
            self.own_disruptions += 1;
        }
    }

    /// In this long the lines in force must be renewed (the daemon's `until_renewal`).
    #[must_use]
    pub fn until_renewal(&self) -> Duration {
        self.policy.until_renewal(self.writer.in_force(), self.counter.read_ordered())
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> &SharedPage {
        &self.page
    }
}

/// A reader of `page`, as any client's.
///
/// # Errors
/// As [`Reader::open`], before the first daemon has taken the page over.
pub fn reader(
    page: &SharedPage,
    counter: &SimulatedCounter,
) -> Result<Reader<SharedPage, SimulatedCounter>, OpenError> {
    Reader::open(page.clone(), counter.clone(), 0)
}

/// The lines on the page, unless nothing is known or an assumption behind them failed.
fn resumable(page: &SharedPage, counter: &SimulatedCounter) -> Option<Lines<Tai>> {
    let reader = reader(page, counter).ok()?;
    let now: Reading = reader.read().ok()?;
    let lines: Lines<Local> = reader.lines().ok()?;
    let usable = now.has_estimate() && now.status() != ClockStatus::Unreliable;
    usable.then(|| lines.shifted(Duration::ZERO))
}

fn page_status(quality: Quality) -> ClockStatus {
    match quality {
        Quality::Nothing => ClockStatus::Unknown,
        Quality::Initializing => ClockStatus::Initializing,
        Quality::Synchronized => ClockStatus::Synchronized,
        Quality::FreeRunning => ClockStatus::FreeRunning,
        Quality::Unreliable => ClockStatus::Unreliable,
    }
}
