//! The host's clock: counter, ensemble of references, the host's own page, and what VMs' pages are written from.

use std::path::Path;

use anyhow::{Context, Result};
use timevisor_clock_page::{
    ClockStatus, Counter, EntryUpdate, Identity, Known, Lines, PageWriter, Policy, Reader, Slew,
    Update,
};
use timevisor_estimate::ensemble::Clock;
use timevisor_estimate::{Birth, Ensemble, Exchange, Knowledge, Observation, Quality, RateLimits};
use timevisor_guests::vm::Publication;
use timevisor_linux::clock::{boot_id, monotonic, realtime, suspended};
use timevisor_linux::counter::{Calibration, HostCounter, calibrate, select};
use timevisor_linux::page::WritePage;
use timevisor_linux::page_file::{self, PageSize};
use timevisor_time::{Duration, Tai, TimescaleId};

use crate::config::{Config, span};
use crate::estimates::Estimates;
use crate::journal::{CounterHistory, Journal};
use crate::leap::Leap;
use crate::server::ServerConfig;

/// A suspend changes CLOCK_BOOTTIME - CLOCK_MONOTONIC by more than this.
const SUSPEND_NOISE: Duration = Duration::from_millis(1);

/// Estimates are saved this often: what is learned in a minute is learned again in a minute.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// What outlives this daemon: without it the clock is this process's alone, and does not notice a suspend.
struct Memory {
    history: CounterHistory,
    journal: Journal,
    estimates: Estimates,
    next_save: Duration,
}

impl Memory {
    fn in_directory(directory: &Path, counter: &HostCounter) -> Result<Self> {
        let history = CounterHistory {
            boot_id: hex(&boot_id().context("cannot read the boot id")?),
            counter: counter.id().name().to_owned(),
            suspended_ns: suspended().0.floor_nanos(),
        };
        Ok(Self {
            history,
            journal: Journal::in_directory(directory),
            estimates: Estimates::in_directory(directory),
            next_save: monotonic() + SAVE_INTERVAL,
        })
    }

    /// Hands the estimates of the daemon before to the ensemble.
    fn resume(&self, ensemble: &mut Ensemble) {
        let resumed = self
            .estimates
            .read(&self.history)
            .and_then(|saved| ensemble.resume(&saved).map_err(|e| e.to_string()).map(|()| saved));
        match resumed {
            Ok(saved) => {
                tracing::info!("resuming {} estimate(s) of the daemon before", saved.len());
            }
            Err(reason) => tracing::info!("estimates begin anew: {reason}"),
        }
    }

    fn save(&mut self, ensemble: &Ensemble) {
        self.next_save = monotonic() + SAVE_INTERVAL;
        let saved = ensemble.saved();
        if saved.is_empty() {
            return;
        }
        if let Err(error) = self.estimates.write(&self.history, saved) {
            tracing::warn!("cannot save the estimates: {error}; a restart will learn them again");
        }
    }
}

pub struct HostClock {
    pub counter: HostCounter,
    /// Why it is this one.
    pub counter_reason: String,
    pub calibration: Calibration,
    pub leap: Leap,
    pub host_id: [u8; 16],
    ensemble: Ensemble,
    config: Config,
    names: Vec<String>,
    memory: Option<Memory>,
    writer: PageWriter<WritePage>,
    recovered: Option<Lines<Tai>>,
    /// The limits of the rate as they were known last, by this daemon or the one before.
    rate: Option<RateLimits>,
    seen_disruptions: u64,
    own_disruptions: u64,
    knowledge: Knowledge,
    started: Duration,
}

impl HostClock {
    /// Chooses and calibrates the counter, takes over the host's page, recovers what an earlier daemon knew.
    pub fn start(config: &Config, names: Vec<String>) -> Result<Self> {
        Self::with_memory(config, names, Some(&config.run_directory))
    }

    /// A clock for this process alone: its page is not a file, nothing is recovered or kept, CLOCK_BOOTTIME is not read.
    pub fn private(config: &Config, names: Vec<String>) -> Result<Self> {
        Self::with_memory(config, names, None)
    }

    fn with_memory(config: &Config, names: Vec<String>, directory: Option<&Path>) -> Result<Self> {
        let (counter, counter_reason) = select(config.counter.into())?;
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
        let tai_offset = leap.offset_at(realtime()).ok();
        let journaled = match &memory {
            Some(memory) => memory.journal.read(&memory.history, now),
            None => Err("nothing is kept across restarts".to_owned()),
        };
        let rate = journaled.as_ref().ok().and_then(|j| j.rate);
        let (writer, recovered) = match journaled {
            Ok(journaled) => {
                let lines = on_page(&page, &counter).unwrap_or(journaled.lines);
                tracing::info!(
                    "resuming from the lines of the daemon before, half-width {}",
                    half_width(&lines, now)
                );
                let update = recovered_update(&lines, &policy(&calibration, config), tai_offset);
                (PageWriter::recover(page, identity, &update, &counter), Some(lines))
            }
            Err(reason) => {
                tracing::info!("starting anew: {reason}");
                (PageWriter::take_over(page, identity, tai_offset), None)
            }
        };
        let mut ensemble =
            Ensemble::new(&config.parameters(), &names, calibration.period, calibration.error);
        if let Some(memory) = &memory {
            memory.resume(&mut ensemble);
        }
        if let Some(rate) = &rate {
            ensemble.adopt_rate(rate);
        }
        let mut clock = Self {
            counter,
            counter_reason,
            calibration,
            leap,
            host_id,
            ensemble,
            config: config.clone(),
            names,
            memory,
            writer,
            recovered,
            rate,
            seen_disruptions: 0,
            own_disruptions: 0,
            knowledge: Knowledge {
                at: now,
                quality: Quality::Nothing,
                reason: None,
                clock: None,
                falsetickers: vec![],
            },
            started: monotonic(),
        };
        clock.publish();
        Ok(clock)
    }

    /// Takes an exchange with reference `index` in.
    pub fn observe(&mut self, index: usize, exchange: &Exchange) {
        let name = &self.names[index];
        match self.ensemble.observe(index, exchange) {
            Observation::Used => {}
            Observation::Doubt(by) => tracing::warn!(
                "reference {name}: an exchange needs a path or a clock that moved by {by}; the bounds are not trusted \
                 until more exchanges agree"
            ),
            Observation::Discarded(reason) => {
                tracing::debug!("reference {name}: exchange discarded: {reason}");
            }
            Observation::Contradiction(gap) => {
                tracing::warn!(
                    "reference {name} contradicts the bounds by {gap}: its own are being rebuilt"
                );
            }
        }
    }

    /// True once after the machine was suspended: everything known is void, the references should start over.
    pub fn was_suspended(&mut self) -> bool {
        let Some(memory) = &mut self.memory else { return false };
        let now = suspended().0;
        let before = Duration::from_nanos(memory.history.suspended_ns);
        if (now - before).abs() <= SUSPEND_NOISE {
            return false;
        }
        memory.history.suspended_ns = now.floor_nanos();
        self.start_anew(&format!("the machine was suspended for {}", now - before));
        true
    }

    /// Forgets what reference `index` said: another server has taken its place.
    pub fn forget(&mut self, index: usize) {
        self.ensemble.forget(index);
    }

    /// Everything known is void on this counter, for this reason.
    pub fn start_anew(&mut self, reason: &str) {
        tracing::warn!("{reason}: starting anew");
        if let Some(memory) = &self.memory {
            memory.journal.clear();
            memory.estimates.clear();
        }
        self.recovered = None;
        self.own_disruptions += self.ensemble.disruptions() + 1;
        let parameters = self.config.parameters();
        self.ensemble = Ensemble::new(
            &parameters,
            &self.names,
            self.calibration.period,
            self.calibration.error,
        );
        self.writer.withdraw(ClockStatus::Unknown, self.leap.offset_at(realtime()).ok());
    }

    /// When the host's elapsed clock read 0, as its page says; a boot clears that.
    pub fn birth(&self) -> Option<Birth> {
        self.writer.found_birth().map(|(zero, within)| Birth { zero, within })
    }

    /// Says so on the page.
    pub fn set_birth(&self, birth: &Birth) {
        self.writer.set_birth(Some((birth.zero, birth.within)));
    }

    /// Writes the host's page from what is known now, and returns what VMs' pages are to be written from.
    pub fn publish(&mut self) -> Publication {
        let mut publication = self.assess();
        self.publish_own(&mut publication);
        self.save_when_due(false);
        publication
    }

    /// The last publication of this daemon: free running, bounds growing.
    pub fn publish_last(&mut self) -> Publication {
        let mut publication = self.assess();
        publication.status = match publication.status {
            ClockStatus::Synchronized | ClockStatus::Initializing => ClockStatus::FreeRunning,
            other => other,
        };
        self.publish_own(&mut publication);
        self.save_when_due(true);
        publication
    }

    fn save_when_due(&mut self, ending: bool) {
        let Some(memory) = &mut self.memory else { return };
        if ending || monotonic() >= memory.next_save {
            memory.save(&self.ensemble);
        }
    }

    fn assess(&mut self) -> Publication {
        let now = self.counter.read_ordered();
        self.knowledge = self.ensemble.at(now);
        let policy = self.policy();
        let (target, status, estimated_error, as_of) = match &self.knowledge.clock {
            Some(clock) => (
                Some(policy.lines(now, &known(clock))),
                page_status(self.knowledge.quality),
                clock.estimated_error,
                clock.as_of,
            ),
            None => {
                let waited = monotonic() - self.started > span(self.config.clock.stale_after);
                let status = match (&self.recovered, waited) {
                    (Some(_), _) => ClockStatus::FreeRunning,
                    (None, false) => ClockStatus::Initializing,
                    (None, true) => ClockStatus::Unknown,
                };
                let recovered = self.recovered.map(|lines| policy.free_running(now, &lines));
                (recovered, status, Duration::MAX, now)
            }
        };
        let tai = target.map(|lines| lines.at(now).estimate);
        let tai_offset = tai
            .map_or_else(|| self.leap.offset_at(realtime()), |tai| self.leap.offset_of_tai(tai))
            .ok();
        let disruptions = self.own_disruptions + self.ensemble.disruptions();
        Publication {
            target,
            status,
            estimated_error,
            as_of,
            tai_offset,
            slew_horizon: policy.slew().horizon,
            disruptions,
        }
    }

    fn publish_own(&mut self, publication: &mut Publication) {
        let Some(target) = publication.target else {
            let said =
                self.writer.in_force().is_none() && self.writer.status() == publication.status;
            if !said {
                self.writer.withdraw(publication.status, publication.tai_offset);
            }
            return;
        };
        let now = self.counter.read_ordered();
        self.note_contradiction(&target, now);
        publication.disruptions = self.own_disruptions + self.ensemble.disruptions();
        if publication.disruptions != self.seen_disruptions {
            self.seen_disruptions = publication.disruptions;
            self.writer.disrupt();
        }
        let old = self.writer.in_force().map(|lines| lines.shifted(Duration::ZERO));
        let expected = self.policy().next(old.as_ref(), &target, now);
        self.note_lines(publication.status, &expected);
        // Exactly what was journaled: whoever resumes from the journal then nests in the page, too.
        let update = self.own_update(publication, &expected);
        // VMs' pages are written from what the host's page says, not from the target: all readers see one clock.
        let in_force = self.writer.publish(&update, &self.counter);
        publication.target = Some(in_force.shifted(Duration::ZERO));
    }

    /// Journals the lines, unless an assumption behind them failed: a restart must not take those for facts.
    fn note_lines(&mut self, status: ClockStatus, lines: &Lines<Tai>) {
        let Some(memory) = &self.memory else { return };
        if status == ClockStatus::Unreliable {
            return memory.journal.clear();
        }
        self.rate = self.knowledge.clock.as_ref().map(|clock| clock.limits).or(self.rate);
        if let Err(error) = memory.journal.write(&memory.history, lines, self.rate.as_ref()) {
            tracing::warn!("cannot write the recovery journal: {error}; a restart will begin anew");
        }
    }

    fn note_contradiction(&mut self, target: &Lines<Tai>, now: u64) {
        let Some(old) = self.writer.in_force() else { return };
        if self.policy().must_step(&old.shifted(Duration::ZERO), target, now) {
            tracing::warn!(
                "what the references say now excludes what was published before: the clock steps"
            );
            self.own_disruptions += 1;
        }
    }

    pub fn policy(&self) -> Policy {
        policy(&self.calibration, &self.config)
    }

    /// The update for the host's own page.
    fn own_update(&self, publication: &Publication, target: &Lines<Tai>) -> Update {
        Update {
            target: target.shifted(Duration::ZERO),
            status: publication.status,
            estimated_error: publication.estimated_error,
            as_of: publication.as_of,
            tai_offset: publication.tai_offset,
            slew: self.policy().slew(),
        }
    }

    /// Makes the further entries of the host's first page be these, and says what is required of its own clock.
    pub fn write_entries(&mut self, required_ns: u64, entries: &[EntryUpdate]) {
        self.writer.require(0, required_ns);
        self.writer.write_entries(entries, &self.counter);
    }

    /// What the host's page says, for a page beside it.
    pub fn copy(&self) -> Option<Update> {
        let target = *self.writer.in_force()?;
        let clock = self.knowledge.clock.as_ref();
        Some(Update {
            target,
            status: self.writer.status(),
            estimated_error: clock.map_or(Duration::MAX, |clock| clock.estimated_error),
            as_of: clock.map_or(target.base, |clock| clock.as_of),
            tai_offset: self.writer.tai_offset(),
            slew: Slew { jump: Duration::ZERO, ..self.policy().slew() },
        })
    }

    /// The NTP server that serves this clock.
    pub fn own_server(&self) -> &ServerConfig {
        &self.config.server
    }

    /// In this long the lines in force must be renewed, or readers take the page for abandoned.
    pub fn until_renewal(&self) -> Duration {
        let now = self.counter.read_ordered();
        self.policy().until_renewal(self.writer.in_force(), now)
    }

    /// What the last [`Self::publish`] was based on.
    pub fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }

    /// What the references have told so far.
    pub fn ensemble(&self) -> &Ensemble {
        &self.ensemble
    }

    /// The writer of the host's page.
    pub fn writer(&self) -> &PageWriter<WritePage> {
        &self.writer
    }

    /// True while nothing but an earlier daemon's lines is known.
    pub fn is_recovered_only(&self) -> bool {
        self.recovered.is_some() && self.knowledge.clock.is_none()
    }
}

fn policy(calibration: &Calibration, config: &Config) -> Policy {
    Policy { nominal: calibration.period, validity: span(config.clock.validity) }
}

fn recovered_update(lines: &Lines<Tai>, policy: &Policy, tai_offset: Option<i16>) -> Update {
    Update {
        target: lines.shifted(Duration::ZERO),
        status: ClockStatus::FreeRunning,
        estimated_error: Duration::MAX,
        as_of: lines.base,
        tai_offset,
        slew: policy.slew(),
    }
}

/// What readers of the page see to this moment. An update may have been journaled and never published, and readers have
/// followed the lines before it since; only where the page is torn, the journal is all there is.
fn on_page(page: &WritePage, counter: &HostCounter) -> Option<Lines<Tai>> {
    let reader = Reader::open(&**page, counter, 0).ok()?;
    let now = reader.read().ok()?;
    let lines = reader.lines().ok()?;
    let usable = now.has_estimate()
        && now.timescale() == TimescaleId::Tai
        && now.counter.wrapping_sub(lines.base) >> 63 == 0;
    usable.then(|| lines.shifted(Duration::ZERO))
}

/// What is known, in the words of whoever publishes.
pub fn known(clock: &Clock) -> Known {
    let pair = |r: &RateLimits| (r.shortest, r.longest);
    Known {
        interval: clock.interval,
        estimate: clock.estimate,
        period: clock.period,
        slopes: pair(&clock.slopes),
        limits: pair(&clock.limits),
    }
}

pub fn page_status(quality: Quality) -> ClockStatus {
    match quality {
        Quality::Nothing => ClockStatus::Unknown,
        Quality::Initializing => ClockStatus::Initializing,
        Quality::Synchronized => ClockStatus::Synchronized,
        Quality::FreeRunning => ClockStatus::FreeRunning,
        Quality::Unreliable => ClockStatus::Unreliable,
    }
}

fn half_width(lines: &Lines<Tai>, now: u64) -> Duration {
    lines.rebased(now).half_width()
}

/// Any value that differs from the one before: nanoseconds do.
pub fn epoch() -> u64 {
    realtime().floor_nanos().unsigned_abs()
}

/// The host's identity for readers; zero where there is no /etc/machine-id.
fn machine_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    u128::from_str_radix(text.trim(), 16).map(u128::to_be_bytes).unwrap_or_default()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
