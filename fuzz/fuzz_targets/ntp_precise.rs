//! The field of precise bounds in arbitrary packets: what is read can be written and read again, a
//! reply fits into its request, and bounds that are taken say what the header says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_protocols::ntp::extension::{ExtensionField, Fields, Tail};
use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::ntp::precise::{KIND, MAX_LEN, MIN_LEN, Name, Reply, Request};
use timevisor_protocols::ntp::response::{Policy, Response};
use timevisor_protocols::ntp::{Datagram, NtpShort, Packet};
use timevisor_time::{Duration, Instant};

const ANY: Policy<'static> =
    Policy { max_distance: Duration::MAX, allow_smear: true, own_ids: &[] };

fuzz_target!(|data: &[u8]| {
    let Ok((packet, rest)) = Packet::parse(data) else { return };
    // The iterator and the parsed tail agree.
    let tail = Tail::parse(rest);
    let mut fields = Fields::new(rest);
    let listed: Result<Vec<_>, _> = fields.by_ref().collect();
    assert_eq!(tail.is_ok(), listed.is_ok() && fields.mac().is_ok());
    for field in listed.unwrap_or_default() {
        check_request(&packet, &field);
        check_reply(&packet, &field);
    }
    // Mutations rarely keep a field's type and length: the same bytes as a field of ours.
    let field = ExtensionField { kind: KIND, body: rest };
    check_request(&packet, &field);
    check_reply(&packet, &field);
});

fn check_request(header: &Packet, field: &ExtensionField<'_>) {
    let Some(request) = Request::parse(field) else { return };
    assert_eq!(field.kind, KIND);
    assert!(Reply::parse(field).is_none());
    let mut written = Datagram::new(header);
    request.write(&mut written);
    let len = written.len() - HEADER_LEN;
    assert!((MIN_LEN..=MAX_LEN).contains(&len) && len <= field.body.len() + 4);
    assert_eq!(Request::parse(&only(&written)), Some(request));
}

fn check_reply(header: &Packet, field: &ExtensionField<'_>) {
    let Some(reply) = Reply::parse(field) else { return };
    assert_eq!(field.kind, KIND);
    for room in [0, 3, 8] {
        let mut written = Datagram::new(header);
        reply.write(&mut written, room);
        let mut asked = Datagram::new(header);
        Request { timeline: reply.timeline, referrals: room, member: None }.write(&mut asked);
        assert!(written.len() <= asked.len(), "amplification");
        let again = Reply::parse(&only(&written)).expect("it was written here");
        assert_eq!(again.referrals.iter().count(), reply.referrals.iter().count().min(room));
        assert_eq!((again.bounds, again.rate, again.epoch), (reply.bounds, reply.rate, reply.epoch));
        if room == 8 {
            assert_eq!(again, reply);
        }
    }
    let found = Reply::find(&[*field], reply.timeline);
    assert_eq!(found, Some(reply));
    assert_eq!(Reply::find(&[*field, *field], reply.timeline), None);
    assert!(reply.timeline == Name::HOST || Reply::find(&[*field], Name::HOST).is_none());
    let about = Instant::from_unix_nanos(1_800_000_000_000_000_000);
    let Ok(response) = Response::check(header, 1, about, &ANY) else { return };
    if let Ok(bounds) = reply.bounds(&response) {
        assert!(reply.status.is_bounded() && bounds == reply.bounds);
        assert!(bounds.largest() <= response.stated_error());
        let distance = response.root_dispersion + response.root_delay.half();
        let rounding = NtpShort::RESOLUTION + NtpShort::RESOLUTION.half();
        assert!(bounds.largest() + rounding >= distance);
    }
}

fn only(packet: &Datagram) -> ExtensionField<'_> {
    let tail = Tail::parse(&packet[HEADER_LEN..]).expect("well formed");
    assert_eq!((tail.fields.len(), tail.mac), (1, None));
    tail.fields[0]
}
