//! The socket to the bus: frames in and out, without blocking.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use timevisor_protocols::bus::{Frames, FromBus, ToBus, VERSION, frame};

use super::address::BusAddress;
use super::error::JoinError;
use super::link::Link;
use crate::tried::Tried;

/// How long the bus may take to answer a join.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes that wait to be written before publishing fails.
const MOST_WAITING: usize = 4 << 20;

/// The most bytes that are taken at once: what is due must not wait for a bus that never ends.
const MOST_AT_ONCE: usize = 256 << 10;

/// One connection.
pub struct Connection {
    link: Link,
    frames: Frames,
    out: VecDeque<u8>,
    /// The other end is gone.
    is_over: bool,
    /// The last read did not take everything.
    has_more: bool,
}

impl Connection {
    /// Connects to the first that answers, and says hello. Over the network this may take seconds.
    pub fn open(candidates: &[BusAddress]) -> Result<Self, JoinError> {
        let mut tried = Vec::new();
        for address in candidates {
            match Link::open(address) {
                Ok(link) => {
                    let (frames, out) = (Frames::default(), VecDeque::new());
                    let mut connection =
                        Self { link, frames, out, is_over: false, has_more: false };
                    let client = std::env::args().next().unwrap_or_default();
                    let client = client.chars().take(60).collect();
                    connection.send(&ToBus::Hello { version: VERSION, client });
                    return Ok(connection);
                }
                Err(error) => tried.push(Tried::new(address, &error)),
            }
        }
        Err(JoinError::NoBus(tried))
    }

    /// Whether the connection has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether something waits to be written.
    pub fn wants_to_write(&self) -> bool {
        !self.out.is_empty() || self.link.holds_back()
    }

    /// Whether the bus takes frames more slowly than they come.
    pub fn is_stalled(&self) -> bool {
        self.out.len() > MOST_WAITING
    }

    /// Writes a frame, or as much of it as is taken now.
    pub fn send(&mut self, content: &ToBus) {
        self.out.extend(frame(&content.encode()));
        self.flush();
    }

    /// Writes what is taken now.
    pub fn flush(&mut self) {
        while !self.out.is_empty() {
            let (front, _) = self.out.as_slices();
            match self.link.write(front) {
                Ok(0) => return self.is_over = true,
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if is_temporary(&error) => return,
                Err(_) => return self.is_over = true,
            }
        }
        match self.link.flush() {
            Err(error) if !is_temporary(&error) => self.is_over = true,
            Ok(()) | Err(_) => {}
        }
    }

    /// Whether [`Self::read`] would find more although the descriptor may not be readable.
    pub fn has_more(&mut self) -> bool {
        if self.is_over {
            return false;
        }
        self.has_more
            || self.link.has_read_ahead().unwrap_or_else(|_| {
                self.is_over = true;
                false
            })
    }

    /// What has come, at most about 4 MiB.
    pub fn read(&mut self) -> Vec<FromBus> {
        let (mut found, mut buffer) = (Vec::new(), [0; 1 << 14]);
        let mut taken = 0;
        self.has_more = false;
        loop {
            if taken >= MOST_AT_ONCE {
                self.has_more = true;
                return found;
            }
            match self.link.read(&mut buffer) {
                Ok(0) => self.is_over = true,
                // TLS gives a record at a time: nothing is left only when it says so.
                Ok(count) => {
                    taken += count;
                    self.frames.push(&buffer[..count]);
                    self.take(&mut found);
                    if !self.is_over {
                        continue;
                    }
                }
                Err(error) if is_temporary(&error) => {}
                Err(_) => self.is_over = true,
            }
            return found;
        }
    }

    fn take(&mut self, found: &mut Vec<FromBus>) {
        loop {
            match self.frames.take() {
                Ok(Some(content)) => match FromBus::decode(content) {
                    Ok(content) => found.push(content),
                    // A bus of another version, or something else.
                    Err(_) => return self.is_over = true,
                },
                Ok(None) => return,
                Err(_) => return self.is_over = true,
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
