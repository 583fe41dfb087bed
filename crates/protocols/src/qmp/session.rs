//! One QMP connection: greeting, `qmp_capabilities`, then commands, replies and events.
//!
//! What it does not do: retry. A fault ends the session; the caller reconnects and makes a new one.
//! It does not time commands out either, because QEMU answers every command or closes the
//! connection.
//!
//! QEMU gives the answer to a command to the client that is connected when the answer is ready. If
//! a client leaves with a command unanswered, the next client gets replies to commands that it
//! never sent. These are recognized by their ids and ignored; ids must not repeat from session to
//! session ([`Session::with_first_id`]).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::message::{Message, QemuVersion, QmpError, QmpEvent, QmpFault};
use crate::line::LineReader;

/// The longest line taken from QEMU. Its longest replies (`query-qmp-schema`) are below 300 KiB.
pub const MAX_LINE_LEN: usize = 1 << 20;

/// What the session asks the caller to do, or reports.
#[derive(Debug)]
pub enum QmpItem {
    /// Write these bytes to the stream, now.
    Send(Vec<u8>),
    /// Commands may be sent from now on.
    Ready {
        /// QEMU's version.
        version: QemuVersion,
    },
    /// Something happened to the VM.
    Event(QmpEvent),
    /// The answer to [`Session::command`] with this id.
    Reply {
        /// As [`Session::command`] returned it.
        id: u64,
        /// What QEMU returned, or why it refused.
        result: Result<Value, QmpError>,
    },
    /// The session is over: close the connection. Always the last item.
    Fault(QmpFault),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Greeting,
    Negotiating(QemuVersion),
    Ready,
    Over,
}

/// The client's end of one QMP connection.
#[derive(Clone, Debug)]
pub struct Session {
    lines: LineReader,
    state: State,
    negotiation_id: u64,
    last_id: u64,
    unanswered: BTreeSet<u64>,
}

impl Session {
    /// A session whose `qmp_capabilities` carries this id; those of [`Self::command`] count up from
    /// there.
    #[must_use]
    pub fn with_first_id(id: u64) -> Self {
        Self {
            lines: LineReader::new(MAX_LINE_LEN),
            state: State::Greeting,
            negotiation_id: id,
            last_id: id,
            unanswered: BTreeSet::new(),
        }
    }

    /// Processes bytes that were read from the stream, and returns the resulting items, in order.
    pub fn on_bytes(&mut self, bytes: &[u8]) -> Vec<QmpItem> {
        if self.state == State::Over {
            return Vec::new();
        }
        let mut items = Vec::new();
        for line in self.lines.feed(bytes) {
            let taken = match line {
                Ok(line) if line.trim_ascii().is_empty() => continue,
                Ok(line) => Message::parse(&line).and_then(|message| self.take(message)),
                Err(too_long) => Err(too_long.into()),
            };
            match taken {
                Ok(item) => items.extend(item),
                Err(fault) => {
                    self.state = State::Over;
                    items.push(QmpItem::Fault(fault));
                    break;
                }
            }
        }
        items
    }

    /// A command to write to the stream, and the id that its [`QmpItem::Reply`] will carry. Valid
    /// once [`QmpItem::Ready`] was seen; before that QEMU knows no command.
    #[must_use = "the bytes must be written to the stream"]
    pub fn command(&mut self, execute: &str, arguments: Option<Value>) -> (u64, Vec<u8>) {
        self.last_id += 1;
        self.unanswered.insert(self.last_id);
        (self.last_id, encode(self.last_id, execute, arguments))
    }

    /// True between [`QmpItem::Ready`] and [`QmpItem::Fault`].
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// Commands still without a reply, oldest first.
    pub fn unanswered(&self) -> impl Iterator<Item = u64> {
        self.unanswered.iter().copied()
    }

    /// Processes a message; `None` if it answers an earlier client.
    fn take(&mut self, message: Message) -> Result<Option<QmpItem>, QmpFault> {
        match (self.state, message) {
            (State::Greeting, Message::Greeting(version)) => {
                self.state = State::Negotiating(version);
                Ok(Some(QmpItem::Send(encode(self.negotiation_id, "qmp_capabilities", None))))
            }
            (_, Message::Greeting(_)) | (State::Greeting, Message::Event(_)) => {
                Err(QmpFault::Greeting)
            }
            (State::Negotiating(version), Message::Reply { id: Some(id), result })
                if id == self.negotiation_id =>
            {
                result.map_err(QmpFault::Negotiation)?;
                self.state = State::Ready;
                Ok(Some(QmpItem::Ready { version }))
            }
            (_, Message::Event(event)) => Ok(Some(QmpItem::Event(event))),
            (_, Message::Reply { id: None, result: Err(error) }) => Err(QmpFault::Unread(error)),
            (_, Message::Reply { id, result }) => Ok(id
                .filter(|id| self.unanswered.remove(id))
                .map(|id| QmpItem::Reply { id, result })),
        }
    }
}

fn encode(id: u64, execute: &str, arguments: Option<Value>) -> Vec<u8> {
    let mut command =
        Map::from_iter([("execute".to_owned(), json!(execute)), ("id".to_owned(), json!(id))]);
    if let Some(arguments) = arguments {
        command.insert("arguments".to_owned(), arguments);
    }
    format!("{}\n", Value::Object(command)).into_bytes()
}
