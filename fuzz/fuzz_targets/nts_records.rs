//! The messages of NTS key establishment: what is accepted can be sent as it was understood, has
//! what a client needs, and no beginning of it is accepted.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::{decode, some_bytes};
use timevisor_protocols::nts::config::COOKIES;
use timevisor_protocols::nts::negotiation::{AES_SIV_CMAC_256, Answer, MAX_COOKIE, NTPV4};
use timevisor_protocols::nts::record::{
    AEAD_ALGORITHM, END_OF_MESSAGE, NEW_COOKIE, NEXT_PROTOCOL, NTP_PORT, NTP_SERVER, Record,
};

fuzz_target!(|data: &[u8]| {
    check_records(data);
    check_answer(data);
    decode(data, |u| {
        check_answer(&message(u)?);
        Ok(())
    });
});

fn check_records(bytes: &[u8]) {
    let (mut written, mut rest) = (Vec::new(), bytes);
    while let Some((record, after)) = Record::split(rest) {
        record.write(&mut written);
        assert!(record.numbers().is_none_or(|n| 2 * n.len() == record.body.len()));
        rest = after;
    }
    written.extend(rest);
    assert_eq!(written, bytes);
}

fn check_answer(bytes: &[u8]) {
    let Ok(Some(answer)) = Answer::parse(bytes) else { return };
    assert!((1..=COOKIES).contains(&answer.cookies.len()));
    assert!(answer.cookies.iter().all(|cookie| (1..=MAX_COOKIE).contains(&cookie.len())));
    assert_ne!(answer.ntp_port, Some(0));
    let plain = |b: u8| b.is_ascii_graphic() && b != b'/' && b != b'@';
    assert!(answer.ntp_server.as_deref().is_none_or(|s| !s.is_empty() && s.bytes().all(plain)));
    for cut in [bytes.len() - 1, bytes.len() / 2, bytes.len() / 3] {
        assert!(matches!(Answer::parse(&bytes[..cut]), Ok(None)));
    }
    assert!(Answer::parse(&[bytes, &[0]].concat()).is_err());
    assert_eq!(Answer::parse(&written(&answer)).ok().flatten().as_ref(), Some(&answer));
}

fn written(answer: &Answer) -> Vec<u8> {
    let mut message = Vec::new();
    let mut write = |kind, body: &[u8]| Record { critical: true, kind, body }.write(&mut message);
    write(NEXT_PROTOCOL, &NTPV4.to_be_bytes());
    write(AEAD_ALGORITHM, &AES_SIV_CMAC_256.to_be_bytes());
    answer.cookies.iter().for_each(|cookie| write(NEW_COOKIE, cookie));
    if let Some(server) = &answer.ntp_server {
        write(NTP_SERVER, server.as_bytes());
    }
    if let Some(port) = answer.ntp_port {
        write(NTP_PORT, &port.to_be_bytes());
    }
    write(END_OF_MESSAGE, &[]);
    message
}

/// What every answer must have, then records of few kinds, and an end.
fn message(u: &mut Unstructured) -> Result<Vec<u8>> {
    let mut message = Vec::new();
    let mut write = |kind, body: &[u8], critical| {
        Record { critical, kind, body }.write(&mut message);
    };
    write(NEXT_PROTOCOL, &NTPV4.to_be_bytes(), true);
    write(AEAD_ALGORITHM, &AES_SIV_CMAC_256.to_be_bytes(), true);
    for _ in 0..u.int_in_range(0..=12)? {
        match u.int_in_range(0..=3)? {
            0 => write(u.int_in_range(1..=9)?, some_bytes(u)?, u.arbitrary()?),
            1 => write(NTP_PORT, &u.arbitrary::<[u8; 2]>()?, true),
            _ => write(NEW_COOKIE, &vec![1; u.int_in_range(0..=1100)?], false),
        }
    }
    write(END_OF_MESSAGE, &[], true);
    Ok(message)
}
