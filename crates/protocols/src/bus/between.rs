//! What buses of several hosts say to each other about one group with a key.
//!
//! Everything is sealed with a key that is made of the group's (AES-SIV, RFC 5297), so whatever carries
//! it can lose, delay and repeat it, and can neither read nor change it.
//!
//! | bytes | what |
//! | --- | --- |
//! | 1 | version, 1 |
//! | 8 | the sending bus: a random number of this start of it |
//! | 8 | counts its messages for this group |
//! | rest | sealed; the first 17 bytes are the nonce, the group's name is bound to it |

use super::{Info, MAX_MEMBERS, MAX_MESSAGE, Who, name};
use crate::bytes::{BytesError, Reader, Writer};
use crate::nts::aead::Key;

/// Of keys for this: see [`crate::nts::shared::Secret::message_key`].
pub const PURPOSE: &[u8] = b"timevisor bus: between buses";

const VERSION: u8 = 1;
const HEADER: usize = 17;

/// The most buses that know each other.
pub const MAX_BUSES: usize = 256;

/// What one bus says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Between {
    /// Its members, from time to time and when they change.
    Roster {
        /// The group's timeline there.
        timeline: String,
        /// After so long without another one, ms, its members are gone.
        lease_ms: u32,
        /// Buses that it has heard. Only who is named here believes the sender: it cannot be a
        /// repetition from before.
        knows: Vec<u64>,
        /// All of its members.
        members: Vec<Info>,
    },
    /// A message of one of its members.
    Message {
        /// To whom; `None`: everybody, or who subscribed to the topic.
        to: Option<Who>,
        /// The topic.
        topic: Option<String>,
        /// The message with its sender and stamp.
        message: Vec<u8>,
    },
}

/// A message that was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Which bus sent it.
    pub bus: u64,
    /// Which of its messages for this group.
    pub count: u64,
    /// What it says.
    pub said: Between,
}

/// Why bytes are not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BetweenError {
    /// Of another version, or too short.
    #[error("not a message between buses of this version")]
    Header,
    /// Sealed with another key, for another group, or changed.
    #[error("sealed with another key")]
    Key,
    /// The right key, and not understood.
    #[error(transparent)]
    Content(#[from] BytesError),
}

impl Between {
    /// Seals it. No two messages of one bus for one group may have one count.
    #[must_use]
    pub fn seal(&self, key: &Key, group: &str, bus: u64, count: u64) -> Vec<u8> {
        let mut header = Writer::default();
        header.byte(VERSION);
        header.u64(bus);
        header.u64(count);
        let sealed = key.seal(&header.0, group.as_bytes(), &self.encode());
        // The cipher refuses only more than 126 associated strings.
        [header.0, sealed.unwrap_or_default()].concat()
    }

    /// Opens it.
    ///
    /// # Errors
    /// When it is none, or not for this key.
    pub fn open(bytes: &[u8], key: &Key, group: &str) -> Result<Opened, BetweenError> {
        let (header, sealed) = bytes.split_at_checked(HEADER).ok_or(BetweenError::Header)?;
        let mut from = Reader(header);
        if from.byte()? != VERSION {
            return Err(BetweenError::Header);
        }
        let (bus, count) = (from.u64()?, from.u64()?);
        let plain = key.open(header, group.as_bytes(), sealed).ok_or(BetweenError::Key)?;
        Ok(Opened { bus, count, said: Self::decode(&plain)? })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Roster { timeline, lease_ms, knows, members } => {
                out.byte(1);
                out.short_text(timeline);
                out.u32(*lease_ms);
                out.count(knows.len());
                knows.iter().for_each(|bus| out.u64(*bus));
                out.count(members.len());
                members.iter().for_each(|member| member.write(&mut out));
            }
            Self::Message { to, topic, message } => {
                out.byte(2);
                out.flag(to.is_some());
                if let Some(to) = to {
                    to.write(&mut out);
                }
                out.flag(topic.is_some());
                if let Some(topic) = topic {
                    out.short_text(topic);
                }
                out.bytes(message);
            }
        }
        out.0
    }

    fn decode(bytes: &[u8]) -> Result<Self, BytesError> {
        let mut from = Reader(bytes);
        let said = match from.byte()? {
            1 => {
                let (timeline, lease_ms) = (name(&mut from)?, from.u32()?);
                let count = from.count(MAX_BUSES)?;
                let knows = (0..count).map(|_| from.u64()).collect::<Result<_, _>>()?;
                let count = from.count(MAX_MEMBERS)?;
                let members =
                    (0..count).map(|_| Info::read(&mut from)).collect::<Result<_, _>>()?;
                Self::Roster { timeline, lease_ms, knows, members }
            }
            2 => Self::Message {
                to: if from.flag()? { Some(Who::read(&mut from)?) } else { None },
                topic: if from.flag()? { Some(name(&mut from)?) } else { None },
                message: from.bytes(MAX_MESSAGE)?.to_vec(),
            },
            other => return Err(BytesError::Value(other)),
        };
        from.end()?;
        Ok(said)
    }
}
