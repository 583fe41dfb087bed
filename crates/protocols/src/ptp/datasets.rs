//! The data sets, decoded (IEEE 1588-2019 clause 15.5.3; TIME_STATUS_NP and
//! GRANDMASTER_SETTINGS_NP: linuxptp `tlv.h`).
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

/// A clockIdentity, and a port of that clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PortIdentity {
    /// clockIdentity.
    pub clock: [u8; 8],
    /// portNumber.
    pub port: u16,
}

/// Whom a clock follows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Master {
    /// grandmasterIdentity: where the time comes from.
    pub grandmaster: [u8; 8],
    /// parentPortIdentity: the port whose Sync messages arrive, of the grandmaster or of a boundary
    /// clock.
    pub parent: PortIdentity,
}

impl core::fmt::Display for Master {
    /// As `pmc` prints it: `56ce51.fffe.175f84`, and the parent port where that is another clock's.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write_clock(f, self.grandmaster)?;
        if self.parent.clock != self.grandmaster {
            f.write_str(" through ")?;
            write_clock(f, self.parent.clock)?;
            write!(f, "-{}", self.parent.port)?;
        }
        Ok(())
    }
}

fn write_clock(f: &mut core::fmt::Formatter<'_>, id: [u8; 8]) -> core::fmt::Result {
    let [a, b, c, d, e, g, h, i] = id;
    write!(f, "{a:02x}{b:02x}{c:02x}.{d:02x}{e:02x}.{g:02x}{h:02x}{i:02x}")
}

/// timePropertiesDS: what the grandmaster says of its timescale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeProperties {
    /// currentUtcOffset: TAI - UTC, seconds.
    pub utc_offset: i16,
    /// currentUtcOffsetValid: the grandmaster vouches for it.
    pub utc_offset_valid: bool,
    /// A leap second at the end of this UTC day: 1 is inserted (leap61), -1 left out (leap59).
    pub leap: i16,
    /// ptpTimescale: the timescale is PTP's (TAI) and not arbitrary.
    pub ptp_timescale: bool,
    /// timeTraceable.
    pub traceable: bool,
}

/// A port, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// portState.
    pub state: PortState,
    /// peerMeanPathDelay, if the port measures delays between neighbours (P2P); such a clock has
    /// no meanPathDelay.
    pub peer_delay: Option<Duration>,
}

/// The combined content of all six data sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// Of the port that follows a master, or of some port if none does.
    pub port: PortState,
    /// The grandmaster and the parent.
    pub master: Master,
    /// The grandmaster when the offset was read.
    pub measured_grandmaster: [u8; 8],
    /// Hops to the grandmaster: 1 without boundary clocks.
    pub steps_removed: u16,
    /// meanPathDelay: half the round trip to the master, filtered; with P2P to the neighbour. Zero
    /// before it is measured.
    pub mean_path_delay: Duration,
    /// The grandmaster's claimed accuracy; [`super::clock_accuracy`].
    pub grandmaster_accuracy: u8,
    /// The grandmaster's clockClass, for display.
    pub grandmaster_class: u8,
    /// The timescale.
    pub time: TimeProperties,
    /// ptp4l's own TAI - UTC (`utc_offset`), seconds.
    pub own_utc_offset: i16,
    /// The local clock minus the master's, in nanoseconds.
    pub master_offset_ns: i64,
    /// When the last Sync came, on the local clock, in nanoseconds; 0 after a change or a step.
    pub ingress_ns: i64,
    /// There is a grandmaster, and it is another clock.
    pub grandmaster_present: bool,
}

impl State {
    /// The offset by which a ptp4l with software stamps makes UTC of its master's TAI.
    ///
    /// linuxptp clock.c: `clock_update_time_properties` takes the announced offset if it is valid
    /// and traceable, or larger than its own; versions before 2.0 decide the same in
    /// `clock_utc_correct`.
    #[must_use]
    pub fn applied_utc_offset(&self) -> i16 {
        if self.time.utc_offset_valid && self.time.traceable {
            self.time.utc_offset
        } else {
            self.own_utc_offset.max(self.time.utc_offset)
        }
    }
}

/// One data set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataSet {
    /// A port.
    Port(Port),
    /// stepsRemoved, meanPathDelay.
    Current(u16, Duration),
    /// The master; clockClass and clockAccuracy of the grandmaster.
    Parent(Master, u8, u8),
    /// The timescale.
    TimeProperties(TimeProperties),
    /// ptp4l's own utc_offset.
    Settings(i16),
    /// master_offset, ingress_time, the grandmaster if it is another clock.
    TimeStatus(i64, i64, bool, [u8; 8]),
}

const FLAG_LEAP_61: u8 = 1 << 0;
const FLAG_LEAP_59: u8 = 1 << 1;
const FLAG_UTC_OFFSET_VALID: u8 = 1 << 2;
const FLAG_PTP_TIMESCALE: u8 = 1 << 3;
const FLAG_TIME_TRACEABLE: u8 = 1 << 4;

/// delayMechanism (table 21): P2P, and P2P through the common mean link delay service.
const PEER_TO_PEER: [u8; 2] = [2, 3];

/// Decodes a response's data.
///
/// # Errors
/// [`MessageError::ShortData`].
pub fn decode(message: &Message<'_>) -> Result<DataSet, MessageError> {
    decoded(message.id, message.data).ok_or(MessageError::ShortData)
}

fn decoded(id: Id, data: &[u8]) -> Option<DataSet> {
    Some(match id {
        // portIdentity 10, portState, logMinDelayReqInterval, peerMeanPathDelay 8 (2^-16 ns),
        // logAnnounceInterval, announceReceiptTimeout, logSyncInterval, delayMechanism
        Id::Port => DataSet::Port(Port {
            state: match *data.get(10)? {
                6 => PortState::Master,
                8 => PortState::Uncalibrated,
                9 => PortState::Slave,
                other => PortState::Other(other),
            },
            peer_delay: PEER_TO_PEER
                .contains(data.get(23)?)
                .then(|| field(data, 12).map(|raw| scaled(i64::from_be_bytes(raw))))
                .flatten(),
        }),
        // stepsRemoved 2, offsetFromMaster 8, meanPathDelay 8 (2^-16 ns)
        Id::Current => {
            let steps = u16::from_be_bytes(field(data, 0)?);
            DataSet::Current(steps, scaled(i64::from_be_bytes(field(data, 10)?)))
        }
        // parentPortIdentity 10, parentStats 1, reserved 1, variance 2, phase change rate 4,
        // priority1 1, clockClass, clockAccuracy, variance 2, priority2 1, grandmasterIdentity 8
        Id::Parent => {
            let parent =
                PortIdentity { clock: field(data, 0)?, port: u16::from_be_bytes(field(data, 8)?) };
            let master = Master { grandmaster: field(data, 24)?, parent };
            DataSet::Parent(master, *data.get(19)?, *data.get(20)?)
        }
        // currentUtcOffset 2, flags, timeSource
        Id::TimeProperties => {
            let flags = *data.get(2)?;
            let is_set = |flag: u8| flags & flag != 0;
            DataSet::TimeProperties(TimeProperties {
                utc_offset: i16::from_be_bytes(field(data, 0)?),
                utc_offset_valid: is_set(FLAG_UTC_OFFSET_VALID),
                leap: i16::from(is_set(FLAG_LEAP_61)) - i16::from(is_set(FLAG_LEAP_59)),
                ptp_timescale: is_set(FLAG_PTP_TIMESCALE),
                traceable: is_set(FLAG_TIME_TRACEABLE),
            })
        }
        // clockQuality 4, utc_offset 2, time_flags, time_source
        Id::Settings => DataSet::Settings(i16::from_be_bytes(field(data, 4)?)),
        // master_offset 8, ingress_time 8, rate offset 4, phase change 4, time base 2,
        // lastGmPhaseChange 12, gmPresent 4, gmIdentity 8
        Id::TimeStatus => DataSet::TimeStatus(
            i64::from_be_bytes(field(data, 0)?),
            i64::from_be_bytes(field(data, 8)?),
            i32::from_be_bytes(field(data, 38)?) != 0,
            field(data, 42)?,
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
