//! What carries the messages of a group.

use crate::message::{Envelope, MemberId};

/// Who gets a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// Every member of the group but the sender.
    All,
    /// One member.
    Member(MemberId),
}

/// Carries messages between the members of one group.
///
/// A bus may lose, delay, repeat and reorder messages. It must not alter them and must not invent a
/// sender. Messages of one sender that arrive in order let a receiver detect losses by their
/// sequence numbers.
pub trait Bus {
    /// Why a message cannot be sent at all.
    type Error;

    /// Sends a message.
    ///
    /// # Errors
    /// When the bus knows that nobody will get it, such as after its connection has ended.
    fn send(&mut self, to: To, envelope: &Envelope) -> Result<(), Self::Error>;
}
