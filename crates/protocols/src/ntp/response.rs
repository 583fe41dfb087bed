//! The content of an answer: the checks it must pass and the error budget it states for itself.
//!
//! What it does not do: know what was asked. [`super::client`] has already matched the cookie before these checks; the
//! round trip and everything that needs our counter is the estimator's.

use std::fmt;

use timevisor_time::{Duration, Instant, Utc};

use super::format::{NtpShort, NtpTimestamp, log2_span};
use super::packet::{LeapIndicator, Packet};
use super::status::RejectReason;

/// The first stratum that means "unsynchronized" (MAXSTRAT, RFC 5905 section 7.2).
pub const MAX_STRATUM: u8 = 16;

/// An answer that passed every check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response {
    /// Which [`super::Request`] it answers; always the one last sent.
    pub request_id: u64,
    /// The request's arrival on the server's clock (T2).
    pub tb: Instant<Utc>,
    /// The answer's departure on the server's clock (T3).
    pub te: Instant<Utc>,
    /// Round trip from the server to its reference clock, as stated.
    pub root_delay: Duration,
    /// Error between the reference clock and the server, as stated.
    pub root_dispersion: Duration,
    /// Announced leap second; never [`LeapIndicator::Unsynchronized`].
    pub leap: LeapIndicator,
    /// 1 to 15.
    pub stratum: u8,
    /// Upstream server or reference clock.
    pub reference_id: [u8; 4],
    /// Precision of the server's clock, log2 s.
    pub precision: i8,
}

impl Response {
    /// Checks a header that answers request `request_id`. `approx_utc` chooses the era only: 68 years off still works.
    ///
    /// # Errors
    /// The first check that fails: synchronized, stratum, timestamps, order, root distance.
    pub fn check(
        packet: &Packet,
        request_id: u64,
        approx_utc: Instant<Utc>,
        max_distance: Duration,
    ) -> Result<Self, RejectReason> {
        if packet.leap == LeapIndicator::Unsynchronized {
            return Err(RejectReason::Unsynchronized);
        }
        if packet.stratum == 0 || packet.stratum >= MAX_STRATUM {
            return Err(RejectReason::Stratum);
        }
        if packet.receive.is_zero() || packet.transmit.is_zero() {
            return Err(RejectReason::ZeroTimestamp);
        }
        let response = Self {
            request_id,
            tb: packet.receive.to_instant(approx_utc),
            te: packet.transmit.to_instant(approx_utc),
            root_delay: packet.root_delay.to_duration(),
            root_dispersion: packet.root_dispersion.to_duration(),
            leap: packet.leap,
            stratum: packet.stratum,
            reference_id: packet.reference_id,
            precision: packet.precision,
        };
        if response.te < response.tb {
            return Err(RejectReason::TimeReversed);
        }
        if response.error_budget() > max_distance {
            return Err(RejectReason::Distance);
        }
        Ok(response)
    }

    /// How far `tb` and `te` may be from UTC by the server's own statement, rounded outward.
    ///
    /// e = root dispersion + root delay / 2 (the root distance of RFC 5905 section 11.1 without our own path)
    /// plus 2^precision (granularity of the stamps), 2^-32 s (their format) and 1.5 * 2^-16 s.
    ///
    /// The last term, 22.9 us, is there because the two 16.16 fields may have been truncated. A sender that rounds
    /// up makes it needless, but nothing on the wire tells.
    #[must_use]
    pub fn error_budget(&self) -> Duration {
        let root_delay = self.root_delay + NtpShort::RESOLUTION;
        let root_dispersion = self.root_dispersion + NtpShort::RESOLUTION;
        root_dispersion + root_delay.half() + log2_span(self.precision) + NtpTimestamp::RESOLUTION
    }
}

/// Why a server declines to serve (RFC 5905 section 7.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KissCode {
    /// RATE: we ask too often.
    Rate,
    /// DENY: access denied by the remote server.
    Deny,
    /// RSTR: access denied by local policy of the server.
    Restrict,
    /// Any other code, such as INIT or STEP: nothing to obey.
    Other([u8; 4]),
}

impl KissCode {
    /// From the reference id of a packet of stratum 0.
    #[must_use]
    pub const fn from_reference_id(id: [u8; 4]) -> Self {
        match &id {
            b"RATE" => Self::Rate,
            b"DENY" => Self::Deny,
            b"RSTR" => Self::Restrict,
            _ => Self::Other(id),
        }
    }
}

/// The four letters; bytes that are not printable are shown escaped.
impl fmt::Display for KissCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate => f.write_str("RATE"),
            Self::Deny => f.write_str("DENY"),
            Self::Restrict => f.write_str("RSTR"),
            Self::Other(id) => write!(f, "{}", id.escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Packet {
        Packet {
            stratum: 2,
            precision: -20,
            root_delay: NtpShort::from_bits(2 << 10),
            root_dispersion: NtpShort::from_bits(1 << 10),
            receive: NtpTimestamp::from_bits(0xee00_0000_0000_0001),
            transmit: NtpTimestamp::from_bits(0xee00_0000_0000_0002),
            ..Packet::request(NtpTimestamp::ZERO, 4)
        }
    }

    fn check(packet: &Packet) -> Result<Response, RejectReason> {
        Response::check(
            packet,
            1,
            Instant::from_unix_nanos(1_800_000_000_000_000_000),
            Duration::from_millis(1500),
        )
    }

    #[test]
    fn the_budget_adds_up() {
        // 2^-6 + 2^-5 / 2 + 1.5 * 2^-16 + 2^-20 + 2^-32 s, in units of 2^-64 s.
        let exact = (1i128 << 58) + (1 << 58) + 3 * (1 << 47) + (1 << 44) + (1 << 32);
        assert_eq!(check(&good()).unwrap().error_budget(), Duration::from_bits(exact));
    }

    #[test]
    fn each_check_has_its_reason() {
        type Damage = fn(&mut Packet);
        let wrong: [(RejectReason, Damage); 10] = [
            (RejectReason::Unsynchronized, |p| p.leap = LeapIndicator::Unsynchronized),
            (RejectReason::Stratum, |p| p.stratum = 0),
            (RejectReason::Stratum, |p| p.stratum = 16),
            (RejectReason::Stratum, |p| p.stratum = 255),
            (RejectReason::ZeroTimestamp, |p| p.receive = NtpTimestamp::ZERO),
            (RejectReason::ZeroTimestamp, |p| p.transmit = NtpTimestamp::ZERO),
            (RejectReason::TimeReversed, |p| std::mem::swap(&mut p.receive, &mut p.transmit)),
            (RejectReason::Distance, |p| p.root_delay = NtpShort::from_bits(3 << 16)),
            (RejectReason::Distance, |p| p.root_dispersion = NtpShort::from_bits(u32::MAX)),
            (RejectReason::Distance, |p| p.precision = i8::MAX),
        ];
        for (reason, change) in wrong {
            let mut packet = good();
            change(&mut packet);
            assert_eq!(check(&packet), Err(reason), "{packet:?}");
        }
    }

    #[test]
    fn an_answer_within_one_tick_is_in_order() {
        let packet = Packet { transmit: good().receive, ..good() };
        assert!(check(&packet).is_ok_and(|r| r.te == r.tb));
    }

    #[test]
    fn an_answer_across_the_era_boundary_is_in_order() {
        let packet = Packet {
            receive: NtpTimestamp::from_bits(0xffff_ffff_ffff_fff0),
            transmit: NtpTimestamp::from_bits(0x0000_0000_0000_0010),
            ..good()
        };
        let response = check(&packet).unwrap();
        assert_eq!(response.te - response.tb, Duration::from_bits(0x20 << 32));
    }

    #[test]
    fn kiss_codes_by_name() {
        assert_eq!(KissCode::from_reference_id(*b"RATE"), KissCode::Rate);
        assert_eq!(KissCode::from_reference_id(*b"RSTR").to_string(), "RSTR");
        assert_eq!(KissCode::from_reference_id([b'X', 0, 7, b'\n']).to_string(), "X\\x00\\x07\\n");
    }
}
