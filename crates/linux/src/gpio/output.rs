//! [`OutputLine`]: the value of an output.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::abi::{self, Values};

/// A requested output. It keeps its value until it is dropped; what the pin does then is up to the
/// chip's driver.
#[derive(Debug)]
pub struct OutputLine(OwnedFd);

impl OutputLine {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Makes it active or inactive (GPIO_V2_LINE_SET_VALUES).
    ///
    /// The call may return before a write that the bus posted has reached the chip; [`Self::get`]
    /// waits for it, if the driver reads the chip's register.
    ///
    /// # Errors
    /// The driver's; ENODEV when the chip is gone.
    pub fn set(&self, active: bool) -> io::Result<()> {
        let mut values = Values { bits: u64::from(active), mask: 1 };
        abi::SET_VALUES.call(self.0.as_fd(), &mut values)
    }

    /// What the line is (GPIO_V2_LINE_GET_VALUES).
    ///
    /// # Errors
    /// The driver's; ENODEV when the chip is gone.
    pub fn get(&self) -> io::Result<bool> {
        let mut values = Values { bits: 0, mask: 1 };
        abi::GET_VALUES.call(self.0.as_fd(), &mut values)?;
        Ok(values.bits & 1 != 0)
    }
}
