//! Our extension field "precise bounds": what a server knows about its stamps, in nanoseconds.
//!
//! The header's root delay and root dispersion count units of 2^-16 s (15.3 us) and one number
//! covers both stamps and both directions. Between two Timevisors that costs up to 22.9 us of
//! half-width (docs/decisions/0030, 0041). This field carries the interval of each stamp, and what a
//! cluster needs to know about the timeline: level, epoch, generation, and other servers.
//!
//! A client appends the field with the name of a timeline to its request. A server that knows the
//! field appends its own to the reply, never longer than the client's, so that a reply cannot be
//! longer than its request. Every other server ignores a field of unknown type (RFC 7822 section 3).
//! The type is from the range for experiments (0xF000 to 0xFFFF, RFC 9748), where
//! anybody may use the same one; the magic tells ours apart. docs/reference/precise-ntp.md has the
//! layout.
//!
//! Without NTS the field is as trustworthy as the header: who can change one can change the other.
//! So the field must say what the header says, to within the header's rounding
//! ([`Reply::bounds`]).
//!
//! What it does not do: decide when to ask (`asking.rs`), or know a clock.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use timevisor_time::{Duration, RateError};
use zerocopy::byteorder::big_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::datagram::Datagram;
use super::extension::ExtensionField;
use super::format::NtpShort;
use super::response::Response;

/// The field type.
pub const KIND: u16 = 0xf7b1;
/// The first bytes of the value: fields of this type without it are somebody else's.
pub const MAGIC: [u8; 4] = *b"TVPB";
/// The version of the layout.
pub const VERSION: u8 = 1;
/// The most referrals in one field.
pub const MAX_REFERRALS: usize = 8;
/// Length of a field without referrals, with type and length. RFC 7822 section 3 asks for at least
/// 28 bytes in a last field without a MAC.
pub const MIN_LEN: usize = HEAD_LEN + size_of::<Body>();
/// Length of a field with [`MAX_REFERRALS`].
pub const MAX_LEN: usize = MIN_LEN + MAX_REFERRALS * REFERRAL_LEN;

/// Type and length.
const HEAD_LEN: usize = 4;
const REFERRAL_LEN: usize = size_of::<WireReferral>();
const REQUEST: u8 = 0;
const REPLY: u8 = 1;

/// The value's layout on the wire. Later versions may append to it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Body {
    magic: [u8; 4],
    version: u8,
    role: u8,
    status: u8,
    level: u8,
    referrals: u8,
    reserved: u8,
    /// In a member's request: where it serves others.
    port: U16,
    timeline: [u8; Name::LEN],
    receive: WireErrors,
    transmit: WireErrors,
    rate_min: I32,
    rate_max: I32,
    epoch: U64,
    generation: U32,
    /// In a reply: milliseconds since the timeline's master was heard, and one more; 0 if not said.
    silence: U32,
}

/// Nanoseconds.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireErrors {
    below: U64,
    above: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireReferral {
    /// IPv4 as ::ffff:a.b.c.d.
    address: [u8; 16],
    port: U16,
    reserved: [u8; 2],
}

const _: () = assert!(MIN_LEN == 88 && MAX_LEN == 248 && MIN_LEN.is_multiple_of(4));

/// A timeline's name: up to 16 bytes of UTF-8. The empty name and `tai` are the server's own clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Name([u8; Self::LEN]);

impl Name {
    /// Bytes of a name on the wire, filled up with zeros.
    pub const LEN: usize = 16;
    /// The server's own clock.
    pub const HOST: Self = Self([0; Self::LEN]);

    /// Makes a name; `None` if it is longer than [`Self::LEN`] or has a zero byte.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; Self::LEN];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        (!name.contains('\0')).then_some(Self(bytes))
    }

    /// The bytes on the wire.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Returns true for the server's own clock.
    #[must_use]
    pub fn is_host(&self) -> bool {
        *self == Self::HOST || self.0.starts_with(b"tai\0")
    }
}

/// The state of the timeline on the server, with its byte on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// 0, and every byte that is not listed: nothing is promised.
    Unknown,
    /// 1: the first synchronization is under way; the bounds hold.
    Initializing,
    /// 2: the bounds hold.
    Synchronized,
    /// 3: the references are lost; the bounds hold and grow.
    FreeRunning,
    /// 4: an assumption was contradicted; the bounds must not be relied on.
    Unreliable,
    /// 254: the timeline is for hosts that have the cluster's key; all other numbers are zero.
    KeyRequired,
    /// 255: the server has no timeline of this name; all other numbers are zero.
    NoSuchTimeline,
}

impl Status {
    const fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Initializing,
            2 => Self::Synchronized,
            3 => Self::FreeRunning,
            4 => Self::Unreliable,
            254 => Self::KeyRequired,
            255 => Self::NoSuchTimeline,
            _ => Self::Unknown,
        }
    }

    const fn to_byte(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Initializing => 1,
            Self::Synchronized => 2,
            Self::FreeRunning => 3,
            Self::Unreliable => 4,
            Self::KeyRequired => 254,
            Self::NoSuchTimeline => 255,
        }
    }

    /// Returns true if the bounds hold.
    #[must_use]
    pub const fn is_bounded(self) -> bool {
        matches!(self, Self::Initializing | Self::Synchronized | Self::FreeRunning)
    }
}

/// The interval around a stamp: true time is from `stamp - below` to `stamp + above`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Errors {
    /// How much earlier than the stamp true time may be. Not negative.
    pub below: Duration,
    /// How much later than the stamp true time may be. Not negative.
    pub above: Duration,
}

impl Errors {
    /// The same error on both sides.
    #[must_use]
    pub const fn symmetric(error: Duration) -> Self {
        Self { below: error, above: error }
    }

    /// The larger side.
    #[must_use]
    pub fn largest(&self) -> Duration {
        self.below.max(self.above)
    }

    /// The smallest interval that contains both.
    #[must_use]
    pub fn hull(&self, other: &Self) -> Self {
        Self { below: self.below.max(other.below), above: self.above.max(other.above) }
    }

    /// Widens both sides.
    #[must_use]
    pub fn widened(&self, by: Duration) -> Self {
        Self { below: self.below + by, above: self.above + by }
    }

    fn to_wire(self) -> WireErrors {
        WireErrors { below: nanos_up(self.below).into(), above: nanos_up(self.above).into() }
    }

    fn from_wire(wire: &WireErrors) -> Option<Self> {
        // 292 years or more are no statement.
        let span = |nanos: U64| i64::try_from(nanos.get()).ok().map(Duration::from_nanos);
        Some(Self { below: span(wire.below)?, above: span(wire.above)? })
    }
}

fn silence(wire: u32) -> Option<Duration> {
    wire.checked_sub(1).map(|millis| Duration::from_millis(i64::from(millis)))
}

/// What is longer than seven weeks is as good as that.
fn silence_to_wire(silence: Option<Duration>) -> u32 {
    let Some(silence) = silence else { return 0 };
    let millis = u64::try_from(silence.ceil_nanos()).unwrap_or(0).div_ceil(1_000_000);
    u32::try_from(millis).unwrap_or(u32::MAX).saturating_add(1)
}

/// Rounds outwards to nanoseconds. What is negative or does not fit becomes the largest number,
/// which a reader refuses.
fn nanos_up(span: Duration) -> u64 {
    u64::try_from(span.ceil_nanos()).unwrap_or(u64::MAX)
}

/// The intervals of an exchange's two stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Around Tb, the request's arrival.
    pub receive: Errors,
    /// Around Te, the reply's departure.
    pub transmit: Errors,
}

impl Bounds {
    /// Widens all four sides.
    #[must_use]
    pub fn widened(&self, by: Duration) -> Self {
        Self { receive: self.receive.widened(by), transmit: self.transmit.widened(by) }
    }

    /// The largest of the four sides.
    #[must_use]
    pub fn largest(&self) -> Duration {
        self.receive.largest().max(self.transmit.largest())
    }
}

/// Limits of the timeline's rate: how far one second of it may be from one second of TAI, in parts
/// per trillion (1e-12). Zero for a timeline that is TAI.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateLimits {
    /// The slowest, rounded down.
    pub min_ppt: i32,
    /// The fastest, rounded up. Not below `min_ppt`.
    pub max_ppt: i32,
}

impl RateLimits {
    /// As far as `error` to either side, rounded outwards.
    #[must_use]
    pub fn within(error: RateError) -> Self {
        let ppt = (u128::from(error.to_bits()) * 1_000_000_000_000).div_ceil(1 << 64);
        let ppt = i32::try_from(ppt).unwrap_or(i32::MAX);
        Self { min_ppt: -ppt, max_ppt: ppt }
    }

    /// The larger side.
    #[must_use]
    pub fn largest(&self) -> RateError {
        let ppt = self.min_ppt.unsigned_abs().max(self.max_ppt.unsigned_abs());
        RateError::from_ppb(ppt.div_ceil(1000))
    }

    /// The same in parts per million, rounded up, but for what rounding has added.
    #[must_use]
    pub fn largest_ppm(&self) -> u32 {
        let ppt = self.min_ppt.unsigned_abs().max(self.max_ppt.unsigned_abs());
        ppt.saturating_sub(1).div_ceil(1_000_000)
    }
}

/// Other servers of the same timeline, in the server's order of preference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Referrals([Option<SocketAddr>; MAX_REFERRALS]);

impl Referrals {
    /// The first [`MAX_REFERRALS`] of `addresses`; the scope of an IPv6 address is lost on the wire.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let mut referrals = Self::default();
        for (place, address) in referrals.0.iter_mut().zip(addresses) {
            *place = Some(address);
        }
        referrals
    }

    /// The addresses.
    pub fn iter(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().map_while(|address| *address)
    }
}

/// What a member of a cluster says of itself, with its byte on the wire (where a reply has the status).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Asker {
    /// 1: it knows nothing yet.
    New,
    /// 2: it has bounds from this server, and looks for others to ask.
    Settled,
    /// 3: it has bounds that it vouches for.
    Serving,
}

impl Asker {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::New),
            2 => Some(Self::Settled),
            3 => Some(Self::Serving),
            _ => None,
        }
    }

    const fn to_byte(self) -> u8 {
        match self {
            Self::New => 1,
            Self::Settled => 2,
            Self::Serving => 3,
        }
    }
}

/// A member of a cluster that asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// How far it is.
    pub asker: Asker,
    /// The port at which it serves others, at the address that it asks from; 0 if it does not.
    pub port: u16,
}

/// The field in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The timeline that is asked for.
    pub timeline: Name,
    /// Room for this many referrals in the reply.
    pub referrals: usize,
    /// Who asks, if it is a member of a cluster.
    pub member: Option<Member>,
}

impl Request {
    /// The server's own clock, without referrals, by a client that is no member.
    pub const HOST: Self = Self { timeline: Name::HOST, referrals: 0, member: None };

    /// Reads a field; `None` if it is not a request of ours. Requests of later versions are read as
    /// far as they are known here, and get a reply of this version.
    #[must_use]
    pub fn parse(field: &ExtensionField<'_>) -> Option<Self> {
        let (body, rest) = body(field, REQUEST)?;
        let referrals = (rest.len() / REFERRAL_LEN).min(MAX_REFERRALS);
        let port = body.port.get();
        let member = Asker::from_byte(body.status).map(|asker| Member { asker, port });
        Some(Self { timeline: Name(body.timeline), referrals, member })
    }

    /// Appends the field to a request.
    pub fn write(&self, packet: &mut Datagram) {
        let mut body = Body::new(REQUEST, self.timeline);
        if let Some(Member { asker, port }) = self.member {
            (body.status, body.port) = (asker.to_byte(), port.into());
        }
        let room = self.referrals.min(MAX_REFERRALS);
        write_head(packet, room);
        packet.append(body.as_bytes());
        for _ in 0..room {
            packet.append(&[0; REFERRAL_LEN]);
        }
    }
}

/// The field in a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The timeline as it was asked for.
    pub timeline: Name,
    /// Whether the bounds hold.
    pub status: Status,
    /// Servers between this one and the timeline's master, which has level 0. For the server's own
    /// clock it is the stratum, because UTC's master is no server.
    pub level: u8,
    /// The intervals of the reply's two stamps as they are in its header.
    pub bounds: Bounds,
    /// Limits of the timeline's rate.
    pub rate: RateLimits,
    /// Changes when the timeline begins anew: stamps of different epochs are not comparable.
    pub epoch: u64,
    /// Changes when the timeline's origin is set again.
    pub generation: u32,
    /// How long ago anybody heard the timeline's master, rounded up to milliseconds; `None` where the
    /// server does not say.
    pub silence: Option<Duration>,
    /// Other servers to ask.
    pub referrals: Referrals,
}

impl Reply {
    /// The reply of a server that does not have the timeline.
    #[must_use]
    pub fn no_such_timeline(timeline: Name) -> Self {
        Self {
            timeline,
            status: Status::NoSuchTimeline,
            level: 0,
            bounds: Bounds { receive: Errors::default(), transmit: Errors::default() },
            rate: RateLimits::default(),
            epoch: 0,
            generation: 0,
            silence: None,
            referrals: Referrals::default(),
        }
    }

    /// The reply of a server to somebody who has not asked with the cluster's key.
    #[must_use]
    pub fn key_required(timeline: Name) -> Self {
        Self { status: Status::KeyRequired, ..Self::no_such_timeline(timeline) }
    }

    /// The reply of a server that has the timeline and does not know its time, or not yet.
    #[must_use]
    pub fn unknown(timeline: Name, referrals: Referrals) -> Self {
        Self { status: Status::Unknown, referrals, ..Self::no_such_timeline(timeline) }
    }

    /// The same about UTC, whose origin never changes: 0 and 0.
    #[must_use]
    pub fn of_utc(self) -> Self {
        Self { epoch: 0, generation: 0, ..self }
    }

    /// Reads a field; `None` if it is not a reply of ours in this version, or contradicts itself.
    #[must_use]
    pub fn parse(field: &ExtensionField<'_>) -> Option<Self> {
        let (body, rest) = body(field, REPLY)?;
        let count = usize::from(body.referrals);
        if body.version != VERSION || count > MAX_REFERRALS {
            return None;
        }
        let rate = RateLimits { min_ppt: body.rate_min.get(), max_ppt: body.rate_max.get() };
        if rate.min_ppt > rate.max_ppt {
            return None;
        }
        let mut referrals = Referrals::default();
        let mut rest = rest;
        for place in &mut referrals.0[..count] {
            let (wire, after) = WireReferral::ref_from_prefix(rest).ok()?;
            *place = Some(wire.address()?);
            rest = after;
        }
        Some(Self {
            timeline: Name(body.timeline),
            status: Status::from_byte(body.status),
            level: body.level,
            bounds: Bounds {
                receive: Errors::from_wire(&body.receive)?,
                transmit: Errors::from_wire(&body.transmit)?,
            },
            rate,
            epoch: body.epoch.get(),
            generation: body.generation.get(),
            silence: silence(body.silence.get()),
            referrals,
        })
    }

    /// Finds the reply about `timeline` among a packet's fields. `None` without one, and with two,
    /// of which none is more credible.
    #[must_use]
    pub fn find<'a>(
        fields: impl IntoIterator<Item = &'a ExtensionField<'a>>,
        timeline: Name,
    ) -> Option<Self> {
        let mut ours = fields.into_iter().filter_map(Self::parse);
        let found = ours.next().filter(|reply| reply.timeline == timeline)?;
        ours.next().is_none().then_some(found)
    }

    /// Appends the field to a reply, with as many referrals as the request has room for.
    pub fn write(&self, packet: &mut Datagram, room: usize) {
        let count = self.referrals.iter().take(room).count();
        let mut body = Body::new(REPLY, self.timeline);
        body.status = self.status.to_byte();
        body.level = self.level;
        body.referrals = u8::try_from(count).unwrap_or(0);
        body.receive = self.bounds.receive.to_wire();
        body.transmit = self.bounds.transmit.to_wire();
        body.rate_min = self.rate.min_ppt.into();
        body.rate_max = self.rate.max_ppt.into();
        body.epoch = self.epoch.into();
        body.generation = self.generation.into();
        body.silence = silence_to_wire(self.silence).into();
        write_head(packet, count);
        packet.append(body.as_bytes());
        for address in self.referrals.iter().take(count) {
            packet.append(WireReferral::new(address).as_bytes());
        }
    }

    /// Returns the bounds, after comparing them with the header that they came with.
    ///
    /// The header's root distance is the largest of the four sides, up to the rounding of its two
    /// fields (2^-16 s and half of that). A larger side contradicts the header's limit. A smaller
    /// one would claim more than the header does, and the header is what every other client gets.
    ///
    /// # Errors
    /// [`Contradiction`] if the field says something else than the header.
    pub fn bounds(&self, header: &Response) -> Result<Bounds, Contradiction> {
        let distance = header.root_dispersion + header.root_delay.half();
        let rounding = NtpShort::RESOLUTION + NtpShort::RESOLUTION.half();
        let largest = self.bounds.largest();
        let is_told = largest <= header.stated_error() && distance <= largest + rounding;
        if self.status.is_bounded() && is_told { Ok(self.bounds) } else { Err(Contradiction) }
    }
}

/// A field that says something else than the header of the same packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contradiction;

impl Body {
    fn new(role: u8, timeline: Name) -> Self {
        let nothing = || WireErrors { below: 0.into(), above: 0.into() };
        Self {
            magic: MAGIC,
            version: VERSION,
            role,
            status: 0,
            level: 0,
            referrals: 0,
            reserved: 0,
            port: 0.into(),
            timeline: timeline.0,
            receive: nothing(),
            transmit: nothing(),
            rate_min: 0.into(),
            rate_max: 0.into(),
            epoch: 0.into(),
            generation: 0.into(),
            silence: 0.into(),
        }
    }
}

impl WireReferral {
    fn new(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self { address: ip.octets(), port: address.port().into(), reserved: [0; 2] }
    }

    /// `None` for what cannot be asked.
    fn address(&self) -> Option<SocketAddr> {
        let ip = IpAddr::from(self.address).to_canonical();
        let no_host = ip.is_unspecified() || ip.is_multicast() || ip == Ipv4Addr::BROADCAST;
        (self.port.get() != 0 && !no_host).then(|| SocketAddr::new(ip, self.port.get()))
    }
}

/// The known part of a field of ours with this role, and what follows it.
fn body<'a>(field: &ExtensionField<'a>, role: u8) -> Option<(&'a Body, &'a [u8])> {
    if field.kind != KIND {
        return None;
    }
    let (body, rest) = Body::ref_from_prefix(field.body).ok()?;
    let is_ours = body.magic == MAGIC && body.version >= VERSION && body.role == role;
    is_ours.then_some((body, rest))
}

fn write_head(packet: &mut Datagram, referrals: usize) {
    let len = MIN_LEN + referrals * REFERRAL_LEN;
    packet.append(&KIND.to_be_bytes());
    packet.append(&u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
}

#[cfg(test)]
#[path = "precise_tests.rs"]
mod tests;
