//! Why a page or one read is refused, with what to do.

use core::fmt;

use crate::CounterId;
use crate::abi::header;

/// Why a page cannot be read at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// Not a vmclock page.
    NotAPage,
    /// A vmclock page that Timevisor does not fill: another hypervisor's, or QEMU's device with no
    /// timevisord.
    NotTimevisor,
    /// A page of another ABI version.
    Version(u32),
    /// The page is written for another counter than the one given.
    Counter {
        /// What the page wants.
        page: CounterId,
        /// What the reader has.
        reader: CounterId,
    },
    /// The page has no such timeline entry.
    NoSuchEntry,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPage => {
                f.write_str("this is no clock page (no VCLK magic); is it the right file?")
            }
            Self::NotTimevisor => {
                f.write_str("the page has no Timevisor header; is timevisord running on the host?")
            }
            Self::Version(v) => write!(
                f,
                "the page has ABI version {v}, this reader knows {}; upgrade it",
                header::VERSION
            ),
            Self::Counter { page, reader } => {
                write!(
                    f,
                    "the page counts {}, this reader {}; let it choose the counter",
                    page.name(),
                    reader.name()
                )
            }
            Self::NoSuchEntry => f.write_str("the page has no such timeline entry"),
        }
    }
}

impl core::error::Error for OpenError {}

/// Why one read failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// The writer died in the middle of an update; a restarted timevisord repairs the page.
    WriterStalled,
    /// Earliest, estimate and latest are not in this order: the page is damaged.
    OutOfOrder,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriterStalled => {
                "the page's writer stopped in the middle of an update; restart timevisord, which repairs it"
            }
            Self::OutOfOrder => {
                "the page is damaged: its estimate lies outside of its bounds; restart timevisord, which repairs it"
            }
        })
    }
}

impl core::error::Error for ReadError {}
