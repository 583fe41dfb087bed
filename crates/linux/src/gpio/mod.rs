//! GPIO lines by the character device, version 2 (/dev/gpiochipN, Linux 5.10 and later).
//!
//! | module | owns |
//! | --- | --- |
//! | this one | [`Chip`]: opening, what a line is, requesting a line |
//! | `abi` | structures and numbers of include/uapi/linux/gpio.h |
//! | [`events`] | [`EventLine`]: edges with the kernel's stamps |
//! | [`output`] | [`OutputLine`]: the value of an output |
//!
//! A line belongs to the process that requested it until the line is dropped.
//!
//! What it does not do: convert stamps, several lines in one request, debouncing, bias, drive.

mod abi;
pub mod events;
pub mod output;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;

use self::abi::{Attribute, ConfigAttribute, Info, Request, flag};

pub use self::events::{Edge, Edges, EventClock, EventLine, LineEvent};
pub use self::output::OutputLine;

/// Events that the kernel keeps for a line while nobody reads them: the most that it allows
/// (GPIO_V2_LINES_MAX * 16).
pub const EVENT_BUFFER: u32 = 1024;

/// An open GPIO chip.
#[derive(Debug)]
pub struct Chip(File);

/// What the kernel says of a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineInfo {
    /// Its name on this chip; empty if it has none.
    pub name: String,
    /// What it is used for; empty if nobody uses it, or does not say so.
    pub consumer: String,
    /// The kernel or a process uses it.
    pub used: bool,
    /// It is an output.
    pub output: bool,
    /// Its active state is low.
    pub active_low: bool,
}

impl Chip {
    /// Opens `/dev/gpiochipN`.
    ///
    /// # Errors
    /// When there is no such device, or access is not allowed.
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// What the kernel says of a line (GPIO_V2_GET_LINEINFO).
    ///
    /// # Errors
    /// EINVAL when the chip has no such line; ENOTTY when this is no GPIO chip.
    pub fn line(&self, offset: u32) -> io::Result<LineInfo> {
        let mut info = Info { offset, ..Info::default() };
        abi::GET_LINEINFO.call(self.0.as_fd(), &mut info)?;
        let has = |bit: u64| info.flags & bit != 0;
        Ok(LineInfo {
            name: abi::text(&info.name),
            consumer: abi::text(&info.consumer),
            used: has(flag::USED),
            output: has(flag::OUTPUT),
            active_low: has(flag::ACTIVE_LOW),
        })
    }

    /// Requests a line as an input whose edges are stamped.
    ///
    /// # Errors
    /// EBUSY when somebody uses the line; EINVAL when the chip has no such line; ENXIO when its
    /// lines cannot interrupt; ENOTTY when this is no GPIO chip.
    pub fn events(
        &self,
        offset: u32,
        edges: Edges,
        clock: EventClock,
        active_low: bool,
    ) -> io::Result<EventLine> {
        let polarity = if active_low { flag::ACTIVE_LOW } else { 0 };
        let flags = flag::INPUT | edges.flags() | clock.flags() | polarity;
        let fd = self.request(offset, flags, None)?;
        EventLine::new(fd)
    }

    /// Requests a line as an output that begins with a value.
    ///
    /// # Errors
    /// EBUSY when somebody uses the line; EINVAL when the chip has no such line; ENOTTY when this is
    /// no GPIO chip.
    pub fn output(&self, offset: u32, active: bool, active_low: bool) -> io::Result<OutputLine> {
        let polarity = if active_low { flag::ACTIVE_LOW } else { 0 };
        let fd = self.request(offset, flag::OUTPUT | polarity, Some(active))?;
        Ok(OutputLine::new(fd))
    }

    fn request(&self, offset: u32, flags: u64, value: Option<bool>) -> io::Result<OwnedFd> {
        let mut request = Request::of_line(offset, flags, EVENT_BUFFER);
        if let Some(value) = value {
            request.config.num_attrs = 1;
            request.config.attrs[0] = ConfigAttribute {
                attr: Attribute {
                    id: abi::ATTR_OUTPUT_VALUES,
                    padding: 0,
                    value: u64::from(value),
                },
                mask: 1,
            };
        }
        abi::GET_LINE.call(self.0.as_fd(), &mut request)?;
        if request.fd <= 0 {
            return Err(io::Error::other("the kernel gave no descriptor for the line"));
        }
        // SAFETY: a descriptor that the kernel has just made for us, and that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(request.fd) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_chip_says_so() {
        let null = Chip::open(Path::new("/dev/null")).unwrap();
        for error in [
            null.line(0).unwrap_err(),
            null.events(0, Edges::Both, EventClock::Monotonic, false).map(drop).unwrap_err(),
            null.output(0, true, false).map(drop).unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        }
    }
}
