//! One line from QEMU, decoded.
//!
//! What it does not do: judge whether the message is due; [`super::session`] does. Members that are
//! not known are ignored, as the specification asks of clients.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::line::LineTooLong;

/// A message from the server (specification sections 2.2 greeting, 2.4 responses, 2.5 events).
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// The first message of a connection.
    Greeting(QemuVersion),
    /// Something happened to the VM.
    Event(QmpEvent),
    /// The answer to a command. Without an id, QEMU could not even parse the command.
    Reply {
        /// The id that the command carried.
        id: Option<u64>,
        /// `return` or `error`.
        result: Result<Value, QmpError>,
    },
}

/// The version of QEMU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct QemuVersion {
    /// 7 in 7.2.22.
    pub major: u32,
    /// 2 in 7.2.22.
    pub minor: u32,
    /// 22 in 7.2.22.
    pub micro: u32,
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// An event as QEMU sent it; [`super::VmEvent`] reads it.
#[derive(Clone, PartialEq, Debug)]
pub struct QmpEvent {
    /// Such as `STOP`.
    pub name: String,
    /// The event's members; `Null` when there are none.
    pub data: Value,
    /// QEMU's wall clock when it happened, Unix seconds; -1 when QEMU could not read it. Not a
    /// trustworthy time.
    pub seconds: i64,
    /// And microseconds.
    pub microseconds: i64,
}

/// QEMU refused a command.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, thiserror::Error)]
#[error("QEMU refused the command: {desc} ({class})")]
pub struct QmpError {
    /// Such as `CommandNotFound` or `GenericError`.
    pub class: String,
    /// A description for people; not to be parsed.
    pub desc: String,
}

/// The stream is not a usable QMP stream; close it. Nothing after the fault is interpreted.
#[derive(Debug, thiserror::Error)]
pub enum QmpFault {
    /// A line exceeds the limit.
    #[error(transparent)]
    TooLong(#[from] LineTooLong),
    /// Not JSON at all.
    #[error(
        "QMP line is not JSON: {start:?}; check that the socket is a QMP monitor (-qmp, or mode=control)"
    )]
    Json {
        /// How the line begins.
        start: String,
        /// Where parsing failed.
        source: serde_json::Error,
    },
    /// JSON, but no message of the protocol.
    #[error("unexpected QMP message: {start:?}; check that the socket is a QMP monitor of QEMU")]
    Shape {
        /// How the line begins.
        start: String,
    },
    /// The first message was not a greeting, or a greeting came later.
    #[error(
        "QMP greeting missing or repeated; QEMU serves one client per QMP socket: give Timevisor its own"
    )]
    Greeting,
    /// QEMU refused `qmp_capabilities`.
    #[error("QEMU refused to leave negotiation mode")]
    Negotiation(#[source] QmpError),
    /// QEMU could not read what we sent.
    #[error("QEMU could not read a command; reconnect")]
    Unread(#[source] QmpError),
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "QMP")]
    greeting: Option<Greeting>,
    event: Option<String>,
    data: Option<Value>,
    timestamp: Option<Timestamp>,
    // `"return": null` is a reply too, so presence and content are kept apart.
    #[serde(default, rename = "return", deserialize_with = "present")]
    returned: Option<Value>,
    error: Option<QmpError>,
    #[serde(default, deserialize_with = "number")]
    id: Option<u64>,
}

#[derive(Deserialize)]
struct Greeting {
    version: Version,
}

#[derive(Deserialize)]
struct Version {
    qemu: QemuVersion,
}

#[derive(Deserialize)]
struct Timestamp {
    seconds: i64,
    microseconds: i64,
}

fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// Our ids are numbers; another client's may be anything.
fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Ok(Value::deserialize(from)?.as_u64())
}

impl Message {
    /// Decodes a line without its end.
    ///
    /// # Errors
    /// [`QmpFault::Json`] or [`QmpFault::Shape`].
    pub fn parse(line: &[u8]) -> Result<Self, QmpFault> {
        let start = || String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
        let json: Value = serde_json::from_slice(line)
            .map_err(|source| QmpFault::Json { start: start(), source })?;
        let shape = || QmpFault::Shape { start: start() };
        let raw = Raw::deserialize(json).map_err(|_| shape())?;
        match raw {
            Raw { greeting: Some(g), event: None, returned: None, error: None, .. } => {
                Ok(Self::Greeting(g.version.qemu))
            }
            Raw {
                event: Some(name),
                timestamp: Some(t),
                greeting: None,
                returned: None,
                error: None,
                data,
                ..
            } => {
                let data = data.unwrap_or(Value::Null);
                Ok(Self::Event(QmpEvent {
                    name,
                    data,
                    seconds: t.seconds,
                    microseconds: t.microseconds,
                }))
            }
            Raw { returned: Some(value), greeting: None, event: None, error: None, id, .. } => {
                Ok(Self::Reply { id, result: Ok(value) })
            }
            Raw { error: Some(error), greeting: None, event: None, returned: None, id, .. } => {
                Ok(Self::Reply { id, result: Err(error) })
            }
            _ => Err(shape()),
        }
    }
}
