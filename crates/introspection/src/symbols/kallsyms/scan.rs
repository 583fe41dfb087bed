//! Looks for kallsyms_token_index: 256 numbers of 16 bits from 0 on that only grow, at a multiple of 4. Nothing else looks like it.

use super::{KallsymsError, Kernel, tables};
use crate::memory::GuestMemory;

/// The index in bytes.
pub(super) const INDEX: usize = 512;
/// Places to be tried; a kernel has one.
const MOST: usize = 64;
const CHUNK: usize = 1 << 20;
/// A token is at most this long, with its end.
const LONGEST: u16 = 256;

/// A search that can be done a piece at a time.
#[derive(Clone, Debug)]
pub struct Scan {
    /// What has not been read.
    left: Vec<(u64, u64)>,
    found: Vec<u64>,
}

impl Scan {
    /// Of all main memory.
    #[must_use]
    pub fn new(memory: &dyn GuestMemory) -> Self {
        Self { left: memory.ranges(), found: Vec::new() }
    }

    /// Reads about `bytes` more; true when all is read.
    ///
    /// # Errors
    /// When memory cannot be read, or too much of it looks like a table.
    pub fn step(&mut self, memory: &dyn GuestMemory, bytes: u64) -> Result<bool, KallsymsError> {
        let mut done = 0;
        let mut buffer = vec![0; CHUNK + INDEX];
        while let Some((address, len)) = self.left.first_mut() {
            if done >= bytes {
                return Ok(false);
            }
            let size = usize::try_from(*len).map_or(buffer.len(), |len| len.min(buffer.len()));
            let chunk = &mut buffer[..size];
            memory.read(*address, chunk)?;
            for at in indices(chunk) {
                if self.found.len() == MOST {
                    return Err(KallsymsError::TooMany(MOST));
                }
                self.found.push(*address + at as u64);
            }
            // An index across two chunks is seen in the second one.
            let step = if size > CHUNK { CHUNK } else { size } as u64;
            done += step;
            *address += step;
            *len -= step;
            if *len == 0 {
                self.left.remove(0);
            }
        }
        Ok(true)
    }

    /// The kernel, when all is read.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn kernel(&self, memory: &dyn GuestMemory) -> Result<Kernel, KallsymsError> {
        let mut kernels = self.kernels(memory)?;
        match kernels.len() {
            1 => Ok(kernels.remove(0)),
            several => Err(KallsymsError::Ambiguous(several)),
        }
    }

    /// Every kernel, also one that ran before a reset; at least one.
    ///
    /// # Errors
    /// When there is none.
    pub fn kernels(&self, memory: &dyn GuestMemory) -> Result<Vec<Kernel>, KallsymsError> {
        let mut kernels: Vec<Kernel> = Vec::new();
        let mut nearest = "no such table".to_owned();
        for index in &self.found {
            match tables::read(memory, *index).and_then(|tables| Kernel::place(memory, tables)) {
                // Tables that were left over lead to the image that they are a copy of.
                Ok(kernel) if kernels.iter().any(|other| other.is_at(&kernel)) => {}
                Ok(kernel) => kernels.push(kernel),
                Err(why) => nearest = format!("at {index:#x}, {why}"),
            }
        }
        if kernels.is_empty() { Err(KallsymsError::NotFound(nearest)) } else { Ok(kernels) }
    }
}

/// Where in `chunk` an index begins. Looks at every 256th byte for numbers that grow, because every index has one with eight of them.
fn indices(chunk: &[u8]) -> Vec<usize> {
    const PROBE: usize = 16;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(probe) = chunk.get(at..at + PROBE) {
        // Zeros are the most of memory.
        if probe[2..4] != probe[..2] && grow(probe) {
            let first = at.saturating_sub(INDEX - PROBE).next_multiple_of(4);
            let starts = (first..=at).step_by(4);
            let is = |start: &usize| chunk.get(*start..start + INDEX).is_some_and(is_index);
            found.extend(
                starts
                    .filter(is)
                    .filter(|start| found.last() != Some(start))
                    .take(1)
                    .collect::<Vec<_>>(),
            );
        }
        at += 256;
    }
    found
}

fn is_index(bytes: &[u8]) -> bool {
    bytes[..2] == [0, 0] && grow(bytes)
}

/// Each more than the one before by what a token and its end take.
fn grow(bytes: &[u8]) -> bool {
    let mut last = None;
    numbers(bytes).all(|number| {
        let grows = last.is_none_or(|last: u16| {
            number.checked_sub(last).is_some_and(|step| (2..=LONGEST).contains(&step))
        });
        last = Some(number);
        grows
    })
}

/// As 16-bit numbers.
pub(super) fn numbers(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
}
