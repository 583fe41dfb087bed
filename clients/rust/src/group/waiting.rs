//! Waits for an event loop: [`GroupWait`], which has a descriptor; [`Pending`], a proposal that was
//! made; and what a wait at a barrier leaves behind when it ends early.
//!
//! None of them keeps the member in the group: if it leaves, they end with [`GroupError::Left`].

use core::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use timevisor_coordination::propose::Outcome;
use timevisor_coordination::{Name, ProposalId};
use timevisor_linux::event_fd::EventFd;

use super::Group;
use super::error::GroupError;
use super::state::{Shared, State};

/// How long the end of a release that this member has accepted is awaited.
const SOON: Duration = Duration::from_secs(1);

type Look<T> = Box<dyn FnMut(&mut State) -> Option<T> + Send>;

/// A wait for an event loop: when the descriptor is readable, call [`Self::on_ready`]. It is readable
/// at once, and then whenever something may have changed, at the latest every 100 ms. Dropping it
/// ends the wait.
pub struct GroupWait<T> {
    shared: Arc<Shared>,
    news: Arc<EventFd>,
    look: Look<T>,
    arrival: Option<Arrival>,
}

impl<T> GroupWait<T> {
    fn new(
        shared: &Arc<Shared>,
        look: impl FnMut(&mut State) -> Option<T> + Send + 'static,
    ) -> io::Result<Self> {
        let news = shared.listen()?;
        let shared = Arc::clone(shared);
        Ok(Self { shared, news, look: Box::new(look), arrival: None })
    }

    /// Checks whether it has happened; `None` if not yet. Never blocks, and may be called at any time.
    ///
    /// # Errors
    /// When this member has left the group.
    pub fn on_ready(&mut self) -> Result<Option<T>, GroupError> {
        if self.shared.is_forked() {
            return Err(GroupError::Forked);
        }
        let _ = self.news.clear();
        let mut state = self.shared.lock();
        let found = (self.look)(&mut state);
        if found.is_some()
            && let Some(arrival) = &mut self.arrival
        {
            arrival.ends = true;
        }
        if found.is_none() && state.ends { Err(GroupError::Left) } else { Ok(found) }
    }

    /// Ends the wait. At a barrier this member may have accepted a release: its end is awaited, less
    /// than a second, and is what this returns.
    #[must_use]
    pub fn give_up(mut self) -> Option<T> {
        let mut arrival = self.arrival.take()?;
        arrival.give_up();
        if self.shared.is_forked() {
            return None;
        }
        let state = &mut self.shared.lock();
        (self.look)(state)
    }
}

impl<T> AsFd for GroupWait<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

impl<T> fmt::Debug for GroupWait<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupWait").field("group", &self.shared).finish_non_exhaustive()
    }
}

/// This member waits at a barrier. Dropped before its release, it does not wait any more.
pub(super) struct Arrival {
    shared: Arc<Shared>,
    barrier: Name,
    /// Nothing is left to be given up.
    ends: bool,
}

impl Arrival {
    pub fn new(shared: &Arc<Shared>, name: &str, parties: u32) -> Result<Self, GroupError> {
        let barrier: Name =
            name.parse().map_err(|error| GroupError::Name(name.to_owned(), error))?;
        shared.act(|state, now| {
            // A wait that was dropped while its release was under way is this one now.
            let goes_on = state.abandoned.remove(&barrier);
            state.released.remove(&barrier);
            if state.member.arrive(barrier, parties, now) || goes_on {
                Ok(())
            } else {
                Err(GroupError::WaitsAlready(barrier))
            }
        })?;
        Ok(Self { shared: Arc::clone(shared), barrier, ends: false })
    }

    /// Waits until it is released, and returns how late this member surely was.
    pub fn wait(mut self, timeout: Duration) -> Result<Duration, GroupError> {
        let barrier = self.barrier;
        let end = Instant::now().checked_add(timeout);
        let released = self.shared.wait(end, |state| state.released.remove(&barrier));
        if released.is_ok() {
            self.ends = true;
            return released;
        }
        self.give_up();
        if self.shared.is_forked() {
            return Err(GroupError::Forked);
        }
        match self.shared.lock().released.remove(&barrier) {
            Some(late) => Ok(late),
            None => released,
        }
    }

    /// Does not wait any more. A release that this member has accepted counts: its end is awaited, which
    /// is soon.
    fn give_up(&mut self) {
        let barrier = self.barrier;
        let is_over = |state: &mut State| {
            (state.released.contains_key(&barrier) || state.member.give_up(barrier)).then_some(())
        };
        self.ends = self.shared.wait(Instant::now().checked_add(SOON), is_over).is_ok();
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if !self.ends && !self.shared.is_forked() {
            let mut state = self.shared.lock();
            if !state.released.contains_key(&self.barrier) && !state.member.give_up(self.barrier) {
                // A release is under way; the group's thread gives up when that has ended.
                state.abandoned.insert(self.barrier);
            }
        }
    }
}

impl Group {
    /// As [`Self::wait_for`], for an event loop.
    ///
    /// # Errors
    /// When the kernel has no descriptor for it.
    pub fn wait_for_fd(&self, count: usize) -> Result<GroupWait<()>, GroupError> {
        let shared = Arc::clone(&self.shared);
        let look = move |state: &mut State| shared.has_met(state, count).then_some(());
        Ok(GroupWait::new(&self.shared, look)?)
    }

    /// As [`Self::wait_for_names`], for an event loop.
    ///
    /// # Errors
    /// As [`Self::wait_for_fd`].
    pub fn wait_for_names_fd(&self, names: &[&str]) -> Result<GroupWait<()>, GroupError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let shared = Arc::clone(&self.shared);
        let look = move |state: &mut State| shared.has_met_names(state, &names).then_some(());
        Ok(GroupWait::new(&self.shared, look)?)
    }

    /// As [`Self::barrier`], for an event loop. Dropped before the release, this member does not wait
    /// any more.
    ///
    /// # Errors
    /// When the barrier has no possible name, this member waits there already, or the kernel has no
    /// descriptor for it.
    pub fn barrier_fd(&self, name: &str, parties: u32) -> Result<GroupWait<Duration>, GroupError> {
        let arrival = Arrival::new(&self.shared, name, parties)?;
        let barrier = arrival.barrier;
        let mut wait = GroupWait::new(&self.shared, move |state| state.released.remove(&barrier))?;
        wait.arrival = Some(arrival);
        Ok(wait)
    }
}

/// A proposal that was made.
#[derive(Clone)]
pub struct Pending {
    pub(super) shared: Arc<Shared>,
    pub(super) id: ProposalId,
}

impl Pending {
    /// Which one.
    #[must_use]
    pub fn id(&self) -> ProposalId {
        self.id
    }

    /// Waits until it is decided: true if everybody is to fire.
    ///
    /// # Errors
    /// When the time is over, or this member has left.
    pub fn decided(&self, timeout: Duration) -> Result<bool, GroupError> {
        let end = Instant::now().checked_add(timeout);
        self.shared.wait(end, |state| state.decided.get(&self.id).copied())
    }

    /// Waits for the outcome. With `unknown` members it may be corrected later
    /// ([`Group::proposals`]).
    ///
    /// # Errors
    /// When the time is over, or this member has left.
    pub fn wait(&self, timeout: Duration) -> Result<Outcome, GroupError> {
        let end = Instant::now().checked_add(timeout);
        self.shared.wait(end, |state| state.outcomes.get(&self.id).cloned())
    }

    /// As [`Self::decided`], for an event loop.
    ///
    /// # Errors
    /// When the kernel has no descriptor for it.
    pub fn decided_fd(&self) -> Result<GroupWait<bool>, GroupError> {
        let id = self.id;
        Ok(GroupWait::new(&self.shared, move |state| state.decided.get(&id).copied())?)
    }

    /// As [`Self::wait`], for an event loop.
    ///
    /// # Errors
    /// When the kernel has no descriptor for it.
    pub fn wait_fd(&self) -> Result<GroupWait<Outcome>, GroupError> {
        let id = self.id;
        Ok(GroupWait::new(&self.shared, move |state| state.outcomes.get(&id).cloned())?)
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("id", &self.id).finish_non_exhaustive()
    }
}
