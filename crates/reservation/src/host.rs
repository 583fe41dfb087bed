//! What the state machine needs from its environment.

use std::collections::BTreeSet;

use timevisor_schedule::Reservation;

use crate::guarantee::{Target, Wanted};
use crate::held::{Held, Step};
use crate::request::Refusal;
pub use crate::restore::Restore;

/// What the cpusets of others say of a core, the least in the way first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Claim {
    /// Several have it: a pool that they share.
    Shared,
    /// One alone has it; its name.
    Own(String),
}

/// A core of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Core {
    /// Its number.
    pub number: usize,
    /// It is online.
    pub is_online: bool,
    /// The thread may run there as it is: its affinity and its cpuset have it.
    pub is_allowed: bool,
    /// The kernel puts nothing there by itself (isolcpus), so that nobody has it who is not pinned to it.
    pub is_isolated: bool,
    /// The kernel's own work is little there: isolated, or without a tick (nohz_full).
    pub is_quiet: bool,
    /// Its memory is as near as that of the processor on which the thread ran last.
    pub is_near: bool,
    /// The other hardware threads of the same core.
    pub siblings: Vec<usize>,
    /// Who else has set it apart.
    pub taken: Option<String>,
    /// Whose cpusets have it, without having set it apart.
    pub claim: Option<Claim>,
    /// If it is reserved, the thread could go there, too. With cgroup v2, only threads of one cgroup share a core.
    pub can_share: bool,
}

impl Core {
    /// One of which nothing is known.
    #[must_use]
    pub const fn plain(number: usize) -> Self {
        Self {
            number,
            is_online: true,
            is_allowed: true,
            is_isolated: false,
            is_quiet: false,
            is_near: true,
            siblings: Vec::new(),
            taken: None,
            claim: None,
            can_share: true,
        }
    }
}

/// A thread that moves from one group (a cpuset, a cgroup) to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved<G> {
    /// Which thread.
    pub tid: u32,
    /// Its group from now on.
    pub to: G,
    /// Its group until now.
    pub from: G,
}

/// The host. All times are in ns.
pub trait Host: Restore {
    /// What names a group of threads.
    type Group: Clone;

    /// The current time of a clock that never goes back and continues across restarts of the
    /// daemon.
    fn now(&self) -> u64;

    /// Replaces the journal atomically.
    ///
    /// # Errors
    /// When the journal could not be replaced; it is unchanged, and nothing may be changed then.
    fn write(&mut self, held: &[Held<Self::Change>]) -> Result<(), String>;

    /// The cores, and what is known of them for a thread, or for one that is pinned to nothing.
    fn cores(&self, tid: Option<u32>) -> Vec<Core>;

    /// Plans the changes that implement a reservation, in order, when the cores `isolated` are
    /// already isolated. Changes nothing.
    ///
    /// # Errors
    /// Why no plan is possible.
    fn plan(
        &self,
        wanted: &Wanted,
        isolated: &BTreeSet<usize>,
    ) -> Result<Vec<Step<Self::Change>>, Unmade>;

    /// Changes that move other threads of the reservation's process off its core. They would starve
    /// there, because SCHED_DEADLINE threads run before everything else.
    ///
    /// # Errors
    /// Why the host cannot determine them.
    fn strays(&self, held: &Held<Self::Change>) -> Result<Vec<Self::Change>, String>;

    /// Makes one change for a reservation.
    ///
    /// # Errors
    /// [`Unmade`]; the change may have been made in part.
    fn make(&mut self, held: &Held<Self::Change>, change: &Self::Change) -> Result<(), Unmade>;

    /// Wakes the reservation's thread if it sleeps, so that it comes to its core: the kernel moves a
    /// thread when it wakes up. The thread sleeps on at once and has noticed nothing. Returns
    /// whether it was woken.
    fn wake(&mut self, held: &Held<Self::Change>) -> bool;

    /// Whether the reservation's thread is on its core: it runs there, or ran there last. The kernel
    /// charges a thread that sleeps to the core where it ran last.
    fn is_on_core(&self, held: &Held<Self::Change>) -> bool;

    /// Checks that a change is still in force. Changes that no other program makes need no check.
    ///
    /// # Errors
    /// What is in force instead.
    fn check(&self, held: &Held<Self::Change>, change: &Self::Change) -> Result<(), String>;

    /// Whether a change sets a thread's scheduling policy.
    fn sets_policy(&self, change: &Self::Change) -> bool;

    /// Whether both set the same of the same thread, whatever was there before.
    fn sets_the_same(&self, one: &Self::Change, other: &Self::Change) -> bool;

    /// The same change for another reservation; `None` if the change has no budget.
    fn with_reservation(
        &self,
        change: &Self::Change,
        reservation: &Reservation,
    ) -> Option<Self::Change>;

    /// Where `later` changed a setting of process `pid` that `gone` had changed before, returns
    /// `later` modified to restore the value from before `gone`. Threads that the process started
    /// in between have inherited what `gone` gave to its main thread.
    fn rebase(&self, pid: u32, gone: &Self::Change, later: &Self::Change) -> Option<Self::Change>;

    /// The thread that a change moves to another group, if it does that.
    fn moved(&self, change: &Self::Change) -> Option<Moved<Self::Group>>;

    /// The change that does this.
    fn moving(&self, moved: Moved<Self::Group>) -> Self::Change;

    /// The processor time of a thread; `None` once it has ended.
    fn usage(&self, pid: u32, tid: u32) -> Option<Usage>;

    /// Whether a thread is running or waiting for a processor; `None` once it has ended.
    fn is_runnable(&self, pid: u32, tid: u32) -> Option<bool>;

    /// Maximum delay with which [`Usage::ran`] of a running thread is updated.
    fn accounting_lag(&self) -> u64;

    /// Changes that separate the isolated cores again after other programs have joined them to
    /// other cores.
    ///
    /// # Errors
    /// Why the host cannot determine them.
    fn separating(&self, isolated: &[usize]) -> Result<Vec<Self::Change>, String>;

    /// Lets everything else use all cores but the isolated ones.
    ///
    /// # Errors
    /// When the host refuses.
    fn settle(&mut self, isolated: &[usize]) -> Result<(), String>;

    /// Whether a change leaves nothing to undo.
    fn is_moot(&self, change: &Self::Change) -> bool;

    /// Logs what happened.
    fn tell(&mut self, severity: Severity, text: &str);
}

/// The virtual machines.
pub trait Guests {
    /// The process of a VM and its start time; `None` while the VM does not exist.
    fn process(&self, vm: &str) -> Option<(u32, u64)>;

    /// The thread of a vCPU.
    ///
    /// # Errors
    /// Why the thread is unknown.
    fn vcpu(&self, vm: &str, vcpu: u32) -> Result<Target, Refusal>;

    /// Number of vCPUs of a VM; `None` if unknown.
    fn vcpus(&self, vm: &str) -> Option<usize>;
}

/// A change was not made, or not planned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unmade {
    /// What it is due to.
    pub cause: Because,
    /// Why, as a message for people.
    pub why: String,
}

/// What it is due to that a change was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Because {
    /// The vCPU sleeps and has not moved to its core yet. The kernel refuses the change until the
    /// vCPU runs; try again later.
    Asleep,
    /// Possibly the core: another one may do.
    Core,
    /// Not the core: the thread has ended, we lack a right, or the kernel a feature.
    Anything,
}

impl Unmade {
    /// One that another core may serve.
    #[must_use]
    pub const fn of_core(why: String) -> Self {
        Self { cause: Because::Core, why }
    }
}

/// Processor time of a thread, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Time for which it has run.
    pub ran: u64,
    /// Time for which it was runnable but did not run.
    pub waited: u64,
}

/// How important a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// Something happened as intended.
    Info,
    /// A guarantee may be violated.
    Warn,
    /// The held reservations cannot be stored.
    Error,
}
