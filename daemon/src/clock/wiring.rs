//! The system calls around the publisher: chooses and calibrates the counter, maps the page, keeps
//! the journal and the estimators' state in files, and turns the publisher's notes into log lines.

use std::cell::RefCell;
use std::path::Path;

use anyhow::{Context, Result};
use timevisor_clock_page::{
    ClockStatus, Counter, EntryUpdate, Identity, Lines, NotedBirth, PageWriter, Policy, Update,
};
use timevisor_estimate::{Ensemble, Exchange, Knowledge, Slot};
use timevisor_host_clock::counter_watch::Change;
use timevisor_host_clock::{
    Action, Event, Host, HostClock as Publisher, JournalEntry, Note, Publication, Settings, Start,
};
use timevisor_linux::clock::{monotonic, realtime, suspended};
use timevisor_linux::counter::{Calibration, CounterHistory, HostCounter, calibrate, select};
use timevisor_linux::page::WritePage;
use timevisor_linux::page_file::{self, PageSize};
use timevisor_protocols::control::Exchanges;
use timevisor_time::{Duration, Instant, Interval, Leaps, Tai, TimescaleId};

use super::estimates::Estimates;
use super::journal::Journal;
use super::recent::Recent;
use super::watching::{Watching, wait_for_the_kernels_frequency};
use crate::announce::{Announcer, Budget};
use crate::config::{Config, ServerConfig, span};
use crate::leap::{Leap, Present};

/// A suspend changes CLOCK_BOOTTIME - CLOCK_MONOTONIC by more than this.
const SUSPEND_NOISE: Duration = Duration::from_millis(1);

/// How often estimates are saved. A crash loses at most this much learning.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// What happened to the counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disturbance {
    None,
    /// It is no longer trusted, or is again; the page should say so.
    Doubt,
    /// Everything known is void, and the references should restart.
    StartedOver,
}

/// The present on a clock of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownTime {
    /// Its bounds.
    pub interval: Interval<Tai>,
    /// How far to trust them.
    pub status: ClockStatus,
}

impl KnownTime {
    /// The middle of the bounds.
    pub fn middle(&self) -> Instant<Tai> {
        self.interval.earliest() + self.interval.width().half()
    }

    /// True if the bounds may be relied on.
    pub fn is_reliable(&self) -> bool {
        match self.status {
            ClockStatus::Initializing | ClockStatus::Synchronized | ClockStatus::FreeRunning => {
                true
            }
            ClockStatus::Unknown | ClockStatus::Unreliable => false,
        }
    }
}

/// Files that outlive this daemon. Without them, the clock belongs to this process alone and does
/// not detect a suspend.
struct Memory {
    history: CounterHistory,
    journal: Journal,
    estimates: Estimates,
    /// The problem with each file that the log shows: a disk may stay full.
    told: RefCell<[Announcer; 2]>,
}

impl Memory {
    fn in_directory(directory: &Path, counter: &HostCounter) -> Result<Self> {
        let history = CounterHistory::of(counter).context("cannot read the boot id")?;
        Ok(Self {
            history,
            journal: Journal::in_directory(directory),
            estimates: Estimates::in_directory(directory),
            told: RefCell::default(),
        })
    }

    /// Returns true if the log should show this outcome of writing the journal (0) or the estimates
    /// (1); success is shown by silence.
    fn is_news(&self, file: usize, problem: Option<&str>) -> bool {
        let key = problem.unwrap_or_default();
        self.told.borrow_mut()[file].changed(monotonic(), key) && problem.is_some()
    }

    /// Passes the previous daemon's estimates to the ensemble.
    fn resume(&self, ensemble: &mut Ensemble) {
        let resumed = self
            .estimates
            .read(&self.history)
            .and_then(|saved| ensemble.resume(&saved).map_err(|e| e.to_string()).map(|()| saved));
        match resumed {
            Ok(saved) => {
                tracing::info!("resuming {} estimate(s) of the previous daemon", saved.len());
            }
            Err(reason) => tracing::info!("estimates start from nothing: {reason}"),
        }
    }

    fn save(&self, ensemble: &Ensemble) {
        let saved = ensemble.saved();
        if saved.is_empty() {
            return;
        }
        let problem = self.estimates.write(&self.history, saved).err().map(|e| e.to_string());
        if self.is_news(1, problem.as_deref()) {
            let error = problem.unwrap_or_default();
            tracing::warn!("cannot save the estimates: {error}; a restart will learn them again");
        }
    }
}

/// This machine, as the publisher sees it.
struct Machine<'a> {
    counter: &'a HostCounter,
    leap: &'a Leap,
    memory: Option<&'a Memory>,
}

impl Host for Machine<'_> {
    type Counter = HostCounter;

    fn counter(&self) -> &HostCounter {
        self.counter
    }

    fn monotonic(&self) -> Duration {
        monotonic()
    }

    fn tai_offset(&self) -> Option<i16> {
        self.leap.offset_now(Present::Kernel(realtime()))
    }

    fn leaps(&self, at: Instant<Tai>) -> Option<Leaps> {
        self.leap.around(at)
    }

    fn journal(&mut self, entry: Option<&JournalEntry>) {
        let Some(memory) = self.memory else { return };
        let outcome = match entry {
            Some(entry) => memory.journal.write(&memory.history, entry),
            None => memory.journal.clear(),
        };
        let problem = outcome.err().map(|error| match entry {
            Some(_) => format!(
                "cannot write the recovery journal: {error}; a restart will start from nothing"
            ),
            None => format!(
                "cannot clear the recovery journal: {error}; delete it, or the next daemon resumes from lines that \
                 may be wrong"
            ),
        });
        if memory.is_news(0, problem.as_deref()) {
            tracing::error!("{}", problem.unwrap_or_default());
        }
    }
}

/// The host's clock: the publisher and the parts of this machine that it needs.
pub struct HostClock {
    pub counter: HostCounter,
    /// Why this counter was chosen.
    pub counter_reason: String,
    pub calibration: Calibration,
    pub leap: Leap,
    pub host_id: [u8; 16],
    publisher: Publisher<Ensemble, WritePage>,
    config: Config,
    names: Vec<String>,
    memory: Option<Memory>,
    watching: Watching,
    /// Why it last started over.
    started_over: Option<String>,
    told_start: Budget,
    /// The violation of the oscillator statement that the log shows.
    told_oscillator: Announcer,
    /// How often the publisher's notes may still be logged.
    notes: Budget,
    recent: Recent,
}

impl HostClock {
    /// Chooses and calibrates the counter, takes over the host's page, and recovers an earlier
    /// daemon's knowledge.
    pub fn start(config: &Config, names: Vec<String>) -> Result<Self> {
        Self::with_memory(config, names, Some(&config.run_directory))
    }

    /// Creates a clock for this process alone. Its page is not a file, nothing is recovered or
    /// saved, and CLOCK_BOOTTIME is not read.
    pub fn private(config: &Config, names: Vec<String>) -> Result<Self> {
        Self::with_memory(config, names, None)
    }

    fn with_memory(config: &Config, names: Vec<String>, directory: Option<&Path>) -> Result<Self> {
        let (counter, counter_reason) = select(config.counter.into())?;
        wait_for_the_kernels_frequency();
        let calibration = calibrate(&counter).context("the counter cannot be calibrated")?;
        tracing::info!(
            "counter {counter_reason}: {:?} within {:?}",
            calibration.period,
            calibration.error
        );
        let leap = Leap::load(&config.clock);
        let memory = directory.map(|d| Memory::in_directory(d, &counter)).transpose()?;
        let page = WritePage::new(match directory {
            Some(directory) => page_file::create(&directory.join("clock"), PageSize::Page)?,
            None => page_file::private()?,
        })?;
        let host_id = machine_id();
        let identity = Identity {
            counter: counter.id(),
            timescale: TimescaleId::Tai,
            host: host_id,
            vm: [0; 16],
            timeline: "tai",
            epoch: epoch(),
        };
        let now = counter.read_ordered();
        let journaled = match &memory {
            Some(memory) => memory
                .journal
                .read(&memory.history)
                .and_then(|entry| entry.resume_at(now).map_err(|error| error.to_string())),
            None => Err("nothing is kept across restarts".to_owned()),
        };
        if let Err(reason) = &journaled {
            tracing::info!("the clock starts from nothing: {reason}");
        }
        let mut estimate = ensemble(config, &names, &calibration);
        if let Some(memory) = &memory {
            memory.resume(&mut estimate);
        }
        let settings = Settings {
            policy: Policy { nominal: calibration.period, validity: span(config.clock.validity) },
            stale_after: config.stale_after(),
            publish_interval: span(config.clock.publish_interval),
            save_interval: memory.as_ref().map(|_| SAVE_INTERVAL),
        };
        let machine = Machine { counter: &counter, leap: &leap, memory: memory.as_ref() };
        let journaled = journaled.ok();
        let start = Start { page, identity, settings, estimate, journaled };
        let publisher = Publisher::start(start, &machine);
        if let Some(lines) = publisher.earlier_lines() {
            tracing::info!(
                "resuming from the lines of the previous daemon, half-width {}",
                half_width(lines, now)
            );
        }
        let mut clock = Self {
            counter,
            counter_reason,
            calibration,
            leap,
            host_id,
            publisher,
            config: config.clone(),
            names,
            memory,
            watching: Watching::new(calibration.period, config.counter),
            started_over: None,
            told_start: Budget::new(16),
            told_oscillator: Announcer::default(),
            notes: Budget::daily(3),
            recent: Recent::new(calibration.period),
        };
        clock.handle(Event::Publish);
        Ok(clock)
    }

    /// Passes an event to the publisher and carries out its actions. Returns the publication, if
    /// there was one.
    fn handle(&mut self, event: Event<Ensemble>) -> Option<Publication> {
        let mut machine =
            Machine { counter: &self.counter, leap: &self.leap, memory: self.memory.as_ref() };
        let mut published = None;
        for action in self.publisher.handle(event, &mut machine) {
            match (action, &self.memory) {
                (Action::Note(note), _) => log(&note, &self.names, &mut self.notes),
                (Action::SaveEstimates, Some(memory)) => memory.save(self.publisher.estimate()),
                (Action::ClearEstimates, Some(memory)) => memory.estimates.clear(),
                (Action::SaveEstimates | Action::ClearEstimates, None) => {}
                (Action::Published(publication), _) => published = Some(*publication),
            }
        }
        published
    }

    /// Handles an exchange with reference `reference`.
    pub fn observe(&mut self, reference: usize, exchange: &Exchange) {
        self.recent.push(reference, exchange);
        self.handle(Event::Exchange { reference, exchange: *exchange });
        let problem = self.oscillator_problem();
        let key = if problem.is_some() { "broken" } else { "" };
        let news = self.told_oscillator.changed(monotonic(), key);
        if let Some(problem) = problem.filter(|_| news) {
            tracing::warn!("oscillator: {problem}");
        }
    }

    /// Returns true once after the machine was suspended. Everything known is then void.
    fn was_suspended(&mut self) -> bool {
        let Some(memory) = &mut self.memory else { return false };
        let now = suspended().0;
        let before = Duration::from_nanos(memory.history.suspended_ns);
        if (now - before).abs() <= SUSPEND_NOISE {
            return false;
        }
        memory.history.suspended_ns = now.floor_nanos();
        self.start_over(&format!("the machine was suspended for {}", now - before));
        true
    }

    /// When [`Self::watch_counter`] has something to do.
    pub fn watch_at(&self) -> Duration {
        self.watching.poll_at()
    }

    /// Checks about once a second that the counter can still be trusted, and whether the machine was
    /// suspended.
    pub fn watch_counter(&mut self, now: Duration) -> Disturbance {
        // The look comes first: a suspend after the check for one would be taken for a fault.
        let look = self.watching.look(now, &self.counter);
        if self.was_suspended() {
            return Disturbance::StartedOver;
        }
        let Some(change) = look.and_then(|look| self.watching.judge(look)) else {
            return Disturbance::None;
        };
        match change {
            Change::Dropped => {
                let problem = self.watching.problem().unwrap_or_default();
                tracing::error!("{problem}");
                self.handle(Event::CounterTrusted(false));
                Disturbance::Doubt
            }
            Change::Disturbed(trouble) => {
                self.handle(Event::CounterTrusted(false));
                self.start_over(&trouble.to_string());
                Disturbance::StartedOver
            }
            Change::Recovered => {
                self.handle(Event::CounterTrusted(true));
                Disturbance::Doubt
            }
        }
    }

    /// Returns false while the counter itself is in doubt.
    pub fn is_counter_trusted(&self) -> bool {
        self.publisher.is_counter_trusted()
    }

    /// Why the counter is no longer trusted, and the next step.
    pub fn counter_problem(&self) -> Option<String> {
        self.watching.problem()
    }

    /// Why the clock is not synchronized; a problem of the counter first.
    pub fn reason(&self) -> Option<String> {
        let own = || self.knowledge().reason.clone();
        self.counter_problem().or_else(|| match (&self.started_over, own()?) {
            (Some(why), own) if self.knowledge().clock.is_none() => Some(format!("{why}; {own}")),
            (_, own) => Some(own),
        })
    }

    /// Forgets what reference `reference` reported, because another server has taken its place.
    pub fn forget(&mut self, reference: usize) {
        self.handle(Event::Forget { reference });
    }

    /// Takes over another configuration with these references, each with the index of the one whose
    /// facts it keeps.
    pub fn configure(&mut self, config: &Config, slots: &[Slot]) {
        self.leap.configure(&config.clock);
        self.config = config.clone();
        self.names = slots.iter().map(|slot| slot.name.clone()).collect();
        self.recent.clear();
        let stale_after = config.stale_after();
        self.handle(Event::References { slots: slots.to_vec(), stale_after });
    }

    /// Says which references are one witness: see [`Event::Witnesses`].
    pub fn set_witnesses(&mut self, witnesses: &[usize]) {
        self.handle(Event::Witnesses(witnesses.to_vec()));
    }

    /// Discards everything known about this counter and logs the reason.
    pub fn start_over(&mut self, reason: &str) {
        if self.told_start.take(monotonic()) {
            tracing::warn!("{reason}: the clock starts over");
        }
        self.started_over = Some(reason.to_owned());
        self.watching.start_over();
        let estimate = self.ensemble(&self.names);
        self.handle(Event::StartOver { estimate });
    }

    /// Returns an estimate over these references that knows nothing yet.
    pub fn ensemble(&self, names: &[String]) -> Ensemble {
        ensemble(&self.config, names, &self.calibration)
    }

    /// Writes the host's page and returns the publication from which all other pages are written.
    pub fn publish(&mut self) -> Option<Publication> {
        self.handle(Event::Publish)
    }

    /// Makes this daemon's last publication: free running, with growing bounds.
    pub fn publish_last(&mut self) -> Option<Publication> {
        self.handle(Event::PublishLast)
    }

    /// Reads from the host's page the instant at which its elapsed clock was 0. A boot clears it.
    pub fn birth(&self) -> NotedBirth {
        self.publisher.birth()
    }

    /// Notes on the page when that was.
    pub fn set_birth(&self, birth: NotedBirth) {
        self.publisher.set_birth(birth);
    }

    pub fn policy(&self) -> Policy {
        self.publisher.policy()
    }

    /// Sets the further entries of the host's first page and the requirements on the host's own
    /// clock.
    pub fn write_entries(&mut self, required_ns: u64, entries: &[EntryUpdate]) {
        self.publisher.write_entries(required_ns, entries, &self.counter);
    }

    /// Returns the update for a further page of the host; it repeats the clock of the first page.
    pub fn copy(&self) -> Option<Update> {
        self.publisher.copy()
    }

    /// Returns the configuration of this daemon's own NTP server.
    pub fn own_server(&self) -> &ServerConfig {
        &self.config.server
    }

    /// Returns the time until the current lines must be renewed. After that, readers consider the
    /// page abandoned.
    pub fn until_renewal(&self) -> Duration {
        self.publisher.until_renewal(&self.counter)
    }

    /// Returns what this clock says of the present; `None` while it knows nothing.
    pub fn known(&self) -> Option<KnownTime> {
        let lines = self.writer().in_force()?.shifted::<Tai>(Duration::ZERO);
        let interval = lines.interval_at(self.counter.read_ordered());
        Some(KnownTime { interval, status: self.writer().status() })
    }

    /// Returns the instant at which the leap second table is asked about the present.
    pub fn present(&self) -> Present {
        self.known()
            .map_or_else(|| Present::Kernel(realtime()), |known| Present::Known(known.middle()))
    }

    /// TAI - UTC now; `None` where it is not known.
    pub fn tai_offset(&self) -> Option<i16> {
        self.leap.offset_now(self.present())
    }

    /// Returns what the last publication was based on.
    pub fn knowledge(&self) -> &Knowledge {
        self.publisher.knowledge()
    }

    /// Returns the estimate over all references.
    pub fn estimate(&self) -> &Ensemble {
        self.publisher.estimate()
    }

    /// Whether the file of the host's page was truncated.
    pub fn has_lost_page(&self) -> bool {
        self.writer().storage().is_lost()
    }

    /// Answers `exchanges`.
    pub fn exchanges(&self) -> Exchanges {
        self.recent.report(&self.names)
    }

    /// Returns the writer of the host's page.
    pub fn writer(&self) -> &PageWriter<WritePage> {
        self.publisher.writer()
    }

    /// The oscillator properties that the worst-case bounds assume.
    pub fn assumption(&self) -> String {
        self.config.parameters().assumption()
    }

    /// Maximum rate of change of the rate in the bounds, 1/s: the stated value, or more.
    pub fn wander(&self) -> f64 {
        let stated = self.config.oscillator.wander.per_second();
        self.estimate().beyond_floor().unwrap_or(stated)
    }

    /// How the measured oscillator violates its statement, and what to set.
    pub fn oscillator_problem(&self) -> Option<String> {
        let wander = self.estimate().beyond_floor()?;
        Some(self.config.parameters().broken_by(wander))
    }

    /// Returns true while nothing is known but lines from before: an earlier daemon's, or those from
    /// before other references were configured.
    pub fn has_only_earlier_lines(&self) -> bool {
        self.publisher.has_only_earlier_lines()
    }
}

/// Logs a note, unless many were logged lately: all of them are signs of one trouble.
fn log(note: &Note, names: &[String], budget: &mut Budget) {
    let name = |reference: usize| names.get(reference).map_or("?", String::as_str);
    if !matches!(note, Note::Discarded { .. }) && !budget.take(monotonic()) {
        tracing::debug!("again: {note:?}");
        return;
    }
    match *note {
        Note::Doubt { reference, by } => tracing::warn!(
            "reference {}: an exchange needs a path or a clock that moved by {by}; the bounds are not trusted until more \
             exchanges agree",
            name(reference)
        ),
        Note::Discarded { reference, reason } => {
            tracing::debug!("reference {}: exchange discarded: {reason}", name(reference));
        }
        Note::Contradiction { reference, gap } => tracing::warn!(
            "reference {} contradicts the bounds by {gap}: its own are being rebuilt",
            name(reference)
        ),
        Note::Stepped => tracing::warn!(
            "what the references say now excludes what was published before: the clock steps"
        ),
    }
}

fn ensemble(config: &Config, names: &[String], calibration: &Calibration) -> Ensemble {
    Ensemble::new(&config.parameters(), names, calibration.period, calibration.error)
}

fn half_width(lines: &Lines<Tai>, now: u64) -> Duration {
    lines.rebased(now).half_width()
}

/// Returns a value that no earlier daemon used: the time in nanoseconds.
pub fn epoch() -> u64 {
    realtime().floor_nanos().unsigned_abs()
}

/// Returns the host's identity for readers; zero if there is no /etc/machine-id.
fn machine_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    u128::from_str_radix(text.trim(), 16).map(u128::to_be_bytes).unwrap_or_default()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
