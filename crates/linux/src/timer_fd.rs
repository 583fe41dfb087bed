//! A timer as a descriptor (timerfd_create(2)), on CLOCK_MONOTONIC; waits sleep on it.
//!
//! It only knows spans, never a time of day; the caller converts times on a timeline to spans.
//! Unlike the timeout of poll(2), a timer descriptor has no slack.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// One timer; readable once it has expired.
#[derive(Debug)]
pub struct TimerFd(OwnedFd);

impl TimerFd {
    /// Creates a timer that is not armed.
    ///
    /// # Errors
    /// When descriptors or memory run out.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call touches no memory.
        let fd = unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that timerfd_create has just returned, and that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Arms the timer to expire once, `after` from now, replacing any earlier setting. Zero counts
    /// as one nanosecond, because zero would disarm the timer.
    ///
    /// # Errors
    /// Never on a supported kernel.
    pub fn arm(&self, after: Duration) -> io::Result<()> {
        self.set(after.max(Duration::from_nanos(1)))
    }

    /// Stops the timer; it is not readable until it is armed again.
    ///
    /// # Errors
    /// Never on a supported kernel.
    pub fn disarm(&self) -> io::Result<()> {
        self.set(Duration::ZERO)
    }

    fn set(&self, after: Duration) -> io::Result<()> {
        // Longer than any machine runs; the kernel rejects values that do not fit its type.
        let seconds = after.as_secs().min(1 << 30);
        let value = libc::timespec {
            tv_sec: libc::time_t::try_from(seconds).map_err(io::Error::other)?,
            tv_nsec: libc::c_long::from(after.subsec_nanos()),
        };
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: never, it_value: value };
        // SAFETY: the descriptor is open; `spec` is valid for the call to read, and no old value is
        // asked for.
        let failed = unsafe {
            libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const spec, core::ptr::null_mut())
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Acknowledges the expiry, so that the timer is no longer readable. Returns false if it had
    /// not expired.
    ///
    /// # Errors
    /// Never on a supported kernel.
    pub fn clear(&self) -> io::Result<bool> {
        let mut expirations = [0u8; 8];
        // SAFETY: the descriptor is open; the buffer has the eight bytes that read(2) of a timer
        // wants.
        let read = unsafe {
            libc::read(self.0.as_raw_fd(), expirations.as_mut_ptr().cast(), expirations.len())
        };
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

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{PollFd, Woken, wait};

    fn within(timer: &TimerFd, limit: Duration) -> Woken {
        wait(&mut [PollFd::readable(timer.as_fd())], Some(limit)).unwrap()
    }

    #[test]
    fn it_runs_out_once_and_never_early() {
        let timer = TimerFd::new().unwrap();
        let start = std::time::Instant::now();
        timer.arm(Duration::from_millis(20)).unwrap();
        assert!(!timer.clear().unwrap());
        assert_eq!(within(&timer, Duration::from_secs(10)), Woken::Ready(1));
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert!(timer.clear().unwrap());
        assert!(!timer.clear().unwrap());
        assert_eq!(within(&timer, Duration::from_millis(30)), Woken::Timeout);
    }

    #[test]
    fn no_time_at_all_is_at_once_and_disarmed_is_never() {
        let timer = TimerFd::new().unwrap();
        timer.arm(Duration::ZERO).unwrap();
        assert_eq!(within(&timer, Duration::from_secs(10)), Woken::Ready(1));
        timer.arm(Duration::MAX).unwrap();
        assert_eq!(within(&timer, Duration::from_millis(1)), Woken::Timeout);
        timer.arm(Duration::from_millis(1)).unwrap();
        timer.disarm().unwrap();
        assert_eq!(within(&timer, Duration::from_millis(20)), Woken::Timeout);
    }
}
