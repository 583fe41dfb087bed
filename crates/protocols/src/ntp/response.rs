//! The content of an answer: the checks that it must pass, and its own error budget.
//!
//! What it does not do: know the request. [`super::client`] matches the cookie before these checks,
//! and the estimator handles the round trip and everything else that needs our counter.

use std::fmt;

use timevisor_time::{Duration, Instant, Utc};

use super::format::{NtpShort, NtpTimestamp, log2_span};
use super::packet::{LeapIndicator, Packet};
use super::precise::Bounds;
use super::refid;
use super::reject::RejectReason;

/// The first stratum that means "unsynchronized" (MAXSTRAT, RFC 5905 section 7.2).
pub const MAX_STRATUM: u8 = 16;

/// An association's requirements on a server.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// The largest error budget.
    pub max_distance: Duration,
    /// Whether a declared leap smear is accepted.
    pub allow_smear: bool,
    /// The reference ids of servers that are synchronized to us.
    pub own_ids: &'a [[u8; 4]],
}

/// The server's part of an exchange, complete and checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Response {
    /// The [`super::Request`] to which the stamps belong. In basic mode it is the one just
    /// answered; in interleaved mode, the one answered before it.
    pub request_id: u64,
    /// The request that the datagram answers: always the last one sent.
    pub answered: u64,
    /// The request's arrival on the server's clock (T2).
    pub tb: Instant<Utc>,
    /// The answer's departure on the server's clock (T3): predicted in basic mode, measured in
    /// interleaved mode.
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
    /// When the server's clock was last set or corrected; zero if it does not say.
    pub reference: NtpTimestamp,
    /// NTP version, 3 or 4.
    pub version: u8,
    /// Precision of the server's clock, log2 s.
    pub precision: i8,
    /// The stamps' errors in nanoseconds, if the server stated them and they agree with the header.
    pub precise: Option<Bounds>,
}

impl Response {
    /// Checks a header that answers request `request_id` in basic mode. `approx_utc` only chooses
    /// the era: 68 years off still works.
    ///
    /// # Errors
    /// Reports the first check that fails: synchronized, stratum, smear, loop, timestamps, root
    /// distance, order.
    pub fn check(
        packet: &Packet,
        request_id: u64,
        approx_utc: Instant<Utc>,
        policy: &Policy<'_>,
    ) -> Result<Self, RejectReason> {
        let response = Self::read(packet, request_id, approx_utc, policy)?;
        let reversal = response.tb - response.te;
        if reversal <= Duration::ZERO {
            return Ok(response);
        }
        if reversal > log2_span(packet.precision) {
            return Err(RejectReason::TimeReversed);
        }
        // Servers fill the bits below their precision with noise (RFC 5905 section 6, chronyd), so
        // two stamps of one moment may be in either order. In a simulator, where an answer takes no
        // time, this always happens. The error budget covers it.
        let middle = response.te + reversal.half();
        Ok(Self { tb: middle, te: middle, ..response })
    }

    /// Checks a header that answers request `request_id` in interleaved mode: its receive stamp
    /// belongs to that request, its transmit stamp to the answer to `before`.
    ///
    /// Returns `before` with its measured departure, and the new exchange, whose `te` is not known
    /// yet (it equals `tb` until then). The stamps must be in the order of the events: the answer
    /// to `before` arrived before we asked again.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_interleaved(
        packet: &Packet,
        request_id: u64,
        approx_utc: Instant<Utc>,
        policy: &Policy<'_>,
        before: &Self,
    ) -> Result<(Self, Self), RejectReason> {
        let new = Self::read(packet, request_id, approx_utc, policy)?;
        if new.te < before.tb || new.tb < new.te {
            return Err(RejectReason::TimeReversed);
        }
        // Which precise bounds belong to `complete` is for the caller to say.
        let complete = Self { te: new.te, answered: request_id, precise: None, ..*before };
        Ok((complete, Self { te: new.tb, ..new }))
    }

    /// Checks everything except the order of the stamps.
    fn read(
        packet: &Packet,
        request_id: u64,
        approx_utc: Instant<Utc>,
        policy: &Policy<'_>,
    ) -> Result<Self, RejectReason> {
        if packet.leap == LeapIndicator::Unsynchronized {
            return Err(RejectReason::Unsynchronized);
        }
        if packet.stratum == 0 || packet.stratum >= MAX_STRATUM {
            return Err(RejectReason::Stratum);
        }
        if !policy.allow_smear && refid::declares_smear(packet.reference_id, packet.stratum) {
            return Err(RejectReason::LeapSmear);
        }
        // A primary server's id is a name, not an address.
        if packet.stratum > 1 && policy.own_ids.contains(&packet.reference_id) {
            return Err(RejectReason::Loop);
        }
        if packet.receive.is_zero() || packet.transmit.is_zero() {
            return Err(RejectReason::ZeroTimestamp);
        }
        let response = Self::content(packet, request_id, approx_utc);
        if response.error_budget() > policy.max_distance {
            return Err(RejectReason::Distance);
        }
        Ok(response)
    }

    /// What the header says, unchecked.
    fn content(packet: &Packet, request_id: u64, approx_utc: Instant<Utc>) -> Self {
        Self {
            request_id,
            answered: request_id,
            tb: packet.receive.to_instant(approx_utc),
            te: packet.transmit.to_instant(approx_utc),
            root_delay: packet.root_delay.to_duration(),
            root_dispersion: packet.root_dispersion.to_duration(),
            leap: packet.leap,
            stratum: packet.stratum,
            reference_id: packet.reference_id,
            reference: packet.reference,
            version: packet.version,
            precision: packet.precision,
            precise: None,
        }
    }

    /// The error that a packet's header states, for a message about one that states too much: see
    /// [`Self::error_budget`].
    #[must_use]
    pub fn error_stated_by(packet: &Packet) -> Duration {
        Self::content(packet, 0, Instant::from_bits(0)).error_budget()
    }

    /// Returns when the server's clock was last set or corrected, as it states.
    #[must_use]
    pub fn reference_time(&self) -> Option<Instant<Utc>> {
        (!self.reference.is_zero()).then(|| self.reference.to_instant(self.te))
    }

    /// Returns true if the departure was measured (RFC 9769).
    #[must_use]
    pub const fn is_interleaved(&self) -> bool {
        self.answered != self.request_id
    }

    /// Returns how far `tb` and `te` may be from UTC by the server's own statement, rounded up: the
    /// largest of the precise bounds, or [`Self::stated_error`] without them.
    #[must_use]
    pub fn error_budget(&self) -> Duration {
        self.precise.map_or_else(|| self.stated_error(), |bounds| bounds.largest())
    }

    /// Returns how far `tb` and `te` may be from UTC by the header, rounded up.
    ///
    /// e = root dispersion + root delay / 2 (the root distance of RFC 5905 section 11.1 without our
    /// own path) plus 2^precision (granularity of the stamps) and 2^-32 s (their format).
    ///
    /// The two 16.16 fields are taken as truncated, one unit of 2^-16 s larger than sent: a server
    /// that truncates (the reference implementation does) would otherwise understate its error by up
    /// to 22.9 us. Zeros are exact where they can be: a primary server has no root delay, and a
    /// server that sends two zeros states none of its error (docs/decisions/0030).
    #[must_use]
    pub fn stated_error(&self) -> Duration {
        self.root_dispersion
            + self.root_delay.half()
            + self.truncated()
            + log2_span(self.precision)
            + NtpTimestamp::RESOLUTION
    }

    /// What the two 16.16 fields may have lost.
    fn truncated(&self) -> Duration {
        if self.root_delay == Duration::ZERO && self.root_dispersion == Duration::ZERO {
            return Duration::ZERO;
        }
        let primary = self.stratum == 1 && self.root_delay == Duration::ZERO;
        let delay = if primary { Duration::ZERO } else { NtpShort::RESOLUTION.half() };
        NtpShort::RESOLUTION + delay
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
    /// Any other code, such as INIT or STEP, which asks nothing of us.
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

/// Shows the four letters; unprintable bytes are escaped.
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
        Response::check(packet, 1, Instant::from_unix_nanos(1_800_000_000_000_000_000), &POLICY)
    }

    const POLICY: Policy<'static> = Policy {
        max_distance: Duration::from_millis(1500),
        allow_smear: false,
        own_ids: &[[192, 0, 2, 99]],
    };

    #[test]
    fn the_budget_adds_up() {
        // 2^-6 + 2^-5 / 2 + 2^-20 + 2^-32 s, in units of 2^-64 s; 2^-16 + 2^-17 for truncation.
        let exact = (1i128 << 58) + (1 << 58) + (1 << 44) + (1 << 32) + (1 << 48) + (1 << 47);
        assert_eq!(check(&good()).unwrap().error_budget(), Duration::from_bits(exact));
        // A primary server that states no error.
        let perfect = Packet {
            root_delay: NtpShort::from_bits(0),
            root_dispersion: NtpShort::from_bits(0),
            ..good()
        };
        let exact = (1i128 << 44) + (1 << 32);
        assert_eq!(check(&perfect).unwrap().error_budget(), Duration::from_bits(exact));
    }

    proptest::proptest! {
        /// What the reference implementation sends: its doubles times 65536, truncated.
        #[test]
        fn a_server_that_truncates_understates_nothing(
            delay in 0i128..1 << 62, small in 0i128..1 << 50, dispersion in 1i128 << 48..1 << 62,
            is_small in proptest::bool::ANY,
        ) {
            let delay = if is_small { small } else { delay };
            let truncated = |bits: i128| NtpShort::from_bits(u32::try_from(bits >> 48).unwrap());
            let packet = Packet {
                root_delay: truncated(delay),
                root_dispersion: truncated(dispersion),
                ..good()
            };
            let error = Duration::from_bits(dispersion) + Duration::from_bits(delay).half();
            proptest::prop_assert!(check(&packet).unwrap().error_budget() >= error);
        }
    }

    #[test]
    fn each_check_has_its_reason() {
        type Damage = fn(&mut Packet);
        let wrong: [(RejectReason, Damage); 14] = [
            (RejectReason::Unsynchronized, |p| p.leap = LeapIndicator::Unsynchronized),
            (RejectReason::Stratum, |p| p.stratum = 0),
            (RejectReason::Stratum, |p| p.stratum = 16),
            (RejectReason::Stratum, |p| p.stratum = 255),
            (RejectReason::ZeroTimestamp, |p| p.receive = NtpTimestamp::ZERO),
            (RejectReason::ZeroTimestamp, |p| p.transmit = NtpTimestamp::ZERO),
            (RejectReason::TimeReversed, |p| {
                // One step more than 2^precision.
                p.transmit = NtpTimestamp::from_bits(p.receive.to_bits() - (1 << 12) - 1);
            }),
            (RejectReason::Distance, |p| p.root_delay = NtpShort::from_bits(3 << 16)),
            (RejectReason::Distance, |p| p.root_dispersion = NtpShort::from_bits(u32::MAX)),
            (RejectReason::Distance, |p| p.precision = i8::MAX),
            (RejectReason::LeapSmear, |p| p.reference_id = [127, 127, 1, 255]),
            (RejectReason::LeapSmear, |p| p.reference_id = [254, 1, 2, 3]),
            (RejectReason::LeapSmear, |p| (p.stratum, p.reference_id) = (1, *b"GOOG")),
            (RejectReason::Loop, |p| p.reference_id = [192, 0, 2, 99]),
        ];
        for (reason, change) in wrong {
            let mut packet = good();
            change(&mut packet);
            assert_eq!(check(&packet), Err(reason), "{packet:?}");
        }
    }

    #[test]
    fn a_smear_may_be_allowed_and_a_primary_servers_id_is_a_name() {
        let near = Instant::from_unix_nanos(1_800_000_000_000_000_000);
        let smearing = Packet { reference_id: [254, 0, 0, 0], ..good() };
        let tolerant = Policy { allow_smear: true, ..POLICY };
        assert!(Response::check(&smearing, 1, near, &tolerant).is_ok());
        let primary = Packet { stratum: 1, reference_id: [192, 0, 2, 99], ..good() };
        assert!(check(&primary).is_ok());
    }

    #[test]
    fn an_interleaved_answer_completes_the_exchange_before() {
        let near = Instant::from_unix_nanos(1_800_000_000_000_000_000);
        let before = check(&good()).unwrap();
        let stamp = |bits: u64| NtpTimestamp::from_bits(0xee00_0000_0000_0000 | bits);
        let packet = Packet { receive: stamp(0x40), transmit: stamp(0x30), ..good() };
        let done = Response::check_interleaved(&packet, 2, near, &POLICY, &before);
        let (complete, new) = done.unwrap();
        assert_eq!((complete.request_id, complete.answered), (1, 2));
        assert_eq!((complete.tb, complete.te), (before.tb, stamp(0x30).to_instant(near)));
        assert_eq!((new.request_id, new.tb), (2, stamp(0x40).to_instant(near)));
        assert!(complete.is_interleaved() && !new.is_interleaved());
        // The answer before left before it was asked, or after the next request had arrived.
        for wrong in [stamp(0), stamp(0x41)] {
            let packet = Packet { transmit: wrong, ..packet };
            let refused = Response::check_interleaved(&packet, 2, near, &POLICY, &before);
            assert_eq!(refused.unwrap_err(), RejectReason::TimeReversed);
        }
    }

    #[test]
    fn an_answer_within_one_tick_is_in_order() {
        let packet = Packet { transmit: good().receive, ..good() };
        assert!(check(&packet).is_ok_and(|r| r.te == r.tb));
    }

    #[test]
    fn stamps_that_are_reversed_by_no_more_than_the_precision_are_one_moment() {
        let receive = 0xee00_0000_0000_2000;
        let [early, late] = [receive - (1 << 12), receive].map(NtpTimestamp::from_bits);
        let response = check(&Packet { receive: late, transmit: early, ..good() }).unwrap();
        let near = Instant::from_unix_nanos(1_800_000_000_000_000_000);
        assert_eq!(response.tb, NtpTimestamp::from_bits(receive - (1 << 11)).to_instant(near));
        assert_eq!(response.te, response.tb);
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
