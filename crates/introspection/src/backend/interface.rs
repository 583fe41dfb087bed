//! The interface of a backend: bytes and now in, actions out.
//!
//! A driver owns the connection and the clock. It calls [`Backend::handle`] with what happens, does every action in order, asks
//! [`Backend::poll_at`] when to come back, and reads only while [`Backend::may_read`].

use core::fmt::Debug;

use timevisor_time::Duration;

use super::raw_event::RawEvent;
use crate::point::Point;

/// Where a point is in the guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// The point's id.
    pub point: u16,
    /// Guest-physical.
    pub address: u64,
}

/// What happened to a backend's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input<'a> {
    /// It stands.
    Connected,
    /// Bytes came.
    Bytes(&'a [u8]),
    /// It is gone.
    Closed,
    /// [`Backend::poll_at`] has come.
    Timer,
    /// [`Action::Put`] was done.
    Put,
    /// [`Action::Take`] was done.
    Taken,
    /// So many events found no place, all in all.
    Dropped(u64),
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Stop the VM and let it go on (QMP `stop`, `cont`, if it runs): a vCPU that is never idle gets to where points can change.
    Pause,
    /// Watch for traps, stop the VM, put KVM's prefix at these places, all or none, and let it go on.
    Put(Vec<Site>),
    /// Stop the VM, take all of them away, and let it go on.
    Take,
    /// All points are in place, so many.
    Attached(usize),
    /// No point is left.
    Detached,
    /// A point was hit.
    Event(RawEvent),
    /// So many events were dropped since the connection began, all in all.
    Dropped(u64),
    /// Something else is at a point now: it is not trapped.
    Changed {
        /// The point.
        point: u16,
        /// What is there.
        found: Vec<u8>,
    },
    /// Give the connection up; say why, and what to do.
    Close(String),
}

/// Where a backend is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Without a connection. Points that are wanted are set when there is one.
    Away,
    /// Connected, without points.
    Detached,
    /// Points are being changed.
    Changing,
    /// All points are in place.
    Attached,
}

/// A set of points that a backend cannot take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Too many.
    #[error("{0} trap points; this backend takes at most {1}")]
    Points(usize, usize),
    /// One reads too much.
    #[error("trap point {0} reads more than a point may, or in an impossible way")]
    Reads(u16),
}

/// One way of trapping, for one VM.
pub trait Backend: Debug + Send {
    /// As users name it.
    fn name(&self) -> &'static str;

    /// Where it is.
    fn state(&self) -> State;

    /// Traps these points, and no others.
    ///
    /// # Errors
    /// When it cannot take them; nothing has changed then.
    fn attach(&mut self, points: &[Point], now: Duration) -> Result<Vec<Action>, Refused>;

    /// Traps nothing. Done when [`Action::Detached`] comes, or the connection ends.
    fn detach(&mut self, now: Duration) -> Vec<Action>;

    /// Something happened.
    fn handle(&mut self, input: Input<'_>, now: Duration) -> Vec<Action>;

    /// Whether to read from the connection: a guest that has sent too much waits.
    fn may_read(&self, now: Duration) -> bool;

    /// When to come with [`Input::Timer`], or to read again.
    fn poll_at(&self, now: Duration) -> Option<Duration>;
}
