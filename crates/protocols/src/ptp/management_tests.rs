use proptest::prelude::*;
use timevisor_time::Duration;

use super::*;
use crate::ptp::datasets::PortState;
use crate::ptp::{Query, State};

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
fn five_real_replies_make_a_state() {
    let mut query = Query::new(0, 0);
    let requests = query.begin();
    assert_eq!(requests.len(), 5);
    assert!(requests.iter().all(|r| r[31] == 1));
    let replies = [CURRENT, PARENT, TIME_STATUS, TIME_PROPERTIES];
    for reply in replies {
        assert_eq!(query.on_datagram(&numbered(reply, 1)), Ok(None));
    }
    let state = query.on_datagram(&numbered(PORT, 1)).unwrap().unwrap();
    let expected = State {
        port: PortState::Uncalibrated,
        steps_removed: 1,
        mean_path_delay: Duration::from_nanos(2373),
        grandmaster_accuracy: 0x21,
        grandmaster_class: 6,
        utc_offset: Some(37),
        ptp_timescale: true,
        master_offset_ns: 36_999_999_650,
        ingress_ns: 1_795_191_282_674_521_745,
        grandmaster_present: true,
    };
    assert_eq!(state, expected);
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
    for reply in [CURRENT, PARENT, TIME_PROPERTIES] {
        query.on_datagram(&numbered(reply, 1)).unwrap();
    }
    let state = query.on_datagram(&numbered(TIME_STATUS, 1)).unwrap().unwrap();
    assert_eq!(state.port, PortState::Slave);
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
    short[51] = 2 + 41;
    assert_eq!(query.on_datagram(&short), Err(MessageError::ShortData));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(tail in proptest::collection::vec(any::<u8>(), 0..120), length in any::<u8>()) {
        let _ = parse(&tail);
        for reply in [CURRENT, PARENT, TIME_PROPERTIES, PORT, TIME_STATUS] {
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
