use proptest::prelude::*;

use super::*;

const SEQUENCE: u32 = 0xdeca_fbad;

/// Captured from chronyd 4.3 (`-x`, following another chronyd over the loopback).
/// `chronyc -c tracking` said in the same second:
/// `7F000001,127.0.0.1,2,1795191151.500422532,-0.000001090,...,-0.004,-0.000,0.022,0.000006150,0.000000770,1.0,Normal`.
const SYNCHRONIZED: &str = "06020000002100050000000000000000decafbad00000000000000007f0000017f00000100000000000000\
    00000000000001000000020000000000006b00716f1dd3d784dd6db28cd1133476d2d1c6a0f30a24f7ed1d5a60f8b6cf32e0ce5c19dacc64c904\
    81ef66";
/// The same chronyd without its server.
const UNSYNCHRONIZED: &str = "06020000002100050000000000000000decafbad0000000000000000000000000000000000000000000000000000\
    00000000000000000003000000000000000000000000000000000000000000000000000000000000000000000000048000000480000000000000";
/// With `local stratum 10` and no server.
const LOCAL: &str = "06020000002100050000000000000000decafbad00000000000000007f7f0101000000000000000000000000000000000000\
    0000000a0000000000006b00717124b7d4c3000000000000000000000000000000000000000000000000000000000000000000000000";
/// To `makestep` over UDP: STT_UNAUTH.
const REFUSED: &str = "06020000002b00010002000000000000decafbad0000000000000000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

fn close(span: Duration, nanos: i64) {
    let off = (span.floor_nanos() - nanos).abs();
    assert!(off <= 1, "{span} is {off} ns from {nanos} ns");
}

#[test]
fn the_request_is_the_one_chronyc_sends() {
    let request = request(SEQUENCE);
    assert_eq!(request[..12], [6, 1, 0, 0, 0, 33, 0, 0, 0xde, 0xca, 0xfb, 0xad]);
    assert!(request[12..].iter().all(|b| *b == 0));
    assert_eq!(request.len(), bytes(SYNCHRONIZED).len(), "padded to the length of the reply");
}

#[test]
fn a_real_reply_says_what_chronyc_printed() {
    let tracking = parse_reply(&bytes(SYNCHRONIZED), SEQUENCE).unwrap();
    assert_eq!(tracking.reference_id, 0x7f00_0001);
    assert_eq!((tracking.stratum, tracking.leap), (2, LeapStatus::Normal));
    assert_eq!(tracking.reference_time, Instant::from_unix_nanos(1_795_191_151_500_422_532));
    close(tracking.correction, -1090);
    close(tracking.root_delay, 6150);
    // It grows: 761 ns in this reply, 770 ns in the one that chronyc printed a moment later.
    close(tracking.root_dispersion, 761);
    assert!((tracking.frequency_ppm.to_f64() + 0.004).abs() < 0.001);
    assert!((tracking.skew_ppm.to_f64() - 0.022).abs() < 0.001);
    close(tracking.error().unwrap(), 761 + 6150 / 2);
}

#[test]
fn chronyd_without_sources_is_no_reference() {
    let lost = parse_reply(&bytes(UNSYNCHRONIZED), SEQUENCE).unwrap();
    assert_eq!(lost.error(), Err(Unusable::Unsynchronized));
    // It then claims no error at all, with a normal leap status.
    let local = parse_reply(&bytes(LOCAL), SEQUENCE).unwrap();
    assert_eq!((local.leap, local.root_dispersion), (LeapStatus::Normal, Duration::ZERO));
    assert_eq!(local.error(), Err(Unusable::Local));
}

#[test]
fn what_is_not_the_reply_is_refused_by_reason() {
    let good = bytes(SYNCHRONIZED);
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        parse_reply(&bytes, SEQUENCE)
    };
    assert_eq!(changed(0, 5), Err(ReplyError::Version));
    assert_eq!(changed(1, 1), Err(ReplyError::NotTracking));
    assert_eq!(changed(5, 34), Err(ReplyError::NotTracking));
    assert_eq!(changed(7, 6), Err(ReplyError::NotTracking));
    assert_eq!(changed(9, 2), Err(ReplyError::Refused(2)));
    assert_eq!(changed(55, 4), Err(ReplyError::Malformed));
    assert_eq!(changed(59, 3), Err(ReplyError::Malformed));
    assert_eq!(changed(64, 0xff), Err(ReplyError::Malformed));
    assert_eq!(parse_reply(&good, SEQUENCE + 1), Err(ReplyError::Sequence));
    assert_eq!(parse_reply(&good[..99], SEQUENCE), Err(ReplyError::TooShort));
    assert!(parse_reply(&good[..100], SEQUENCE).is_ok());
    let mut makestep = bytes(REFUSED);
    assert_eq!(parse_reply(&makestep, SEQUENCE), Err(ReplyError::NotTracking));
    makestep[5] = 33;
    assert_eq!(parse_reply(&makestep, SEQUENCE), Err(ReplyError::Refused(2)));
    // A negative dispersion (the coefficient's sign) is no bound.
    let negative = changed(96, 0xdb).unwrap();
    assert_eq!(negative.error(), Err(Unusable::NegativeError));
}

#[test]
fn seconds_without_a_high_word_are_of_1970_to_2106() {
    let mut reply = bytes(SYNCHRONIZED);
    reply[56..60].copy_from_slice(&NO_HIGH_SECONDS.to_be_bytes());
    let tracking = parse_reply(&reply, SEQUENCE).unwrap();
    assert_eq!(tracking.reference_time.secs(), 1_795_191_151);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_and_no_error_is_negative(tail in proptest::collection::vec(any::<u8>(), 0..160)) {
        let _ = parse_reply(&tail, SEQUENCE);
        // Also beyond the header checks.
        let mut reply = bytes(SYNCHRONIZED);
        let length = reply.len().min(28 + tail.len());
        reply[28..length].copy_from_slice(&tail[..length - 28]);
        if let Ok(Ok(error)) = parse_reply(&reply, SEQUENCE).map(|t| t.error()) {
            prop_assert!(!error.is_negative());
        }
    }
}
