//! PTP hardware clocks (/dev/ptpN): reading, and their pins.
//!
//! | module | owns |
//! | --- | --- |
//! | this one | [`Phc`]: opening, plain reading through clock_gettime, the device's capabilities |
//! | [`identity`] | which clock a device file leads to, from sysfs |
//! | [`ioctl`] | the PTP_SYS_OFFSET_* calls with the kernel's struct layouts |
//! | [`sample`] | one reading placed between two values of our counter, by the best [`Method`] the device has |
//! | [`pins`] | stamps of edges and signals at a time; not tested on hardware |
//!
//! Not here: setting or disciplining a PHC.

pub mod identity;
pub mod ioctl;
pub mod pins;
pub mod sample;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use timevisor_time::{Instant, Local, Tai};

pub use identity::Identity;
pub use ioctl::Capabilities;
pub use sample::{Method, Sample};

/// An open PTP clock.
#[derive(Debug)]
pub struct Phc(File);

impl Phc {
    /// Opens `/dev/ptpN`.
    ///
    /// # Errors
    /// When there is no such device, or access is not allowed.
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// Reads the clock. PTP clocks count TAI by convention; a guest kernel before 7.0 passes a UTC
    /// page through as UTC.
    ///
    /// # Errors
    /// The driver's errors; EINVAL from vmclock means that the host declares its clock unreliable.
    pub fn read(&self) -> io::Result<Instant<Tai>> {
        self.now().map(Instant::relabel)
    }

    /// As [`Self::read`], on whatever timescale the device uses.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn now(&self) -> io::Result<Instant<Local>> {
        // FD_TO_CLOCKID of include/linux/posix-timers.h: dynamic clocks are descriptors.
        let clock: libc::clockid_t = (!self.0.as_raw_fd() << 3) | 3;
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a valid timespec for the call to fill, and the descriptor is open while
        // `self` lives.
        if unsafe { libc::clock_gettime(clock, &raw mut now) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Instant::from_unix_nanos(
            i128::from(now.tv_sec) * timevisor_time::NANOS_PER_SEC + i128::from(now.tv_nsec),
        ))
    }

    /// The capabilities that the device reports (PTP_CLOCK_GETCAPS).
    ///
    /// # Errors
    /// ENOTTY when this is not a PTP clock.
    pub fn capabilities(&self) -> io::Result<Capabilities> {
        ioctl::capabilities(&self.0)
    }

    fn file(&self) -> &File {
        &self.0
    }
}
