//! The field's bytes: golden, round trips, and what is refused.

use proptest::prelude::*;

use super::*;
use crate::ntp::extension::{Fields, Tail};
use crate::ntp::format::NtpTimestamp;
use crate::ntp::packet::{HEADER_LEN, Packet};

fn header() -> Datagram {
    Datagram::new(&Packet::request(NtpTimestamp::from_bits(1), 4))
}

fn request_bytes(request: &Request) -> Vec<u8> {
    let mut packet = header();
    request.write(&mut packet);
    packet[HEADER_LEN..].to_vec()
}

fn reply_bytes(reply: &Reply, room: usize) -> Vec<u8> {
    let mut packet = header();
    reply.write(&mut packet, room);
    packet[HEADER_LEN..].to_vec()
}

fn only(bytes: &[u8]) -> ExtensionField<'_> {
    let tail = Tail::parse(bytes).expect("well formed, as a last field without a MAC");
    assert_eq!((tail.fields.len(), tail.mac), (1, None));
    tail.fields[0]
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn reply() -> Reply {
    let nanos = Duration::from_nanos;
    Reply {
        timeline: Name::new("robot-1").unwrap(),
        status: Status::Synchronized,
        level: 2,
        bounds: Bounds {
            receive: Errors { below: nanos(0x1111), above: nanos(0x2222) },
            transmit: Errors { below: nanos(0x3333), above: nanos(0x4444) },
        },
        rate: RateLimits { min_ppt: -15_000_000, max_ppt: 15_000_000 },
        epoch: 0x0123_4567_89ab_cdef,
        generation: 7,
        silence: Some(Duration::from_millis(1500)),
        referrals: Referrals::new([
            "192.0.2.1:123".parse().unwrap(),
            "[2001:db8::2]:4123".parse().unwrap(),
        ]),
    }
}

const GOLDEN_REQUEST: &str = "f7b10058 54565042 01000000 00000000 00000000000000000000000000000000
    0000000000000000 0000000000000000 0000000000000000 0000000000000000 00000000 00000000
    0000000000000000 00000000 00000000";

const GOLDEN_MEMBER: &str = "f7b1006c 54565042 01000300 0000007b 726f626f742d31000000000000000000
    0000000000000000 0000000000000000 0000000000000000 0000000000000000 00000000 00000000
    0000000000000000 00000000 00000000 0000000000000000000000000000000000000000";

const GOLDEN_REPLY: &str = "f7b10080 54565042 01010202 02000000 726f626f742d31000000000000000000
    0000000000001111 0000000000002222 0000000000003333 0000000000004444 ff1b1e40 00e4e1c0
    0123456789abcdef 00000007 000005dd
    00000000000000000000ffffc0000201 007b 0000
    20010db8000000000000000000000002 101b 0000";

#[test]
fn golden_bytes() {
    assert_eq!(request_bytes(&Request::HOST), hex(GOLDEN_REQUEST));
    assert_eq!(Request::parse(&only(&hex(GOLDEN_REQUEST))), Some(Request::HOST));
    let member = Some(Member { asker: Asker::Serving, port: 123 });
    let asks = Request { timeline: Name::new("robot-1").unwrap(), referrals: 1, member };
    assert_eq!(request_bytes(&asks), hex(GOLDEN_MEMBER));
    assert_eq!(Request::parse(&only(&hex(GOLDEN_MEMBER))), Some(asks));
    assert_eq!(reply_bytes(&reply(), 8), hex(GOLDEN_REPLY));
    assert_eq!(Reply::parse(&only(&hex(GOLDEN_REPLY))), Some(reply()));
}

#[test]
fn a_reply_is_as_long_as_its_request_at_most() {
    let full = Referrals::new((1..=9).map(|n| SocketAddr::from(([192, 0, 2, n], 123))));
    assert_eq!(full.iter().count(), MAX_REFERRALS);
    let full = Reply { referrals: full, ..reply() };
    for room in 0..=9 {
        let asked =
            request_bytes(&Request { timeline: full.timeline, referrals: room, member: None });
        let understood = Request::parse(&only(&asked)).unwrap();
        assert_eq!(understood.referrals, room.min(MAX_REFERRALS));
        let told = reply_bytes(&full, understood.referrals);
        assert_eq!(told.len(), asked.len());
        let read = Reply::parse(&only(&told)).unwrap();
        assert_eq!(read.referrals.iter().count(), room.min(MAX_REFERRALS));
    }
}

#[test]
fn what_is_not_ours_is_not_read() {
    let bytes = hex(GOLDEN_REPLY);
    let damaged = |at: usize, with: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = with;
        Reply::parse(&only(&bytes))
    };
    assert!(damaged(0, 0xf7).is_some());
    let cases = [
        ("another type", 1, 0xb2),
        ("another magic", 7, b'X'),
        ("version 0", 8, 0),
        ("a later version", 8, 2),
        ("a request", 9, 0),
        ("more referrals than there are bytes", 12, 3),
        ("more referrals than a field has", 12, 9),
        ("the slowest rate above the fastest", 64, 0x7f),
        ("an error of more than 292 years", 32, 0x80),
        ("a referral to port 0", 105, 0),
        ("a referral to nobody", 108, 0xff),
    ];
    for (what, at, with) in cases {
        assert_eq!(damaged(at, with), None, "{what}");
    }
    assert!(Request::parse(&only(&bytes)).is_none());
    assert!(Reply::parse(&only(&hex(GOLDEN_REQUEST))).is_none());
    let short = ExtensionField { kind: KIND, body: &bytes[4..MIN_LEN - 1] };
    assert_eq!(Reply::parse(&short), None);
}

#[test]
fn later_versions_may_append() {
    let mut asked = hex(GOLDEN_REQUEST);
    asked[8] = 9;
    assert_eq!(Request::parse(&only(&asked)), Some(Request::HOST));
    let mut told = hex(GOLDEN_REPLY);
    told.extend([0xab; 12]);
    told[3] += 12;
    assert_eq!(Reply::parse(&only(&told)), Some(reply()));
}

#[test]
fn one_reply_about_the_right_timeline() {
    let ours = hex(GOLDEN_REPLY);
    let other = [&[0xf7, 0xb1, 0, 28][..], &[0x5a; 24]].concat();
    let find = |bytes: &[u8], name| Reply::find(&Tail::parse(bytes).unwrap().fields, name);
    assert_eq!(find(&[&other[..], &ours].concat(), reply().timeline), Some(reply()));
    assert_eq!(find(&ours, Name::HOST), None, "another timeline");
    assert_eq!(find(&[&ours[..], &ours].concat(), reply().timeline), None, "two");
    assert_eq!(find(&other, reply().timeline), None);
}

#[test]
fn names() {
    assert!(Name::HOST.is_host() && Name::new("tai").unwrap().is_host());
    assert!(!Name::new("taiga").unwrap().is_host() && !reply().timeline.is_host());
    assert!(Name::new("sixteen-letters-").is_some());
    assert_eq!(Name::new("seventeen-letters"), None);
    assert_eq!(Name::new("a\0b"), None);
}

#[test]
fn errors_are_rounded_outwards() {
    let odd = Duration::from_nanos(5) + Duration::EPSILON;
    let errors = Errors { below: odd, above: Duration::ZERO };
    let read = Errors::from_wire(&errors.to_wire()).unwrap();
    assert_eq!(read, Errors { below: Duration::from_nanos(6), above: Duration::ZERO });
    // Nonsense is sent as what no reader takes.
    assert_eq!(Errors::from_wire(&Errors::symmetric(-odd).to_wire()), None);
}

fn any_name() -> impl Strategy<Value = Name> {
    "[a-z0-9-]{0,16}".prop_map(|name| Name::new(&name).unwrap())
}

fn any_errors() -> impl Strategy<Value = Errors> {
    let nanos = || (0..=i64::MAX).prop_map(Duration::from_nanos);
    (nanos(), nanos()).prop_map(|(below, above)| Errors { below, above })
}

fn any_address() -> impl Strategy<Value = SocketAddr> {
    let v4 = any::<[u8; 4]>().prop_map(IpAddr::from);
    let v6 = any::<[u8; 16]>().prop_map(|octets| IpAddr::from(octets).to_canonical());
    let sendable =
        |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast() && *ip != Ipv4Addr::BROADCAST;
    let ip = prop_oneof![v4, v6].prop_filter("nobody", sendable);
    (ip, 1..=u16::MAX).prop_map(SocketAddr::from)
}

fn any_reply() -> impl Strategy<Value = Reply> {
    let status = prop::sample::select(vec![
        Status::Unknown,
        Status::Initializing,
        Status::Synchronized,
        Status::FreeRunning,
        Status::Unreliable,
        Status::KeyRequired,
        Status::NoSuchTimeline,
    ]);
    let silence = prop::option::of(0..u32::MAX - 1);
    let numbers = (any::<u8>(), any::<[i32; 2]>(), any::<u64>(), any::<u32>(), silence);
    let addresses = prop::collection::vec(any_address(), 0..=MAX_REFERRALS);
    (any_name(), status, any_errors(), any_errors(), numbers, addresses).prop_map(
        |(
            timeline,
            status,
            receive,
            transmit,
            (level, rates, epoch, generation, silence),
            addresses,
        )| {
            Reply {
                timeline,
                status,
                level,
                bounds: Bounds { receive, transmit },
                rate: RateLimits {
                    min_ppt: rates[0].min(rates[1]),
                    max_ppt: rates[0].max(rates[1]),
                },
                epoch,
                generation,
                silence: silence.map(|ms| Duration::from_millis(i64::from(ms))),
                referrals: Referrals::new(addresses),
            }
        },
    )
}

fn any_member() -> impl Strategy<Value = Option<Member>> {
    let asker = prop::sample::select(vec![Asker::New, Asker::Settled, Asker::Serving]);
    prop::option::of((asker, any::<u16>()).prop_map(|(asker, port)| Member { asker, port }))
}

proptest! {
    #[test]
    fn replies_round_trip(reply in any_reply()) {
        let bytes = reply_bytes(&reply, MAX_REFERRALS);
        prop_assert_eq!(Reply::parse(&only(&bytes)), Some(reply));
        prop_assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn requests_round_trip(timeline in any_name(), referrals in 0..=MAX_REFERRALS, member in any_member()) {
        let request = Request { timeline, referrals, member };
        prop_assert_eq!(Request::parse(&only(&request_bytes(&request))), Some(request));
    }

    #[test]
    fn reading_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in any::<u16>()) {
        for kind in [kind, KIND] {
            let field = ExtensionField { kind, body: &bytes };
            prop_assert_eq!(Request::parse(&field), None);
            prop_assert_eq!(Reply::parse(&field), None);
        }
        let mut fields = Fields::new(&bytes);
        let whole = fields.all(|field| field.is_ok()) && fields.mac().is_ok();
        prop_assert_eq!(whole, Tail::parse(&bytes).is_ok());
    }

    /// Damage behind the magic is read as something or refused, and what is read is written the
    /// same way again.
    #[test]
    fn what_is_read_can_be_written(reply in any_reply(), at in 8usize..MAX_LEN, with in any::<u8>()) {
        let mut bytes = reply_bytes(&reply, MAX_REFERRALS);
        let at = at % bytes.len();
        if at > 8 {
            bytes[at] = with;
        }
        if let Some(read) = Reply::parse(&only(&bytes)) {
            let again = reply_bytes(&read, MAX_REFERRALS);
            prop_assert_eq!(Reply::parse(&only(&again)), Some(read));
        }
    }
}
