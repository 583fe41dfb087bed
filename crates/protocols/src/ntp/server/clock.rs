//! The served clock and the header that describes it.
//!
//! The error of the served time becomes the root dispersion, rounded up to its unit of 2^-16 s, and
//! the root delay is zero. The root distance that a client computes (root delay / 2 + root
//! dispersion, RFC 5905 section 11.1) is then never below the error. A split would add no
//! information, because the bound does not distinguish the paths behind it.
//!
//! What it does not do: know the time. The caller reads its clock when it composes a reply.

use timevisor_time::{Duration, Instant, Utc};

use crate::ntp::format::{NtpShort, NtpTimestamp};
use crate::ntp::packet::{LeapIndicator, Mode, Packet};
use crate::ntp::precise::{Bounds, Errors, Name, RateLimits, Referrals, Reply, Request, Status};
use crate::ntp::response::MAX_STRATUM;

/// A clock with a greater error is not synchronized (MAXDISP, RFC 5905 section 7.2).
pub const MAX_ERROR: Duration = Duration::from_secs(16);

/// The most that rounding the two stamps can add to the error: each is off by less than 2^-30 s.
const STAMP_ERROR: Duration = Duration::from_bits(1 << 34);

/// The same in a reply with precise bounds, where a receive stamp may have been moved on by 2^-31 s
/// to be unique.
const PRECISE_STAMP_ERROR: Duration = Duration::from_nanos(2);

/// The clock to serve, at the moment a reply is composed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each answer, on the stack")]
pub enum ServedClock {
    /// Its time is known.
    Known(ServedTime),
    /// It must not be served, and the client is told so.
    Unknown(Unsynchronized),
    /// No true statement is possible at this moment, but soon: UTC has no name for a second that is
    /// being inserted, or the clock steps between the arrival and the reply.
    Mute,
}

/// A known time and its quality.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServedTime {
    /// The current time to serve: the estimate.
    pub transmit: Instant<Utc>,
    /// The estimate's greatest distance from true UTC, from the request's arrival until the reply
    /// has left.
    pub error: Duration,
    /// Whether a leap second is pending.
    pub leap: LeapIndicator,
    /// 1 to 15.
    pub stratum: u8,
    /// The source of the time.
    pub reference_id: [u8; 4],
    /// When the clock was last set by its reference.
    pub reference: Instant<Utc>,
    /// The precision of reading the clock, log2 s, rounded up.
    pub precision: i8,
    /// What a client that asks for precise bounds is told; `None` to give it a plain reply.
    pub precise: Option<PreciseTime>,
}

/// The interval of a known time, for clients that ask for it ([`crate::ntp::precise`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PreciseTime {
    /// Around the request's arrival and around [`ServedTime::transmit`]. No side is above
    /// [`ServedTime::error`].
    pub bounds: Bounds,
    /// The state of the clock, with which its bounds hold.
    pub status: Status,
    /// Changes when the clock's time may have stepped.
    pub epoch: u64,
    /// Changes when the clock's origin is set again.
    pub generation: u32,
    /// What else there is to say of it if it is a cluster's own timeline, and not the host's clock.
    pub timeline: Option<OwnTimeline>,
}

/// A timeline of a cluster that is not UTC: its master's counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnTimeline {
    /// Its name.
    pub name: Name,
    /// Servers between this one and its master.
    pub level: u8,
    /// How far its seconds may be from those of TAI.
    pub rate: RateLimits,
    /// How long ago anybody heard its master.
    pub silence: Option<Duration>,
}

impl PreciseTime {
    /// Answers `request` about the server's own clock, and names `referrals`. `departure` replaces the
    /// bounds around the transmit stamp if that stamp is of another moment (interleaved mode).
    pub(super) fn reply(
        &self,
        request: &Request,
        stratum: u8,
        departure: Option<Errors>,
        referrals: Referrals,
    ) -> Reply {
        let Bounds { receive, transmit } = self.bounds;
        let transmit = departure.unwrap_or(transmit);
        Reply {
            timeline: request.timeline,
            status: self.status,
            level: self.timeline.map_or(stratum, |timeline| timeline.level),
            bounds: Bounds { receive, transmit }.widened(PRECISE_STAMP_ERROR),
            // UTC runs at the rate of TAI.
            rate: self.timeline.map(|timeline| timeline.rate).unwrap_or_default(),
            epoch: self.epoch,
            generation: self.generation,
            silence: self.timeline.and_then(|timeline| timeline.silence),
            referrals,
        }
    }
}

/// Why a clock is not served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsynchronized {
    /// It was never set, or its error is too large to be useful.
    Starting,
    /// A contradiction to its bounds was found.
    Contradicted,
}

impl ServedTime {
    /// Returns whether a reply may carry this time at all.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.error.is_negative()
            && self.error <= MAX_ERROR
            && (1..MAX_STRATUM).contains(&self.stratum)
            && self.leap != LeapIndicator::Unsynchronized
    }

    /// Returns the error as the header states it: not below it, and less than 2^-16 s + 2^-30 s
    /// above it.
    #[must_use]
    pub fn root_dispersion(&self) -> NtpShort {
        dispersion(self.error)
    }

    /// Makes a reply to `request` without its three stamps.
    pub(super) fn header(&self, request: &Packet, poll: i8) -> Packet {
        Packet {
            leap: self.leap,
            version: request.version,
            mode: Mode::Server,
            stratum: self.stratum,
            poll: request.poll.max(poll),
            precision: self.precision,
            root_delay: NtpShort::from_bits(0),
            root_dispersion: self.root_dispersion(),
            reference_id: self.reference_id,
            reference: NtpTimestamp::from_instant(self.reference),
            origin: NtpTimestamp::ZERO,
            receive: NtpTimestamp::ZERO,
            transmit: NtpTimestamp::ZERO,
        }
    }
}

/// The root dispersion that states this error of a stamp.
pub(super) fn dispersion(error: Duration) -> NtpShort {
    NtpShort::from_duration_ceil(error + STAMP_ERROR)
}

impl Unsynchronized {
    /// Makes a reply that says so: leap indicator 3, stratum 0 (which stands for 16 on the wire,
    /// RFC 5905 section 7.3), no times, and a kiss code of figure 13 with the reason.
    pub(super) fn header(self, request: &Packet, poll: i8) -> Packet {
        let code = match self {
            Self::Starting => *b"INIT",
            Self::Contradicted => *b"STEP",
        };
        refusal(request, poll, code)
    }
}

/// Makes a reply that serves no time (RFC 5905 section 7.4). It carries the request's cookie, so it
/// cannot harm a client that did not send `request`.
pub(super) fn refusal(request: &Packet, poll: i8, code: [u8; 4]) -> Packet {
    Packet {
        leap: LeapIndicator::Unsynchronized,
        version: request.version,
        mode: Mode::Server,
        stratum: 0,
        poll: request.poll.max(poll),
        precision: 0,
        root_delay: NtpShort::from_bits(0),
        root_dispersion: NtpShort::from_bits(0),
        reference_id: code,
        reference: NtpTimestamp::ZERO,
        origin: request.transmit,
        receive: NtpTimestamp::ZERO,
        transmit: NtpTimestamp::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time(error: Duration) -> ServedTime {
        ServedTime {
            transmit: Instant::from_unix_nanos(1_800_000_000_000_000_000),
            error,
            leap: LeapIndicator::NoWarning,
            stratum: 2,
            reference_id: [192, 0, 2, 1],
            reference: Instant::from_unix_nanos(1_799_999_990_000_000_000),
            precision: -24,
            precise: None,
        }
    }

    #[test]
    fn what_must_not_be_served() {
        let good = time(Duration::from_micros(30));
        assert!(good.is_usable() && ServedTime { error: Duration::ZERO, ..good }.is_usable());
        for bad in [
            ServedTime { error: Duration::from_millis(16_001), ..good },
            ServedTime { error: -Duration::EPSILON, ..good },
            ServedTime { error: Duration::MAX, ..good },
            ServedTime { stratum: 0, ..good },
            ServedTime { stratum: 16, ..good },
            ServedTime { leap: LeapIndicator::Unsynchronized, ..good },
        ] {
            assert!(!bad.is_usable(), "{bad:?}");
        }
    }

    #[test]
    fn the_root_distance_is_rounded_up_at_the_last_bit() {
        let exact = NtpShort::from_bits(7).to_duration() - STAMP_ERROR;
        assert_eq!(time(exact).root_dispersion(), NtpShort::from_bits(7));
        assert_eq!(time(exact + Duration::EPSILON).root_dispersion(), NtpShort::from_bits(8));
    }

    proptest! {
        #[test]
        fn the_root_distance_is_never_below_the_error(bits in 0i128..(16i128 << 64)) {
            let error = Duration::from_bits(bits);
            let said = time(error).root_dispersion().to_duration();
            prop_assert!(said >= error + STAMP_ERROR);
            prop_assert!(said - error <= NtpShort::RESOLUTION + STAMP_ERROR);
        }
    }
}
