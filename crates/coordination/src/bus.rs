//! Who gets a message.
//!
//! Members hand their messages out ([`crate::member::Member::outbox`]) and are handed those of others. What
//! carries them in between (timevisor-bus, a simulated network, a test's loop) may lose, delay, repeat and
//! reorder messages. It must not alter them and must not invent a sender.

use crate::message::MemberId;

/// Who gets a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// Every member of the group but the sender.
    All,
    /// One member.
    Member(MemberId),
}
