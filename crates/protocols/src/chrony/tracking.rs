//! `tracking`: what chronyd knows about the system clock (`candm.h`, REQ_TRACKING and
//! RPY_TRACKING).
//!
//! What the reply means, from chrony's `reference.c` and chronyc(1):
//! - *current correction* is what must be added to CLOCK_REALTIME to get chronyd's best time;
//!   chronyd slews it away (with `-x` it grows instead). chronyc shows a positive one as "slow of
//!   NTP time".
//! - *root dispersion* is already aged to the moment of the reply by skew, residual frequency and
//!   `maxclockerror`.
//! - The bound that chronyc(1) states is `|system time| + root dispersion + root delay / 2`; if the
//!   correction is applied, the system time term is zero.

use timevisor_time::{Duration, Instant, Utc};

use super::Float;

/// Length of the request, which is padded, and of the reply.
pub const PACKET_LEN: usize = 104;

const VERSION: u8 = 6;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const REQ_TRACKING: u16 = 33;
const RPY_TRACKING: u16 = 5;
/// The reference id of `local`: chronyd has no source and serves its own undisciplined clock.
const LOCAL_REFERENCE_ID: u32 = 0x7f7f_0101;
/// chronyd puts this into the high word if its `time_t` has 32 bits.
const NO_HIGH_SECONDS: u32 = 0x7fff_ffff;

/// Offsets into the reply. The header has 28 bytes; an address 20 (16, a family and a pad).
mod at {
    pub const COMMAND: usize = 4;
    pub const REPLY: usize = 6;
    pub const STATUS: usize = 8;
    pub const SEQUENCE: usize = 16;
    pub const REFERENCE_ID: usize = 28;
    pub const STRATUM: usize = 52;
    pub const LEAP: usize = 54;
    pub const REFERENCE_TIME: usize = 56;
    pub const CORRECTION: usize = 68;
    pub const FREQUENCY: usize = 80;
    pub const RESIDUAL: usize = 84;
    pub const SKEW: usize = 88;
    pub const ROOT_DELAY: usize = 92;
    pub const ROOT_DISPERSION: usize = 96;
}

/// What chronyd says about leap seconds, and whether it is synchronized at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeapStatus {
    /// No leap second today.
    Normal,
    /// One is inserted at the end of the UTC day.
    Insert,
    /// One is deleted at the end of the UTC day.
    Delete,
    /// chronyd is not synchronized.
    Unsynchronized,
}

/// A reply, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tracking {
    /// The source's NTP reference id: an IPv4 address, or four letters of a reference clock.
    pub reference_id: u32,
    /// chronyd's own stratum: its source's plus one.
    pub stratum: u16,
    /// Leap status.
    pub leap: LeapStatus,
    /// When the last measurement was processed.
    pub reference_time: Instant<Utc>,
    /// chronyd's best time minus CLOCK_REALTIME.
    pub correction: Duration,
    /// Frequency of the system clock before correction, ppm, for display.
    pub frequency_ppm: Float,
    /// Residual frequency, ppm, for display.
    pub residual_ppm: Float,
    /// Bound on the frequency's error, ppm, for display.
    pub skew_ppm: Float,
    /// Round trip to the root of the tree of servers.
    pub root_delay: Duration,
    /// Error accumulated up to the root, at the time of the reply.
    pub root_dispersion: Duration,
}

/// Why a datagram is not the reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum ReplyError {
    /// The datagram is too short.
    #[error("shorter than a tracking reply; is this chronyd 2.0 or newer?")]
    TooShort,
    /// Another protocol version.
    #[error("chronyd speaks another version of its command protocol; use chrony 2.0 or newer")]
    Version,
    /// It is not a reply, or one to another command.
    #[error("not a reply to `tracking`; check that the address is chronyd's command socket")]
    NotTracking,
    /// It replies to an earlier request, or is forged.
    #[error("answers no request of ours")]
    Sequence,
    /// chronyd refused; the number is its status code (`candm.h`, STT_*).
    #[error(
        "chronyd refused with status {0}; allow this host with `cmdallow`, or use the Unix socket as root"
    )]
    Refused(u16),
    /// A field has a value that the protocol does not know.
    #[error("the reply holds impossible values; check chronyd")]
    Malformed,
}

/// Why chronyd's time cannot be relied on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum Unusable {
    /// Leap status "not synchronised".
    #[error("chronyd is not synchronized; `chronyc sources` shows why")]
    Unsynchronized,
    /// `local` is in force.
    #[error(
        "chronyd has lost its sources and serves its own clock (`local`); `chronyc sources` shows why"
    )]
    Local,
    /// Negative delay or dispersion.
    #[error("chronyd states a negative error")]
    NegativeError,
}

/// The request; `sequence` comes back in the reply and should be unpredictable.
#[must_use]
pub fn request(sequence: u32) -> [u8; PACKET_LEN] {
    let mut bytes = [0; PACKET_LEN];
    bytes[0] = VERSION;
    bytes[1] = REQUEST;
    bytes[4..6].copy_from_slice(&REQ_TRACKING.to_be_bytes());
    bytes[8..12].copy_from_slice(&sequence.to_be_bytes());
    bytes
}

/// Decodes the reply to [`request`]\(`sequence`). Anything after its fields is ignored.
///
/// # Errors
/// When the datagram is not that reply.
pub fn parse_reply(bytes: &[u8], sequence: u32) -> Result<Tracking, ReplyError> {
    if bytes.len() < at::SEQUENCE + 4 {
        return Err(ReplyError::TooShort);
    }
    if bytes[0] != VERSION {
        return Err(ReplyError::Version);
    }
    if bytes[1] != REPLY || u16_at(bytes, at::COMMAND) != REQ_TRACKING {
        return Err(ReplyError::NotTracking);
    }
    if u32_at(bytes, at::SEQUENCE) != sequence {
        return Err(ReplyError::Sequence);
    }
    match u16_at(bytes, at::STATUS) {
        0 => {}
        status => return Err(ReplyError::Refused(status)),
    }
    if u16_at(bytes, at::REPLY) != RPY_TRACKING {
        return Err(ReplyError::NotTracking);
    }
    if bytes.len() < at::ROOT_DISPERSION + 4 {
        return Err(ReplyError::TooShort);
    }
    let leap = match u16_at(bytes, at::LEAP) {
        0 => LeapStatus::Normal,
        1 => LeapStatus::Insert,
        2 => LeapStatus::Delete,
        3 => LeapStatus::Unsynchronized,
        _ => return Err(ReplyError::Malformed),
    };
    Ok(Tracking {
        reference_id: u32_at(bytes, at::REFERENCE_ID),
        stratum: u16_at(bytes, at::STRATUM),
        leap,
        reference_time: time_at(bytes, at::REFERENCE_TIME)?,
        correction: float_at(bytes, at::CORRECTION).seconds(),
        frequency_ppm: float_at(bytes, at::FREQUENCY),
        residual_ppm: float_at(bytes, at::RESIDUAL),
        skew_ppm: float_at(bytes, at::SKEW),
        root_delay: float_at(bytes, at::ROOT_DELAY).seconds(),
        root_dispersion: float_at(bytes, at::ROOT_DISPERSION).seconds(),
    })
}

impl Tracking {
    /// The bound on CLOCK_REALTIME + correction at the moment of the reply: root dispersion + root
    /// delay / 2.
    ///
    /// # Errors
    /// When chronyd itself does not claim to know the time.
    pub fn error(&self) -> Result<Duration, Unusable> {
        if self.leap == LeapStatus::Unsynchronized {
            return Err(Unusable::Unsynchronized);
        }
        if self.reference_id == LOCAL_REFERENCE_ID {
            return Err(Unusable::Local);
        }
        if self.root_delay.is_negative() || self.root_dispersion.is_negative() {
            return Err(Unusable::NegativeError);
        }
        // Half of an odd number of units is rounded up.
        Ok(self.root_dispersion + (self.root_delay + Duration::EPSILON).half())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn float_at(bytes: &[u8], at: usize) -> Float {
    Float::from_be_bytes(u32_at(bytes, at).to_be_bytes())
}

fn time_at(bytes: &[u8], at: usize) -> Result<Instant<Utc>, ReplyError> {
    let high = match u32_at(bytes, at) {
        NO_HIGH_SECONDS => 0,
        high => high,
    };
    let seconds = i128::from(high) << 32 | i128::from(u32_at(bytes, at + 4));
    let nanos = u32_at(bytes, at + 8);
    // Three centuries from 1970; this also keeps the product below far from overflow.
    if nanos >= 1_000_000_000 || high > 2 {
        return Err(ReplyError::Malformed);
    }
    Ok(Instant::from_unix_nanos(seconds * 1_000_000_000 + i128::from(nanos)))
}

#[cfg(test)]
#[path = "tracking_tests.rs"]
mod tests;
