//! One served VM: how its page follows the VM's events.
//!
//! Rules: a page tells the time only while the relation between the guest's counter and the host's
//! is known. While it is unknown (stopped, suspended, unreadable, vCPUs that disagree), time and
//! bounds are withdrawn. When it has changed, the disruption marker changes too. If the page's
//! sequences differ from what we wrote, a loaded snapshot has overwritten it, and we restart it.
//!
//! What is read back from a page that another timevisord has written: the timescale, because the
//! guest's driver may have probed it, when the VM was born, the marker and the VM generation counter.
//!
//! A page is withdrawn at every stop, although the TSC keeps running under KVM, for two reasons.
//! First, nothing reports what happens to a stopped VM before it runs again, and loading a snapshot
//! sets the TSC. Second, a snapshot saved while stopped then contains a page without time, which is
//! harmless wherever it is loaded.
//!
//! The page of a VM that is awaited is not touched at all. With post-copy its guest may run before its
//! page has come, and QEMU ends a migration whose page is there already when it comes: a load is
//! enough for that.
//!
//! Limitation: under TCG without a QMP socket, a stop and resume is detected by polling. For one
//! polling interval after the resume, the guest may read a page whose time is behind by the length
//! of the pause.

use timevisor_clock_page::{
    ClockStatus, Counter, CounterId, Identity, NotedBirth, PageWriter, Sample, timescale_left_on,
};
use timevisor_linux::clock::realtime;
use timevisor_linux::page::WritePage;
use timevisor_linux::process::{PidFd, ProcessError};
use timevisor_protocols::qmp::{MigrationStatus, QueryStatus, RunState, VmEvent};
use timevisor_time::TimescaleId;

use crate::counter_mapping::CounterMapping;
use crate::delivery::{DeliveryError, DeliveryKind, PageDelivery};
use crate::entries::TimelineEntry;
use crate::guest_clock::GuestCounter;
use crate::host::{HostIdentity, HostUpdate, identity, timeline_of};
use crate::qemu::Qemu;
use crate::transit::{Step, Transit};

/// Why a VM cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The VM has no page that we could write.
    #[error("{0} has no page for us; start it with the arguments that `timevisor vm args` prints")]
    NoPage(String),
    /// There is a page, but we cannot use it.
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    /// The host's counter is one that guests cannot read.
    #[error("the host counts with {}, which no guest can read; VMs need counter = \"tsc\" (or \"cntvct\")", .0.name())]
    Counter(CounterId),
    /// The process could not be watched.
    #[error("cannot watch the QEMU process")]
    Process(#[from] ProcessError),
    /// The mapping is not a page.
    #[error("the page cannot be used")]
    Map(#[from] timevisor_linux::mapping::MapError),
}

/// A served VM.
pub struct Vm {
    /// Its name on this host.
    pub name: String,
    /// Its process.
    pub qemu: Qemu,
    /// How the page reaches the guest.
    pub delivery: DeliveryKind,
    writer: PageWriter<WritePage>,
    mapping: Option<CounterMapping>,
    /// Its counter mapping has to be read.
    asks: bool,
    /// Grows whenever an earlier reading of the mapping says nothing any more.
    moment: u64,
    problem: Option<String>,
    transit: Transit,
    /// It runs here, and its page has not come yet: see [`Self::arrive_late`].
    is_late: bool,
    arrivals: u64,
    /// QEMU has reported that the vCPUs do not run.
    stopped: bool,
    /// QEMU has reported that the guest sleeps (S3). Waking resets the vCPUs, and under KVM their
    /// counters too.
    suspended: bool,
    /// Its vCPUs have run, here or on another host; `None` if nothing is known of that.
    has_run: Option<bool>,
    /// A timevisord had written the page of its device before.
    was_served: bool,
    /// QEMU has said how it is.
    is_told: bool,
    /// Until it has, the VM may be one that waits for a migration.
    is_unheard: bool,
    /// How often the page was found overwritten.
    replaced: u64,
    ended: PidFd,
}

impl Vm {
    /// Finds the VM's page and takes it over: from now on its status is `initializing`, with the
    /// right counter. A page that a timevisord has written keeps its timescale ([`Self::timescale`]).
    ///
    /// # Errors
    /// When there is no page, or we may not write it. A counter mapping that cannot be read is not
    /// an error: the page then states that the time is unknown, and the reason is in
    /// [`Self::problem`].
    pub fn attach(
        qemu: Qemu,
        name: &str,
        timescale: TimescaleId,
        host: HostIdentity,
        deliveries: &[&dyn PageDelivery],
    ) -> Result<Self, AttachError> {
        Self::take_over(qemu, name, timescale, host, deliveries, |page, identity| {
            (PageWriter::take_over(page, identity, host.tai_offset), None)
        })
    }

    /// As [`Self::attach`] of a VM that an earlier daemon served: its page carries the time at once
    /// if the host knows it and the counter mapping was read.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_again(
        qemu: Qemu,
        name: &str,
        timescale: TimescaleId,
        host: HostIdentity,
        deliveries: &[&dyn PageDelivery],
        now: (&HostUpdate, &impl Counter),
        mapping: Option<CounterMapping>,
    ) -> Result<Self, AttachError> {
        Self::take_over(qemu, name, timescale, host, deliveries, |page, identity| {
            let (update, counter) = now;
            let Some(mapping) = mapping.filter(|found| found.running) else {
                return (PageWriter::take_over(page, identity, host.tai_offset), None);
            };
            match update.on(identity.timescale).for_guest(&mapping).1 {
                Ok(first) => {
                    let counter = GuestCounter { host: counter, mapping };
                    let writer =
                        PageWriter::take_over_with(page, identity, &first, update.leap, &counter);
                    (writer, Some(mapping))
                }
                Err(_) => (PageWriter::take_over(page, identity, host.tai_offset), None),
            }
        })
    }

    fn take_over(
        qemu: Qemu,
        name: &str,
        timescale: TimescaleId,
        host: HostIdentity,
        deliveries: &[&dyn PageDelivery],
        write: impl FnOnce(WritePage, Identity) -> (PageWriter<WritePage>, Option<CounterMapping>),
    ) -> Result<Self, AttachError> {
        if !matches!(host.counter, CounterId::X86Tsc | CounterId::ArmVcnt) {
            return Err(AttachError::Counter(host.counter));
        }
        let ended = PidFd::open(qemu.process)?;
        let mut none = AttachError::NoPage(name.to_owned());
        for delivery in deliveries {
            let found = match delivery.attach(&qemu) {
                // The next one need not look through descriptors.
                Err(error @ DeliveryError::TooManyDescriptors(_)) => {
                    none = error.into();
                    continue;
                }
                found => found?,
            };
            if let Some(mapping) = found {
                let page = WritePage::new(mapping)?;
                let left = timescale_left_on(&page);
                let timescale = left.unwrap_or(timescale);
                let (writer, mapping) = write(page, identity(name, timescale, host));
                if delivery.kind() == DeliveryKind::Vmclock {
                    writer.count_generations();
                }
                let line = &qemu.command_line;
                return Ok(Self {
                    name: name.to_owned(),
                    was_served: left.is_some() && delivery.kind() == DeliveryKind::Vmclock,
                    has_run: (!line.held && !line.loads_state).then_some(true),
                    qemu,
                    delivery: delivery.kind(),
                    writer,
                    mapping,
                    asks: true,
                    moment: 0,
                    problem: None,
                    transit: Transit::Here,
                    is_late: false,
                    arrivals: 0,
                    stopped: false,
                    suspended: false,
                    is_told: false,
                    is_unheard: false,
                    replaced: 0,
                    ended,
                });
            }
        }
        Err(none)
    }

    /// It was started for a migration, and QEMU has not said yet whether that has come: nothing is
    /// published until [`Self::on_status`]. `why`, for reports.
    pub fn await_word(&mut self, why: &str) {
        self.is_unheard = true;
        self.problem = Some(why.to_owned());
    }

    /// An earlier daemon knew that it waits for a migration.
    pub fn await_arrival(&mut self) {
        self.transit = Transit::Incoming;
    }

    /// The timescale of its page.
    #[must_use]
    pub fn timescale(&self) -> TimescaleId {
        self.writer.identity().timescale
    }

    /// Whether the guest's driver may have probed the timescale that is on the page. A page that does
    /// not travel with its guest says nothing of what that has probed on another host.
    #[must_use]
    pub fn has_probed(&self) -> bool {
        !self.came_without_page() && self.has_run.unwrap_or(self.was_served)
    }

    /// Its guest's state comes from elsewhere, and its page does not.
    #[must_use]
    pub fn came_without_page(&self) -> bool {
        self.delivery != DeliveryKind::Vmclock && self.qemu.command_line.loads_state
    }

    /// Restarts the page on another timescale; allowed only before the guest's driver has probed
    /// it ([`Self::has_probed`]).
    pub fn change_timescale(&mut self, timescale: TimescaleId, host: HostIdentity) {
        self.writer.start_over(identity(&self.name, timescale, host), host.tai_offset);
    }

    /// Looks at the page, and asks for the counter mapping: see [`Self::question`].
    pub fn look(&mut self) {
        if self.transit == Transit::Left || self.is_awaited() {
            return;
        }
        self.heed_page();
        match self.held() {
            Some(reason) => self.withdraw(reason.to_owned()),
            None => self.asks = true,
        }
    }

    /// Whether the counter mapping has to be read, and for which [`Self::learn`]; asked once.
    #[must_use]
    pub fn question(&mut self) -> Option<u64> {
        std::mem::take(&mut self.asks).then_some(self.moment)
    }

    /// Takes in what the mapping was after [`Self::question`] had returned `moment`, or why it is
    /// unknown. Returns true if it has changed; the page should then be written now.
    pub fn learn(&mut self, moment: u64, found: Result<CounterMapping, String>) -> bool {
        if self.transit == Transit::Left || self.is_awaited() || self.held().is_some() {
            return false;
        }
        if moment != self.moment {
            // What was read may be from before the VM was stopped, restored or moved.
            self.asks = true;
            return false;
        }
        let found = match found {
            Ok(found) if found.running => found,
            Ok(_) => {
                self.withdraw("the VM does not run".to_owned());
                return false;
            }
            Err(why) => {
                self.withdraw(why);
                return false;
            }
        };
        self.has_run.get_or_insert(true);
        let changed = self.mapping != Some(found);
        if changed && self.mapping.is_some() {
            self.writer.disrupt();
        }
        self.mapping = Some(found);
        self.problem = None;
        changed
    }

    /// A reason to withhold the time that is independent of the counters.
    fn held(&self) -> Option<&'static str> {
        match (self.suspended, self.stopped) {
            (true, _) => Some("the guest is suspended"),
            (false, true) => Some("the VM is stopped"),
            (false, false) => None,
        }
    }

    /// Whether QEMU may overwrite the page now, so that it must be polled: QEMU loads snapshots
    /// into stopped VMs. QEMU cannot write page files, because it maps them read-only.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.delivery == DeliveryKind::Vmclock && self.held().is_some()
    }

    /// Whether the page's owner has truncated it. What is written reaches nobody then, so the VM has
    /// to be retired. It is noticed when the page is accessed.
    #[must_use]
    pub fn has_lost_page(&self) -> bool {
        self.writer.storage().is_lost()
    }

    /// Restarts the page if it was overwritten.
    fn heed_page(&mut self) {
        if self.writer.is_intact() || self.has_lost_page() {
            return;
        }
        // The same snapshot can be loaded repeatedly; a new epoch lets readers tell the loads
        // apart.
        let epoch = realtime().floor_nanos().unsigned_abs();
        self.start_over(epoch);
        self.replaced += 1;
        if self.held().is_some() {
            self.writer.withdraw(ClockStatus::Unknown, self.tai_offset_hint());
        }
    }

    /// How often the page was found overwritten.
    #[must_use]
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Processes QEMU's answer about the VM's state. Returns the same as [`Self::on_event`].
    pub fn on_status(&mut self, status: &QueryStatus) -> Step {
        self.moment += 1;
        self.is_told = true;
        if std::mem::take(&mut self.is_unheard) {
            self.problem = None;
        }
        let step = self.transit.on_status(status);
        // What is known here is not of the guest that will come.
        if self.is_awaited() && self.mapping.take().is_some() {
            self.writer.withdraw(ClockStatus::Unknown, self.tai_offset_hint());
            self.writer.write_host_cpu_time(None);
        }
        let step = self.unless_late(step);
        self.take_step(step);
        self.has_run = Some(match status.state {
            // `-loadvm` with -S.
            RunState::Prelaunch => self.qemu.command_line.loads_state,
            RunState::InMigrate => false,
            _ => true,
        });
        match status.state {
            RunState::Suspended => (self.stopped, self.suspended) = (false, true),
            // It has not run yet, and its page may be correct before it does.
            RunState::Prelaunch | RunState::InMigrate => self.stopped = false,
            _ if status.running => (self.stopped, self.suspended) = (false, false),
            _ => self.stopped = step != Step::Arrive,
        }
        self.look();
        step
    }

    /// Processes QEMU's answer of how the latest migration stands. Returns the same as
    /// [`Self::on_event`].
    pub fn on_migration(&mut self, status: &MigrationStatus, why: Option<&str>) -> Step {
        self.transit.on_asked(status, why)
    }

    /// Processes a QMP event. Returns what the caller has to do.
    pub fn on_event(&mut self, event: &VmEvent) -> Step {
        let step = self.transit.on_event(event);
        let step = self.unless_late(step);
        self.take_step(step);
        match event {
            VmEvent::Stop => self.stopped = true,
            VmEvent::Suspend => self.suspended = true,
            VmEvent::Wakeup => self.suspended = false,
            // It may still be asleep (`stop` and `cont` do not wake it), or have a different state
            // (after a snapshot or reset).
            VmEvent::Resume | VmEvent::Reset { .. } if self.suspended => {
                self.stopped = false;
                self.moment += 1;
                return Step::AskStatus;
            }
            VmEvent::Resume => (self.stopped, self.has_run) = (false, Some(true)),
            VmEvent::Reset { .. } => {}
            // Under KVM, the counter keeps running while the vCPUs are held back, so the page can
            // be correct before they run.
            _ if step == Step::Arrive => {}
            _ => return step,
        }
        // What is being read now may be from before.
        self.moment += 1;
        self.look();
        step
    }

    /// It is still awaited while its page is.
    fn unless_late(&mut self, step: Step) -> Step {
        if step != Step::Arrive || self.writer.storage().is_there() {
            return step;
        }
        self.transit = Transit::Incoming;
        self.is_late = true;
        Step::Nothing
    }

    /// A VM whose guest runs before its page has come arrives when it has: [`Step::Arrive`], then.
    pub fn arrive_late(&mut self) -> Step {
        if !self.is_late || !self.is_awaited() || !self.writer.storage().is_there() {
            return Step::Nothing;
        }
        self.transit = Transit::Here;
        self.take_step(Step::Arrive);
        self.look();
        Step::Arrive
    }

    /// Whether it waits for its memory, or for its page: nothing of that may be touched.
    fn is_awaited(&self) -> bool {
        self.is_unheard || self.transit == Transit::Incoming
    }

    fn take_step(&mut self, step: Step) {
        match step {
            Step::Arrive => self.arrive(),
            Step::Leave => self.withdraw("the VM has migrated away".to_owned()),
            Step::Nothing | Step::AskWhy | Step::AskStatus => {}
        }
    }

    /// Handles a VM's arrival from another host: its page, or what its guest has read so far, comes
    /// from there.
    fn arrive(&mut self) {
        self.is_late = false;
        self.stopped = false;
        self.suspended = false;
        self.has_run = Some(true);
        self.start_over(self.writer.identity().epoch);
    }

    fn start_over(&mut self, epoch: u64) {
        self.mapping = None;
        self.moment += 1;
        let mut identity = Identity { epoch, ..*self.writer.identity() };
        if self.delivery == DeliveryKind::Vmclock {
            // QEMU has copied the source's page, and the guest's driver uses the timescale that it
            // found there.
            identity.timescale = self.writer.found_timescale().unwrap_or(identity.timescale);
            identity.timeline = timeline_of(identity.timescale);
        }
        self.writer.arrive(identity, self.tai_offset_hint());
        self.arrivals += 1;
    }

    /// Number of arrivals from other hosts. Facts from before an arrival belong to another host.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// What its page says of the instant at which its elapsed clock read 0. Only QEMU's vmclock
    /// device migrates its page.
    #[must_use]
    pub fn birth(&self) -> NotedBirth {
        if self.is_awaited() {
            return NotedBirth::Nothing;
        }
        let found = self.writer.found_birth();
        if self.came_without_page() { found.of_one_that_came() } else { found }
    }

    /// Notes that instant on the page.
    pub fn set_birth(&self, birth: NotedBirth) {
        if !self.is_awaited() {
            self.writer.set_birth(birth);
        }
    }

    /// Whether it waits for a migration; `None` until QEMU has said so ([`Self::await_word`]).
    #[must_use]
    pub fn awaits(&self) -> Option<bool> {
        (!self.is_unheard).then_some(self.transit == Transit::Incoming)
    }

    /// Whether it was started for a migration that has come, by QEMU's own word.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        let is_here = matches!(self.transit, Transit::Here | Transit::Failed(_));
        self.qemu.command_line.incoming && self.is_told && is_here
    }

    /// Its migration state.
    #[must_use]
    pub fn transit(&self) -> &Transit {
        &self.transit
    }

    /// Whether its guest runs, according to QEMU's reports.
    #[must_use]
    pub fn runs(&self) -> bool {
        let here = matches!(self.transit, Transit::Here | Transit::Failed(_));
        here && !self.stopped && !self.suspended
    }

    /// Its migration state, for updates from QEMU's answers.
    pub fn transit_mut(&mut self) -> &mut Transit {
        &mut self.transit
    }

    /// Writes the page, if its counter's relation to the host's is known. Call [`Self::look`]
    /// first, and [`Self::learn`] what it asks for.
    pub fn publish(&mut self, host: &HostUpdate, counter: &impl Counter) {
        let Some(mapping) = self.mapping.filter(|_| !self.is_awaited()) else { return };
        let (disruptions, update) = host.on(self.writer.identity().timescale).for_guest(&mapping);
        self.writer.announce(host.leap);
        let counter = GuestCounter { host: counter, mapping };
        self.writer.follow(disruptions, &update, host.tai_offset, &counter);
    }

    /// Sets the page's additional entries to these timelines, and the requirement on its clock in
    /// ns (0: none).
    pub fn publish_entries(
        &mut self,
        required_ns: u64,
        entries: &[TimelineEntry],
        counter: &impl Counter,
    ) {
        if self.is_awaited() {
            return;
        }
        self.writer.require(0, required_ns);
        let updates: Vec<_> = entries.iter().map(|e| e.for_guest(self.mapping.as_ref())).collect();
        // Without a mapping nothing is published, so any counter will do.
        let mapping = self.mapping.unwrap_or(CounterMapping::IDENTITY);
        self.writer.write_entries(&updates, &GuestCounter { host: counter, mapping });
    }

    /// Writes the processor time of each vCPU's thread, if the counter mapping is known. `host` is
    /// a [`Sample`] on the host's counter.
    pub fn write_host_cpu_time(&self, host: &Sample<'_>) {
        if let Some(mapping) = self.mapping.filter(|_| !self.is_awaited()) {
            let base = mapping.guest_from_host(host.base);
            self.writer.write_host_cpu_time(Some(&Sample { base, ..*host }));
        }
    }

    /// Withdraws time and bounds from the page.
    pub fn withdraw(&mut self, problem: String) {
        if (self.mapping.take().is_some() || self.problem.is_none()) && !self.is_awaited() {
            self.writer.withdraw(ClockStatus::Unknown, self.tai_offset_hint());
            self.writer.write_host_cpu_time(None);
        }
        self.problem = Some(problem);
    }

    /// Ends service permanently, because the VM has ended or on request.
    pub fn retire(mut self) -> PidFd {
        if !self.is_awaited() {
            self.writer.withdraw(ClockStatus::Unknown, self.tai_offset_hint());
            self.writer.write_host_cpu_time(None);
        }
        self.ended
    }

    /// A page that has been probed must keep its TAI offset.
    fn tai_offset_hint(&self) -> Option<i16> {
        self.writer.tai_offset_hint()
    }

    /// Why the page carries no time, if that is the case.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// The counter mapping, while it is known.
    #[must_use]
    pub fn mapping(&self) -> Option<&CounterMapping> {
        self.mapping.as_ref()
    }

    /// The page's writer, for reports.
    #[must_use]
    pub fn writer(&self) -> &PageWriter<WritePage> {
        &self.writer
    }

    /// Becomes readable when QEMU ends.
    #[must_use]
    pub fn ended(&self) -> &PidFd {
        &self.ended
    }
}
