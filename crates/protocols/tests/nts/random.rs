//! Damaged and arbitrary bytes.

use proptest::prelude::*;
use timevisor_protocols::nts::Refusal;

use crate::server::{answer, answer_header, association, header, is_authentic, random, take_apart};

/// Every single bit of an answer matters, wherever it is: header, identifier, lengths, nonce, tag,
/// ciphertext, padding.
#[test]
fn every_flipped_bit_is_noticed() {
    let mut association = association(1, 100);
    let asked = take_apart(&association.seal(&header(), &random(1)).unwrap());
    // A cookie of 98 bytes, so that there is padding within the ciphertext too.
    let whole = answer(&asked, &[vec![5; 98]]);
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(association.open(&damaged).is_err(), "bit {} of byte {}", bit % 8, bit / 8);
    }
    assert_eq!(association.open(&whole), Ok(answer_header(&asked).to_vec()));
}

/// The same for a request, by a server's judgement.
#[test]
fn every_bit_of_a_request_is_covered() {
    let whole = association(1, 100).seal(&header(), &random(1)).unwrap();
    assert!(is_authentic(&whole));
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!is_authentic(&damaged), "bit {} of byte {}", bit % 8, bit / 8);
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut association = association(2, 100);
        association.seal(&header(), &random(1)).unwrap();
        prop_assert!(association.open(&bytes).is_err());
        prop_assert!(!association.needs_keys());
    }

    /// Any damage, also of many bytes, also of the length.
    #[test]
    fn any_damage(
        at in any::<prop::sample::Index>(), with in prop::collection::vec(any::<u8>(), 0..12), cut in 0usize..12, cookies in 0usize..4,
    ) {
        let mut association = association(2, 100);
        let asked = take_apart(&association.seal(&header(), &random(1)).unwrap());
        let whole = answer(&asked, &vec![vec![5; 100]; cookies]);
        let at = at.index(whole.len());
        let mut damaged = whole.clone();
        damaged.splice(at..(at + cut).min(whole.len()), with);
        let opened = association.open(&damaged);
        prop_assert_eq!(opened.is_ok(), damaged == whole);
        // The damage cannot make a NAK of an answer with a stratum: that takes two fields and no
        // authenticator.
        prop_assert_ne!(opened, Err(Refusal::Nak));
    }
}
