//! What a program sends.

use super::{MAX_MESSAGE, Sides, Who, name};
use crate::bytes::{BytesError, Reader, Writer};

/// One frame's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToBus {
    /// First of all.
    Hello {
        /// [`super::VERSION`].
        version: u16,
        /// Program and version, for the operator.
        client: String,
    },
    /// Joins a group.
    Join {
        /// The member's number on this connection; not in use yet.
        handle: u32,
        /// The group.
        group: String,
        /// Who joins.
        who: Who,
        /// The timeline that the group's times are on.
        timeline: String,
        /// What it needs.
        requirement: Option<Sides>,
        /// How long it may be silent, ms.
        lease_ms: u32,
    },
    /// Proves that the program knows the group's key: answers [`super::FromBus::Challenge`].
    Prove {
        /// Which member.
        handle: u32,
        /// See [`crate::nts::shared::Secret::proof`].
        proof: [u8; 16],
    },
    /// Renews a member's lease, and says what its page gives.
    Alive {
        /// Which member.
        handle: u32,
        /// What its page gives.
        achieved: Option<Sides>,
        /// Whether that is enough.
        met: bool,
    },
    /// Leaves the group.
    Leave {
        /// Which member.
        handle: u32,
    },
    /// Wants a topic's messages.
    Subscribe {
        /// Which member.
        handle: u32,
        /// The topic.
        topic: String,
        /// How many of those that were sent before.
        history: u32,
    },
    /// Does not want them any more.
    Unsubscribe {
        /// Which member.
        handle: u32,
        /// The topic.
        topic: String,
    },
    /// Sends a message.
    Send {
        /// Which member.
        handle: u32,
        /// To whom; `None`: everybody, or who subscribed to the topic.
        to: Option<Who>,
        /// The topic; `None` for messages that members exchange to agree.
        topic: Option<String>,
        /// The message with its sender and stamp.
        message: Vec<u8>,
    },
}

impl ToBus {
    /// The content of a frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Hello { version, client } => {
                out.byte(1);
                out.u16(*version);
                out.short_text(client);
            }
            Self::Join { handle, group, who, timeline, requirement, lease_ms } => {
                out.byte(2);
                out.u32(*handle);
                out.short_text(group);
                who.write(&mut out);
                out.short_text(timeline);
                Sides::write(*requirement, &mut out);
                out.u32(*lease_ms);
            }
            Self::Prove { handle, proof } => {
                out.byte(3);
                out.u32(*handle);
                out.0.extend(proof);
            }
            Self::Alive { handle, achieved, met } => {
                out.byte(4);
                out.u32(*handle);
                Sides::write(*achieved, &mut out);
                out.flag(*met);
            }
            Self::Leave { handle } => {
                out.byte(5);
                out.u32(*handle);
            }
            Self::Subscribe { handle, topic, history } => {
                out.byte(6);
                out.u32(*handle);
                out.short_text(topic);
                out.u32(*history);
            }
            Self::Unsubscribe { handle, topic } => {
                out.byte(7);
                out.u32(*handle);
                out.short_text(topic);
            }
            Self::Send { handle, to, topic, message } => {
                out.byte(8);
                out.u32(*handle);
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

    /// From the content of a frame.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn decode(bytes: &[u8]) -> Result<Self, BytesError> {
        let mut from = Reader(bytes);
        let content = match from.byte()? {
            1 => Self::Hello { version: from.u16()?, client: from.short_text()?.into() },
            2 => Self::Join {
                handle: from.u32()?,
                group: name(&mut from)?,
                who: Who::read(&mut from)?,
                timeline: name(&mut from)?,
                requirement: Sides::read(&mut from)?,
                lease_ms: from.u32()?,
            },
            3 => Self::Prove { handle: from.u32()?, proof: from.array()? },
            4 => Self::Alive {
                handle: from.u32()?,
                achieved: Sides::read(&mut from)?,
                met: from.flag()?,
            },
            5 => Self::Leave { handle: from.u32()? },
            6 => Self::Subscribe {
                handle: from.u32()?,
                topic: name(&mut from)?,
                history: from.u32()?,
            },
            7 => Self::Unsubscribe { handle: from.u32()?, topic: name(&mut from)? },
            8 => {
                let handle = from.u32()?;
                let to = if from.flag()? { Some(Who::read(&mut from)?) } else { None };
                let topic = if from.flag()? { Some(name(&mut from)?) } else { None };
                let message = from.bytes(MAX_MESSAGE)?.to_vec();
                Self::Send { handle, to, topic, message }
            }
            other => return Err(BytesError::Value(other)),
        };
        from.end()?;
        Ok(content)
    }
}
