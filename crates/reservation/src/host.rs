//! What the state machine asks of its surroundings.

use std::collections::BTreeSet;
use std::fmt;

use timevisor_schedule::Reservation;

use crate::guarantee::{Target, Wanted};
use crate::held::{Held, Step};
use crate::request::Refusal;

/// What a release needs. A program that cleans up after a daemon that is gone needs no more than
/// this.
pub trait Restore {
    /// One setting of the host with its old and its new value. It is data: shown, stored, made and
    /// undone.
    type Change: Clone + PartialEq + fmt::Debug + fmt::Display;

    /// Whether the process still runs, or at least its thread `tid`.
    fn is_alive(&self, pid: u32, start_time: u64, tid: u32) -> bool;

    /// The thread that a change is about, if it is about one.
    fn thread(&self, change: &Self::Change) -> Option<u32>;

    /// Undoes a change. Undoing what was never made, or is gone, succeeds and changes nothing.
    ///
    /// # Errors
    /// Why the old value could not be restored.
    fn undo(&mut self, change: &Self::Change) -> Result<(), String>;

    /// Gives threads that the process started during the reservation the processors that its main
    /// thread has again.
    fn widen(&mut self, pid: u32, undone: &[Step<Self::Change>]);
}

/// The host. Times in ns.
pub trait Host: Restore {
    /// The present moment on a clock that never goes back and survives a restart of the daemon.
    fn now(&self) -> u64;

    /// Replaces the journal atomically.
    ///
    /// # Errors
    /// The journal is as before. Nothing may be changed then.
    fn write(&mut self, held: &[Held<Self::Change>]) -> Result<(), String>;

    /// The cores that are online, in order.
    fn online(&self) -> Vec<usize>;

    /// Which changes make a reservation, in order, while the cores `isolated` are isolated already.
    /// Changes nothing.
    ///
    /// # Errors
    /// Why there is no way.
    fn plan(
        &self,
        wanted: &Wanted,
        isolated: &BTreeSet<usize>,
    ) -> Result<Vec<Step<Self::Change>>, String>;

    /// Changes that move other threads of the reservation's process off its core. They would starve
    /// there: deadlines come before everything else.
    ///
    /// # Errors
    /// Why the host cannot say.
    fn strays(&self, held: &Held<Self::Change>) -> Result<Vec<Self::Change>, String>;

    /// Makes one change for a reservation.
    ///
    /// # Errors
    /// [`Unmade`]; the change may have been made in part.
    fn make(&mut self, held: &Held<Self::Change>, change: &Self::Change) -> Result<(), Unmade>;

    /// Checks that a change is still in force. Changes that nobody else makes need no check.
    ///
    /// # Errors
    /// What is in force instead.
    fn check(&self, held: &Held<Self::Change>, change: &Self::Change) -> Result<(), String>;

    /// Whether a change sets how a thread is scheduled.
    fn sets_policy(&self, change: &Self::Change) -> bool;

    /// The same change with another reservation; `None` where it has no budget.
    fn with_reservation(
        &self,
        change: &Self::Change,
        reservation: &Reservation,
    ) -> Option<Self::Change>;

    /// Where `later` changed a setting of process `pid` that `gone` had changed before: `later`,
    /// restoring what was before `gone`. Threads that the process started in between have inherited
    /// what `gone` gave to its main thread.
    fn rebase(&self, pid: u32, gone: &Self::Change, later: &Self::Change) -> Option<Self::Change>;

    /// The processor time of a thread; `None` after its end.
    fn usage(&self, pid: u32, tid: u32) -> Option<Usage>;

    /// Whether a thread runs or waits for a processor; `None` after its end.
    fn is_runnable(&self, pid: u32, tid: u32) -> Option<bool>;

    /// How late [`Usage::ran`] of a running thread may be.
    fn accounting_lag(&self) -> u64;

    /// Changes that separate the isolated cores again, where other programs joined them to others
    /// meanwhile.
    ///
    /// # Errors
    /// Why the host cannot say.
    fn separating(&self, isolated: &[usize]) -> Result<Vec<Self::Change>, String>;

    /// Lets everything else use all cores but the isolated ones.
    ///
    /// # Errors
    /// The host's.
    fn settle(&mut self, isolated: &[usize]) -> Result<(), String>;

    /// Whether nothing is left to undo of a change.
    fn is_moot(&self, change: &Self::Change) -> bool;

    /// Tells people what happened.
    fn tell(&mut self, severity: Severity, text: &str);
}

/// The virtual machines.
pub trait Guests {
    /// The process of a VM with its start time; `None` while it is not there.
    fn process(&self, vm: &str) -> Option<(u32, u64)>;

    /// The thread of a vCPU.
    ///
    /// # Errors
    /// Why it is not known.
    fn vcpu(&self, vm: &str, vcpu: u32) -> Result<Target, Refusal>;

    /// How many vCPUs a VM has; `None` where that is not known.
    fn vcpus(&self, vm: &str) -> Option<usize>;
}

/// A change was not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unmade {
    /// The vCPU sleeps and has not come to its core yet. The kernel refuses until the vCPU runs;
    /// try again later.
    pub asleep: bool,
    /// Why, for people.
    pub why: String,
}

/// Processor time of a thread, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// How long it has run.
    pub ran: u64,
    /// How long it was runnable and did not run.
    pub waited: u64,
}

/// How important a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// Something happened as intended.
    Info,
    /// A promise may be broken.
    Warn,
    /// What is held cannot be stored.
    Error,
}
