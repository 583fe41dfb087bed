//! Why something did not work, and what to do.

use timevisor_coordination::leader::LeaderError;
use timevisor_coordination::propose::ProposeError;
use timevisor_coordination::{InvalidName, Name};
use timevisor_protocols::bus::Refusal;
use timevisor_protocols::channel::InvalidRequirement;

use crate::error::{BindError, TimelineError};
use crate::tried::Tried;

/// A group could not be joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A name that cannot be one.
    #[error("{0:?} cannot be a name: {1}")]
    Name(String, InvalidName),
    /// A requirement without meaning.
    #[error(transparent)]
    Requirement(#[from] InvalidRequirement),
    /// The host does not accept the requirement.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The timeline cannot be read.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
    /// An address that cannot be one.
    #[error("{0:?} is no address of a bus: {1}")]
    Address(String, String),
    /// No bus was found.
    #[error(
        "there is no bus: {}; start timevisor-bus, or say where it listens (TIMEVISOR_BUS)",
        Tried::list(.0)
    )]
    NoBus(Vec<Tried>),
    /// The bus does not answer.
    #[error("the bus did not answer in time; is it stopped?")]
    Silent,
    /// The bus refuses.
    #[error("the bus refuses ({0:?}): {1}")]
    Refused(Refusal, String),
    /// The kernel has no random bytes.
    #[error("no random bytes: {0}")]
    Random(String),
    /// A thread, a descriptor or a socket cannot be had.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Something in a group did not work.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A name that cannot be one.
    #[error("{0:?} cannot be a name: {1}")]
    Name(String, InvalidName),
    /// Too long a payload.
    #[error("a payload of {0} bytes, more than 1 MiB; publish it in parts")]
    TooLong(usize),
    /// The bus is not there; the library connects again by itself.
    #[error("the bus is not connected; the library tries to reach it again, try later")]
    Disconnected,
    /// The time is over.
    #[error("it did not happen in time")]
    TimedOut,
    /// No such member.
    #[error("the group has no member called {0:?}; wait for it (wait_for_names)")]
    NoMember(String),
    /// This member waits there already.
    #[error("this member waits at barrier {0} already")]
    WaitsAlready(Name),
    /// It cannot be proposed.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// This member has left.
    #[error("this member has left the group; join it again")]
    Left,
    /// After a fork the member is the parent process's.
    #[error("the membership belongs to the process that forked this one; join again in this one")]
    Forked,
    /// The kernel has no descriptor for a wait.
    #[error("no descriptor for the wait: {0}; close some, or raise the limit (ulimit -n)")]
    Descriptor(#[from] std::io::Error),
    /// Nobody can be elected.
    #[error(transparent)]
    Leader(#[from] LeaderError),
}
