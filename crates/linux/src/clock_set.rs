//! [`ClockSet`]: whether somebody has set CLOCK_REALTIME since it was made (timerfd_create(2),
//! TFD_TIMER_CANCEL_ON_SET).
//!
//! The kernel tells of clock_settime, settimeofday and ADJ_SETOFFSET before those calls return. It
//! tells of a leap second a moment after it. It does not tell of slews.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A timer that no one waits for: it is cancelled when the clock is set.
#[derive(Debug)]
pub struct ClockSet(OwnedFd);

impl ClockSet {
    /// Watches from now on.
    ///
    /// # Errors
    /// Without descriptors or memory.
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

    /// A timer that never runs out: the year 2242, which a kernel's 64-bit nanoseconds still hold.
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

    /// True when the clock was set since the last call, or since this was made.
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
            // It ran out: the clock was set to after the year 2242.
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

    /// Setting the clock would disturb every other test; that it is noticed is the kernel's promise.
    #[test]
    fn nobody_has_set_the_clock() {
        let watch = ClockSet::new().unwrap();
        assert!(!watch.was_set().unwrap());
        assert!(!watch.was_set().unwrap());
    }
}
