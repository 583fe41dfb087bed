//! poll(2), safely.
//!
//! Deliberately not epoll or ppoll: LD_PRELOAD network simulators support poll. (clknetsim reports
//! every descriptor that is not one of its sockets as readable at once, so wait only on sockets
//! when running under it; signals end the wait anyway.)

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// A descriptor to wait for and, after the wait, what it is ready for.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct PollFd<'fd>(libc::pollfd, core::marker::PhantomData<BorrowedFd<'fd>>);

/// What a descriptor is ready for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// Reading will not block.
    pub readable: bool,
    /// Writing will not block.
    pub writable: bool,
    /// An error is pending, or a packet's stamp lies in the socket's error queue.
    pub error: bool,
    /// The other end has closed.
    pub hangup: bool,
}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// This many descriptors are ready.
    Ready(usize),
    /// The timeout expired.
    Timeout,
    /// A signal arrived.
    Signal,
}

impl<'fd> PollFd<'fd> {
    /// Waits until the descriptor can be read.
    #[must_use]
    pub fn readable(fd: BorrowedFd<'fd>) -> Self {
        Self::new(fd, libc::POLLIN)
    }

    /// Waits until the descriptor can be written.
    #[must_use]
    pub fn writable(fd: BorrowedFd<'fd>) -> Self {
        Self::new(fd, libc::POLLOUT)
    }

    /// Waits for either.
    #[must_use]
    pub fn readable_or_writable(fd: BorrowedFd<'fd>) -> Self {
        Self::new(fd, libc::POLLIN | libc::POLLOUT)
    }

    /// Waits for neither: only an error, or that the other end has closed.
    #[must_use]
    pub fn idle(fd: BorrowedFd<'fd>) -> Self {
        Self::new(fd, 0)
    }

    fn new(fd: BorrowedFd<'fd>, events: libc::c_short) -> Self {
        Self(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }, core::marker::PhantomData)
    }

    /// What the last wait found.
    #[must_use]
    pub const fn ready(&self) -> Ready {
        let found = self.0.revents;
        Ready {
            readable: found & libc::POLLIN != 0,
            writable: found & libc::POLLOUT != 0,
            error: found & (libc::POLLERR | libc::POLLNVAL) != 0,
            hangup: found & libc::POLLHUP != 0,
        }
    }
}

/// Waits until a descriptor is ready, `timeout` expires (rounded up to a millisecond; `None` waits
/// forever), or a signal arrives.
///
/// # Errors
/// Only when the kernel is out of memory or there are too many descriptors.
pub fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<Woken> {
    let millis = match timeout {
        None => -1,
        Some(timeout) => i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
    };
    let count = libc::nfds_t::try_from(fds.len()).unwrap_or(libc::nfds_t::MAX);
    // SAFETY: PollFd is a transparent pollfd, so the slice is an array of `count` of them; the
    // descriptors are borrowed for the call.
    let ready = unsafe { libc::poll(fds.as_mut_ptr().cast(), count, millis) };
    match usize::try_from(ready) {
        Ok(0) => Ok(Woken::Timeout),
        Ok(ready) => Ok(Woken::Ready(ready)),
        Err(_) => {
            let error = io::Error::last_os_error();
            // The kernel does not change revents when a signal arrives; stale results must not be
            // mistaken for new ones.
            for fd in fds {
                fd.0.revents = 0;
            }
            if error.kind() == io::ErrorKind::Interrupted { Ok(Woken::Signal) } else { Err(error) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn it_times_out_and_wakes() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut fds = [PollFd::readable(far.as_fd())];
        assert_eq!(wait(&mut fds, Some(Duration::from_micros(1))).unwrap(), Woken::Timeout);
        near.write_all(b"x").unwrap();
        assert_eq!(wait(&mut fds, None).unwrap(), Woken::Ready(1));
        assert!(fds[0].ready().readable && !fds[0].ready().hangup);
        // Read first: another test's child may briefly hold `near`, and then an unread byte would
        // end the wait before the hangup.
        (&far).read_exact(&mut [0]).unwrap();
        drop(near);
        wait(&mut fds, None).unwrap();
        assert!(fds[0].ready().hangup);
    }
}
