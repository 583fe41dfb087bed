//! SIGTERM, SIGINT and SIGHUP as a descriptor to poll.
//!
//! The handler writes one byte to a pipe; everything else happens in the daemon's loop. One
//! [`Signals`] per process.

use core::sync::atomic::{AtomicI32, Ordering};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a signal asks the daemon to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM or SIGINT: terminate cleanly.
    Terminate,
    /// SIGHUP: read the configuration again.
    Reload,
}

/// The pipe's write end, for the handler; -1 while there is none.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// The signals' pipe. Dropping it restores the signals' default action.
#[derive(Debug)]
pub struct Signals {
    reader: OwnedFd,
    _writer: OwnedFd,
}

const HANDLED: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

extern "C" fn handle(signal: libc::c_int) {
    let byte = [u8::try_from(signal).unwrap_or(0)];
    // SAFETY: write and errno are async-signal-safe; if the pipe is full or already closed, only a
    // byte is lost.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        libc::write(PIPE.load(Ordering::Relaxed), byte.as_ptr().cast(), 1);
        *errno = saved;
    }
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// When they are already installed, or no descriptor is free.
    pub fn install() -> io::Result<Self> {
        let mut ends = [-1; 2];
        // SAFETY: pipe2 fills the array of two.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: two descriptors that pipe2 has just returned, and that nobody else owns.
        let (reader, writer) =
            unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        PIPE.compare_exchange(-1, writer.as_raw_fd(), Ordering::SeqCst, Ordering::SeqCst).map_err(
            |_| io::Error::new(io::ErrorKind::AlreadyExists, "signals are handled already"),
        )?;
        let signals = Self { reader, _writer: writer };
        let handler: extern "C" fn(libc::c_int) = handle;
        for signal in HANDLED {
            set_action(signal, handler as libc::sighandler_t)?;
        }
        Ok(signals)
    }

    /// The oldest signal not yet taken.
    pub fn take(&mut self) -> Option<Signal> {
        let mut byte = [0u8];
        // SAFETY: the buffer is one byte; the descriptor is open and does not block.
        while unsafe { libc::read(self.reader.as_raw_fd(), byte.as_mut_ptr().cast(), 1) } == 1 {
            match libc::c_int::from(byte[0]) {
                libc::SIGTERM | libc::SIGINT => return Some(Signal::Terminate),
                libc::SIGHUP => return Some(Signal::Reload),
                _ => {}
            }
        }
        None
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for signal in HANDLED {
            // If a signal's action cannot be reset, its handler remains but finds no pipe, which is
            // harmless.
            let _ = set_action(signal, libc::SIG_DFL);
        }
        PIPE.store(-1, Ordering::SeqCst);
    }
}

fn set_action(signal: libc::c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: sigaction is plain data; zero is an empty mask and no flags. No SA_RESTART: a signal
    // ends poll.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    // SAFETY: the action is complete and lives through the call; the handler is async-signal-safe.
    if unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{self, PollFd};

    /// A single test, because signals affect the whole process.
    #[test]
    fn signals_arrive_in_order() {
        let mut signals = Signals::install().unwrap();
        assert!(Signals::install().is_err());
        assert_eq!(signals.take(), None);
        for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
            // SAFETY: raise sends a signal to this thread, whose action is our handler.
            unsafe { libc::raise(signal) };
        }
        let mut fds = [PollFd::readable(signals.as_fd())];
        poll::wait(&mut fds, None).unwrap();
        assert!(fds[0].ready().readable);
        assert_eq!(signals.take(), Some(Signal::Reload));
        assert_eq!(signals.take(), Some(Signal::Terminate));
        assert_eq!(signals.take(), Some(Signal::Terminate));
        assert_eq!(signals.take(), None);
        drop(signals);
        drop(Signals::install().unwrap());
    }
}
