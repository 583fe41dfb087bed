//! Why a pin did not do what it was to do, and what to do about it.

use std::io;
use std::path::Path;

use timevisor_linux::gpio::Edge;

use crate::error::{ConvertError, ReadError, WaitError};
use crate::packets::PacketStampError;
use crate::reading::Reading;
use crate::wait::at::AtOutcome;

/// A pin could not be used, or a time at it is not known.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The chip or clock cannot be opened, or refuses what was asked of it.
    #[error("{what}: {hint}")]
    Refused {
        /// The device, the line or channel, and what was asked.
        what: String,
        /// What to do.
        hint: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A PTP clock has no such pin or channel. Not tested on hardware.
    #[error(
        "the PTP clock {device} has {has} {kind}, and no number {wanted}; use a clock that has one (`ls /sys/class/ptp/*/pins`)"
    )]
    NoPin {
        /// The clock's device.
        device: String,
        /// Pins, or channels for stamps or for outputs.
        kind: &'static str,
        /// How many there are.
        has: u32,
        /// Which one was asked for, counted from 0.
        wanted: u32,
    },
    /// A PTP clock cannot be compared with the counter closely. Not tested on hardware.
    #[error(
        "the PTP clock {0} supports neither PTP_SYS_OFFSET_PRECISE nor PTP_SYS_OFFSET_EXTENDED; use a newer driver or another clock"
    )]
    NoComparison(String),
    /// The timeline's counter cannot be compared with the clock that stamps, or its page cannot be
    /// read.
    #[error(transparent)]
    Counter(Unplaced),
    /// There was an event, but when is not known. Later ones may be placed again.
    #[error("there was an event, but when is not known: {why}")]
    Unplaced {
        /// What happened.
        edge: Option<Edge>,
        /// As [`PinEvent::lost`](super::PinEvent::lost).
        lost: u32,
        /// Why.
        #[source]
        why: Unplaced,
    },
    /// The output was not changed.
    #[error("the output was not changed: {}", why_not(.0))]
    NotChanged(Box<AtOutcome>),
    /// The wait before an output ended early; the output was not changed.
    #[error("the output was not changed: {0}")]
    Wait(#[from] WaitError),
    /// The output has changed, but when is not known.
    #[error(
        "the output has changed, but when is not known: {why}; it was while the counter went from {first} to {last}"
    )]
    Undated {
        /// The counter before.
        first: u64,
        /// The counter after; 0 if it could not be read.
        last: u64,
        /// Why.
        #[source]
        why: Unplaced,
    },
    /// The driver failed to set the line when its time had come. It may have changed nevertheless: a
    /// bus can fail after the write.
    #[error("the output may have changed: the driver failed when it was set")]
    MayHaveChanged {
        /// The counter before it was set.
        first: u64,
        /// The counter after; 0 if it could not be read.
        last: u64,
        /// The driver's answer.
        #[source]
        source: Box<PinError>,
    },
    /// The line was set, but reads back as the other value.
    #[error("the line was set, but reads back as the other value; does something else drive it?")]
    NotTaken {
        /// The counter before it was set.
        first: u64,
        /// The counter after; 0 if it could not be read.
        last: u64,
    },
    /// A width or a time is out of range.
    #[error("{0}")]
    OutOfRange(&'static str),
    /// Waiting failed.
    #[error("the kernel refused to wait; are there too many open files?")]
    System(#[source] io::Error),
}

/// Why the time of something is not known.
#[derive(Debug, thiserror::Error)]
pub enum Unplaced {
    /// The page could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The counter values are known, but not their time.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// The machine slept, or the clock was disrupted, between the last comparison and this one.
    #[error(
        "the machine slept or the clock was disrupted since it was stamped; later events are placed again"
    )]
    Disrupted,
    /// It was stamped before the clocks were compared first, or before the last disruption.
    #[error(
        "it was stamped before the events were opened, or before the clock was disrupted or the machine slept; later events are placed again"
    )]
    TooOld,
    /// It was stamped in the future, or the clocks contradict each other.
    #[error(
        "its stamp contradicts the comparisons of the clocks; was the clock that stamps it set? Open the events again"
    )]
    Contradiction,
    /// The driver cannot read outputs back, so nothing tells when the write reached the pin.
    #[error("the driver cannot read outputs back, so nothing tells when the pin changed")]
    NotReadBack,
    /// The counter cannot be compared with the clock that stamps.
    #[error("the timeline's counter cannot be compared with the clock that stamps: {0}")]
    NoCounter(&'static str),
    /// A clock could not be read.
    #[error("the kernel refused to read a clock; does a sandbox forbid it?")]
    System(#[from] io::Error),
}

impl From<PacketStampError> for Unplaced {
    fn from(error: PacketStampError) -> Self {
        match error {
            PacketStampError::Read(error) => Self::Read(error),
            PacketStampError::ClockWasSet | PacketStampError::Future => Self::Contradiction,
            PacketStampError::TooOld => Self::TooOld,
            PacketStampError::NoCounter(why) => Self::NoCounter(why),
            PacketStampError::System(error) => Self::System(error),
        }
    }
}

impl PinError {
    /// The clock's reading because of which an output was not changed, where there is one.
    #[must_use]
    pub fn reading(&self) -> Option<&Reading> {
        match self {
            Self::NotChanged(outcome) => Some(outcome.reading()),
            Self::Wait(
                WaitError::Disrupted { reading }
                | WaitError::Unreliable { reading }
                | WaitError::TooLate { reading, .. },
            ) => Some(reading),
            _ => None,
        }
    }

    pub(super) fn not_changed(outcome: AtOutcome) -> Self {
        Self::NotChanged(Box::new(outcome))
    }

    pub(super) fn refused(device: &Path, asked: &str, source: io::Error) -> Self {
        let hint = match source.raw_os_error() {
            Some(errno::ENOENT) => "there is no such device; look in /dev",
            Some(errno::EACCES | errno::EPERM) => {
                "this user may not use it; add a udev rule or use its group"
            }
            Some(errno::EBUSY) => "the kernel or another program uses it; end that first",
            Some(errno::EINVAL) => {
                "there is no such line, pin or channel, or it does not take this setting"
            }
            Some(errno::ENOTTY) => {
                "this is no such device: give /dev/gpiochipN for lines, /dev/ptpN for PTP pins"
            }
            Some(errno::ENXIO) => "this chip's lines cannot interrupt; use other lines",
            Some(errno::EOPNOTSUPP) => "the driver does not support this; use another device",
            Some(errno::ENODEV) => "the device is gone; open it again when it is back",
            _ => "the kernel refuses; the cause says why",
        };
        let what = format!("{} does not {asked}", device.display());
        Self::Refused { what, hint, source }
    }
}

/// What has a hint (include/uapi/asm-generic/errno.h: x86, Arm and RISC-V).
mod errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const ENXIO: i32 = 6;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const ENODEV: i32 = 19;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENOTTY: i32 = 25;
    pub(super) const EOPNOTSUPP: i32 = 95;
}

fn why_not(outcome: &AtOutcome) -> String {
    match outcome {
        AtOutcome::TooLate { by_ns, .. } => {
            format!("it is {by_ns} ns too late; give a time that is farther ahead")
        }
        AtOutcome::QotViolated { half_width_ns: u64::MAX, reading } => format!(
            "the time is not known, or its bounds must not be relied on ({}); wait with wait_met",
            reading.status().name()
        ),
        AtOutcome::QotViolated { half_width_ns, .. } => format!(
            "the clock is within {half_width_ns} ns, which does not meet the handle's requirement; wait with wait_met, or relax it"
        ),
        AtOutcome::Disrupted { .. } => {
            "the clock was disrupted (it may have stepped); decide whether the time is still right"
                .to_owned()
        }
        AtOutcome::Fired { .. } => "it was not tried".to_owned(),
    }
}
