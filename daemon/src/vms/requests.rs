//! Answers to the CLI's requests about VMs.

use std::path::{Path, PathBuf};

use anyhow::Context;
use timevisor_clock_page::{Counter, CounterId, NotedBirth, Notice as PageNotice};
use timevisor_guests::delivery::DeliveryKind;
use timevisor_guests::owner::{Owner, Source};
use timevisor_guests::transit::Transit;
use timevisor_guests::vm::AttachError;
use timevisor_linux::clock::monotonic;
use timevisor_linux::process::Process;
use timevisor_protocols::control::{
    ElapsedSince, ErrorBody, ErrorCode, Notice, Response, TimeType, VmAdd, VmList, VmMigrate,
    VmNotice, VmPrepare, VmPrepared, VmRemoved, VmRow,
    request::{check_name, id_of},
};
use timevisor_time::CounterRatio;

use timevisor_time::{Duration, Instant};

use super::monitor::{Connected, Monitor, Wanted};
use super::prepared::Files;
use super::retirement::Removed;
use super::{Served, Vms, host_identity, time_type, timescale};
use crate::clock::HostClock;
use crate::notices::Notices;
use crate::report::{error, error_response};

/// How long root's request waits for the examination of the process that it names.
const EXAMINATION: Duration = Duration::from_secs(1);

impl Vms {
    /// Answers `vm_list`.
    pub fn list(&self, notices: &Notices) -> Response {
        let mut vms: Vec<_> = self.served.iter().map(|s| row_with(s, notices)).collect();
        vms.sort_by(|a, b| a.name.cmp(&b.name));
        Response::VmList(VmList { vms, not_served: self.discovery.not_served() })
    }

    /// Answers `vm_add`. `admit` makes what is configured for an incoming VM, before its migration is
    /// awaited, or says why it cannot.
    pub fn add(
        &mut self,
        add: &VmAdd,
        clock: &HostClock,
        admit: impl FnOnce(&Self, &str) -> Result<(), ErrorBody>,
    ) -> Response {
        let added = self.try_add(add, clock).and_then(|index| {
            self.retype(index, add.time_type, clock)?;
            self.take_birth(index, add.elapsed_since, add.incoming.is_some())?;
            if self.served[index].is_to_come() {
                let name = self.served[index].vm.name.clone();
                if let Err(refusal) = admit(self, &name) {
                    self.served[index].monitor.as_mut().map(Monitor::runs_already);
                    return Err(refusal);
                }
            }
            self.await_arrival(index, add)
        });
        self.note();
        let pid = match added {
            Ok(index) => self.served[index].vm.qemu.process.pid(),
            Err(error) => return Response::Error(error),
        };
        self.settle(pid, EXAMINATION, clock);
        match self.served.iter().find(|s| s.vm.qemu.process.pid() == pid) {
            Some(served) => Response::VmAdded(row(served)),
            None => error_response(ErrorCode::Unavailable, "the VM has ended", "start it again"),
        }
    }

    fn try_add(&mut self, add: &VmAdd, clock: &HostClock) -> Result<usize, ErrorBody> {
        // QEMU serves one client per socket: a second connection would wait until the first one
        // ends.
        let connected = add.qmp.as_deref().and_then(|path| self.connected_to(path));
        let wanted = Wanted { resume: add.resume, awaited: None };
        let monitor = match &add.qmp {
            Some(_) if connected.is_some() => None,
            Some(path) => Some(Connected::connect(Path::new(path), wanted).map_err(|e| {
                error(
                    ErrorCode::NotFound,
                    format!("{e:#}"),
                    "start the VM with -qmp unix:PATH,server=on,wait=off",
                )
            })?),
            None if add.resume => {
                return Err(error(
                    ErrorCode::BadRequest,
                    "only QMP can resume a VM",
                    "give --qmp PATH too",
                ));
            }
            None => None,
        };
        let pid = match (add.pid.or(connected), &monitor) {
            (Some(pid), _) => pid,
            (None, Some(monitor)) => monitor
                .pid()
                .map_err(|e| error(ErrorCode::NotFound, format!("{e:#}"), "give --pid as well"))?,
            (None, None) => {
                return Err(error(
                    ErrorCode::BadRequest,
                    "neither a QMP socket nor a process",
                    "give --qmp PATH or --pid N",
                ));
            }
        };
        let qemu = Process::open_patiently(pid)
            .context("no such process")
            .and_then(|process| {
                let user = process.users()?.real;
                let found = self.helpers.examine_now(user, process, EXAMINATION);
                found.map_err(anyhow::Error::msg)
            })
            .map_err(|e| {
                error(
                    ErrorCode::NotFound,
                    format!("{e:#}"),
                    "give the QMP socket or the process of a QEMU",
                )
            })?;
        let prepared = || self.pages().name_of(&qemu).unwrap_or_else(|| id_of(&qemu.name));
        let name = add.name.clone().unwrap_or_else(prepared);
        check_name(&name)
            .map_err(|e| error(ErrorCode::BadRequest, e.to_string(), "give --name NAME"))?;
        let known = self.served.iter().position(|s| s.vm.qemu.process.pid() == pid);
        // A VM that is served keeps its name without being judged again.
        let owner = if known.is_none() || add.name.is_some() {
            Some(self.owner_of_added(&qemu, &name)?)
        } else {
            None
        };
        if self.served.iter().any(|s| s.vm.name == name && s.vm.qemu.process.pid() != pid) {
            let text = format!("there is a VM {name} already");
            return Err(error(ErrorCode::AlreadyExists, text, "give --name with another name"));
        }
        if let Some(index) = known {
            let served = &self.served[index];
            let renamed = add.name.as_ref().is_some_and(|name| *name != served.vm.name);
            if let Some(why) = served.held.filter(|_| renamed) {
                let text = format!("VM {} keeps its name now: {why}", served.vm.name);
                return Err(error(
                    ErrorCode::Unavailable,
                    text,
                    "`timevisor introspect detach` it first",
                ));
            }
            self.served[index].added = owner.or(self.served[index].added);
            self.adopt(index, add, monitor);
            return Ok(index);
        }
        self.removed.retain(|removed| !removed.is(pid));
        let prepared = self.prepared.time_type(&name);
        let configured = || self.config.time_type_of(&name);
        let time_type = add.time_type.or(prepared).unwrap_or_else(configured);
        let index = self.attach_anew(qemu, &name, time_type, monitor, clock).map_err(|e| {
            let cause = std::error::Error::source(&e).map(|s| format!(": {s}")).unwrap_or_default();
            error(ErrorCode::Unsupported, format!("{e}{cause}"), "see `timevisor vm args --help`")
        })?;
        self.served[index].added = owner;
        Ok(index)
    }

    /// The process behind a socket to which we are already connected.
    fn connected_to(&self, path: &str) -> Option<u32> {
        let same = |s: &&Served| s.monitor.as_ref().is_some_and(|m| m.path() == Path::new(path));
        self.served.iter().find(same).map(|s| s.vm.qemu.process.pid())
    }

    /// Handles a VM that discovery has found before this request. The request takes precedence
    /// where that is still possible.
    fn adopt(&mut self, index: usize, add: &VmAdd, monitor: Option<Connected>) {
        let served = &mut self.served[index];
        if let Some(name) = &add.name {
            served.vm.name.clone_from(name);
        }
        if let Some(connected) = monitor {
            served.speak(connected, &mut self.qmp);
        } else if let Some(known) = served.monitor.as_mut().filter(|_| add.resume) {
            known.want_resume();
        }
    }

    /// Puts a VM's page on the timescale that root wants, unless its driver has probed another one.
    fn retype(
        &mut self,
        index: usize,
        wanted: Option<TimeType>,
        clock: &HostClock,
    ) -> Result<(), ErrorBody> {
        let vm = &mut self.served[index].vm;
        let Some(wanted) = wanted.filter(|wanted| *wanted != time_type(vm)) else { return Ok(()) };
        if vm.has_probed() {
            let text =
                format!("VM {} has run already, and its driver reads the time type once", vm.name);
            let step = if vm.delivery == DeliveryKind::Vmclock {
                "set [guests.vm.NAME] time_type, and start the VM again"
            } else {
                "stop it, `timevisor vm args --time-type` for it again, and start it"
            };
            return Err(error(ErrorCode::AlreadyExists, text, step));
        }
        vm.change_timescale(timescale(wanted), host_identity(clock));
        Ok(())
    }

    /// Has a VM's age go on from where the other host says that it began, now or when it arrives.
    fn take_birth(
        &mut self,
        index: usize,
        since: Option<ElapsedSince>,
        arrives: bool,
    ) -> Result<(), ErrorBody> {
        let Some(since) = since else { return Ok(()) };
        let served = &mut self.served[index];
        let birth = birth_of(since);
        let refuse =
            |code, text: &str| Err(error(code, text.to_owned(), "leave out --elapsed-since"));
        if served.vm.delivery == DeliveryKind::Vmclock {
            return refuse(
                ErrorCode::BadRequest,
                "QEMU's vmclock device brings the VM's age along",
            );
        }
        if arrives || *served.vm.transit() == Transit::Incoming {
            served.elapsed_since = Some(birth);
            return Ok(());
        }
        if !served.vm.came_without_page() {
            return refuse(
                ErrorCode::BadRequest,
                "the VM has begun on this host, and so has its age",
            );
        }
        match served.vm.birth() {
            known @ NotedBirth::At { .. } if known != birth => {
                refuse(ErrorCode::AlreadyExists, "the VM's age is known already")
            }
            _ => {
                served.vm.set_birth(birth);
                Ok(())
            }
        }
    }

    /// Makes QEMU wait for a migration, and prepares the page for it.
    fn await_arrival(&mut self, index: usize, add: &VmAdd) -> Result<usize, ErrorBody> {
        let Some(uri) = &add.incoming else { return Ok(index) };
        let served = &mut self.served[index];
        let Some(monitor) = &mut served.monitor else {
            let text = "only QMP can have a VM await a migration";
            return Err(error(ErrorCode::BadRequest, text, "give --qmp PATH too"));
        };
        monitor.await_migration(uri);
        Ok(index)
    }

    /// Answers `vm_migrate`. The guest is told first, and [`Self::tell`] begins.
    pub fn migrate(&mut self, migrate: &VmMigrate, notices: &mut Notices) -> Response {
        let index = match self.find_migratable(migrate, notices) {
            Ok(index) => index,
            Err(error) => return Response::Error(error),
        };
        match &migrate.to {
            None if notices.cancel(&migrate.name) => {
                self.served[index].vm.transit_mut().fail("cancelled".to_owned());
            }
            None => {
                self.served[index].monitor.as_mut().map(Monitor::cancel_migration);
            }
            Some(_) => {
                notices.drain(migrate, monotonic());
                self.put_notice(index, notices.of(&migrate.name, false));
            }
        }
        Response::VmAdded(row_with(&self.served[index], notices))
    }

    /// The VM that a request is about, if it can be met.
    fn find_migratable(
        &mut self,
        migrate: &VmMigrate,
        notices: &Notices,
    ) -> Result<usize, ErrorBody> {
        let index = self.index_of(&migrate.name)?;
        let served = &mut self.served[index];
        let ready = served.monitor.as_mut().filter(|monitor| monitor.is_ready());
        let Some(monitor) = ready else {
            let text = format!("VM {} has no QMP socket that answers", migrate.name);
            let step = "add one for timevisord: `timevisor vm add --qmp PATH`";
            return Err(error(ErrorCode::Unavailable, text, step));
        };
        if migrate.to.is_none() {
            return Ok(index);
        }
        if let Some(why) = served.held {
            let text = format!("VM {} must not migrate now: {why}", migrate.name);
            return Err(error(ErrorCode::Unsupported, text, "migrate again after that"));
        }
        if let Some(why) = monitor.immovable() {
            let text = format!("VM {} must not migrate: {why}", migrate.name);
            monitor.try_sharing_again();
            let step = "switch the capability postcopy-ram off in both QEMUs, and migrate again";
            return Err(error(ErrorCode::Unsupported, text, step));
        }
        if served.vm.transit().is_under_way() || notices.drains(&migrate.name) {
            let text = format!("VM {} is on its way already", migrate.name);
            let step = "wait for its end, or cancel it: `timevisor vm migrate NAME --cancel`";
            return Err(error(ErrorCode::AlreadyExists, text, step));
        }
        Ok(index)
    }

    /// Begins a migration. The guest is told before QEMU is.
    fn begin(&mut self, index: usize, uri: &str, notices: &mut Notices) {
        self.put_notice(index, Notice::Imminent);
        let served = &mut self.served[index];
        // A state that goes into a file can be loaded several times.
        if is_live(uri) {
            served.vm.writer().set_moving(true);
            notices.moves(&served.vm.name);
        }
        if let Some(monitor) = &mut served.monitor {
            monitor.migrate(uri);
        }
        served.vm.transit_mut().leave();
    }

    /// Answers `vm_notice`.
    pub fn notice(&mut self, notice: &VmNotice, notices: &mut Notices) -> Response {
        let index = match self.index_of(&notice.name) {
            Ok(index) => index,
            Err(error) => return Response::Error(error),
        };
        notices.say(&notice.name, notice.notice);
        self.tell_one(index, notices);
        Response::VmAdded(row_with(&self.served[index], notices))
    }

    /// Begins the migrations whose drain is over, and writes on each page what its guest has to
    /// know.
    pub fn tell(&mut self, notices: &mut Notices, now: Duration) {
        for migrate in notices.due(now) {
            let Some(uri) = &migrate.to else { continue };
            match self.find_migratable(&migrate, notices) {
                Ok(index) => self.begin(index, uri, notices),
                Err(error) => {
                    tracing::warn!("VM {}: not migrated: {}", migrate.name, error.message);
                    let found = self.served.iter_mut().find(|s| s.vm.name == migrate.name);
                    if let Some(served) = found.filter(|s| !s.vm.transit().is_under_way()) {
                        served.vm.transit_mut().fail(error.message);
                    }
                }
            }
        }
        notices.retain(|name| self.served.iter().any(|s| s.vm.name == name));
        for index in 0..self.served.len() {
            self.tell_one(index, notices);
        }
    }

    fn tell_one(&mut self, index: usize, notices: &mut Notices) {
        let vm = &self.served[index].vm;
        let leaves = match vm.transit() {
            // The page is the other host's, or about to be overwritten.
            Transit::Incoming => return,
            Transit::Leaving(_) => true,
            Transit::Here | Transit::Left | Transit::Failed(_) => false,
        };
        // While it runs elsewhere, its page here is what has travelled; it may yet run here again.
        let is_here = !leaves && *vm.transit() != Transit::Left;
        if is_here && notices.take_moving(&vm.name) {
            vm.writer().set_moving(false);
        }
        let wants_generation =
            vm.delivery == DeliveryKind::Vmclock && vm.writer().vm_generation().is_none();
        if wants_generation && vm.writer().is_intact() && !vm.has_lost_page() {
            vm.writer().count_generations();
        }
        let notice = notices.of(&vm.name, leaves);
        self.put_notice(index, notice);
    }

    /// Writes a notice on a page, unless it is there.
    fn put_notice(&mut self, index: usize, notice: Notice) {
        let notice = match notice {
            Notice::None => PageNotice::None,
            Notice::Soon => PageNotice::Soon,
            Notice::Imminent => PageNotice::Imminent,
        };
        if self.served[index].vm.writer().notice() == notice {
            return;
        }
        // A write hides that a snapshot was loaded over the page, so look for that first.
        self.served[index].vm.look();
        let vm = &self.served[index].vm;
        if vm.writer().is_intact() && !vm.has_lost_page() {
            vm.writer().set_notice(notice);
        }
    }

    fn index_of(&self, name: &str) -> Result<usize, ErrorBody> {
        self.served.iter().position(|s| s.vm.name == name).ok_or_else(|| {
            error(ErrorCode::NotFound, format!("there is no VM {name}"), "see `timevisor vm list`")
        })
    }

    /// Answers `vm_remove`, for a VM that is served or only prepared.
    pub fn remove(&mut self, name: &str) -> Response {
        self.removed.retain(|removed| !removed.ended.has_ended());
        if let Some(index) = self.served.iter().position(|s| s.vm.name == name) {
            let served = self.served.remove(index);
            // Its files stay: QEMU has them open, and the VM may be added again.
            self.removed.push(Removed::of(served));
            self.note();
            self.discovery.reconsider();
            return Response::VmRemoved(VmRemoved { name: name.to_owned() });
        }
        if self.removed.iter().any(|removed| removed.name == name) {
            let text = format!("VM {name} is not served any more, but still runs on its files");
            return error_response(ErrorCode::Unavailable, &text, "stop it first");
        }
        let removed = self.prepared.remove(name);
        self.renew_rules();
        match removed {
            Ok(true) => Response::VmRemoved(VmRemoved { name: name.to_owned() }),
            Ok(false) => error_response(
                ErrorCode::NotFound,
                &format!("there is no VM {name}"),
                "see `timevisor vm list`",
            ),
            Err(error) => error_response(
                ErrorCode::Internal,
                &format!("{error:#}"),
                "remove the files by hand",
            ),
        }
    }

    /// Answers `vm_prepare`.
    pub fn prepare(&mut self, prepare: &VmPrepare, clock: &HostClock) -> Response {
        let counter = clock.counter.id();
        if !matches!(counter, CounterId::X86Tsc | CounterId::ArmVcnt) {
            let text = AttachError::Counter(counter).to_string();
            return error_response(ErrorCode::Unsupported, &text, "see `timevisor status`");
        }
        let owner = Owner { uid: prepare.user, namespace: prepare.user_namespace };
        if let Some((known, Source::Configured)) = self.rules.owner_of(&prepare.name)
            && known != owner
        {
            let name = &prepare.name;
            let text = format!("VM {name} belongs to {known} by [guests.vm.{name}] user");
            let step = format!("give --user {}, or change the configuration", known.uid);
            return error_response(ErrorCode::AlreadyExists, &text, &step);
        }
        let running = |s: &&Served| s.vm.name == prepare.name;
        let same =
            !prepare.files && self.rules.owner_of(&prepare.name).is_some_and(|o| o.0 == owner);
        if let Some(served) = self.served.iter().find(running).filter(|_| !same) {
            let text = format!("VM {} is running", served.vm.name);
            return error_response(
                ErrorCode::AlreadyExists,
                &text,
                "stop it first, or choose another name",
            );
        }
        let prepared = self.prepared.prepare(prepare, host_identity(clock));
        self.renew_rules();
        match prepared {
            Ok(Files { page, monitor }) => {
                let (page, ssdt) = page.unzip();
                let text = |path: PathBuf| path.display().to_string();
                Response::VmPrepared(VmPrepared {
                    name: prepare.name.clone(),
                    time_type: prepare.time_type,
                    page: page.map(text),
                    ssdt: ssdt.map(text),
                    monitor: Some(text(monitor)),
                })
            }
            Err(error) => error_response(
                ErrorCode::Unavailable,
                &format!("{error:#}"),
                "see the daemon's log",
            ),
        }
    }
}

/// What `vm list` says of a birth, for another host.
pub(super) fn elapsed_since(birth: NotedBirth) -> Option<ElapsedSince> {
    let NotedBirth::At { zero, within } = birth else { return None };
    let within_ns = within.ceil_nanos().saturating_add(1);
    Some(ElapsedSince { tai_ns: zero.floor_nanos(), within_ns })
}

/// What another host has said.
pub(super) fn birth_of(since: ElapsedSince) -> NotedBirth {
    NotedBirth::At {
        zero: Instant::from_unix_nanos(i128::from(since.tai_ns)),
        within: Duration::from_nanos(since.within_ns),
    }
}

/// Whether a migration to this address arrives in a QEMU, once. Others go into files (`file:`), or
/// to a program or descriptor of which nothing is known (`exec:`, `fd:`).
fn is_live(uri: &str) -> bool {
    ["tcp:", "unix:", "vsock:", "rdma:"].iter().any(|scheme| uri.starts_with(scheme))
}

fn row_with(served: &Served, notices: &Notices) -> VmRow {
    let leaves = matches!(served.vm.transit(), Transit::Leaving(_));
    let name = &served.vm.name;
    let drains = notices.drains(name).then(|| "draining".to_owned());
    let row = row(served);
    VmRow { notice: notices.of(name, leaves), migration: drains.or(row.migration), ..row }
}

fn row(served: &Served) -> VmRow {
    let vm = &served.vm;
    let mapping = match vm.mapping() {
        Some(m) if m.ratio == CounterRatio::ONE || m.ratio.is_one() => {
            format!("host {:+}", m.offset)
        }
        Some(m) => format!("host * {} / 2^{} {:+}", m.ratio.mul, m.ratio.frac_bits, m.offset),
        None => "unknown".to_owned(),
    };
    let immovable = served.monitor.as_ref().and_then(Monitor::immovable);
    let being_read = served.asking.then_some("its counter mapping is being read");
    let being_read = being_read.filter(|_| vm.mapping().is_none());
    VmRow {
        name: vm.name.clone(),
        qemu_name: Some(&vm.qemu.name).filter(|name| id_of(name) != **name).cloned(),
        pid: vm.qemu.process.pid(),
        accelerator: vm.qemu.accelerator.name().to_owned(),
        delivery: vm.delivery.name().to_owned(),
        mapping,
        status: vm.writer().status().name().to_owned(),
        reason: immovable.or_else(|| vm.problem()).or(being_read).map(ToOwned::to_owned),
        time_type: time_type(vm),
        pages_published: vm.writer().published(),
        disruption_marker: vm.writer().disruption(),
        notice: Notice::None,
        migration: vm.transit().text(),
        arrived: vm.has_arrived(),
        elapsed_since: elapsed_since(vm.birth()),
    }
}
