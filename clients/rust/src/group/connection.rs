//! The socket to the bus: frames in and out, without blocking.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use timevisor_linux::peer;
use timevisor_protocols::bus::{Frames, FromBus, SOCKET, ToBus, VERSION, frame};

use super::error::JoinError;
use crate::tried::Tried;

/// How long the bus may take to answer a join.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes that wait to be written before publishing fails.
const MOST_WAITING: usize = 4 << 20;

/// The handle of the connection's only member.
pub const HANDLE: u32 = 1;

/// Where a bus may listen.
pub fn candidates(stated: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = stated {
        return vec![path.to_owned()];
    }
    if let Some(path) = std::env::var_os("TIMEVISOR_BUS") {
        return vec![path.into()];
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR");
    let own = own.map(|folder| Path::new(&folder).join("timevisor-bus.socket"));
    own.into_iter().chain([PathBuf::from(SOCKET)]).collect()
}

/// One connection.
pub struct Connection {
    stream: UnixStream,
    frames: Frames,
    out: VecDeque<u8>,
    /// The other end is gone.
    is_over: bool,
}

impl Connection {
    /// Connects to the first that answers, and says hello.
    pub fn open(candidates: &[PathBuf]) -> Result<Self, JoinError> {
        let mut tried = Vec::new();
        for path in candidates {
            match peer::connect(path) {
                Ok(stream) => {
                    let (frames, out) = (Frames::default(), VecDeque::new());
                    let mut connection = Self { stream, frames, out, is_over: false };
                    let client = std::env::args().next().unwrap_or_default();
                    let client = client.chars().take(60).collect();
                    connection.send(&ToBus::Hello { version: VERSION, client });
                    return Ok(connection);
                }
                Err(error) => tried.push(Tried::new(&path.display(), &error)),
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
        !self.out.is_empty()
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
            match self.stream.write(front) {
                Ok(0) => return self.is_over = true,
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if is_temporary(&error) => return,
                Err(_) => return self.is_over = true,
            }
        }
    }

    /// What has come.
    pub fn read(&mut self) -> Vec<FromBus> {
        let (mut found, mut buffer) = (Vec::new(), [0; 1 << 14]);
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_over = true,
                Ok(count) => {
                    self.frames.push(&buffer[..count]);
                    self.take(&mut found);
                    if count == buffer.len() {
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
        self.stream.as_fd()
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
