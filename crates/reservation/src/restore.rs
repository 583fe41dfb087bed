//! What a release needs of the host.

use std::fmt;

use crate::held::Step;

/// What a release needs. A program that cleans up after a vanished daemon needs only this.
pub trait Restore {
    /// One setting of the host with its old and new value. It is plain data that is shown, stored,
    /// applied and undone.
    type Change: Clone + PartialEq + fmt::Debug + fmt::Display;

    /// Whether the process is still running, or at least its thread `tid`.
    fn is_alive(&self, pid: u32, start_time: u64, tid: u32) -> bool;

    /// Whether `tid` is still the thread of this process that started then (`started`, as
    /// [`Self::thread_started`] said it); with `None`, whether the process has such a thread.
    fn is_thread(&self, pid: u32, tid: u32, started: Option<u64>) -> bool;

    /// When a thread of this process started, in the host's units; `None` if there is none.
    fn thread_started(&self, pid: u32, tid: u32) -> Option<u64>;

    /// The thread that a change affects, if it affects a single one.
    fn thread(&self, change: &Self::Change) -> Option<u32>;

    /// Undoes a change. Undoing a change that was never made, or whose object is gone, succeeds
    /// without effect.
    ///
    /// # Errors
    /// Why the old value could not be restored.
    fn undo(&mut self, change: &Self::Change) -> Result<(), String>;

    /// Gives threads that the process started during the reservation the processors that its main
    /// thread has regained.
    fn widen(&mut self, pid: u32, undone: &[Step<Self::Change>]);
}
