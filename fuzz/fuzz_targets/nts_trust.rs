//! Files of certificate authorities: what is accepted holds at least one, and no more than there
//! are PEM blocks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_protocols::nts::TrustAnchors;

fuzz_target!(|data: &[u8]| {
    match TrustAnchors::from_pem(data) {
        Ok(trust) => {
            let begin = b"-----BEGIN ";
            let blocks = data.windows(begin.len()).filter(|window| window == begin).count();
            assert!((1..=blocks).contains(&trust.len()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert!(TrustAnchors::from_der([data]).len() <= 1);
});
