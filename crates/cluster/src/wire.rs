//! Questions and answers as datagrams: NTP with the field of
//! [`precise`](timevisor_protocols::ntp::precise), docs/reference/precise-ntp.md.
//!
//! A question has a random number as its transmit stamp, which the answer repeats: whoever has not
//! seen the question cannot answer it, and a replayed answer belongs to no question.
//!
//! In a cluster with a key, questions and answers are sealed with it
//! ([`shared`](timevisor_protocols::nts::shared)).
//!
//! What it does not do: take stamps, or know TAI - UTC.

use std::net::SocketAddr;

use timevisor_protocols::ntp::extension::Tail;
use timevisor_protocols::ntp::packet::{Mode, VERSION};
use timevisor_protocols::ntp::precise::{
    Errors, MAX_REFERRALS, Member, Name, RateLimits, Reply, Request, Status,
};
use timevisor_protocols::ntp::response::{Policy, Response};
use timevisor_protocols::ntp::{Datagram, ERA_PIVOT, KissCode, NtpTimestamp, Packet, RejectReason};
use timevisor_protocols::nts::shared::{Random as SealRandom, Sealer};
use timevisor_protocols::nts::{Opening, Refusal};
use timevisor_time::{Duration, Instant, Interval, Tai, Utc};

use crate::node::Origin;

/// log2 s: what a question says of when the next one comes. A burst asks at once; this is the
/// shortest that servers know.
const POLL: i8 = 0;

/// Random bytes for one question. Nobody else may know them before it is sent, and none are used twice.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub [u8; Random::LEN]);

impl Random {
    /// How many are used: 8 for the transmit stamp, and for the seal an identifier and two nonces.
    pub const LEN: usize = 8 + 32 + 16 + 16;

    fn stamp(&self) -> u64 {
        self.0.first_chunk().map_or(1, |bytes| u64::from_be_bytes(*bytes))
    }

    fn seal(&self) -> Option<SealRandom> {
        let (_, rest) = self.0.split_first_chunk::<8>()?;
        let (identifier, rest) = rest.split_first_chunk()?;
        let (nonce, rest) = rest.split_first_chunk()?;
        let cookie = rest.first_chunk()?;
        Some(SealRandom { identifier: *identifier, nonce: *nonce, cookie: *cookie })
    }
}

#[cfg(test)]
impl Random {
    /// Others for each number.
    pub(crate) fn of(number: u64) -> Self {
        let mut bytes = [7; Self::LEN];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&number.to_be_bytes());
        }
        Self(bytes)
    }
}

/// One question that waits for its answer.
#[derive(Clone, Debug)]
pub struct Query {
    timeline: Name,
    cookie: NtpTimestamp,
    /// What opens the answer to a sealed question.
    opening: Option<Opening>,
}

/// What a server answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    /// Its intervals when the question arrived and when the answer left; `None` while it has no
    /// bounds that it vouches for.
    pub intervals: Option<[Interval<Utc>; 2]>,
    /// Its best guess of the time at these two moments, which is in them; `None` with the intervals.
    pub guesses: Option<[Instant<Utc>; 2]>,
    /// Servers between it and the master.
    pub level: u8,
    /// Which clock it is.
    pub origin: Origin,
    /// How far the clock's seconds may be from those of TAI.
    pub rate: RateLimits,
    /// How long ago anybody heard the timeline's master.
    pub silence: Option<Duration>,
    /// Other servers.
    pub others: [Option<SocketAddr>; MAX_REFERRALS],
}

/// Why a datagram is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Not one of ours: another mode or version, or damaged.
    #[error("it is no NTP answer")]
    Malformed,
    /// It belongs to no question that waits: late, replayed, or forged.
    #[error("it answers no question that waits")]
    Stray,
    /// A kiss of death.
    #[error("the server declines ({0}); see its [server] section")]
    Kiss(KissCode),
    /// A server without our field.
    #[error("the server is no timevisord, or does not serve clusters")]
    Foreign,
    /// Another cluster's server.
    #[error("the server has no cluster of this name; compare [[cluster]] name on both hosts")]
    NoSuchCluster,
    /// The cluster has a key, and the question was not sealed.
    #[error("the cluster has a key; give it (key in [[cluster]], or --key)")]
    KeyRequired,
    /// The server could not open the question.
    #[error(
        "the server has another key, or none for this cluster; compare the files that `key` names"
    )]
    WrongKey,
    /// The header is none that can be used.
    #[error("its answer is of no use ({0})")]
    Header(RejectReason),
    /// Its timeline is a counter that is worse than what is assumed here.
    #[error(
        "its timeline may be {ppm} ppm fast or slow; oscillator.unmeasured_rate_ppm and calibration_ppm of [[cluster]] together must be that or more"
    )]
    Rate {
        /// In parts per million, rounded up.
        ppm: u32,
    },
    /// The field says something else than the header.
    #[error("its answer contradicts itself")]
    Contradiction,
}

impl Query {
    /// A question about this timeline. `random` must not be foreseeable.
    #[must_use]
    pub fn new(timeline: Name, random: u64) -> Self {
        // Zero would mean that there is no stamp.
        Self { timeline, cookie: NtpTimestamp::from_bits(random.max(1)), opening: None }
    }

    /// A question, and the datagram to send; by somebody who is no member, `None`. With a `sealer`, an
    /// answer counts only if it is sealed with the same secret. `None` never happens: it is the
    /// cipher's refusal.
    #[must_use]
    pub fn made(
        timeline: Name,
        member: Option<Member>,
        sealer: Option<&Sealer>,
        random: &Random,
    ) -> Option<(Self, Vec<u8>)> {
        let plain = Self::new(timeline, random.stamp());
        let datagram = plain.datagram(member);
        let Some(sealer) = sealer else { return Some((plain, datagram.to_vec())) };
        let (sealed, opening) = sealer.seal(&datagram, &random.seal()?)?;
        Some((Self { opening: Some(opening), ..plain }, sealed))
    }

    /// The datagram to send; by somebody who is no member, `None`.
    #[must_use]
    pub fn datagram(&self, member: Option<Member>) -> Datagram {
        let mut datagram = Datagram::new(&Packet::request(self.cookie, POLL));
        let timeline = self.timeline;
        Request { timeline, referrals: MAX_REFERRALS, member }.write(&mut datagram);
        datagram
    }

    /// Reads a datagram. `about` is within decades of now.
    ///
    /// # Errors
    /// It is no answer to this question, or one that says nothing.
    pub fn read(&self, bytes: &[u8], about: Instant<Utc>) -> Result<Said, Refused> {
        let Some(opening) = &self.opening else { return self.read_plain(bytes, about) };
        match opening.open(bytes) {
            Ok(opened) => self.read_plain(&opened.plain, about),
            // It is not authenticated; at least it is an answer to this question.
            Err(Refusal::Nak) if self.is_answered_by(bytes) => Err(Refused::WrongKey),
            // A server with our key seals whatever it says; others have nothing to say.
            Err(_) => Err(Refused::Stray),
        }
    }

    fn is_answered_by(&self, bytes: &[u8]) -> bool {
        Packet::parse(bytes).is_ok_and(|(packet, _)| packet.origin == self.cookie)
    }

    fn read_plain(&self, bytes: &[u8], about: Instant<Utc>) -> Result<Said, Refused> {
        let (packet, tail) = Packet::parse(bytes).map_err(|_| Refused::Malformed)?;
        if packet.mode != Mode::Server || packet.version != VERSION {
            return Err(Refused::Malformed);
        }
        if packet.origin != self.cookie {
            return Err(Refused::Stray);
        }
        let tail = Tail::parse(tail).map_err(|_| Refused::Malformed)?;
        match Reply::find(&tail.fields, self.timeline) {
            Some(reply) if reply.status == Status::NoSuchTimeline => Err(Refused::NoSuchCluster),
            Some(reply) if reply.status == Status::KeyRequired => Err(Refused::KeyRequired),
            Some(reply) => self.said(&packet, &reply, about),
            None if packet.stratum == 0 => self.declined(&packet),
            None => Err(Refused::Foreign),
        }
    }

    fn said(&self, packet: &Packet, reply: &Reply, about: Instant<Utc>) -> Result<Said, Refused> {
        let mut others = [None; MAX_REFERRALS];
        for (place, other) in others.iter_mut().zip(reply.referrals.iter()) {
            *place = Some(other);
        }
        // A host's own clock is UTC, too. What it says of its steps is in its bounds.
        let told = Origin { generation: reply.generation, epoch: reply.epoch };
        let origin = if self.timeline.is_host() { Origin::UTC } else { told };
        let (level, rate, silence) = (reply.level, reply.rate, reply.silence);
        let said = Said { intervals: None, guesses: None, level, origin, rate, silence, others };
        if !reply.status.is_bounded() {
            return Ok(said);
        }
        let response = Response::check(packet, 0, about, &ANY).map_err(Refused::Header)?;
        let bounds = reply.bounds(&response).map_err(|_| Refused::Contradiction)?;
        let around = |stamp: Instant<Utc>, errors: &Errors| {
            Interval::new(stamp - errors.below, stamp + errors.above).ok_or(Refused::Contradiction)
        };
        let arrived = around(response.tb, &bounds.receive)?;
        let left = around(response.te, &bounds.transmit)?;
        let guesses = Some([response.tb, response.te]);
        Ok(Said { intervals: Some([arrived, left]), guesses, ..said })
    }

    /// A server that is not synchronized yet (INIT, STEP) has no bounds; others want to be left alone.
    fn declined(&self, packet: &Packet) -> Result<Said, Refused> {
        match KissCode::from_reference_id(packet.reference_id) {
            KissCode::Other(_) => {
                let origin = Origin::UTC;
                let (rate, silence) = (RateLimits::default(), None);
                let others = [None; MAX_REFERRALS];
                let (intervals, guesses) = (None, None);
                Ok(Said { intervals, guesses, level: u8::MAX, origin, rate, silence, others })
            }
            kiss => Err(Refused::Kiss(kiss)),
        }
    }
}

/// What a cluster's own timeline is on the wire: it may begin at 0, which is no time that NTP's stamps
/// could show, so they count from [`ERA_PIVOT`], 68 years either way.
#[must_use]
pub fn stamp_of(time: Instant<Tai>) -> Instant<Utc> {
    ERA_PIVOT + (time - Instant::from_bits(0))
}

/// The time of a cluster's own timeline that a stamp shows.
#[must_use]
pub fn time_of(stamp: Instant<Utc>) -> Instant<Tai> {
    Instant::from_bits(0) + (stamp - ERA_PIVOT)
}

/// What is believed is decided by intervals.
const ANY: Policy<'static> =
    Policy { max_distance: Duration::MAX, allow_smear: false, own_ids: &[] };

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
