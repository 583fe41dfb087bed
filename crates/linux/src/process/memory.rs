//! Another process's memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use super::{Process, ProcessError};

/// Another process's memory, read only unless opened by [`Self::writable`]. It stays bound to that
/// process: once the process has ended, reads fail.
#[derive(Debug)]
pub struct ProcessMemory {
    file: File,
    process: Process,
}

impl ProcessMemory {
    /// Opens /proc/PID/mem.
    ///
    /// # Errors
    /// When the process has ended, or CAP_SYS_PTRACE is missing.
    pub fn open(process: Process) -> Result<Self, ProcessError> {
        Self::with(process, OpenOptions::new().read(true))
    }

    /// As [`Self::open`], for reading and writing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn writable(process: Process) -> Result<Self, ProcessError> {
        Self::with(process, OpenOptions::new().read(true).write(true))
    }

    fn with(process: Process, options: &OpenOptions) -> Result<Self, ProcessError> {
        let file =
            options.open(process.path("mem")).map_err(|source| process.error("memory", source))?;
        // A pid that was reused between discovery and now must not be read.
        if process.is_running() {
            Ok(Self { file, process })
        } else {
            Err(ProcessError::Gone(process.pid))
        }
    }

    /// Fills `buffer` from `address`. Not atomic: the process may write at the same time.
    ///
    /// # Errors
    /// When the process has ended, or the addresses are not mapped.
    pub fn read_at(&self, address: u64, buffer: &mut [u8]) -> Result<(), ProcessError> {
        self.file.read_exact_at(buffer, address).map_err(|source| {
            // The memory of a process that has ended reads as empty.
            if source.kind() == io::ErrorKind::UnexpectedEof {
                ProcessError::Gone(self.process.pid)
            } else {
                self.process.error("memory", source)
            }
        })
    }

    /// Writes `bytes` at `address`. What the process's threads observe during the write is
    /// undefined, so stop them first.
    ///
    /// # Errors
    /// When the process has ended, the addresses are not mapped, or it was not opened for writing.
    pub fn write_at(&self, address: u64, bytes: &[u8]) -> Result<(), ProcessError> {
        self.file
            .write_all_at(bytes, address)
            .map_err(|source| self.process.error("memory, to write to it", source))
    }
}
