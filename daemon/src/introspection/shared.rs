//! [`Shared`]: the state that a session's thread and the main thread share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use timevisor_introspection::tasks::follow::Attempt;
use timevisor_introspection::tasks::history::History;
use timevisor_introspection::tasks::late::Late;
use timevisor_protocols::control::IntrospectSenseless;
use timevisor_time::Duration;

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
    /// The thread looks for the guest's kernel: nothing is in the guest's code, and nothing gets there
    /// before [`Shared::has_found`].
    pub searches: bool,
    /// The processor time that all searches have taken.
    pub searched: Duration,
    /// The thread requests a short pause of the VM.
    pub pause: bool,
    pub attached: Option<usize>,
    pub problem: Option<String>,
    pub guest: Option<String>,
    pub dropped: u64,
    pub senseless: u64,
    pub senseless_last: Option<IntrospectSenseless>,
    /// Not every lost event is counted.
    pub uncounted: bool,
    pub tasks: Vec<Value>,
    /// A changed need of the tasks, until the main thread takes it.
    pub need: Option<Attempt<Need>>,
    pub history: History,
    /// Late jobs, until the main thread takes them; at most [`MOST_LATE`].
    pub late: Vec<Late>,
}

/// So many late jobs wait to be told; what is more is not told.
pub const MOST_LATE: usize = 100;

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// The thread begins to look for the guest's kernel.
    pub fn search(&self) {
        self.lock().searches = true;
    }

    /// It has found something, or nothing, in so much processor time. Returns whether it may go on: a session that has ended
    /// meanwhile is not waited for.
    pub fn has_found(&self, searched: Duration) -> bool {
        let mut told = self.lock();
        told.searches = false;
        told.searched += searched;
        !told.ended
    }
}

impl Told {
    /// Whether trap points have to be removed.
    pub fn is_over(&self) -> bool {
        self.ended || self.reset
    }
}
