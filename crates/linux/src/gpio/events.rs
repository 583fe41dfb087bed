//! [`EventLine`]: edges of an input with the kernel's stamps.
//!
//! The kernel stamps an edge in its interrupt handler, after the edge itself by the interrupt's
//! latency. It numbers what it delivers; if the buffer is full it drops the oldest, which the next
//! event's number tells. Edges that come faster than the interrupt's thread runs are merged before
//! they are numbered.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::abi::flag;

/// struct gpio_v2_line_event.
const EVENT: usize = 48;

/// A change of a line, as its active state: rising is from inactive to active.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edge {
    /// It became active.
    Rising,
    /// It became inactive.
    Falling,
}

/// Which edges are events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edges {
    /// Rising ones.
    Rising,
    /// Falling ones.
    Falling,
    /// Both.
    Both,
}

impl Edges {
    pub(super) fn flags(self) -> u64 {
        match self {
            Self::Rising => flag::EDGE_RISING,
            Self::Falling => flag::EDGE_FALLING,
            Self::Both => flag::EDGE_RISING | flag::EDGE_FALLING,
        }
    }
}

/// The clock that stamps a line's events. Stamps are the kernel's own: time namespaces do not shift
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EventClock {
    /// CLOCK_MONOTONIC: nobody can set it.
    #[default]
    Monotonic,
    /// CLOCK_REALTIME.
    Realtime,
}

impl EventClock {
    pub(super) fn flags(self) -> u64 {
        match self {
            Self::Monotonic => 0,
            Self::Realtime => flag::EVENT_CLOCK_REALTIME,
        }
    }
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineEvent {
    /// When the interrupt handler ran, ns of the line's [`EventClock`].
    pub stamp_ns: u64,
    /// What happened.
    pub edge: Edge,
    /// The line on its chip.
    pub offset: u32,
    /// Its number among the events of the request's lines; the first one is 1.
    pub seqno: u32,
    /// Its number among the line's events; the first one is 1.
    pub line_seqno: u32,
}

impl LineEvent {
    fn of_bytes(bytes: &[u8; EVENT]) -> io::Result<Self> {
        let word = |at: usize| -> u32 {
            let mut four = [0; 4];
            four.copy_from_slice(&bytes[at..at + 4]);
            u32::from_ne_bytes(four)
        };
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[..8]);
        let edge = match word(8) {
            1 => Edge::Rising,
            2 => Edge::Falling,
            _ => {
                let text = "the kernel told of an event that is no edge";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        };
        Ok(Self {
            stamp_ns: u64::from_ne_bytes(eight),
            edge,
            offset: word(12),
            seqno: word(16),
            line_seqno: word(20),
        })
    }
}

/// A requested input; readable while there are events.
#[derive(Debug)]
pub struct EventLine(File);

impl EventLine {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is open; both commands take or return an integer.
        let failed = unsafe {
            let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
            flags < 0 || libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) < 0
        };
        if failed { Err(io::Error::last_os_error()) } else { Ok(Self(File::from(fd))) }
    }

    /// Takes the oldest event that waits; `None` if there is none. Never blocks.
    ///
    /// # Errors
    /// ENODEV when the chip is gone.
    pub fn next_event(&mut self) -> io::Result<Option<LineEvent>> {
        let mut bytes = [0; EVENT];
        match self.0.read(&mut bytes) {
            Ok(EVENT) => LineEvent::of_bytes(&bytes).map(Some),
            Ok(_) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for EventLine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(id: u32) -> [u8; EVENT] {
        let mut bytes = [0; EVENT];
        bytes[..8].copy_from_slice(&0x0102_0304_0506_0708_u64.to_ne_bytes());
        for (at, word) in [(8, id), (12, 3), (16, 9), (20, 8)] {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn an_event_is_parsed_as_the_kernel_lays_it_out() {
        let event = LineEvent::of_bytes(&bytes(2)).unwrap();
        let expected = LineEvent {
            stamp_ns: 0x0102_0304_0506_0708,
            edge: Edge::Falling,
            offset: 3,
            seqno: 9,
            line_seqno: 8,
        };
        assert_eq!(event, expected);
        assert_eq!(LineEvent::of_bytes(&bytes(1)).unwrap().edge, Edge::Rising);
        assert!(LineEvent::of_bytes(&bytes(3)).is_err());
    }

    #[test]
    fn reading_never_blocks_and_takes_one_event() {
        let (mut to, from) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut line = EventLine::new(from.into()).unwrap();
        assert_eq!(line.next_event().unwrap(), None);
        io::Write::write_all(&mut to, &[bytes(1), bytes(2)].concat()).unwrap();
        for edge in [Some(Edge::Rising), Some(Edge::Falling), None] {
            assert_eq!(line.next_event().unwrap().map(|event| event.edge), edge);
        }
    }

    #[test]
    fn flags_are_the_headers() {
        assert_eq!(
            (Edges::Rising.flags(), Edges::Falling.flags(), Edges::Both.flags()),
            (16, 32, 48)
        );
        assert_eq!((EventClock::default().flags(), EventClock::Realtime.flags()), (0, 1 << 11));
    }
}
