//! One reservation that is held, with every host change that was made for it. This is exactly what
//! the journal stores.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Deserialize, Serialize};
use timevisor_schedule::Reservation;

use crate::guarantee::Guarantee;
use crate::restore::Restore;

/// The journal's file in the run directory.
pub const JOURNAL: &str = "reservations.json";

/// How long a change of the host is needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As long as the thread has its reservation.
    Thread,
    /// Until the last reservation leaves the core.
    Processor,
    /// Until the host has no reservation that needs it.
    Host,
}

/// A change of the host and how long it is needed.
pub type Step<C> = (Level, C);

/// One reservation. `C` is the host's type of changes, see [`crate::Restore::Change`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held<C> {
    /// The VM's name.
    pub vm: String,
    /// QEMU's cpu-index.
    pub vcpu: u32,
    /// QEMU's process.
    pub pid: u32,
    /// When that process started: distinguishes it from a later one with the same pid.
    pub start_time: u64,
    /// The vCPU's thread.
    pub tid: u32,
    /// The guarantee.
    pub guarantee: Guarantee,
    /// Budget, ns.
    pub budget: u64,
    /// Deadline, ns.
    pub deadline: u64,
    /// Period, ns.
    pub period: u64,
    /// The minimum and maximum budget of a soft reservation, ns.
    #[serde(default)]
    pub soft: Option<(u64, u64)>,
    /// No other reservation may share its core.
    pub alone: bool,
    /// It follows what introspection learns about the guest. After a restart, nobody does.
    #[serde(default)]
    pub followed: bool,
    /// The changes made for it, in order. A change that two reservations need belongs to one of
    /// them.
    pub changes: Vec<Step<C>>,
    /// When each thread that the changes concern started, by its id: distinguishes it from a later
    /// one with the same id. One that is not here (journals of earlier versions) need only be a
    /// thread of the process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub threads: BTreeMap<u32, u64>,
    /// While it moves to another core: what has to be undone besides, in the order in which it was
    /// made. At first that is what was prepared on the new core; once the thread is there, what it
    /// left behind on the old one.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub leftover: Vec<Step<C>>,
    /// How long the thread had run when the reservation was made, ns.
    pub ran: u64,
    /// When the reservation was made, ns of [`crate::Host::now`].
    pub since: u64,
}

impl<C> Held<C> {
    /// Budget, deadline and period; `None` if somebody edited the journal and they are not a valid
    /// reservation.
    #[must_use]
    pub fn reservation(&self) -> Option<Reservation> {
        Reservation::new(self.budget, self.deadline, self.period).ok()
    }

    /// The core that is isolated for this reservation.
    #[must_use]
    pub const fn core(&self) -> Option<usize> {
        self.guarantee.core()
    }

    /// Whether it may need changes at [`Level::Host`].
    #[must_use]
    pub const fn needs_host(&self) -> bool {
        matches!(self.guarantee, Guarantee::Core(_) | Guarantee::Limit)
    }

    /// Whether it is for this vCPU.
    #[must_use]
    pub fn is_for(&self, vm: &str, vcpu: u32) -> bool {
        self.vm == vm && self.vcpu == vcpu
    }

    /// Whether a change concerns no thread, or still the one for which it was planned.
    #[must_use]
    pub fn may_touch<R: Restore<Change = C>>(&self, host: &R, change: &C) -> bool {
        let is_same = |tid| host.is_thread(self.pid, tid, self.threads.get(&tid).copied());
        host.thread(change).is_none_or(is_same)
    }

    /// Notes which threads the changes concern, for those that are not known yet.
    pub(crate) fn note_threads<R: Restore<Change = C>>(&mut self, host: &R) {
        let all = self.changes.iter().chain(&self.leftover);
        let tids: Vec<u32> = all.filter_map(|(_, change)| host.thread(change)).collect();
        for tid in tids.into_iter().chain([self.tid]) {
            if let Entry::Vacant(new) = self.threads.entry(tid)
                && let Some(started) = host.thread_started(self.pid, tid)
            {
                new.insert(started);
            }
        }
    }

    /// Its name in messages: `VM web vCPU 0`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("VM {} vCPU {}", self.vm, self.vcpu)
    }
}
