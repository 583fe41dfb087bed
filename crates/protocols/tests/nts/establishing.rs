//! Key establishment between our client and our server, in memory.

use timevisor_protocols::nts::record::{AEAD_ALGORITHM, ERROR, NEXT_PROTOCOL};
use timevisor_protocols::nts::server::{
    CookieCiphers, CookieKeys, Exchange as Serving, ExchangeError, Identity, IdentityError,
    Progress, Refusal, Rotation, answer,
};
use timevisor_protocols::nts::{CertificateTime, Established, Exchange, KeyError};
use timevisor_time::Duration;

use crate::authority::{Authority, NOW};
use crate::server::message;

const NAME: &str = "time.example.net";

/// Runs both sides, in pieces of `chunk` bytes, until the client has its result.
fn run(
    authority: &Authority,
    server: &Identity,
    ciphers: &mut CookieCiphers,
    chunk: usize,
) -> Result<Established, KeyError> {
    let time = CertificateTime::of_machine(NOW);
    let mut client = Exchange::start(NAME, &authority.trusted(), time).unwrap();
    let mut server = Serving::start(server).unwrap();
    loop {
        for part in client.output().chunks(chunk) {
            if let Ok(Progress::Agreed(keys)) = server.on_bytes(part) {
                let cookies = [1, 2, 3].map(|n| ciphers.make(&keys, &[n; 16]).unwrap());
                server.answer(&answer(&cookies, None, Some(1123))).unwrap();
            }
        }
        let sent = server.output();
        if sent.is_empty() {
            return Err(client.on_end());
        }
        for part in sent.chunks(chunk) {
            if let Some(established) = client.on_bytes(part)? {
                return Ok(established);
            }
        }
    }
}

fn ciphers() -> CookieCiphers {
    let key = [4; 32].into();
    CookieCiphers::new(&CookieKeys::new(Rotation::default(), Duration::ZERO, 1, key))
}

#[test]
fn both_sides_have_the_same_keys_and_the_cookies_hold_them() {
    let authority = Authority::new();
    let (identity, mut ciphers) = (authority.identity(NAME), ciphers());
    for chunk in [1, 7, usize::MAX] {
        let established = run(&authority, &identity, &mut ciphers, chunk).unwrap();
        assert_eq!(established.answer.ntp_port, Some(1123));
        assert_eq!(established.answer.cookies.len(), 3);
        for cookie in &established.answer.cookies {
            let session = ciphers.open(cookie).unwrap();
            let mut text = *b"a request";
            let tag = session.client_to_server().seal_in_place(b"n", b"a", &mut text).unwrap();
            let sealed = [&tag[..], &text].concat();
            let opened = established.client_to_server.open(b"n", b"a", &sealed);
            assert_eq!(opened, Some(b"a request".to_vec()));
            let sealed = established.server_to_client.seal(b"n", b"a", b"").unwrap();
            let tag = sealed[..].try_into().unwrap();
            assert!(session.server_to_client().open_in_place(b"n", b"a", &tag, &mut []));
        }
    }
}

#[test]
fn a_client_that_does_not_trust_us_says_so() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let error = run(&ours, &theirs.identity(NAME), &mut ciphers(), 1000).unwrap_err();
    assert_eq!(error, KeyError::UnknownAuthority);
}

/// A TLS client that says what our own never would.
fn said(authority: &Authority, alpn: &[&[u8]], request: &[u8]) -> (Vec<u8>, Vec<String>) {
    use std::io::{Read as _, Write as _};
    use std::sync::Arc;
    let mut roots = rustls::RootCertStore::empty();
    let pem = authority.pem();
    let root = <rustls::pki_types::CertificateDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(pem.as_bytes());
    roots.add(root.unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(
        Arc::new(roots),
        provider.clone(),
    )
    .build()
    .unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_webpki_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.time_provider = Arc::new(Fixed);
    let name = NAME.to_owned().try_into().unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    client.writer().write_all(request).unwrap();
    let mut server = Serving::start(&authority.identity(NAME)).unwrap();
    let mut seen = Vec::new();
    let mut answer = Vec::new();
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        match server.on_bytes(&bytes) {
            Ok(Progress::Going) => {}
            Ok(other) => seen.push(format!("{other:?}")),
            Err(error) => seen.push(error.to_string()),
        }
        let sent = server.output();
        let mut unread = &sent[..];
        while !unread.is_empty() {
            client.read_tls(&mut unread).unwrap();
            if client.process_new_packets().is_err() {
                break;
            }
        }
        let _ = client.reader().read_to_end(&mut answer);
    }
    (answer, seen)
}

/// Now, for a TLS client that is not ours.
#[derive(Debug)]
struct Fixed;

impl rustls::time_provider::TimeProvider for Fixed {
    fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
        let secs = u64::try_from(NOW.secs()).unwrap();
        Some(rustls::pki_types::UnixTime::since_unix_epoch(std::time::Duration::from_secs(secs)))
    }
}

#[test]
fn refusals_reach_the_client() {
    let authority = Authority::new();
    let cases: [(&[u8], &str, Refusal); 3] = [
        (
            &message(&[(true, 0x4001, &[]), (true, 0, &[])]),
            "UnknownCritical",
            Refusal::UnknownCritical,
        ),
        (&message(&[(true, ERROR, &[0, 0]), (true, 0, &[])]), "BadRequest", Refusal::BadRequest),
        (
            &message(&[
                (true, NEXT_PROTOCOL, &[0, 0]),
                (true, AEAD_ALGORITHM, &[0, 30]),
                (true, 0, &[]),
            ]),
            "NoAlgorithm",
            Refusal::NoAlgorithm,
        ),
    ];
    for (request, name, refusal) in cases {
        let (answer, seen) = said(&authority, &[b"ntske/1"], request);
        assert_eq!(answer, refusal.answer(), "{seen:?}");
        assert_eq!(seen, [format!("Refused({name})")]);
    }
}

#[test]
fn tls_without_nts_is_not_answered() {
    let authority = Authority::new();
    let request = timevisor_protocols::nts::negotiation::request();
    let (answer, seen) = said(&authority, &[], &request);
    assert!(answer.is_empty());
    assert_eq!(seen, [ExchangeError::NotNts.to_string()]);
    let (answer, seen) = said(&authority, &[b"h2"], &request);
    assert!(answer.is_empty() && seen[0].starts_with("TLS failed"), "{seen:?}");
}

#[test]
fn something_that_is_not_tls_is_refused() {
    let mut server = Serving::start(&Authority::new().identity(NAME)).unwrap();
    let error = server.on_bytes(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
    assert!(matches!(error, ExchangeError::Tls { .. }), "{error}");
    assert!(!server.output().is_empty(), "an alert");
}

#[test]
fn certificates_and_keys_that_cannot_be_used() {
    let authority = Authority::new();
    let (certificate, key) = authority.certify(NAME);
    let (certificate, key) = (certificate.pem(), key.serialize_pem());
    let refused = |certificate: &str, key: &str| {
        Identity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err()
    };
    assert_eq!(refused("", &key), IdentityError::NoCertificate);
    assert_eq!(refused(&key, &key), IdentityError::NoCertificate);
    assert_eq!(refused(&certificate, ""), IdentityError::NoKey);
    assert_eq!(refused(&certificate, &certificate), IdentityError::NoKey);
    let other = authority.certify(NAME).1.serialize_pem();
    assert_eq!(refused(&certificate, &other), IdentityError::Mismatch);
    let damaged = "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n";
    assert!(matches!(refused(damaged, &key), IdentityError::CertificatePem { .. }));
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(refused(garbage, &key), IdentityError::Unusable { .. }));
    for error in [refused("", &key), refused(&certificate, ""), refused(garbage, &key)] {
        assert!(error.to_string().contains("; "), "it names no next step: {error}");
    }
}
