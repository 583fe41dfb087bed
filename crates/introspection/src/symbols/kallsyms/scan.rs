//! Searches guest memory for kallsyms_token_index, a piece at a time.

use super::effort::Effort;
use super::error::KallsymsError;
use super::image::Kernel;
use super::index::{INDEX, indices};
use super::tables;
use crate::memory::GuestMemory;

/// Maximum number of candidates; a kernel has one.
const MOST: usize = 64;
const CHUNK: usize = 1 << 20;

/// A search that can be done a piece at a time.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The ranges that have not been read yet.
    left: Vec<(u64, u64)>,
    found: Vec<u64>,
}

impl Scan {
    /// A scan of all main memory.
    #[must_use]
    pub fn new(memory: &dyn GuestMemory) -> Self {
        Self { left: memory.ranges(), found: Vec::new() }
    }

    /// Reads about `bytes` more; returns true when everything has been read.
    ///
    /// # Errors
    /// When memory cannot be read, or has too many candidates.
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
            // An index that spans two chunks is found in the second one.
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

    /// Where tables may be.
    #[cfg(test)]
    pub(super) fn found(&self) -> &[u64] {
        &self.found
    }

    /// The kernel, once everything has been read.
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

    /// Every kernel, including one that ran before a reset; at least one.
    ///
    /// # Errors
    /// When there is none.
    pub fn kernels(&self, memory: &dyn GuestMemory) -> Result<Vec<Kernel>, KallsymsError> {
        let mut kernels: Vec<Kernel> = Vec::new();
        let mut nearest = "no such table".to_owned();
        let mut effort = Effort::default();
        for index in &self.found {
            match tables::read(memory, *index, &mut effort)
                .and_then(|tables| Kernel::place(memory, tables))
            {
                // Leftover copies of tables lead to the image that they were copied from.
                Ok(kernel) if kernels.iter().any(|other| other.is_at(&kernel)) => {}
                Ok(kernel) => kernels.push(kernel),
                Err(why) => nearest = format!("at {index:#x}, {why}"),
            }
            // What was found so far may be the imitation.
            if effort.check().is_err() {
                return Err(KallsymsError::NotFound(nearest));
            }
        }
        if kernels.is_empty() { Err(KallsymsError::NotFound(nearest)) } else { Ok(kernels) }
    }
}
