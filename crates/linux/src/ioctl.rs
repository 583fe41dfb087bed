//! [`Ioctl`]: a device call, its number, and the structure that the number was made for.

use core::marker::PhantomData;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The kernel reads the structure.
pub(crate) const WRITE: u32 = 1;
/// The kernel fills the structure.
pub(crate) const READ: u32 = 2;

/// A call whose argument is a `T`: plain data, laid out as the kernel's.
#[derive(Clone, Copy)]
pub(crate) struct Ioctl<T>(libc::Ioctl, PhantomData<fn(T)>);

impl<T: Copy> Ioctl<T> {
    /// _IOC of include/uapi/asm-generic/ioctl.h (x86, Arm and RISC-V). The size is part of the
    /// number, so that a wrong layout would be another call.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "sizes fit in 14 bits; a Request is 32 or 64 bits"
    )]
    pub(crate) const fn new(direction: u32, magic: u8, number: u32) -> Self {
        assert!(size_of::<T>() < 1 << 14);
        let size = (size_of::<T>() as u32) << 16;
        Self((direction << 30 | size | (magic as u32) << 8 | number) as libc::Ioctl, PhantomData)
    }

    /// Makes the call.
    pub(crate) fn call(self, fd: BorrowedFd<'_>, argument: &mut T) -> io::Result<()> {
        // SAFETY: the number was made for a T, so the kernel reads and writes exactly `argument`,
        // which outlives the call; the descriptor is open.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), self.0, core::ptr::from_mut(argument)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    #[cfg(test)]
    pub(crate) const fn number(self) -> libc::Ioctl {
        self.0
    }
}
