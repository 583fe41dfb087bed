//! The messages of key establishment: golden bytes, and what must be refused.

use proptest::prelude::*;
use timevisor_protocols::nts::KeyError;
use timevisor_protocols::nts::negotiation::{Answer, MAX_COOKIE, request};
use timevisor_protocols::nts::record::{
    AEAD_ALGORITHM, ERROR, NEW_COOKIE, NEXT_PROTOCOL, NTP_PORT, NTP_SERVER, WARNING,
};

use crate::server::{good_answer, message};

/// Critical, type, body.
type Written<'a> = (bool, u16, &'a [u8]);

const END: Written<'_> = (true, 0, &[]);
const PROTOCOL: Written<'_> = (true, NEXT_PROTOCOL, &[0, 0]);
const ALGORITHM: Written<'_> = (true, AEAD_ALGORITHM, &[0, 15]);
const A_COOKIE: Written<'_> = (false, NEW_COOKIE, &[7; 64]);

/// RFC 8915 section 4.1: critical type, length, body.
#[test]
fn our_request_byte_for_byte() {
    let golden = [0x80, 1, 0, 2, 0, 0, 0x80, 4, 0, 2, 0, 15, 0x80, 0, 0, 0];
    assert_eq!(request(), golden);
}

#[test]
fn a_full_answer() {
    let bytes = message(&[
        PROTOCOL,
        ALGORITHM,
        (false, 0x4001, b"experimental and not critical"),
        (false, 1024, &[]),
        (true, NTP_SERVER, b"ntp.example.net"),
        (false, NTP_PORT, &[0, 124]),
        A_COOKIE,
        END,
    ]);
    let answer = Answer::parse(&bytes).unwrap().unwrap();
    assert_eq!(
        answer,
        Answer {
            cookies: vec![vec![7; 64]],
            ntp_server: Some("ntp.example.net".to_owned()),
            ntp_port: Some(124)
        }
    );
}

#[test]
fn cookies_beyond_eight_and_unusable_ones_are_dropped() {
    let long = vec![1; MAX_COOKIE + 1];
    let mut records =
        vec![PROTOCOL, ALGORITHM, (false, NEW_COOKIE, &long), (false, NEW_COOKIE, &[])];
    records.extend([A_COOKIE; 10]);
    records.push(END);
    let answer = Answer::parse(&message(&records)).unwrap().unwrap();
    assert_eq!(answer.cookies, vec![vec![7; 64]; 8]);
}

#[test]
fn every_fault_has_its_reason() {
    let malformed = |what| KeyError::Malformed { what };
    let wrong: &[(&[Written<'_>], KeyError)] = &[
        (&[PROTOCOL, ALGORITHM, END], KeyError::NoCookie),
        (&[PROTOCOL, A_COOKIE, END], KeyError::NoAlgorithm),
        (&[PROTOCOL, (true, AEAD_ALGORITHM, &[]), A_COOKIE, END], KeyError::NoAlgorithm),
        (
            &[PROTOCOL, (true, AEAD_ALGORITHM, &[0, 30]), A_COOKIE, END],
            malformed("an algorithm that we did not offer"),
        ),
        (
            &[PROTOCOL, (true, AEAD_ALGORITHM, &[0, 15, 0, 15]), A_COOKIE, END],
            malformed("an algorithm that we did not offer"),
        ),
        (&[PROTOCOL, (true, AEAD_ALGORITHM, &[15]), END], malformed("AEAD algorithm")),
        (&[PROTOCOL, ALGORITHM, ALGORITHM, A_COOKIE, END], malformed("AEAD algorithm")),
        (&[ALGORITHM, A_COOKIE, END], malformed("no next protocol")),
        (&[(true, NEXT_PROTOCOL, &[]), ALGORITHM, A_COOKIE, END], KeyError::NoNtp),
        (
            &[(true, NEXT_PROTOCOL, &[0, 1]), ALGORITHM, A_COOKIE, END],
            malformed("a protocol that we did not offer"),
        ),
        (&[PROTOCOL, PROTOCOL, ALGORITHM, A_COOKIE, END], malformed("next protocol")),
        (&[(true, ERROR, &[0, 1])], KeyError::ServerError { code: 1 }),
        (
            &[PROTOCOL, ALGORITHM, A_COOKIE, (true, ERROR, &[0, 2]), END],
            KeyError::ServerError { code: 2 },
        ),
        (&[(true, ERROR, &[])], malformed("error")),
        (
            &[PROTOCOL, ALGORITHM, A_COOKIE, (true, WARNING, &[0, 9]), END],
            KeyError::Warning { code: 9 },
        ),
        (&[PROTOCOL, (true, 0x4001, &[])], KeyError::UnknownCritical { kind: 0x4001 }),
        (&[PROTOCOL, ALGORITHM, A_COOKIE, (true, NTP_PORT, &[0, 0]), END], malformed("NTP port")),
        (&[PROTOCOL, ALGORITHM, A_COOKIE, (true, NTP_PORT, &[9]), END], malformed("NTP port")),
        (&[PROTOCOL, ALGORITHM, A_COOKIE, (true, NTP_SERVER, b""), END], malformed("NTP server")),
        (
            &[PROTOCOL, ALGORITHM, A_COOKIE, (true, NTP_SERVER, b"a b"), END],
            malformed("NTP server"),
        ),
        (&[PROTOCOL, ALGORITHM, A_COOKIE, (true, 0, &[0])], malformed("end of message")),
        (&[PROTOCOL, ALGORITHM, A_COOKIE, END, A_COOKIE], malformed("end of message")),
    ];
    for (records, error) in wrong {
        assert_eq!(Answer::parse(&message(records)).unwrap_err(), *error, "{records:?}");
        assert!(error.to_string().contains("server"), "{error}");
    }
}

#[test]
fn no_beginning_of_an_answer_is_an_answer() {
    let whole = good_answer();
    for len in 0..whole.len() {
        assert_eq!(Answer::parse(&whole[..len]), Ok(None), "{len} of {}", whole.len());
    }
    assert!(Answer::parse(&whole).unwrap().is_some());
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Answer::parse(&bytes);
    }

    /// Whatever the records, an answer that is accepted has our protocol, our algorithm, one to
    /// eight usable cookies, and no error.
    #[test]
    fn any_records(records in prop::collection::vec(
        (any::<bool>(), 0u16..9, prop::sample::select(vec![vec![], vec![0, 0], vec![0, 15], vec![0, 30], vec![1], vec![9; 50]])), 0..12,
    )) {
        let records: Vec<_> = records.iter().map(|(c, k, b)| (*c, *k, &b[..])).collect();
        if let Ok(Some(answer)) = Answer::parse(&message(&records)) {
            let before = records.iter().position(|r| r.1 == 0).unwrap();
            let bodies = |kind| records[..before].iter().filter(move |r| r.1 == kind).map(|r| r.2).collect::<Vec<_>>();
            prop_assert_eq!(bodies(NEXT_PROTOCOL), vec![&[0, 0][..]]);
            prop_assert_eq!(bodies(AEAD_ALGORITHM), vec![&[0, 15][..]]);
            prop_assert!(bodies(ERROR).is_empty() && bodies(WARNING).is_empty());
            prop_assert!((1..=8).contains(&answer.cookies.len()));
            prop_assert!(answer.cookies.iter().all(|c| !c.is_empty()));
        }
    }
}
