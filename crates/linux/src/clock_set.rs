//! [`ClockSet`]: whether CLOCK_REALTIME has been set since it was created (timerfd_create(2),
//! TFD_TIMER_CANCEL_ON_SET).
//!
//! The kernel reports clock_settime, settimeofday and ADJ_SETOFFSET before those calls return. It
//! reports a leap second shortly afterwards. It does not report slews.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A timer that is never waited for; the kernel cancels it when the clock is set.
#[derive(Debug)]
pub struct ClockSet(OwnedFd);

impl ClockSet {
    /// Starts watching.
    ///
    /// # Errors
    /// When descriptors or memory run out.
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: the call touches no memory.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_REALTIME, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that timerfd_create has just returned, and that nobody else owns.
        let timer = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        timer.arm()?;
        Ok(timer)
    }

    /// Arms the timer so that it practically never expires: for the year 2242, which still fits the
    /// kernel's 64-bit nanoseconds.
    fn arm(&self) -> io::Result<()> {
        let never = libc::timespec { tv_sec: 8_583_000_000, tv_nsec: 0 };
        let once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: once, it_value: never };
        let flags = libc::TFD_TIMER_ABSTIME | libc::TFD_TIMER_CANCEL_ON_SET;
        // SAFETY: the descriptor is open; `spec` is valid for the call to read, and no old value is
        // asked for.
        let failed = unsafe {
            libc::timerfd_settime(self.0.as_raw_fd(), flags, &raw const spec, core::ptr::null_mut())
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Whether the clock was set since the last call or, for the first call, since creation.
    ///
    /// # Errors
    /// Never on a supported kernel.
    pub fn was_set(&self) -> io::Result<bool> {
        let mut expirations = [0u8; 8];
        // SAFETY: the descriptor is open; the buffer has the eight bytes that read(2) of a timer
        // wants.
        let read = unsafe {
            libc::read(self.0.as_raw_fd(), expirations.as_mut_ptr().cast(), expirations.len())
        };
        if read >= 0 {
            // It expired: the clock was set beyond the year 2242.
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Ok(false),
            Some(libc::ECANCELED) => Ok(true),
            _ => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Setting the clock would disturb every other test, so we rely on the kernel to report it.
    #[test]
    fn nobody_has_set_the_clock() {
        let watch = ClockSet::new().unwrap();
        assert!(!watch.was_set().unwrap());
        assert!(!watch.was_set().unwrap());
    }
}
