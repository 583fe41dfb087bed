//! Arbitrary requests: a reply is never longer than its request, goes only to who may ask, repeats
//! the request's cookie, and never claims a better time than the server has.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::{decode, log_scaled, some_bytes};
use timevisor_protocols::ntp::extension::Tail;
use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::precise::{self, Bounds, Errors, Name, Reply, Status};
use timevisor_protocols::ntp::server::{
    Action, Config, PreciseTime, ServedClock, ServedTime, Server, Tally, Unsynchronized,
};
use timevisor_protocols::ntp::{Datagram, LeapIndicator, Mode, NtpTimestamp, Packet};
use timevisor_time::{Duration, Instant, Utc};

/// With whether the default configuration admits them.
const ADDRESSES: [(&str, bool); 10] = [
    ("10.0.0.1", true),
    ("127.0.0.1", true),
    ("::ffff:10.0.0.2", true),
    ("fe80::1", true),
    ("::1", true),
    ("192.0.2.1", false),
    ("::ffff:192.0.2.1", false),
    ("0.0.0.0", false),
    ("255.255.255.255", false),
    ("ff02::101", false),
];

/// Nearer than this the era of a stamp is known (68 years are; some room for the stamps' own
/// distance).
const ERA: Duration = Duration::from_secs(1 << 30);

fuzz_target!(|data: &[u8]| decode(data, run));

fn run(u: &mut Unstructured) -> Result<()> {
    let config = Config {
        clients: 16,
        rate_interval: Duration::from_millis(i64::from(u.arbitrary::<u8>()?)),
        rate_burst: u.int_in_range(1..=8)?,
        interleaved: u.arbitrary()?,
        ..Config::default()
    };
    let mut world = World {
        server: Server::new(config, 7).expect("it is valid"),
        now: Duration::ZERO,
        names: vec![NtpTimestamp::ZERO],
        departures: Vec::new(),
    };
    while !u.is_empty() {
        world.step(u)?;
    }
    world.check_books();
    Ok(())
}

struct World {
    server: Server,
    now: Duration,
    /// The receive stamps of replies, by which a client asks for their departure.
    names: Vec<NtpTimestamp>,
    /// What the server was told about departures: the stamp as clients shall see it, and its error.
    departures: Vec<(NtpTimestamp, Duration)>,
}

impl World {
    fn step(&mut self, u: &mut Unstructured) -> Result<()> {
        self.now += Duration::from_millis(log_scaled(u)?);
        let clock = clock(u)?;
        let received = match (&clock, u.arbitrary()?) {
            (ServedClock::Known(time), true) => {
                time.transmit - Duration::from_nanos(log_scaled(u)? - 100)
            }
            _ => Instant::from_bits(u.arbitrary()?),
        };
        let request = self.request(u)?;
        let (address, admitted) = *u.choose(&ADDRESSES)?;
        let address: IpAddr = address.parse().expect("it is an address");
        let from = SocketAddr::new(address, u.arbitrary()?);
        match self.server.respond(self.now, &request, received, &clock, from) {
            Action::Reply { bytes, departure } => {
                assert!(admitted && from.port() != 0);
                self.check(&request, &bytes, &clock, received);
                self.names.push(both(&request, &bytes).0.receive);
                if let Some(departure) = departure
                    && u.arbitrary()?
                {
                    let at = Instant::from_bits(u.arbitrary()?);
                    let errors = Errors {
                        below: Duration::from_bits(u.arbitrary::<i64>()?.into()),
                        above: Duration::from_bits(u.arbitrary::<i64>()?.into()),
                    };
                    self.server.departed(departure, at, errors);
                    self.departures.push((as_sent(at), errors.largest()));
                }
            }
            Action::Kiss { bytes } => {
                assert!(admitted && from.port() != 0);
                let (reply, asked) = both(&request, &bytes);
                assert_eq!((reply.stratum, reply.reference_id), (0, *b"RATE"));
                assert_eq!(reply.origin, asked.transmit);
            }
            Action::Protected { .. } => panic!("NTS is not served"),
            Action::Drop(reason) => {
                assert!(admitted || reason == Tally::Denied);
            }
        }
        Ok(())
    }

    /// Raw bytes, or a client's request, perhaps in interleaved mode.
    fn request(&self, u: &mut Unstructured) -> Result<Vec<u8>> {
        let kind = u.int_in_range(0..=7)?;
        if kind == 0 {
            return Ok(some_bytes(u)?.to_vec());
        }
        let mut header: [u8; HEADER_LEN] = u.arbitrary()?;
        header[0] = header[0] & 0xf8 | 3;
        if kind > 3 {
            header[0] = 0x23;
            let back = u.int_in_range(0..=3)?.min(self.names.len() - 1);
            let name = self.names[self.names.len() - 1 - back];
            header[24..32].copy_from_slice(&name.to_bits().to_be_bytes());
        }
        let mut request = header.to_vec();
        if kind == 1 {
            request.extend(some_bytes(u)?);
        }
        if u.arbitrary()? {
            let timeline = *u.choose(&[Name::HOST, Name::new("tai").expect("short"), Name::new("x").expect("short")])?;
            let mut with_field = Datagram::new(&Packet::parse(&header).expect("a header").0);
            precise::Request { timeline, referrals: u.int_in_range(0..=9)?, member: None }.write(&mut with_field);
            request = with_field.to_vec();
        }
        Ok(request)
    }

    fn check(&self, request: &[u8], reply: &[u8], clock: &ServedClock, received: Instant<Utc>) {
        let told = told(reply);
        let (reply, asked) = both(request, reply);
        let time = match clock {
            ServedClock::Known(time) if time.is_usable() => time,
            _ => return check_refusal(&reply, &asked),
        };
        assert!((1..=15).contains(&reply.stratum) && reply.leap != LeapIndicator::Unsynchronized);
        // In interleaved mode the bounds of two moments replace the error of the present one, also
        // where the departure's error is negative and the field therefore cannot be read.
        if reply.origin == asked.transmit {
            assert!(reply.root_dispersion.to_duration() >= time.error);
        }
        if let Some(told) = told {
            let largest = told.bounds.largest();
            assert!(told.status.is_bounded() && largest >= time.precise.expect("a field").bounds.receive.largest());
            // In units of 2^-16 s, up to the largest number of them.
            let said = reply.root_dispersion.to_duration();
            assert!(said >= largest || said >= Duration::from_secs(65_535));
        }
        assert!(received <= time.transmit);
        let age = time.transmit - received;
        let is_datable = age < ERA && time.transmit.secs().unsigned_abs() < 1 << 40;
        if is_datable {
            assert!(reply.receive.to_instant(time.transmit) >= received);
        }
        if reply.origin == asked.transmit {
            // Zero would mean "unknown" and is moved on.
            let room = NtpTimestamp::RESOLUTION + NtpTimestamp::RESOLUTION;
            if is_datable {
                let transmit = reply.transmit.to_instant(time.transmit);
                assert!(transmit <= time.transmit + room);
            }
        } else {
            assert_eq!(reply.origin, asked.receive);
            let said = reply.root_dispersion.to_duration();
            let told = |(stamp, error): &(NtpTimestamp, Duration)| {
                *stamp == reply.transmit && (said >= *error || *error > Duration::from_secs(65_535))
            };
            assert!(self.departures.iter().any(told), "a departure that nobody measured");
        }
    }

    fn check_books(&self) {
        let counters = self.server.counters();
        let part = |what: &Tally| {
            !matches!(
                what,
                Tally::Received
                    | Tally::Interleaved
                    | Tally::Precise
                    | Tally::Nts
                    | Tally::Unsynchronized
            )
        };
        let ends: u64 = Tally::ALL.iter().filter(|t| part(t)).map(|t| counters.of(*t)).sum();
        assert_eq!(counters.of(Tally::Received), ends);
    }
}

/// Both packets, after what holds for every reply.
fn both(request: &[u8], reply: &[u8]) -> (Packet, Packet) {
    assert!(reply.len() <= request.len(), "amplification");
    let (asked, _) = Packet::parse(request).expect("only a packet is answered");
    let (reply, _) = Packet::parse(reply).expect("a reply is a packet");
    assert_eq!((asked.mode, reply.mode), (Mode::Client, Mode::Server));
    assert_eq!(reply.version, asked.version);
    (reply, asked)
}

/// The precise bounds of this host's clock in a reply.
fn told(reply: &[u8]) -> Option<Reply> {
    let tail = Tail::parse(&reply[HEADER_LEN..]).expect("fields");
    let named = |name| Reply::find(&tail.fields, name);
    named(Name::HOST).or_else(|| named(Name::new("tai")?))
}

fn check_refusal(reply: &Packet, asked: &Packet) {
    assert_eq!((reply.stratum, reply.leap), (0, LeapIndicator::Unsynchronized));
    assert_eq!(reply.origin, asked.transmit);
    assert!(reply.receive.is_zero() && reply.transmit.is_zero() && reply.reference.is_zero());
}

/// A departure as the server documents it: rounded down, the lowest bit clear, never zero.
fn as_sent(at: Instant<Utc>) -> NtpTimestamp {
    let bits = NtpTimestamp::from_instant(at).to_bits() & !1;
    NtpTimestamp::from_bits(if bits == 0 { 2 } else { bits })
}

fn clock(u: &mut Unstructured) -> Result<ServedClock> {
    const LEAPS: [LeapIndicator; 4] = [
        LeapIndicator::NoWarning,
        LeapIndicator::Insert,
        LeapIndicator::Delete,
        LeapIndicator::Unsynchronized,
    ];
    let mut clock = match u.int_in_range(0..=7)? {
        0 => ServedClock::Mute,
        1 => ServedClock::Unknown(Unsynchronized::Starting),
        2 => ServedClock::Unknown(Unsynchronized::Contradicted),
        kind => ServedClock::Known(ServedTime {
            transmit: if kind == 3 {
                Instant::from_bits(u.arbitrary()?)
            } else {
                Instant::from_words(u.arbitrary::<u32>()?.into(), u.arbitrary()?)
            },
            error: if kind == 4 {
                Duration::from_bits(u.arbitrary()?)
            } else {
                Duration::from_nanos(log_scaled(u)?)
            },
            leap: *u.choose(&LEAPS)?,
            stratum: u.int_in_range(0..=17)?,
            reference_id: u.arbitrary()?,
            reference: Instant::from_bits(u.arbitrary()?),
            precision: u.arbitrary()?,
            precise: None,
        }),
    };
    if let ServedClock::Known(time) = &mut clock
        && !time.error.is_negative()
        && u.arbitrary()?
    {
        // One of the four sides is the error, and no other is larger.
        let smaller = Duration::from_nanos(log_scaled(u)?).min(time.error);
        let (near, far) = (Errors::symmetric(smaller), Errors { below: smaller, above: time.error });
        let bounds = if u.arbitrary()? {
            Bounds { receive: near, transmit: far }
        } else {
            Bounds { receive: far, transmit: near }
        };
        let status = Status::Synchronized;
        time.precise = Some(PreciseTime { bounds, status, epoch: u.arbitrary()?, generation: 0, timeline: None });
    }
    Ok(clock)
}
