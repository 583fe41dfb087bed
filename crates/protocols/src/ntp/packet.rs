//! The 48-byte NTP header (RFC 5905 section 7.3), to and from bytes.
//!
//! What it does not do: judge the content. Every 48-byte string is a header; [`super::client`] and
//! [`super::response`] decide what to accept. [`super::extension`] parses what follows the header.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::format::{NtpShort, NtpTimestamp};

/// Bytes in the header; extension fields and a MAC may follow.
pub const HEADER_LEN: usize = 48;

/// The version we speak.
pub const VERSION: u8 = 4;
/// The versions of the answers that we take: version 3 (RFC 1305) has the same header. Old servers
/// and Windows domain controllers may answer in it.
pub const ANSWER_VERSIONS: core::ops::RangeInclusive<u8> = 3..=VERSION;

/// Warning of a leap second at the end of the current month, or of a clock that is not synchronized
/// (figure 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeapIndicator {
    /// No leap second is announced.
    NoWarning,
    /// The last minute of the month has 61 seconds.
    Insert,
    /// The last minute of the month has 59 seconds.
    Delete,
    /// The server's clock is not synchronized.
    Unsynchronized,
}

impl LeapIndicator {
    /// The name in status output and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoWarning => "normal",
            Self::Insert => "insert",
            Self::Delete => "delete",
            Self::Unsynchronized => "unsynchronized",
        }
    }
}

/// The association mode (figure 10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// 0
    Reserved,
    /// 1
    SymmetricActive,
    /// 2
    SymmetricPassive,
    /// 3: what we send.
    Client,
    /// 4: what we accept.
    Server,
    /// 5
    Broadcast,
    /// 6: control messages (ntpq).
    Control,
    /// 7: private use.
    Private,
}

const LEAPS: [LeapIndicator; 4] = [
    LeapIndicator::NoWarning,
    LeapIndicator::Insert,
    LeapIndicator::Delete,
    LeapIndicator::Unsynchronized,
];
const MODES: [Mode; 8] = [
    Mode::Reserved,
    Mode::SymmetricActive,
    Mode::SymmetricPassive,
    Mode::Client,
    Mode::Server,
    Mode::Broadcast,
    Mode::Control,
    Mode::Private,
];

/// A decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Leap indicator.
    pub leap: LeapIndicator,
    /// Protocol version, 0 to 7.
    pub version: u8,
    /// Association mode.
    pub mode: Mode,
    /// Distance from a reference clock in hops: 0 kiss-o'-death, 1 primary, 16 unsynchronized.
    pub stratum: u8,
    /// Poll interval, log2 s.
    pub poll: i8,
    /// Precision of the sender's clock, log2 s.
    pub precision: i8,
    /// Round trip from the sender to its reference clock.
    pub root_delay: NtpShort,
    /// Error accumulated between the reference clock and the sender.
    pub root_dispersion: NtpShort,
    /// Upstream server or reference clock; the kiss code when the stratum is 0.
    pub reference_id: [u8; 4],
    /// When the sender's clock was last set.
    pub reference: NtpTimestamp,
    /// T1 as the server echoes it: the request's transmit field.
    pub origin: NtpTimestamp,
    /// T2: the request's arrival on the server's clock.
    pub receive: NtpTimestamp,
    /// T3: the departure on the sender's clock.
    pub transmit: NtpTimestamp,
}

/// Bytes that are not an NTP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PacketError {
    /// Fewer bytes than the header has.
    #[error(
        "{len} bytes are too few for the 48-byte NTP header; check that the port belongs to an NTP server"
    )]
    TooShort {
        /// The number of bytes.
        len: usize,
    },
}

/// The header's layout on the wire, figure 8.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Wire {
    leap_version_mode: u8,
    stratum: u8,
    poll: i8,
    precision: i8,
    root_delay: U32,
    root_dispersion: U32,
    reference_id: [u8; 4],
    reference: U64,
    origin: U64,
    receive: U64,
    transmit: U64,
}

const _: () = assert!(size_of::<Wire>() == HEADER_LEN);

impl Packet {
    /// Makes a client request that reveals nothing about us except the poll interval.
    ///
    /// Only the transmit field varies: `cookie` is a random number that the server must echo, not a
    /// time. So our clock and its quality do not leak, and a forger must see the request. Zero
    /// fields and the precision of 32 follow draft-ietf-ntp-data-minimization; chronyd sends the
    /// same bytes.
    #[must_use]
    pub const fn request(cookie: NtpTimestamp, poll: i8) -> Self {
        Self {
            leap: LeapIndicator::NoWarning,
            version: VERSION,
            mode: Mode::Client,
            stratum: 0,
            poll,
            precision: 32,
            root_delay: NtpShort::from_bits(0),
            root_dispersion: NtpShort::from_bits(0),
            reference_id: [0; 4],
            reference: NtpTimestamp::ZERO,
            origin: NtpTimestamp::ZERO,
            receive: NtpTimestamp::ZERO,
            transmit: cookie,
        }
    }

    /// Decodes the header and returns the bytes behind it.
    ///
    /// # Errors
    /// [`PacketError::TooShort`] below 48 bytes.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), PacketError> {
        let (wire, tail) = Wire::read_from_prefix(bytes)
            .map_err(|_| PacketError::TooShort { len: bytes.len() })?;
        let flags = wire.leap_version_mode;
        let packet = Self {
            leap: LEAPS[usize::from(flags >> 6)],
            version: (flags >> 3) & 7,
            mode: MODES[usize::from(flags & 7)],
            stratum: wire.stratum,
            poll: wire.poll,
            precision: wire.precision,
            root_delay: NtpShort::from_bits(wire.root_delay.get()),
            root_dispersion: NtpShort::from_bits(wire.root_dispersion.get()),
            reference_id: wire.reference_id,
            reference: NtpTimestamp::from_bits(wire.reference.get()),
            origin: NtpTimestamp::from_bits(wire.origin.get()),
            receive: NtpTimestamp::from_bits(wire.receive.get()),
            transmit: NtpTimestamp::from_bits(wire.transmit.get()),
        };
        Ok((packet, tail))
    }

    /// Encodes the header, with the low three bits of the version.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let wire = Wire {
            leap_version_mode: ((self.leap as u8) << 6)
                | ((self.version & 7) << 3)
                | self.mode as u8,
            stratum: self.stratum,
            poll: self.poll,
            precision: self.precision,
            root_delay: self.root_delay.to_bits().into(),
            root_dispersion: self.root_dispersion.to_bits().into(),
            reference_id: self.reference_id,
            reference: self.reference.to_bits().into(),
            origin: self.origin.to_bits().into(),
            receive: self.receive.to_bits().into(),
            transmit: self.transmit.to_bits().into(),
        };
        zerocopy::transmute!(wire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_48_bytes_round_trip(bytes in prop::array::uniform32(any::<u8>()), more in prop::array::uniform16(any::<u8>())) {
            let all: Vec<u8> = bytes.into_iter().chain(more).collect();
            let (packet, tail) = Packet::parse(&all).unwrap();
            prop_assert!(tail.is_empty());
            prop_assert_eq!(&packet.to_bytes()[..], &all[..]);
        }

        #[test]
        fn parsing_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            match Packet::parse(&bytes) {
                Ok((_, tail)) => prop_assert_eq!(tail.len(), bytes.len() - HEADER_LEN),
                Err(PacketError::TooShort { len }) => prop_assert!(len == bytes.len() && len < HEADER_LEN),
            }
        }
    }
}
