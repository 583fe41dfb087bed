//! Arbitrary bytes in place of a TLS server: without a certificate that was trusted there are never
//! any keys.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_fuzz::pieces;
use timevisor_protocols::nts::{CertificateTime, Exchange, TrustAnchors};
use timevisor_time::Instant;

const AUTHORITY: &[u8] = include_bytes!("../corpus-seeds/nts_trust/authority.pem");

fuzz_target!(|data: &[u8]| {
    let [first, second, stream @ ..] = data else { return };
    let trust = TrustAnchors::from_pem(AUTHORITY).expect("it is a certificate");
    // 2026-05-28
    let now = CertificateTime::of_machine(Instant::from_unix_nanos(1_780_000_000_000_000_000));
    let mut exchange = Exchange::start("time.example", &trust, now).expect("it is a name");
    assert!(!exchange.output().is_empty());
    for piece in pieces(stream, *first, *second) {
        match exchange.on_bytes(piece) {
            Ok(None) => {}
            Ok(Some(_)) => panic!("keys from somebody without a certificate"),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                let _farewell = exchange.output();
                return;
            }
        }
        let _answer = exchange.output();
    }
});
