//! Replies of chronyd: only to the question that was asked, and with an error that is never below
//! what it says itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_protocols::chrony::tracking::PACKET_LEN;
use timevisor_protocols::chrony::{Float, LeapStatus, ReplyError, parse_reply, request};
use timevisor_time::Duration;

/// Where the sequence number is in a reply.
const SEQUENCE: std::ops::Range<usize> = 16..20;

fuzz_target!(|data: &[u8]| {
    let sequence = data.get(SEQUENCE).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    assert!(parse_reply(&request(sequence), sequence).is_err(), "a request is no reply");
    check(data, sequence);
    // The same as a reply that is well-formed up to its content.
    if let Some(content) = data.get(28..) {
        let mut reply =
            [&[6, 2, 0, 0, 0, 33, 0, 5], &[0; 8][..], &data[SEQUENCE], &[0; 8]].concat();
        reply.extend(content);
        check(&reply, sequence);
    }
    for word in data.as_chunks().0 {
        check_float(Float::from_be_bytes(*word));
    }
});

fn check(reply: &[u8], sequence: u32) {
    let tracking = match parse_reply(reply, sequence) {
        Ok(tracking) => tracking,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(reply.len() + 4 >= PACKET_LEN);
    assert_eq!(parse_reply(reply, !sequence), Err(ReplyError::Sequence));
    if let Ok(error) = tracking.error() {
        assert!(error >= tracking.root_dispersion && error >= tracking.root_delay.half());
        assert!(!error.is_negative() && tracking.leap != LeapStatus::Unsynchronized);
    }
}

/// Never nearer to zero than chronyd said, and no more than a unit further.
fn check_float(float: Float) {
    let (exact, said) = (float.seconds().as_secs_f64(), float.to_f64());
    assert!(said.is_finite() && exact.abs() >= said.abs() * (1.0 - 1e-12));
    assert!((exact - said).abs() <= said.abs() * 1e-12 + Duration::EPSILON.as_secs_f64());
}
