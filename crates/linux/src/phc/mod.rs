//! PTP hardware clocks (/dev/ptpN) as POSIX clocks, read only.
//!
//! Here: plain reading through clock_gettime, which is all that a guest's vmclock PHC needs. Not here: cross time stamps
//! (PTP_SYS_OFFSET_*).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use timevisor_time::{Instant, Tai};

/// An open PTP clock.
#[derive(Debug)]
pub struct Phc(File);

impl Phc {
    /// Opens `/dev/ptpN`.
    ///
    /// # Errors
    /// No such device, or not allowed.
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// Reads it. PTP clocks count TAI by convention; a guest kernel before 7.0 passes a UTC page through as UTC.
    ///
    /// # Errors
    /// What the driver says; EINVAL from vmclock means that the host calls its clock unreliable.
    pub fn read(&self) -> io::Result<Instant<Tai>> {
        // FD_TO_CLOCKID of include/linux/posix-timers.h: dynamic clocks are descriptors.
        let clock: libc::clockid_t = (!self.0.as_raw_fd() << 3) | 3;
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a valid timespec for the call to fill, and the descriptor is open while `self` lives.
        if unsafe { libc::clock_gettime(clock, &raw mut now) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Instant::from_unix_nanos(
            i128::from(now.tv_sec) * timevisor_time::NANOS_PER_SEC + i128::from(now.tv_nsec),
        ))
    }
}
