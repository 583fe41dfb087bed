//! Key establishment against a TLS server in memory.

use std::io::{Read as _, Write as _};

use rustls::ServerConnection;
use timevisor_protocols::nts::negotiation::{MAX_ANSWER, request};
use timevisor_protocols::nts::record::{AEAD_ALGORITHM, NEW_COOKIE, NEXT_PROTOCOL, NTP_PORT};
use timevisor_protocols::nts::{CertificateTime, Established, Exchange, KeyError, TrustAnchors};
use timevisor_time::{Duration, Instant, Interval, Utc};

use crate::authority::{Authority, NOW, Tls};
use crate::server::{good_answer, message};

const NAME: &str = "time.example.net";

/// Runs both sides until the client has its result; the server answers our message with `answer`
/// and hangs up.
fn run(
    mut client: Exchange,
    server: &mut ServerConnection,
    answer: &[u8],
    chunk: usize,
) -> Result<Established, KeyError> {
    let mut asked = Vec::new();
    let mut answered = false;
    loop {
        let sent = client.output();
        let mut unread = &sent[..];
        while !unread.is_empty() {
            server.read_tls(&mut unread).unwrap();
            if server.process_new_packets().is_err() {
                break;
            }
        }
        let _ = server.reader().read_to_end(&mut asked);
        if asked == request() && !answered {
            server.writer().write_all(answer).unwrap();
            server.send_close_notify();
            answered = true;
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        if bytes.is_empty() && sent.is_empty() {
            return Err(client.on_end());
        }
        for part in bytes.chunks(chunk) {
            if let Some(established) = client.on_bytes(part)? {
                return Ok(established);
            }
        }
    }
}

fn at(now: Instant<Utc>) -> CertificateTime {
    CertificateTime::of_machine(now)
}

fn start(authority: &Authority) -> Exchange {
    Exchange::start(NAME, &authority.trusted(), at(NOW)).unwrap()
}

fn result(tls: Tls, answer: &[u8]) -> Result<Established, KeyError> {
    let authority = Authority::new();
    run(start(&authority), &mut authority.server(NAME, tls), answer, usize::MAX)
}

#[test]
fn both_sides_have_the_same_keys() {
    let authority = Authority::new();
    for chunk in [1, 7, usize::MAX] {
        let mut server = authority.server(NAME, Tls::Nts);
        let established = run(start(&authority), &mut server, &good_answer(), chunk).unwrap();
        // The contexts of RFC 8915 section 5.1, spelled out.
        for (context, key) in [
            ([0, 0, 0, 15, 0], &established.client_to_server),
            ([0, 0, 0, 15, 1], &established.server_to_client),
        ] {
            let mut bytes = [0; 32];
            let label = b"EXPORTER-network-time-security";
            server.export_keying_material(&mut bytes, label, Some(&context)).unwrap();
            let theirs = timevisor_protocols::nts::aead::Key::new(bytes.into());
            let sealed = theirs.seal(b"nonce", b"header", b"inside").unwrap();
            assert_eq!(key.open(b"nonce", b"header", &sealed), Some(b"inside".to_vec()));
        }
        assert_eq!(established.answer.cookies.len(), 8);
        let shown = format!("{established:?}");
        assert!(shown.contains("Key(..)") && !shown.contains("99"), "{shown}");
    }
}

#[test]
fn an_address_can_be_certified_too() {
    let authority = Authority::new();
    let client = Exchange::start("192.0.2.7", &authority.trusted(), at(NOW)).unwrap();
    let mut server = authority.server("192.0.2.7", Tls::Nts);
    assert!(run(client, &mut server, &good_answer(), usize::MAX).is_ok());
}

#[test]
fn an_unknown_authority_is_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let error =
        run(start(&ours), &mut theirs.server(NAME, Tls::Nts), &good_answer(), 1000).unwrap_err();
    assert_eq!(error, KeyError::UnknownAuthority);
    assert!(error.to_string().contains("set ca_file"), "{error}");
}

#[test]
fn a_certificate_for_somebody_else_is_refused() {
    let authority = Authority::new();
    let mut server = authority.server("other.example.net", Tls::Nts);
    let error = run(start(&authority), &mut server, &good_answer(), 1000).unwrap_err();
    assert_eq!(error, KeyError::WrongName { expected: NAME.to_owned() });
}

#[test]
fn validity_is_judged_by_the_callers_time() {
    let authority = Authority::new();
    let year = Duration::from_secs(366 * 86_400);
    for (now, name, parts) in [
        (NOW + year, "expired", ["expired at 2027-01-01 00:00 UTC", "clock says 2027-05-29"]),
        (NOW - year, "not_yet_valid", ["valid from 2026-01-01 00:00 UTC", "clock says 2025-05-27"]),
    ] {
        let client = Exchange::start(NAME, &authority.trusted(), at(now)).unwrap();
        let mut server = authority.server(NAME, Tls::Nts);
        let error = run(client, &mut server, &good_answer(), 1000).unwrap_err();
        assert_eq!(error.name(), name);
        assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
    }
}

/// The certificate is valid for 2026. The time is known to within a day, an hour or a year.
#[test]
fn validity_is_judged_at_both_ends_of_an_interval() {
    let authority = Authority::new();
    let day = |days: i64| Instant::<Utc>::from_unix_nanos(i128::from(days) * 86_400_000_000_000);
    // 2026-01-01 and 2027-01-01 as days since 1970.
    let (begin, end) = (20_454, 20_819);
    let judged = |earliest: Instant<Utc>, latest: Instant<Utc>| {
        let time = CertificateTime::ours(Interval::new(earliest, latest).unwrap());
        let client = Exchange::start(NAME, &authority.trusted(), time).unwrap();
        let mut server = authority.server(NAME, Tls::Nts);
        run(client, &mut server, &good_answer(), 1000).map(|_| ()).map_err(|error| {
            let text = error.to_string();
            assert!(error.depends_on_time() && !error.is_overcome_by(&time), "{text}");
            let good = Interval::new(day(begin + 1), day(end - 1)).unwrap();
            assert!(error.is_overcome_by(&CertificateTime::ours(good)), "{text}");
            assert!(!text.contains("date -s"), "the machine's clock plays no role: {text}");
            (error.name(), text)
        })
    };
    assert_eq!(judged(day(begin), day(end)), Ok(()));
    let hour = Duration::from_secs(3600);
    for (earliest, latest, name, part) in [
        (day(begin) - hour, day(begin) + hour, "validity_unclear", "becomes valid at 2026-01-01"),
        (day(end) - hour, day(end) + hour, "validity_unclear", "expires at 2027-01-01"),
        (day(begin) - hour, day(end) + hour, "validity_unclear", "becomes valid"),
        (day(begin - 1), day(begin) - hour, "not_yet_valid", "valid from 2026-01-01"),
        (day(end) + hour, day(end + 1), "expired", "between 2027-01-01 01:00 UTC and 2027-01-02"),
    ] {
        let (found, text) = judged(earliest, latest).unwrap_err();
        assert_eq!(found, name, "{text}");
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn tls_without_nts_is_refused() {
    assert_eq!(result(Tls::Web, &good_answer()).unwrap_err(), KeyError::NotNts);
    assert_eq!(result(Tls::Silent, &good_answer()).unwrap_err(), KeyError::NotNts);
}

#[test]
fn something_that_is_not_tls_is_refused() {
    let authority = Authority::new();
    let mut client = start(&authority);
    let error = client.on_bytes(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap_err();
    assert_eq!(error.name(), "tls");
    assert!(error.to_string().contains("nts_ke_port"), "{error}");
}

#[test]
fn a_connection_that_ends_early_gives_no_keys() {
    let answer = good_answer();
    assert_eq!(result(Tls::Nts, &answer[..answer.len() - 1]).unwrap_err(), KeyError::Closed);
    assert_eq!(result(Tls::Nts, &[]).unwrap_err(), KeyError::Closed);
}

#[test]
fn an_endless_answer_is_cut_off() {
    let endless: Vec<u8> = message(&[(false, 0x4000, &[0; 1000])]).repeat(17);
    assert_eq!(result(Tls::Nts, &endless).unwrap_err(), KeyError::TooLong { limit: MAX_ANSWER });
}

#[test]
fn where_to_ask_is_passed_on() {
    let answer = message(&[
        (true, NEXT_PROTOCOL, &[0, 0]),
        (true, AEAD_ALGORITHM, &[0, 15]),
        (true, NTP_PORT, &[0x2b, 0x67]),
        (false, NEW_COOKIE, &[7; 100]),
        (true, 0, &[]),
    ]);
    assert_eq!(result(Tls::Nts, &answer).unwrap().answer.ntp_port, Some(11_111));
}

#[test]
fn nobody_to_trust_and_impossible_names() {
    let authority = Authority::new();
    let start = |name: &str, trust: &TrustAnchors| {
        Exchange::start(name, trust, at(NOW)).unwrap_err().name()
    };
    assert_eq!(start(NAME, &TrustAnchors::default()), "no_authority");
    for name in ["", "a b", "time.example.net:4460", "-"] {
        assert_eq!(start(name, &authority.trusted()), "name", "{name:?}");
    }
}

#[test]
fn files_of_authorities() {
    let (a, b) = (Authority::new(), Authority::new());
    assert_eq!(TrustAnchors::from_pem((a.pem() + &b.pem()).as_bytes()).unwrap().len(), 2);
    let said = |pem: &str| TrustAnchors::from_pem(pem.as_bytes()).unwrap_err().to_string();
    assert!(said("").contains("no certificate"));
    assert!(said(&rcgen::KeyPair::generate().unwrap().serialize_pem()).contains("not a key"));
    assert!(said("-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n").contains("PEM"));
    let broken = a.pem() + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(said(&broken).contains("certificate 2"));
    assert!(TrustAnchors::from_der([[0_u8; 3]]).is_empty());
}
