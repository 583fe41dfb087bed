use proptest::prelude::*;
use timevisor_time::Duration;

use super::*;
use crate::ptp::{Master, PortIdentity, PortState, Query, State, TimeProperties};

/// Captured from ptp4l 3.1.1 (software stamps, `free_running 1`), asked with sequence numbers 1
/// to 5.
const CURRENT: &str = "0d0200480000000000000000000000000000000032b038fffe9ccf0a00000001047f0000000054565352000100000200\
    000100142001000100089d5f319300000000000009450000";
const PARENT: &str = "0d0200560000000000000000000000000000000032b038fffe9ccf0a00000002047f0000000054565352000100000200000\
    10022200256ce51fffe175f8400010000ffff7fffffff800621ffff8056ce51fffe175f84";
const TIME_PROPERTIES: &str = "0d02003a0000000000000000000000000000000032b038fffe9ccf0a00000003047f0000000054565352000100\
    00020000010006200300253c20";
const PORT: &str = "0d0200500000000000000000000000000000000032b038fffe9ccf0a00010004047f00000000545653520001000002000001001c\
    200432b038fffe9ccf0a000108fd0000000000000000ff03fd010002";
const TIME_STATUS: &str = "0d0200680000000000000000000000000000000032b038fffe9ccf0a00000005047f000000005456535200010000020000\
    010034c000000000089d5f30a218e9ccf5d3b15691000000000000000000000000000000000000000000000000000156ce51fffe175f84";
/// clockClass 6, accuracy 0x21, variance 0xffff, utc_offset 37, no flags, internal oscillator.
const SETTINGS: &str = "0d02003e0000000000000000000000000000000032b038fffe9ccf0a00000006047f0000000054565352000100000200\
    0001000ac0010621ffff002500a0";
/// To a GET of PORT_HWCLOCK_NP, which linuxptp 3.1 does not know: NO_SUCH_ID.
const REFUSED: &str = "0d02003c0000000000000000000000000000000032b038fffe9ccf0a00010006047f000000005456535200010000020000020008\
    0002c00900000000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

/// With the sequence number that the query expects.
fn numbered(hex: &str, sequence: u16) -> Vec<u8> {
    let mut bytes = bytes(hex);
    bytes[30..32].copy_from_slice(&sequence.to_be_bytes());
    bytes
}

#[test]
fn a_get_is_what_the_standard_says() {
    let expected = bytes(
        "0d02003600000000000000000000000000000000000000005456535200010007047fffffffffffffffffffff0000000000010002c000",
    );
    assert_eq!(get(Id::TimeStatus, 0, 0, 7).to_vec(), expected);
    let other = get(Id::Port, 24, 1, 0x0102);
    assert_eq!((other[0], other[4], other[30], other[31]), (0x1d, 24, 1, 2));
    assert_eq!(other[52..], [0x20, 0x04]);
}

#[test]
fn six_real_replies_make_a_state() {
    let mut query = Query::new(0, 0);
    let requests = query.begin();
    assert_eq!(requests.len(), 6);
    assert!(requests.iter().all(|r| r[31] == 1));
    let replies = [CURRENT, PARENT, TIME_STATUS, TIME_PROPERTIES, SETTINGS];
    for reply in replies {
        assert_eq!(query.on_datagram(&numbered(reply, 1)), Ok(None));
    }
    let state = query.on_datagram(&numbered(PORT, 1)).unwrap().unwrap();
    let grandmaster = [0x56, 0xce, 0x51, 0xff, 0xfe, 0x17, 0x5f, 0x84];
    let parent = PortIdentity { clock: grandmaster, port: 1 };
    let expected = State {
        port: PortState::Uncalibrated,
        master: Master { grandmaster, parent },
        measured_grandmaster: grandmaster,
        steps_removed: 1,
        mean_path_delay: Duration::from_nanos(2373),
        grandmaster_accuracy: 0x21,
        grandmaster_class: 6,
        time: TimeProperties {
            utc_offset: 37,
            utc_offset_valid: true,
            leap: 0,
            ptp_timescale: true,
            traceable: true,
        },
        own_utc_offset: 37,
        master_offset_ns: 36_999_999_650,
        ingress_ns: 1_795_191_282_674_521_745,
        grandmaster_present: true,
    };
    assert_eq!(state, expected);
    assert_eq!(state.master.to_string(), "56ce51.fffe.175f84");
    let behind = Master { parent: PortIdentity { clock: [1; 8], port: 2 }, ..state.master };
    assert_eq!(behind.to_string(), "56ce51.fffe.175f84 through 010101.0101.010101-2");
    // A new round forgets the old one, and refuses its stragglers.
    query.begin();
    assert_eq!(query.on_datagram(&numbered(PORT, 1)), Err(MessageError::NotForUs));
    assert_eq!(query.on_datagram(&numbered(PORT, 2)), Ok(None));
}

#[test]
fn of_several_ports_the_one_that_follows_decides() {
    let port = |state: u8| {
        let mut bytes = numbered(PORT, 1);
        bytes[64] = state;
        bytes
    };
    let mut query = Query::new(0, 0);
    query.begin();
    for state in [6, 9, 4] {
        query.on_datagram(&port(state)).unwrap();
    }
    for reply in [CURRENT, PARENT, TIME_PROPERTIES, SETTINGS] {
        query.on_datagram(&numbered(reply, 1)).unwrap();
    }
    let state = query.on_datagram(&numbered(TIME_STATUS, 1)).unwrap().unwrap();
    assert_eq!(state.port, PortState::Slave);
}

/// Such a ptp4l leaves meanPathDelay at zero.
#[test]
fn with_peer_to_peer_the_delay_is_the_neighbours() {
    let mut query = Query::new(0, 0);
    query.begin();
    let mut port = numbered(PORT, 1);
    port[77] = 2;
    // 1500 ns, in units of 2^-16 ns.
    port[66..74].copy_from_slice(&(1_500_i64 << 16).to_be_bytes());
    query.on_datagram(&port).unwrap();
    let mut current = numbered(CURRENT, 1);
    current[64..72].fill(0);
    for reply in [current, numbered(PARENT, 1), numbered(TIME_PROPERTIES, 1), numbered(SETTINGS, 1)]
    {
        query.on_datagram(&reply).unwrap();
    }
    let state = query.on_datagram(&numbered(TIME_STATUS, 1)).unwrap().unwrap();
    assert_eq!(state.mean_path_delay, Duration::from_nanos(1_500));
}

#[test]
fn flags_are_told_apart() {
    let flags = |byte: u8| {
        let mut query = Query::new(0, 0);
        query.begin();
        let mut properties = numbered(TIME_PROPERTIES, 1);
        properties[56] = byte;
        for reply in [CURRENT, PARENT, SETTINGS, PORT, TIME_STATUS] {
            query.on_datagram(&numbered(reply, 1)).unwrap();
        }
        let time = query.on_datagram(&properties).unwrap().unwrap().time;
        (time.leap, time.utc_offset_valid, time.ptp_timescale, time.traceable)
    };
    assert_eq!(flags(0), (0, false, false, false));
    assert_eq!(flags(0x01), (1, false, false, false));
    assert_eq!(flags(0x02), (-1, false, false, false));
    assert_eq!(flags(0x04), (0, true, false, false));
    assert_eq!(flags(0x08), (0, false, true, false));
    assert_eq!(flags(0x10), (0, false, false, true));
}

#[test]
fn what_is_no_reply_is_refused_by_reason() {
    let good = bytes(PORT);
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        parse(&bytes).map(|m| m.id)
    };
    assert_eq!(parse(&good).unwrap().id, Id::Port);
    assert_eq!(changed(0, 0x00), Err(MessageError::NotManagement));
    assert_eq!(changed(1, 0x01), Err(MessageError::NotManagement));
    assert_eq!(changed(3, 0xff), Err(MessageError::TooShort));
    assert_eq!(changed(40, 0x00), Err(MessageError::NotForUs));
    assert_eq!(changed(46, 0x00), Err(MessageError::NotForUs));
    assert_eq!(changed(49, 0x03), Err(MessageError::NotForUs));
    assert_eq!(changed(51, 0xff), Err(MessageError::TooShort));
    assert_eq!(changed(51, 0x01), Err(MessageError::TooShort));
    assert_eq!(changed(53, 0x05), Err(MessageError::OtherId));
    assert_eq!(parse(&bytes(REFUSED)), Err(MessageError::Refused(2)));
    // A data set that ends before its last field.
    let mut query = Query::new(0, 0);
    query.begin();
    let mut short = numbered(TIME_STATUS, 1);
    short[51] = 2 + 49;
    assert_eq!(query.on_datagram(&short), Err(MessageError::ShortData));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(tail in proptest::collection::vec(any::<u8>(), 0..120), length in any::<u8>()) {
        let _ = parse(&tail);
        for reply in [CURRENT, PARENT, TIME_PROPERTIES, SETTINGS, PORT, TIME_STATUS] {
            let mut query = Query::new(0, 0);
            query.begin();
            let mut bytes = numbered(reply, 1);
            bytes[51] = length;
            bytes.truncate(54);
            bytes.extend(&tail);
            bytes[3] = 0;
            bytes[2] = 0;
            let _ = query.on_datagram(&bytes);
        }
    }
}
