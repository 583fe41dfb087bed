//! clockAccuracy: how close a grandmaster claims to be to its timescale (IEEE 1588-2019 table 5).
//!
//! What it does not do: verify the claim. A grandmaster's administrator chooses this number.

use timevisor_time::Duration;

/// The span that a clockAccuracy stands for; `None` for "more than 10 s", "unknown" and reserved
/// numbers.
#[must_use]
pub const fn clock_accuracy(code: u8) -> Option<Duration> {
    // Picoseconds. 0x17 to 0x1f are new in the 2019 edition.
    let picos: i64 = match code {
        0x17 => 1,
        0x18 => 3, // 2.5, rounded up
        0x19 => 10,
        0x1a => 25,
        0x1b => 100,
        0x1c => 250,
        0x1d => 1_000,
        0x1e => 2_500,
        0x1f => 10_000,
        0x20 => 25_000,
        0x21 => 100_000,
        0x22 => 250_000,
        0x23 => 1_000_000,
        0x24 => 2_500_000,
        0x25 => 10_000_000,
        0x26 => 25_000_000,
        0x27 => 100_000_000,
        0x28 => 250_000_000,
        0x29 => 1_000_000_000,
        0x2a => 2_500_000_000,
        0x2b => 10_000_000_000,
        0x2c => 25_000_000_000,
        0x2d => 100_000_000_000,
        0x2e => 250_000_000_000,
        0x2f => 1_000_000_000_000,
        0x30 => 10_000_000_000_000,
        _ => return None,
    };
    let bits = ((picos as i128) << 64).div_euclid(1_000_000_000_000) + 1;
    Some(Duration::from_bits(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_standard() {
        for (code, nanos) in
            [(0x20, 25), (0x21, 100), (0x23, 1_000), (0x29, 1_000_000), (0x30, 10_000_000_000)]
        {
            let found = clock_accuracy(code).unwrap();
            assert_eq!(found.floor_nanos(), nanos);
            assert!(found >= Duration::from_nanos(nanos));
        }
        assert_eq!(clock_accuracy(0x1d).unwrap().floor_nanos(), 1);
        for unknown in [0x00, 0x16, 0x31, 0x32, 0x7f, 0xfe, 0xff] {
            assert_eq!(clock_accuracy(unknown), None, "{unknown:#x}");
        }
        // Each step is wider than the one before.
        let all: Vec<_> = (0x17..=0x30).map(|c| clock_accuracy(c).unwrap()).collect();
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
