//! The NTP header and what follows it: nothing is lost or invented between bytes and fields.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_protocols::ntp::extension::Tail;
use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::{NtpShort, NtpTimestamp, Packet};
use timevisor_time::Instant;

fuzz_target!(|data: &[u8]| {
    let parsed = Packet::parse(data);
    assert_eq!(parsed.is_ok(), data.len() >= HEADER_LEN);
    let Ok((packet, rest)) = parsed else { return };
    assert_eq!(packet.to_bytes(), data[..HEADER_LEN]);
    assert_eq!(rest, &data[HEADER_LEN..]);
    if let Ok(tail) = Tail::parse(rest) {
        assert_eq!(written(&tail), rest);
    }
    // The other stamps serve as "now": any era until far beyond ours.
    for near in [packet.reference, packet.origin] {
        let near = Instant::from_words(near.to_bits() >> 20, 0);
        for stamp in [packet.receive, packet.transmit] {
            let instant = stamp.to_instant(near);
            assert_eq!(NtpTimestamp::from_instant(instant), stamp);
            assert!((instant.secs() - near.secs()).abs() <= 1 << 31);
        }
    }
    for short in [packet.root_delay, packet.root_dispersion] {
        assert_eq!(NtpShort::from_duration_ceil(short.to_duration()), short);
    }
});

fn written(tail: &Tail) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in &tail.fields {
        bytes.extend(field.kind.to_be_bytes());
        let length = u16::try_from(field.body.len() + 4).expect("it was read from 16 bits");
        bytes.extend(length.to_be_bytes());
        bytes.extend(field.body);
    }
    bytes.extend(tail.mac.unwrap_or(&[]));
    bytes
}
