//! How a VM comes to be served: found, added by root, or known from an earlier daemon.

use std::path::{Path, PathBuf};

use timevisor_clock_page::NotedBirth;
use timevisor_guests::Vm;
use timevisor_guests::delivery::{
    DeliveryError, DeliveryKind, IvshmemPage, NvdimmPage, PageDelivery, VmclockDevice,
};
use timevisor_guests::qemu::{Accelerator, Qemu};
use timevisor_guests::vm::AttachError;
use timevisor_linux::clock::monotonic;
use timevisor_linux::process::{Process, ProcessError};
use timevisor_protocols::control::{TimeType, request::id_of};
use timevisor_time::Duration;

use super::host_cpu_time::Threads;
use super::monitor::{Connected, Wanted};
use super::moves::Moves;
use super::questions::About;
use super::requests::birth_of;
use super::{RECONNECT, Reconnect, Served, Vms, host_identity, host_update, owners, timescale};
use crate::announce::Budget;
use crate::clock::HostClock;

/// Why nothing is published to a VM under KVM that may not have arrived yet.
const UNHEARD_OF: &str = "it was started with -incoming, and QEMU has not said whether it has arrived; \
                          timevisord asks at the VM's QMP socket (`timevisor vm add --qmp`)";
/// How long the start waits for what a helper says of one VM.
const AT_START: Duration = Duration::from_secs(1);

impl Vms {
    /// Serves the VMs of an earlier daemon that are still running.
    pub fn resume(&mut self, clock: &HostClock) {
        self.restore(clock);
        for entry in self.registry.read() {
            let process = match Process::open_patiently(entry.pid) {
                Ok(process) if process.started() == Some(entry.start_time) => process,
                Ok(_) | Err(ProcessError::Gone(_)) => continue,
                Err(error) => {
                    tracing::warn!("VM {} is no longer served: {error}", entry.name);
                    continue;
                }
            };
            let wanted = Wanted { resume: entry.resume, awaited: None };
            let connect = |path: &PathBuf| Connected::connect_to(path, entry.pid, wanted.clone());
            let monitor = entry.qmp.as_ref().and_then(|path| connect(path).ok());
            let user = process.users().map_or(u32::MAX, |users| users.real);
            let qemu = self.helpers.examine_now(user, process, AT_START);
            let resumed = qemu.map_err(anyhow::Error::msg).and_then(|qemu| {
                self.judge_again(&entry.name, entry.added, &qemu)?;
                let again = match entry.awaited {
                    Some(true) => Again::Awaited,
                    Some(false) => Again::Yes,
                    None => Again::Unsaid,
                };
                let index =
                    self.attach(qemu, &entry.name, entry.time_type, monitor, clock, again)?;
                let served = &mut self.served[index];
                // Somebody else may hold the socket for a moment.
                let lost = entry.qmp.filter(|_| served.monitor.is_none());
                let since = monotonic();
                let at = since + RECONNECT;
                served.reconnect = lost.map(|path| Reconnect { path, since, at, wanted });
                served.added = entry.added;
                served.elapsed_since = entry.elapsed_since.map(birth_of);
                Ok(())
            });
            match resumed {
                Ok(()) => tracing::info!("VM {} is served again", entry.name),
                Err(error) => tracing::warn!("VM {} is no longer served: {error:#}", entry.name),
            }
        }
        self.note();
    }

    pub(super) fn discovered(&mut self, qemu: Qemu, clock: &HostClock) {
        let process = qemu.process;
        if self.served.iter().any(|s| s.vm.qemu.process.pid() == process.pid())
            || self.removed.iter().any(|removed| removed.is(process.pid()))
        {
            return;
        }
        // Only our own sockets: a QMP socket serves a single client, and other sockets are meant
        // for other clients.
        let sockets = qemu.command_line.qmp_sockets.iter();
        let ours = sockets
            .filter(|path| path.starts_with(&self.config.run_directory))
            .find(|path| path.exists())
            .cloned();
        // The name of a prepared page takes precedence over QEMU's -name.
        let name = self.pages().name_of(&qemu).unwrap_or_else(|| id_of(&qemu.name));
        if !self.may_be_served(&qemu, &name) {
            return;
        }
        let time_type =
            self.prepared.time_type(&name).unwrap_or_else(|| self.config.time_type_of(&name));
        let pid = process.pid();
        let monitor = ours.as_deref().and_then(|path| listening(path, pid).ok());
        let wants_a_page = owners::wants_a_page(&qemu);
        match self.attach_anew(qemu, &name, time_type, monitor, clock) {
            Ok(index) => {
                if self.told.take(self.served[index].user, monotonic()) {
                    tracing::info!("VM {name} found and served");
                }
                self.note();
            }
            // Most QEMUs have nothing to do with us. A device makes its page late where an earlier one
            // waits for somebody to connect.
            Err(AttachError::NoPage(_)) if !wants_a_page => {}
            Err(AttachError::NoPage(_)) => {
                let pid = process.pid();
                let text = format!(
                    "process {pid} is not served as VM {name}: its page is not there yet; if QEMU waits for a \
                     client of a socket, connect one"
                );
                self.discovery.failed(&process, text);
            }
            Err(error @ AttachError::Delivery(DeliveryError::TooManyDescriptors(_))) => {
                self.discovery.gave_up(&process, error.to_string());
            }
            Err(error) => {
                let error = anyhow::Error::new(error);
                self.discovery.failed(&process, format!("VM {name} cannot be served: {error:#}"));
            }
        }
    }

    /// Serves a new VM.
    pub(super) fn attach_anew(
        &mut self,
        qemu: Qemu,
        name: &str,
        time_type: TimeType,
        monitor: Option<Connected>,
        clock: &HostClock,
    ) -> Result<usize, AttachError> {
        self.attach(qemu, name, time_type, monitor, clock, Again::No)
    }

    fn attach(
        &mut self,
        qemu: Qemu,
        name: &str,
        time_type: TimeType,
        monitor: Option<Connected>,
        clock: &HostClock,
        again: Again,
    ) -> Result<usize, AttachError> {
        // We hold the lock of a prepared page; the VM takes it over.
        let pages = self.pages();
        let process = qemu.process;
        let folder = pages.name_of(&qemu).unwrap_or_else(|| name.to_owned());
        self.prepared.release(&folder);
        let host = host_identity(clock);
        let nvdimm = NvdimmPage::new(self.page_directory());
        let ivshmem = IvshmemPage::new(self.page_directory());
        let deliveries: [&dyn PageDelivery; 3] = [&VmclockDevice, &nvdimm, &ivshmem];
        let user = qemu.process.users()?.real;
        // What is asked already is about a VM that was served before.
        self.asked.retain(|_, about| !matches!(about, About::Vm(of, _) if *of == process));
        let scale = timescale(time_type);
        // TCG's own words say whether it runs; KVM's counter always does.
        let is_unheard = matches!(again, Again::No | Again::Unsaid)
            && qemu.command_line.incoming
            && qemu.accelerator != Accelerator::Tcg;
        let goes_on = matches!(again, Again::Yes | Again::Unsaid) && !is_unheard;
        let known = self.publication.as_ref().map(host_update).filter(|_| goes_on);
        let mut vm = match known {
            Some(known) => {
                let now = (&known, &clock.counter);
                let mapping = self.helpers.mapping_now(user, &qemu, AT_START);
                Vm::attach_again(qemu, name, scale, host, &deliveries, now, mapping)?
            }
            None => Vm::attach(qemu, name, scale, host, &deliveries)?,
        };
        // A page file may carry the birth, and the timescale, of the VM that used it before.
        let is_file = vm.delivery != DeliveryKind::Vmclock;
        if is_file && self.prepared.becomes_the_page_of(&folder, &process) && again == Again::No {
            vm.set_birth(NotedBirth::Nothing);
            if vm.timescale() != scale && !vm.has_probed() {
                vm.change_timescale(scale, host);
            }
        }
        if again == Again::Awaited {
            vm.await_arrival();
        } else if is_unheard {
            vm.await_word(UNHEARD_OF);
        }
        self.lives += 1;
        vm.look();
        let mut served = Served {
            vm,
            monitor: None,
            reconnect: None,
            elapsed_since: None,
            life: self.lives,
            ask_at: Duration::ZERO,
            eager_until: Duration::ZERO,
            replaced: 0,
            resets: 0,
            held: None,
            user,
            added: None,
            bound: self.rules.owner_of(name).is_some(),
            told_lost: Budget::default(),
            threads: Threads::default(),
            asking: false,
            may_resume: false,
            moves: Moves::default(),
        };
        if let Some(connected) = monitor {
            served.speak(connected, &mut self.qmp);
        }
        self.served.push(served);
        self.discovery.is_served(&process);
        let index = self.served.len() - 1;
        self.publish_one(index, clock);
        self.ask_mappings();
        Ok(index)
    }
}

/// Whether an earlier daemon served this VM, whose guest reads its page already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    /// It did, and by QEMU's word the VM had arrived, or never waited.
    Yes,
    /// It did, and the VM waited for a migration.
    Awaited,
    /// It did, and did not know whether the VM waited for one.
    Unsaid,
    No,
}

/// A monitor that only reports events.
fn listening(path: &Path, pid: u32) -> anyhow::Result<Connected> {
    Connected::connect_to(path, pid, Wanted::default())
}
