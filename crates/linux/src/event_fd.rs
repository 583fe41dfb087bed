//! A flag as a descriptor (eventfd(2)): one thread sets it, others wait for it with poll(2).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A flag; readable while it is set.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Creates a flag that is not set.
    ///
    /// # Errors
    /// When descriptors or memory run out.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that eventfd has just returned, and that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sets it with one write(2), which is also allowed in a signal handler.
    ///
    /// # Errors
    /// Never: a flag that was set 2^64 - 2 times without being cleared stays set.
    pub fn set(&self) -> io::Result<()> {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the descriptor is open; the buffer has the eight bytes that write(2) of an
        // eventfd wants.
        let wrote = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        if wrote == 8 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock { Ok(()) } else { Err(error) }
    }

    /// Clears it. Returns false if it was not set.
    ///
    /// # Errors
    /// Never on a supported kernel.
    pub fn clear(&self) -> io::Result<bool> {
        let mut count = [0u8; 8];
        // SAFETY: the descriptor is open; the buffer has the eight bytes that read(2) of an eventfd
        // wants.
        let read =
            unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        if read == 8 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
            _ => Err(error),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{PollFd, Woken, wait};
    use std::time::Duration;

    #[test]
    fn it_is_readable_while_it_is_set() {
        let flag = EventFd::new().unwrap();
        let look =
            || wait(&mut [PollFd::readable(flag.as_fd())], Some(Duration::from_millis(1))).unwrap();
        assert_eq!(look(), Woken::Timeout);
        assert!(!flag.clear().unwrap());
        flag.set().unwrap();
        flag.set().unwrap();
        assert_eq!((look(), look()), (Woken::Ready(1), Woken::Ready(1)));
        assert!(flag.clear().unwrap());
        assert_eq!(look(), Woken::Timeout);
    }

    #[test]
    fn another_thread_wakes_a_waiter() {
        let flag = EventFd::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| flag.set().unwrap());
            let mut fds = [PollFd::readable(flag.as_fd())];
            assert_eq!(wait(&mut fds, Some(Duration::from_secs(10))).unwrap(), Woken::Ready(1));
        });
    }
}
