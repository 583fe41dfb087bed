//! NTP packets captured from chronyd 4.3 (client with iburst, server with `local stratum 10`) on
//! the loopback, and the classic full request of the reference implementation's simple clients.

use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::{
    Client, Config, LeapIndicator, Mode, NtpShort, NtpTimestamp, Outcome, Packet, RejectReason,
};
use timevisor_time::{Duration, Instant};

use crate::server::stamps;

/// Sent by chronyd 4.3.
const CHRONY_REQUEST: &str = "2300062000000000000000000000000000000000000000000000000000000000\
                              00000000000000006a4cddaa25d1d282";
/// chronyd 4.3's answer to it.
const CHRONY_RESPONSE: &str = "240a06e600000000000000007f7f0101eeaac51a8b042ef06a4cddaa25d1d282\
                               eeaac51bc088fc15eeaac51bc08c8300";
/// LI 3, version 4, client, poll 3, precision -6, root delay and dispersion 1 s, then a real
/// transmit time.
const SNTP_REQUEST: &str = "e30003fa00010000000100000000000000000000000000000000000000000000\
                            0000000000000000eeaac51bc088fc15";

const COOKIE: u64 = 0x6a4c_ddaa_25d1_d282;

fn hex(text: &str) -> [u8; HEADER_LEN] {
    std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hexadecimal"))
}

#[test]
fn our_request_is_byte_for_byte_chronys() {
    let config = Config { poll_min: Duration::from_secs(64), ..Config::default() };
    let mut client = Client::<u64>::new(config, Duration::ZERO).unwrap();
    assert_eq!(client.on_timer(Duration::ZERO, COOKIE).unwrap().bytes[..], hex(CHRONY_REQUEST));
    assert_eq!(Packet::request(NtpTimestamp::from_bits(COOKIE), 6).to_bytes(), hex(CHRONY_REQUEST));
}

#[test]
fn chronys_answer_is_read_and_accepted() {
    let mut client = Client::new(Config::default(), Duration::ZERO).unwrap();
    let id = client.on_timer(Duration::ZERO, COOKIE).unwrap().id;
    client.sent(id);
    let about = Instant::from_unix_nanos(1_795_180_187_000_000_000);
    let bytes = hex(CHRONY_RESPONSE);
    let outcome = client.on_datagram(Duration::from_micros(250), &bytes, about, stamps);
    let Outcome::Exchange(exchange) = outcome else { panic!("not accepted: {outcome:?}") };
    assert_eq!((exchange.ta, exchange.tf), stamps(id));
    let r = exchange.response;
    assert_eq!(r.request_id, id);
    assert_eq!(r.tb.floor_nanos(), 1_795_180_187_752_090_220);
    assert_eq!(r.te.floor_nanos(), 1_795_180_187_752_144_038);
    assert_eq!((r.leap, r.stratum, r.precision), (LeapIndicator::NoWarning, 10, -26));
    assert_eq!(r.reference_id, [127, 127, 1, 1]);
    assert_eq!((r.root_delay, r.root_dispersion), (Duration::ZERO, Duration::ZERO));
    // 2^-26 s + 2^-32 s = 14.9 ns + 0.23 ns
    assert_eq!(r.error_budget().ceil_nanos(), 16);
}

#[test]
fn a_full_sntp_request_decodes_and_is_not_an_answer() {
    let bytes = hex(SNTP_REQUEST);
    let (packet, tail) = Packet::parse(&bytes).unwrap();
    assert!(tail.is_empty());
    assert_eq!(
        (packet.leap, packet.version, packet.mode),
        (LeapIndicator::Unsynchronized, 4, Mode::Client)
    );
    assert_eq!((packet.poll, packet.precision), (3, -6));
    assert_eq!(packet.root_delay, NtpShort::from_bits(0x10000));
    assert_eq!(packet.root_dispersion.to_duration(), Duration::from_secs(1));
    assert_eq!(packet.to_bytes(), bytes);
    let mut client = Client::new(Config::default(), Duration::ZERO).unwrap();
    let about = Instant::from_unix_nanos(0);
    assert_eq!(
        client.on_datagram(Duration::ZERO, &bytes, about, stamps),
        Outcome::Rejected(RejectReason::Mode)
    );
}
