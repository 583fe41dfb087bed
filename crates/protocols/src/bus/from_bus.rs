//! What the bus sends.

use super::{Info, MAX_MEMBERS, MAX_MESSAGE, Who, handles, name, write_handles};
use crate::bytes::{BytesError, Reader, Writer};

/// Why a member is there no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Gone {
    /// It left.
    Left = 1,
    /// Its connection ended.
    Disconnected = 2,
    /// It was silent for longer than its lease.
    Silent = 3,
    /// Its bus is not heard any more.
    Unheard = 4,
    /// Another host has a member of this name, too, and keeps it.
    Twice = 5,
}

impl Gone {
    fn from_u8(byte: u8) -> Result<Self, BytesError> {
        Ok(match byte {
            1 => Self::Left,
            2 => Self::Disconnected,
            3 => Self::Silent,
            4 => Self::Unheard,
            5 => Self::Twice,
            other => return Err(BytesError::Value(other)),
        })
    }
}

/// Why the bus does not do something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// Another version of the protocol, or no hello.
    Version = 1,
    /// A name that cannot be one.
    Name = 2,
    /// A member of this name is in the group.
    NameTaken = 3,
    /// The group is on another timeline.
    Timeline = 4,
    /// The key does not match, or there is none.
    Key = 5,
    /// Too many members, groups or topics.
    Full = 6,
    /// A handle that is not in use, or is in use already.
    Handle = 7,
    /// A message whose sender is somebody else, or that is none.
    Message = 8,
    /// Who has joined already and is not allowed to any more.
    Removed = 9,
}

impl Refusal {
    fn from_u8(byte: u8) -> Result<Self, BytesError> {
        Ok(match byte {
            1 => Self::Version,
            2 => Self::Name,
            3 => Self::NameTaken,
            4 => Self::Timeline,
            5 => Self::Key,
            6 => Self::Full,
            7 => Self::Handle,
            8 => Self::Message,
            9 => Self::Removed,
            other => return Err(BytesError::Value(other)),
        })
    }
}

/// One frame's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromBus {
    /// Answers [`super::ToBus::Hello`].
    Welcome {
        /// [`super::VERSION`].
        version: u16,
        /// Another number after each start of the bus.
        incarnation: u64,
    },
    /// Asks for a proof: answers a join of a group with a key.
    Challenge {
        /// Which member.
        handle: u32,
        /// Random.
        nonce: [u8; 16],
    },
    /// The member has joined.
    Joined {
        /// Which member.
        handle: u32,
        /// Its lease, which may be shorter than what it wanted, ms.
        lease_ms: u32,
        /// All members, itself included.
        members: Vec<Info>,
    },
    /// Something is not done.
    Refused {
        /// Which member; 0 where it is about the connection.
        handle: u32,
        /// Why.
        refusal: Refusal,
        /// What to do.
        text: String,
    },
    /// Members have joined, changed or gone.
    Members {
        /// For whom this is.
        handles: Vec<u32>,
        /// Who has joined or changed.
        present: Vec<Info>,
        /// Who has gone.
        gone: Vec<(Who, Gone)>,
    },
    /// A message.
    Deliver {
        /// For whom this is.
        handles: Vec<u32>,
        /// It was sent before the member subscribed.
        is_old: bool,
        /// The message with its sender and stamp.
        message: Vec<u8>,
    },
    /// Ends the old messages of a topic.
    History {
        /// Which member.
        handle: u32,
        /// Of which topic.
        topic: String,
        /// How many came.
        sent: u32,
        /// How many messages of the topic the bus has not kept.
        dropped: u64,
    },
    /// Messages to this connection were dropped, because it does not take them as fast as they come.
    Overrun {
        /// How many.
        count: u64,
    },
}

impl FromBus {
    /// The content of a frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Welcome { version, incarnation } => {
                out.byte(1);
                out.u16(*version);
                out.u64(*incarnation);
            }
            Self::Challenge { handle, nonce } => {
                out.byte(2);
                out.u32(*handle);
                out.0.extend(nonce);
            }
            Self::Joined { handle, lease_ms, members } => {
                out.byte(3);
                out.u32(*handle);
                out.u32(*lease_ms);
                out.count(members.len());
                members.iter().for_each(|member| member.write(&mut out));
            }
            Self::Refused { handle, refusal, text } => {
                out.byte(4);
                out.u32(*handle);
                out.byte(*refusal as u8);
                out.short_text(text);
            }
            Self::Members { handles, present, gone } => {
                out.byte(5);
                write_handles(handles, &mut out);
                out.count(present.len());
                present.iter().for_each(|member| member.write(&mut out));
                out.count(gone.len());
                for (who, why) in gone {
                    who.write(&mut out);
                    out.byte(*why as u8);
                }
            }
            Self::Deliver { handles, is_old, message } => {
                out.byte(6);
                write_handles(handles, &mut out);
                out.flag(*is_old);
                out.bytes(message);
            }
            Self::History { handle, topic, sent, dropped } => {
                out.byte(7);
                out.u32(*handle);
                out.short_text(topic);
                out.u32(*sent);
                out.u64(*dropped);
            }
            Self::Overrun { count } => {
                out.byte(8);
                out.u64(*count);
            }
        }
        out.0
    }

    /// From the content of a frame.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn decode(bytes: &[u8]) -> Result<Self, BytesError> {
        let mut from = Reader(bytes);
        let content = match from.byte()? {
            1 => Self::Welcome { version: from.u16()?, incarnation: from.u64()? },
            2 => Self::Challenge { handle: from.u32()?, nonce: from.array()? },
            3 => {
                let (handle, lease_ms) = (from.u32()?, from.u32()?);
                Self::Joined { handle, lease_ms, members: infos(&mut from)? }
            }
            4 => Self::Refused {
                handle: from.u32()?,
                refusal: Refusal::from_u8(from.byte()?)?,
                text: from.short_text()?.into(),
            },
            5 => {
                let (handles, present) = (handles(&mut from)?, infos(&mut from)?);
                let count = from.count(MAX_MEMBERS)?;
                let gone = (0..count).map(|_| {
                    Ok::<_, BytesError>((Who::read(&mut from)?, Gone::from_u8(from.byte()?)?))
                });
                let gone = gone.collect::<Result<_, _>>()?;
                Self::Members { handles, present, gone }
            }
            6 => Self::Deliver {
                handles: handles(&mut from)?,
                is_old: from.flag()?,
                message: from.bytes(MAX_MESSAGE)?.to_vec(),
            },
            7 => Self::History {
                handle: from.u32()?,
                topic: name(&mut from)?,
                sent: from.u32()?,
                dropped: from.u64()?,
            },
            8 => Self::Overrun { count: from.u64()? },
            other => return Err(BytesError::Value(other)),
        };
        from.end()?;
        Ok(content)
    }
}

fn infos(from: &mut Reader<'_>) -> Result<Vec<Info>, BytesError> {
    let count = from.count(MAX_MEMBERS)?;
    (0..count).map(|_| Info::read(from)).collect()
}
