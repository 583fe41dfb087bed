//! Requests and answers of one association.

use timevisor_protocols::ntp::packet::HEADER_LEN;
use timevisor_protocols::nts::field::{self, UNIQUE_IDENTIFIER};
use timevisor_protocols::nts::{Association, Config, Refusal, Status};
use timevisor_time::Duration;

use crate::server::{
    Asked, answer, answer_header, association, established, header, key, kiss, random, take_apart,
};

fn ask(association: &mut Association, n: u8) -> Asked {
    take_apart(&association.seal(&header(), &random(n)).expect("there are cookies"))
}

#[test]
fn a_request_has_the_header_and_each_field_once() {
    let mut association = association(8, 100);
    let bytes = association.seal(&header(), &random(9)).unwrap();
    // Identifier 4 + 32, cookie 4 + 100, authenticator 4 + 4 + 16 + 16.
    assert_eq!(bytes.len(), HEADER_LEN + 36 + 104 + 40);
    let asked = take_apart(&bytes);
    assert_eq!((asked.header, asked.identifier), (header(), vec![9; 32]));
    assert_eq!((asked.cookie, asked.placeholders), (vec![1; 100], vec![]));
}

#[test]
fn lost_answers_are_made_up_for_with_placeholders() {
    let mut association = association(8, 100);
    let counts: Vec<_> = (0..8).map(|n| ask(&mut association, n).placeholders.len()).collect();
    assert_eq!(counts, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(association.needs_keys());
    assert_eq!(association.seal(&header(), &random(8)), None);
    assert_eq!(association.status(Duration::ZERO), Status::NoCookies);
}

#[test]
fn placeholders_are_as_long_as_the_cookie_and_the_packet_fits() {
    let mut association = association(8, 400);
    for n in 0..8 {
        let bytes = association.seal(&header(), &random(n)).unwrap();
        let asked = take_apart(&bytes);
        assert!(bytes.len() <= Config::default().max_request, "{} bytes", bytes.len());
        // Of 1232 bytes, 48 + 36 + 404 + 40 are taken; one placeholder of 404 fits.
        assert_eq!(asked.placeholders, vec![400; usize::from(n.min(1))]);
    }
}

#[test]
fn an_answer_gives_its_header_and_refills_the_store() {
    let mut association = association(2, 100);
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..50_u8 {
        let asked = ask(&mut association, n);
        assert!(seen.insert(asked.cookie.clone()), "a cookie was sent twice");
        let cookies: Vec<_> = (0..=asked.placeholders.len())
            .map(|i| vec![100 + n, u8::try_from(i).unwrap(), 9, 9])
            .collect();
        let opened = association.open(&answer(&asked, &cookies)).unwrap();
        assert_eq!(opened, answer_header(&asked));
        let status = association.status(Duration::from_secs(3));
        assert_eq!(status, Status::Authenticated { cookies: 8, age: Duration::from_secs(3) });
    }
    assert_eq!(association.counters().authenticated, 50);
}

#[test]
fn cookies_outside_the_encryption_are_not_taken() {
    let mut association = association(3, 100);
    let asked = ask(&mut association, 1);
    let mut packet = answer_header(&asked).to_vec();
    field::write(&mut packet, UNIQUE_IDENTIFIER, &asked.identifier);
    field::write(&mut packet, field::COOKIE, &[9; 100]);
    field::write_authenticator(&mut packet, &key(2), &[1; 16], &[]).unwrap();
    association.open(&packet).unwrap();
    assert_eq!(ask(&mut association, 2).cookie, [2; 100]);
    assert_eq!(ask(&mut association, 3).cookie, [3; 100]);
    assert!(association.needs_keys());
}

#[test]
fn foreign_fields_are_passed_over_in_and_outside_the_encryption() {
    let mut association = association(1, 100);
    let asked = ask(&mut association, 1);
    let mut inner = Vec::new();
    field::write(&mut inner, 0x2005, &[1; 20]);
    field::write(&mut inner, field::COOKIE, &[5; 100]);
    let mut packet = answer_header(&asked).to_vec();
    field::write(&mut packet, 0x2005, &[1; 20]);
    field::write(&mut packet, UNIQUE_IDENTIFIER, &asked.identifier);
    // A nonce of another length than ours is the sender's right.
    let sealed = key(2).seal(&[3; 12], &packet, &inner).unwrap();
    let mut body = vec![0, 12];
    body.extend(u16::try_from(sealed.len()).unwrap().to_be_bytes());
    body.extend([3; 12]);
    body.extend(sealed);
    field::write(&mut packet, field::AUTHENTICATOR, &body);
    association.open(&packet).unwrap();
    assert_eq!(ask(&mut association, 2).cookie, [5; 100]);
}

/// What an attacker on the path can do to an answer, and how it is counted.
#[test]
fn nothing_but_an_authentic_answer_gets_through() {
    type Attack = fn(&Asked) -> Vec<u8>;
    let attacks: &[(&str, Refusal, Attack)] = &[
        ("plain answer", Refusal::Unauthenticated, |a| answer_header(a).to_vec()),
        ("authenticator stripped", Refusal::Unauthenticated, |a| {
            answer(a, &[])[..HEADER_LEN + 36].to_vec()
        }),
        ("identifier stripped", Refusal::Unauthenticated, |a| {
            let whole = answer(a, &[]);
            [&whole[..HEADER_LEN], &whole[HEADER_LEN + 36..]].concat()
        }),
        ("wrong identifier", Refusal::UnknownIdentifier, |a| {
            answer(&Asked { identifier: vec![0; 32], ..copy(a) }, &[])
        }),
        ("short identifier", Refusal::UnknownIdentifier, |a| {
            answer(&Asked { identifier: a.identifier[..28].to_vec(), ..copy(a) }, &[])
        }),
        ("identifier twice", Refusal::Malformed, |a| {
            let whole = answer(a, &[]);
            [&whole[..HEADER_LEN + 36], &whole[HEADER_LEN..]].concat()
        }),
        ("something behind", Refusal::Malformed, |a| {
            let mut whole = answer(a, &[]);
            field::write(&mut whole, 0x2005, &[0; 12]);
            whole
        }),
        ("a MAC behind", Refusal::Malformed, |a| [answer(a, &[]), vec![0; 20]].concat()),
        ("cut off", Refusal::Malformed, |a| {
            let whole = answer(a, &[]);
            whole[..whole.len() - 4].to_vec()
        }),
        ("our own key", Refusal::Forged, |a| {
            let mut packet = answer_header(a).to_vec();
            field::write(&mut packet, UNIQUE_IDENTIFIER, &a.identifier);
            field::write_authenticator(&mut packet, &key(1), &[1; 16], &[]).unwrap();
            packet
        }),
        ("RATE, not authenticated", Refusal::Unauthenticated, |a| kiss(a, *b"RATE")),
        ("DENY, not authenticated", Refusal::Unauthenticated, |a| kiss(a, *b"DENY")),
        ("nothing", Refusal::Malformed, |_| vec![]),
    ];
    for (what, reason, attack) in attacks {
        let mut association = association(2, 100);
        let asked = ask(&mut association, 1);
        assert_eq!(association.open(&attack(&asked)), Err(*reason), "{what}");
        assert_eq!(association.counters().refused_for(*reason), 1, "{what}");
        assert_eq!(
            association.status(Duration::ZERO),
            Status::Refused { reason: *reason },
            "{what}"
        );
        // It does not end the request: the true answer is still taken.
        assert_eq!(
            association.open(&answer(&asked, &[])),
            Ok(answer_header(&asked).to_vec()),
            "{what}"
        );
        assert_eq!(association.status(Duration::ZERO).name(), "authenticated", "{what}");
    }
}

fn copy(asked: &Asked) -> Asked {
    Asked {
        header: asked.header,
        identifier: asked.identifier.clone(),
        cookie: asked.cookie.clone(),
        placeholders: asked.placeholders.clone(),
    }
}

#[test]
fn one_answer_per_request() {
    let mut association = association(3, 100);
    let first = ask(&mut association, 1);
    let late = answer(&first, &[]);
    let second = ask(&mut association, 2);
    assert_eq!(association.open(&late), Err(Refusal::UnknownIdentifier));
    let answered = answer(&second, &[]);
    assert!(association.open(&answered).is_ok());
    assert_eq!(association.open(&answered), Err(Refusal::NotAwaited));
}

#[test]
fn a_kiss_that_is_authentic_reaches_the_client() {
    let mut association = association(1, 100);
    let asked = ask(&mut association, 1);
    let mut packet = kiss(&asked, *b"RATE");
    field::write_authenticator(&mut packet, &key(2), &[1; 16], &[]).unwrap();
    assert_eq!(association.open(&packet).unwrap()[12..16], *b"RATE");
}

#[test]
fn a_nak_has_keys_established_anew() {
    let mut association = association(8, 100);
    let asked = ask(&mut association, 1);
    assert_eq!(association.open(&kiss(&asked, *b"NTSN")), Err(Refusal::Nak));
    assert!(association.needs_keys());
    assert_eq!(association.seal(&header(), &random(2)), None, "no further cookie is spent");
    association.exchange_began(Duration::from_secs(20));
    association.established(Duration::from_secs(20), established([vec![50; 100]].into_iter()));
    assert_eq!(ask(&mut association, 3).cookie, [50; 100]);
}

#[test]
fn an_authentic_answer_refutes_a_nak() {
    let mut association = association(8, 100);
    let asked = ask(&mut association, 1);
    assert_eq!(association.open(&kiss(&asked, *b"NTSN")), Err(Refusal::Nak));
    assert_eq!(association.status(Duration::ZERO), Status::Nak);
    assert!(association.open(&answer(&asked, &[])).is_ok());
    assert!(!association.needs_keys());
}

#[test]
fn a_nak_to_no_request_of_ours_has_no_effect() {
    let mut association = association(8, 100);
    let asked = ask(&mut association, 1);
    let stranger = Asked { identifier: vec![0; 32], ..copy(&asked) };
    assert_eq!(association.open(&kiss(&stranger, *b"NTSN")), Err(Refusal::UnknownIdentifier));
    assert!(!association.needs_keys());
}

#[test]
fn keys_that_never_work_are_renewed_ever_more_rarely() {
    let mut association = Association::new(Config::default()).unwrap();
    let mut gaps = Vec::new();
    let mut now = Duration::ZERO;
    for _ in 0..4 {
        association.exchange_began(now);
        association.established(now, established([vec![1; 100]].into_iter()));
        let asked = ask(&mut association, 1);
        association.open(&kiss(&asked, *b"NTSN")).unwrap_err();
        gaps.push((association.exchange_at() - now).as_secs_f64());
        now = association.exchange_at();
    }
    assert_eq!(gaps, [10.0, 15.0, 22.5, 33.75]);
    // One authentic answer, and the next establishment may follow soon.
    association.exchange_began(now);
    association.established(now, established([vec![1; 100]].into_iter()));
    let asked = ask(&mut association, 2);
    association.open(&answer(&asked, &[])).unwrap();
    assert_eq!(association.exchange_at(), now + Duration::from_secs(10));
}

#[test]
fn without_keys_nothing_is_sealed_or_opened() {
    let mut association = Association::new(Config::default()).unwrap();
    assert!(association.needs_keys());
    assert_eq!(association.status(Duration::ZERO), Status::NoKeys);
    assert_eq!(association.seal(&header(), &random(1)), None);
    assert_eq!(association.open(&[0; 100]), Err(Refusal::NotAwaited));
}
