//! The protocol between a program and its bus (docs/reference/bus.md).
//!
//! A program connects to timevisor-bus over a Unix socket or TLS, joins groups, and sends and gets
//! their messages. The bus looks into no message but its sender's name. One connection can hold many
//! members; each has a handle, a number that the program chooses.
//!
//! | module | owns |
//! | --- | --- |
//! | this one | limits, and what a member tells about itself |
//! | [`frame`](mod@frame) | finding frames in a byte stream |
//! | [`to_bus`] | what a program sends |
//! | [`from_bus`] | what the bus sends |
//! | [`between`] | what buses of several hosts say to each other |
//!
//! What it does not do: open connections, check names (the hub does), or decide anything.

pub mod between;
pub mod frame;
pub mod from_bus;
#[cfg(test)]
mod tests;
pub mod to_bus;

pub use frame::{FrameError, Frames, frame};
pub use from_bus::{FromBus, Gone, Refusal};
pub use to_bus::ToBus;

use crate::bytes::{BytesError, Reader, Writer};

/// The version of the protocol. Both ends refuse others.
pub const VERSION: u16 = 1;

/// Where timevisor-bus listens unless configured otherwise.
pub const SOCKET: &str = "/run/timevisor-bus/socket";

/// The longest name of a group, member or topic, in bytes.
pub const MAX_NAME_LEN: usize = 32;

/// The longest message of a member, in bytes: a payload of 1 MiB, and what is around it.
pub const MAX_MESSAGE: usize = (1 << 20) + (1 << 18);

/// The most members of a group, and handles in a frame.
pub const MAX_MEMBERS: usize = 4096;

/// Bounds in nanoseconds: how far time may be before, and after, the estimate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sides {
    /// Before.
    pub below_ns: u64,
    /// After.
    pub above_ns: u64,
}

/// A member's name and which incarnation of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Who {
    /// The name.
    pub name: String,
    /// Drawn at random when it joined.
    pub incarnation: u64,
}

/// What everybody in a group knows about a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// Who it is.
    pub who: Who,
    /// What it needs.
    pub requirement: Option<Sides>,
    /// What its page gave when it last said so.
    pub achieved: Option<Sides>,
    /// Whether that was enough.
    pub met: bool,
}

impl Sides {
    fn write(option: Option<Self>, out: &mut Writer) {
        out.flag(option.is_some());
        if let Some(Self { below_ns, above_ns }) = option {
            out.u64(below_ns);
            out.u64(above_ns);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Option<Self>, BytesError> {
        let is_some = from.flag()?;
        if !is_some {
            return Ok(None);
        }
        Ok(Some(Self { below_ns: from.u64()?, above_ns: from.u64()? }))
    }
}

impl Who {
    /// Appends it.
    pub(crate) fn write(&self, out: &mut Writer) {
        out.short_text(&self.name);
        out.u64(self.incarnation);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, BytesError> {
        Ok(Self { name: name(from)?, incarnation: from.u64()? })
    }
}

impl Info {
    /// Appends it, as frames do; buses send it to each other, too.
    pub fn write(&self, out: &mut Writer) {
        self.who.write(out);
        Sides::write(self.requirement, out);
        Sides::write(self.achieved, out);
        out.flag(self.met);
    }

    /// As [`Self::write`] writes it.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(from: &mut Reader<'_>) -> Result<Self, BytesError> {
        Ok(Self {
            who: Who::read(from)?,
            requirement: Sides::read(from)?,
            achieved: Sides::read(from)?,
            met: from.flag()?,
        })
    }
}

/// A name, which is not longer than one may be.
fn name(from: &mut Reader<'_>) -> Result<String, BytesError> {
    let text = from.short_text()?;
    if text.len() > MAX_NAME_LEN { Err(BytesError::TooLong(text.len())) } else { Ok(text.into()) }
}

fn handles(from: &mut Reader<'_>) -> Result<Vec<u32>, BytesError> {
    let count = from.count(MAX_MEMBERS)?;
    (0..count).map(|_| from.u32()).collect()
}

fn write_handles(handles: &[u32], out: &mut Writer) {
    out.count(handles.len());
    handles.iter().for_each(|handle| out.u32(*handle));
}
