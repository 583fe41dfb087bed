//! The interface of a backend: bytes and the current time in, actions out.
//!
//! A driver owns the connection and the clock. It reports every event to [`Backend::handle`],
//! carries out the actions in order, calls again at [`Backend::poll_at`], and reads only while
//! [`Backend::may_read`] is true.

use core::fmt::Debug;

use timevisor_time::Duration;

use super::raw_event::RawEvent;
use crate::point::Point;

/// Where a point is in the guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// The point's id.
    pub point: u16,
    /// Guest-physical address.
    pub address: u64,
}

/// What happened to a backend's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input<'a> {
    /// The connection is open.
    Connected,
    /// These bytes arrived.
    Bytes(&'a [u8]),
    /// The connection has ended.
    Closed,
    /// The time [`Backend::poll_at`] has come.
    Timer,
    /// [`Action::Put`] was carried out.
    Put,
    /// [`Action::Take`] was carried out.
    Taken,
    /// Total number of dropped events.
    Dropped(u64),
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send these bytes.
    Send(Vec<u8>),
    /// Stop and resume the VM (QMP `stop`, `cont`, if it runs), so that a vCPU that is never idle
    /// leaves its translated code and points can change.
    Pause,
    /// Watch for traps, stop the VM, put the trap at all of these sites or at none, and resume the
    /// VM.
    Put(Vec<Site>),
    /// Stop the VM, remove all traps, and resume it.
    Take,
    /// All points are in place; their number.
    Attached(usize),
    /// All points have been removed.
    Detached,
    /// A point was hit.
    Event(RawEvent),
    /// Total number of events that this connection has dropped.
    Dropped(u64),
    /// The code at a point has changed, so the point is no longer trapped.
    Changed {
        /// The point.
        point: u16,
        /// The bytes there.
        found: Vec<u8>,
    },
    /// Close the connection, and report this reason and next step.
    Close(String),
}

/// The state of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not connected. Wanted points are set when the connection opens.
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
    /// Too many points.
    #[error("{0} trap points; this backend takes at most {1}")]
    Points(usize, usize),
    /// A point reads too much.
    #[error("trap point {0} reads more than a point may, or in an impossible way")]
    Reads(u16),
}

/// One way of trapping, for one VM.
pub trait Backend: Debug + Send {
    /// Its name for users.
    fn name(&self) -> &'static str;

    /// Its state.
    fn state(&self) -> State;

    /// Traps exactly these points.
    ///
    /// # Errors
    /// When it cannot trap all of them; nothing changes then.
    fn attach(&mut self, points: &[Point], now: Duration) -> Result<Vec<Action>, Refused>;

    /// Removes all points. Done when [`Action::Detached`] comes or the connection ends.
    fn detach(&mut self, now: Duration) -> Vec<Action>;

    /// Handles an input, and returns what to do.
    fn handle(&mut self, input: Input<'_>, now: Duration) -> Vec<Action>;

    /// Whether to read from the connection. False while a guest sends too many events.
    fn may_read(&self, now: Duration) -> bool;

    /// When to call with [`Input::Timer`], or to read again.
    fn poll_at(&self, now: Duration) -> Option<Duration>;
}
