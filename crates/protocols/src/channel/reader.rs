//! Finds frames in a byte stream that may start anywhere and contain garbage, partial frames and
//! wrong checksums.
//!
//! The rule: bytes with the magic, a header of this direction and the right checksum are a frame.
//! Frames do not overlap: of two candidates that do, the one that *ends* first is the frame. So a
//! hello behind the partial frame of a guest that was reset is found at its own last byte, not at
//! the end that the partial frame announced. A whole frame cannot hide another in its payload:
//! headers have control characters (the kind), and JSON has none.
//!
//! The cost is bounded for any input: per byte one step of the checksum; per plausible header one
//! advance of it (at most 16 products) and a place in a heap; at most one frame's bytes in memory.
//! crc.rs explains the method.
//!
//! What it does not do: decode payloads, or check sessions.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::frame::{CHECKED_LEN, Frame, FrameHeader, HEADER_LEN, Kind, MAGIC};
use super::{VERSION, crc};

/// The direction of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To a server: requests.
    ToServer,
    /// To a client: responses and events.
    ToClient,
}

impl Direction {
    const fn takes(self, kind: Kind) -> bool {
        matches!(kind, Kind::Request) == matches!(self, Self::ToServer)
    }
}

/// What the reader found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// A frame of this version.
    Frame(Frame),
    /// A whole frame of another version. Its payload is unknown, but the sender can be told.
    OtherVersion(FrameHeader),
}

/// A header whose frame has not ended yet. Positions count the stream's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Candidate {
    end: u64,
    start: u64,
    /// The stream's register at `end` if this is a frame.
    register: u32,
}

/// Finds the frames in a stream.
#[derive(Clone, Debug)]
pub struct FrameReader {
    direction: Direction,
    /// The bytes from `base` on, which may be part of a frame.
    kept: VecDeque<u8>,
    base: u64,
    /// The checksum's register over the whole stream.
    register: u32,
    /// The candidates by their ends.
    candidates: BinaryHeap<Reverse<Candidate>>,
    /// Starts and ends of the candidates, by starts; the first one determines what must be kept.
    starts: VecDeque<(u64, u64)>,
    skipped: u64,
    last_frame_end: u64,
}

impl FrameReader {
    /// Makes a reader for any position of a stream.
    #[must_use]
    pub const fn new(direction: Direction) -> Self {
        Self {
            direction,
            kept: VecDeque::new(),
            base: 0,
            register: 0,
            candidates: BinaryHeap::new(),
            starts: VecDeque::new(),
            skipped: 0,
            last_frame_end: 0,
        }
    }

    /// Reads bytes and returns the frames that are now complete, in order.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Received> {
        let mut received = Vec::new();
        for byte in bytes {
            self.kept.push_back(*byte);
            self.register = crc::step(self.register, *byte);
            self.notice_header();
            if let Some(start) = self.ended_here() {
                received.extend(self.take(start));
            }
            // Not at every byte, because moving the front costs time.
            if self.starts.is_empty() && self.kept.len() >= 4 * HEADER_LEN {
                self.drop_before(self.position() - (HEADER_LEN as u64 - 1));
            }
        }
        self.trim();
        received
    }

    /// Returns the number of bytes that are not part of a frame and never will be.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the number of bytes that may become part of a frame: at most one frame's.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.kept.len()
    }

    /// Returns the number of bytes since the last frame's end.
    #[must_use]
    pub fn since_frame(&self) -> u64 {
        self.position() - self.last_frame_end
    }

    fn position(&self) -> u64 {
        self.base + self.kept.len() as u64
    }

    /// Opens a candidate if a header ends here.
    fn notice_header(&mut self) {
        let Some(at) = self.kept.len().checked_sub(HEADER_LEN) else { return };
        if self.kept[at] != MAGIC[0] || self.kept[at + 1] != MAGIC[1] {
            return;
        }
        let bytes = self.header_bytes(at);
        let Some((header, checksum)) = FrameHeader::parse(&bytes) else { return };
        if !self.direction.takes(header.kind) {
            return;
        }
        let own = crc::update(crc::INITIAL, &bytes[..CHECKED_LEN]);
        let register = !checksum ^ crc::advance(self.register ^ own, header.len);
        let (start, end) = (self.base + at as u64, self.position() + u64::from(header.len));
        if self.starts.is_empty() {
            self.drop_before(start);
        }
        self.candidates.push(Reverse(Candidate { end, start, register }));
        self.starts.push_back((start, end));
    }

    /// Returns the start of the longest frame that ends here. Removes the candidates that end here
    /// without being a frame.
    fn ended_here(&mut self) -> Option<u64> {
        let here = self.position();
        let mut found = None;
        while let Some(&Reverse(candidate)) = self.candidates.peek().filter(|c| c.0.end <= here) {
            if candidate.register == self.register {
                found = found.or(Some(candidate.start));
            }
            self.candidates.pop();
        }
        while found.is_none() && self.starts.front().is_some_and(|(_, end)| *end <= here) {
            self.starts.pop_front();
            if let Some((oldest, _)) = self.starts.front() {
                self.drop_before(*oldest);
            }
        }
        found
    }

    fn take(&mut self, start: u64) -> Option<Received> {
        self.drop_before(start);
        let bytes = self.header_bytes(0);
        let payload = self.kept.drain(..).skip(HEADER_LEN).collect();
        self.base = start + HEADER_LEN as u64 + Vec::len(&payload) as u64;
        self.last_frame_end = self.base;
        self.candidates.clear();
        self.starts.clear();
        let (header, _) = FrameHeader::parse(&bytes)?;
        Some(match header.version {
            VERSION => Received::Frame(Frame { header, payload }),
            _ => Received::OtherVersion(header),
        })
    }

    fn header_bytes(&self, at: usize) -> [u8; HEADER_LEN] {
        std::array::from_fn(|i| self.kept[at + i])
    }

    /// Drops everything except candidates and a possible beginning of a header.
    fn trim(&mut self) {
        if !self.starts.is_empty() {
            return;
        }
        let len = self.kept.len();
        let may_begin = |from: &usize| {
            let kept = self.kept.iter().skip(*from);
            kept.zip(MAGIC).all(|(byte, magic)| *byte == magic)
        };
        let from = (len.saturating_sub(HEADER_LEN - 1)..len).find(may_begin).unwrap_or(len);
        self.drop_before(self.base + from as u64);
    }

    fn drop_before(&mut self, position: u64) {
        let Ok(count) = usize::try_from(position.saturating_sub(self.base)) else { return };
        let count = count.min(self.kept.len());
        self.kept.drain(..count);
        self.base += count as u64;
        self.skipped += count as u64;
    }
}
