//! Coordination on a timeline: members of a group exchange stamped messages and act together at a
//! time, or say that they did not.
//!
//! Time comes from each member's page, never from the delivery of a message. Every state machine
//! here takes events and the present reading and returns actions; it reads no clock and sends
//! nothing itself, so the simulator and the clients run the same code.
//!
//! | module | owns |
//! | --- | --- |
//! | `clock` | [`Now`], [`Reading`], [`Stamp`]: what a member's page says |
//! | `message` | [`Message`]: what members tell each other |
//! | `wire` | how messages are encoded |
//! | [`propose`] | all members fire at one time, or they learn who did not |
//! | [`leader`] | a leader by lease on the timeline |
//! | [`barrier`] | all members are released at one time |
//! | [`order`] | messages in the order of time |
//! | [`member`] | one member of a group: all of the above on one bus |
//! | [`hub`] | the groups of one host: who is in them, and who gets which message |
//! | `bus` | [`To`]: who gets a message, and what may happen to it on the way |
//!
//! What it does not do: open a connection (bus/ and clients/ do), keep a clock, or persist anything.
#![forbid(unsafe_code)]

pub mod barrier;
mod bus;
mod clock;
pub mod hub;
pub mod leader;
pub mod member;
mod message;
pub mod order;
pub mod propose;
#[cfg(test)]
mod testing;
mod wire;

pub use bus::To;
pub use clock::{Next, Now, Reading, Stamp};
pub use message::{Envelope, MemberId, Message, Proposal, ProposalId, Report, Why};
pub use timevisor_timelines::name::{InvalidName, TimelineName as Name};
pub use wire::{MAX_PARTICIPANTS, MAX_PAYLOAD, WireError};
