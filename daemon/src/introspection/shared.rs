//! [`Shared`]: the state that a session's thread and the main thread share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use timevisor_introspection::tasks::follow::Attempt;
use timevisor_introspection::tasks::history::History;

use super::need::Need;

/// What a session's thread shares with the main thread.
#[derive(Default)]
pub struct Shared(Mutex<Told>);

/// The shared state.
#[derive(Default)]
pub struct Told {
    /// The user has detached, or the daemon is shutting down.
    pub ended: bool,
    /// The guest was reset since the thread last looked for its kernel.
    pub reset: bool,
    /// The guest has been reset at least once: an earlier kernel may still be in memory.
    pub was_reset: bool,
    /// The thread requests a short pause of the VM.
    pub pause: bool,
    pub attached: Option<usize>,
    pub problem: Option<String>,
    pub guest: Option<String>,
    pub dropped: u64,
    pub senseless: u64,
    pub tasks: Vec<Value>,
    /// A changed need of the tasks, until the main thread takes it.
    pub need: Option<Attempt<Need>>,
    pub history: History,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    /// Whether trap points have to be removed.
    pub fn is_over(&self) -> bool {
        self.ended || self.reset
    }
}
