//! A process by a descriptor: whether it has ended, and its own descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Process, ProcessError};

/// Detects a process's end, with a pidfd if the kernel supports it (5.3), otherwise by checking
/// /proc.
#[derive(Debug)]
pub struct PidFd {
    fd: Option<OwnedFd>,
    process: Process,
}

impl PidFd {
    /// Watches a running process.
    ///
    /// # Errors
    /// [`ProcessError::Gone`] when it has ended, [`ProcessError::Waits`] when it keeps us waiting.
    pub fn open(process: Process) -> Result<Self, ProcessError> {
        // SAFETY: pidfd_open takes two integers and touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process.pid, 0) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
        // SAFETY: a descriptor that the kernel has just returned, and that nobody else owns.
        let fd = fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        // The pid may have been reused just before. Now that the descriptor pins it, check again.
        if process.patiently(|process| Ok(process.is_running()))? {
            Ok(Self { fd, process })
        } else {
            Err(ProcessError::Gone(process.pid))
        }
    }

    /// A descriptor that becomes readable when the process ends; `None` on kernels without pidfd,
    /// where the caller must poll [`Self::has_ended`].
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Duplicates descriptor `fd` of the process.
    pub(super) fn duplicate(&self, fd: u32) -> io::Result<OwnedFd> {
        let unsupported = || io::Error::from_raw_os_error(libc::ENOSYS);
        let pidfd = self.fd.as_ref().ok_or_else(unsupported)?;
        // SAFETY: pidfd_getfd takes three integers and touches no memory.
        let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) };
        match i32::try_from(copy) {
            // SAFETY: a descriptor that the kernel has just returned (close-on-exec), and that
            // nobody else owns.
            Ok(copy) if copy >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether the process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let Some(fd) = &self.fd else { return !self.process.is_running() };
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that lives through the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        if ready < 0 { !self.process.is_running() } else { ready > 0 }
    }
}
