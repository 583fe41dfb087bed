//! CRC-32 (IEEE 802.3: polynomial 0x04C11DB7, reflected), and the use of its linearity.
//!
//! The *register* is the CRC before the final inversion. Over GF(2) it is linear: the register
//! after some bytes is the one before them, advanced by as many zero bytes, xor a word that depends
//! only on those bytes. So the register at a frame's end can be predicted at its start, and one
//! register over the whole stream checks every frame in it.
//!
//! What it does not do: protect against an attacker, who can compute it as well.

const POLYNOMIAL: u32 = 0xEDB8_8320;

/// The register before the first byte.
pub(super) const INITIAL: u32 = u32::MAX;

const TABLE: [u32; 256] = table();

/// `POWERS[k]` is x^(8 * 2^k) modulo the polynomial, which advances a register by 2^k zero bytes.
const POWERS: [u32; 16] = powers();

/// Returns the register after `bytes`.
pub(super) fn update(register: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(register, |register, byte| step(register, *byte))
}

/// Returns the register after one byte.
pub(super) const fn step(register: u32, byte: u8) -> u32 {
    TABLE[((register ^ byte as u32) & 0xff) as usize] ^ (register >> 8)
}

/// Returns the register after `count` zero bytes, in logarithmic time.
pub(super) fn advance(register: u32, count: u16) -> u32 {
    let steps = POWERS.iter().enumerate().filter(|(k, _)| count >> k & 1 == 1);
    steps.fold(register, |register, (_, power)| multiply(register, *power))
}

/// Returns the checksum as a frame carries it.
pub(super) fn checksum(parts: [&[u8]; 2]) -> u32 {
    !parts.iter().fold(INITIAL, |register, part| update(register, part))
}

/// Returns the product of two polynomials modulo the generator; bit 31 is x^0.
const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a >> 31 == 1 {
            product ^= b;
        }
        a <<= 1;
        b = (b >> 1) ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    product
}

const fn powers() -> [u32; 16] {
    let mut powers = [1 << (31 - 8); 16];
    let mut k = 1;
    while k < 16 {
        powers[k] = multiply(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0u32;
    while byte < 256 {
        let mut word = byte;
        let mut bit = 0;
        while bit < 8 {
            word = (word >> 1) ^ if word & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte as usize] = word;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_check_value() {
        assert_eq!(checksum([b"1234", b"56789"]), 0xCBF4_3926);
        assert_eq!(checksum([b"", b""]), 0);
    }

    proptest! {
        #[test]
        fn advancing_is_feeding_zeros(register: u32, count in 0u16..5000) {
            prop_assert_eq!(advance(register, count), update(register, &vec![0; count.into()]));
        }

        #[test]
        fn the_register_is_linear(a: u32, b: u32, bytes: Vec<u8>) {
            let count = u16::try_from(bytes.len()).unwrap();
            prop_assert_eq!(update(a, &bytes) ^ update(b, &bytes), advance(a ^ b, count));
        }
    }
}
