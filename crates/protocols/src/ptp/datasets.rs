//! The data sets, decoded (IEEE 1588-2019 clause 15.5.3; TIME_STATUS_NP: linuxptp `tlv.h`).
//!
//! Longer data than the definition is accepted: later editions may append.

use timevisor_time::Duration;

use super::management::{Id, Message, MessageError};

/// portState (table 20).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// Follows a master and has not settled yet; a ptp4l with `free_running` stays here.
    Uncalibrated,
    /// Follows a master.
    Slave,
    /// Serves time.
    Master,
    /// INITIALIZING, FAULTY, DISABLED, LISTENING, PRE_MASTER, PASSIVE, by number.
    Other(u8),
}

impl PortState {
    /// The standard's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uncalibrated => "UNCALIBRATED",
            Self::Slave => "SLAVE",
            Self::Master => "MASTER",
            Self::Other(1) => "INITIALIZING",
            Self::Other(2) => "FAULTY",
            Self::Other(3) => "DISABLED",
            Self::Other(4) => "LISTENING",
            Self::Other(5) => "PRE_MASTER",
            Self::Other(7) => "PASSIVE",
            Self::Other(_) => "an unknown state",
        }
    }

    /// True while it follows a master.
    #[must_use]
    pub const fn follows(self) -> bool {
        matches!(self, Self::Slave | Self::Uncalibrated)
    }
}

/// The combined content of all five data sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// Of the port that follows a master, or of some port if none does.
    pub port: PortState,
    /// Hops to the grandmaster: 1 without boundary clocks.
    pub steps_removed: u16,
    /// meanPathDelay (or meanDelay): half the round trip to the master.
    pub mean_path_delay: Duration,
    /// The grandmaster's claimed accuracy; [`super::clock_accuracy`].
    pub grandmaster_accuracy: u8,
    /// The grandmaster's clockClass, for display.
    pub grandmaster_class: u8,
    /// TAI - UTC as announced, if the grandmaster vouches for it.
    pub utc_offset: Option<i16>,
    /// The timescale is PTP's (TAI) and not arbitrary.
    pub ptp_timescale: bool,
    /// The local clock minus the master's, in nanoseconds.
    pub master_offset_ns: i64,
    /// When that was measured, on the local clock, in nanoseconds.
    pub ingress_ns: i64,
    /// There is a grandmaster, and it is another clock.
    pub grandmaster_present: bool,
}

/// One data set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataSet {
    /// The port's state.
    Port(PortState),
    /// stepsRemoved, meanPathDelay.
    Current(u16, Duration),
    /// clockClass, clockAccuracy of the grandmaster.
    Parent(u8, u8),
    /// currentUtcOffset if valid, ptpTimescale.
    TimeProperties(Option<i16>, bool),
    /// master_offset, ingress_time, gmPresent.
    TimeStatus(i64, i64, bool),
}

const FLAG_UTC_OFFSET_VALID: u8 = 1 << 2;
const FLAG_PTP_TIMESCALE: u8 = 1 << 3;

/// Decodes a response's data.
///
/// # Errors
/// [`MessageError::ShortData`].
pub fn decode(message: &Message<'_>) -> Result<DataSet, MessageError> {
    let data = message.data;
    let short = MessageError::ShortData;
    Ok(match message.id {
        // portIdentity 10, portState
        Id::Port => DataSet::Port(match *data.get(10).ok_or(short)? {
            6 => PortState::Master,
            8 => PortState::Uncalibrated,
            9 => PortState::Slave,
            other => PortState::Other(other),
        }),
        // stepsRemoved 2, offsetFromMaster 8, meanPathDelay 8 (2^-16 ns)
        Id::Current => {
            let steps = u16::from_be_bytes(field(data, 0).ok_or(short)?);
            let delay = i64::from_be_bytes(field(data, 10).ok_or(short)?);
            DataSet::Current(steps, scaled(delay))
        }
        // parentPortIdentity 10, parentStats 1, reserved 1, variance 2, phase change rate 4,
        // priority1 1, clockClass, clockAccuracy
        Id::Parent => DataSet::Parent(*data.get(19).ok_or(short)?, *data.get(20).ok_or(short)?),
        // currentUtcOffset 2, flags, timeSource
        Id::TimeProperties => {
            let offset = i16::from_be_bytes(field(data, 0).ok_or(short)?);
            let flags = *data.get(2).ok_or(short)?;
            DataSet::TimeProperties(
                (flags & FLAG_UTC_OFFSET_VALID != 0).then_some(offset),
                flags & FLAG_PTP_TIMESCALE != 0,
            )
        }
        // master_offset 8, ingress_time 8, rate offset 4, phase change 4, time base 2,
        // lastGmPhaseChange 12, gmPresent 4
        Id::TimeStatus => DataSet::TimeStatus(
            i64::from_be_bytes(field(data, 0).ok_or(short)?),
            i64::from_be_bytes(field(data, 8).ok_or(short)?),
            i32::from_be_bytes(field(data, 38).ok_or(short)?) != 0,
        ),
    })
}

fn field<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at + N)?.try_into().ok()
}

/// A TimeInterval: nanoseconds times 2^16.
fn scaled(interval: i64) -> Duration {
    Duration::from_bits((i128::from(interval) << 48) / 1_000_000_000)
}
