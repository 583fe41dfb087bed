//! One VM that is served.

use std::path::{Path, PathBuf};

use timevisor_clock_page::NotedBirth;
use timevisor_guests::Vm;
use timevisor_guests::delivery::DeliveryKind;
use timevisor_guests::owner::Owner;
use timevisor_guests::qemu::Accelerator;
use timevisor_guests::transit::Transit;
use timevisor_linux::clock::monotonic;
use timevisor_protocols::qmp::MigrationStatus;
use timevisor_time::Duration;

use super::host_cpu_time::Threads;
use super::monitor::{Connected, Monitor, Wanted};
use super::moves::Moves;
use super::qmp::QmpHelpers;
use crate::announce::{Budget, PerUser};

pub(super) struct Served {
    pub(super) vm: Vm,
    pub(super) monitor: Option<Monitor>,
    pub(super) reconnect: Option<Reconnect>,
    /// The birth from which its age continues on arrival, if its page does not carry it.
    pub(super) elapsed_since: Option<NotedBirth>,
    /// When to ask how its migration stands, while it is leaving.
    pub(super) ask_at: Duration,
    /// Polled eagerly until this time.
    pub(super) eager_until: Duration,
    /// Number of replaced pages reported so far.
    pub(super) replaced: u64,
    /// Number of resets so far.
    pub(super) resets: u64,
    /// Why it must not leave this host now, apart from its monitor's reasons.
    pub(super) held: Option<&'static str>,
    /// Another number for each VM that was attached.
    pub(super) life: u64,
    /// Who runs it, and thus causes log lines.
    pub(super) user: u32,
    /// To whom it belongs, if root added it by hand.
    pub(super) added: Option<Owner>,
    /// Its name belongs to its owner; otherwise it counts as one of its user's choice.
    pub(super) bound: bool,
    /// How often the loss of its monitor may still be logged.
    pub(super) told_lost: Budget,
    pub(super) threads: Threads,
    /// Its counter mapping is being read.
    pub(super) asking: bool,
    /// QEMU may resume it, if that was asked for, as soon as its page says what is known.
    pub(super) may_resume: bool,
    /// Its reservation, on the way here or away.
    pub(super) moves: Moves,
}

impl Served {
    /// Its QMP socket, and what is pending there.
    pub(super) fn speaks_through(&self) -> Option<(&Path, &Wanted)> {
        let lost = self.reconnect.as_ref().map(|lost| (lost.path.as_path(), &lost.wanted));
        self.monitor.as_ref().map(|monitor| (monitor.path(), monitor.wanted())).or(lost)
    }

    /// What a later daemon would have to do, too: to resume it, to say from when its age goes on, and to
    /// say nothing before it has arrived.
    pub(super) fn pending(&self) -> (bool, bool, Option<bool>) {
        let resume = self.speaks_through().is_some_and(|(_, wanted)| wanted.resume);
        (resume, self.elapsed_since.is_some(), self.vm.awaits())
    }

    /// Has a helper speak through a connection.
    pub(super) fn speak(&mut self, connected: Connected, helpers: &mut QmpHelpers) {
        let shared = self.vm.delivery != DeliveryKind::Vmclock;
        let pending = self.speaks_through().map(|(_, wanted)| wanted.clone());
        let mut monitor = connected.begin(helpers, self.user, shared);
        monitor.take_over(pending.unwrap_or_default());
        self.monitor = Some(monitor);
        self.reconnect = None;
    }

    /// Cancels a migration that somebody else has started and that must not happen. QEMU can cancel
    /// it only once it is active.
    pub(super) fn forbid_unsafe_move(&mut self, told: &mut PerUser) {
        let Transit::Leaving(MigrationStatus::Active) = self.vm.transit() else { return };
        let Some(monitor) = &mut self.monitor else { return };
        if let Some(why) = self.held.or_else(|| monitor.immovable()) {
            if told.take(self.user, monotonic()) {
                tracing::warn!("VM {}: its migration is cancelled: {why}", self.vm.name);
            }
            monitor.cancel_migration();
        }
    }

    pub(super) fn tell_of_replacements(&mut self, told: &mut PerUser) {
        let before = std::mem::replace(&mut self.replaced, self.vm.replaced());
        if before != self.replaced && told.take(self.user, monotonic()) {
            tracing::info!(
                "VM {}: its page was overwritten (a snapshot was loaded): written again from the beginning",
                self.vm.name
            );
        }
    }

    pub(super) fn is_kvm(&self) -> bool {
        self.vm.qemu.accelerator == Accelerator::Kvm
    }

    /// Whether it has to be polled until the state is first known, or because nothing else tells.
    pub(super) fn is_unsettled(&self) -> bool {
        self.vm.mapping().is_none()
            || (self.monitor.as_ref().is_none_or(|monitor| !monitor.is_ready())
                && self.vm.qemu.accelerator == Accelerator::Tcg)
    }
}

/// A socket to reconnect to.
pub(super) struct Reconnect {
    pub(super) path: PathBuf,
    pub(super) since: Duration,
    pub(super) at: Duration,
    pub(super) wanted: Wanted,
}
