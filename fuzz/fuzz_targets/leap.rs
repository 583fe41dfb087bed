//! Leap second tables: what is accepted converts there and back for as long as it is valid, and is
//! silent afterwards.
#![no_main]

use libfuzzer_sys::fuzz_target;
use timevisor_time::{Duration, Instant, LeapError, LeapTable, Tai, Utc};

/// A table can be inverted if its steps are of one second and not on successive days; stranger ones
/// must not panic.
const DAY_S: i64 = 86_400;

fuzz_target!(|data: &[u8]| {
    let Some((stamps, text)) = data.split_at_checked(32) else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let table = match LeapTable::parse(text) {
        Ok(table) => table,
        Err(error) => return assert!(error.to_string().contains("tzdata")),
    };
    let changes = changes(&table);
    let usual = changes
        .is_sorted_by(|a, b| b.0.abs_diff(a.0) >= DAY_S.unsigned_abs() && b.1.abs_diff(a.1) <= 1);
    for word in stamps.as_chunks::<8>().0 {
        // Near a change, and anywhere.
        let number = i64::from_le_bytes(*word);
        let near = changes[number.unsigned_abs() as usize % changes.len()].0;
        for seconds in [near.saturating_add(number % 100), number] {
            check(
                &table,
                Instant::from_words(seconds.cast_unsigned(), number.cast_unsigned()),
                usual,
            );
        }
    }
});

/// All entries in force before the end of time, oldest first.
fn changes(table: &LeapTable) -> Vec<(i64, i16)> {
    let mut changes: Vec<(i64, i16)> = Vec::new();
    let mut at = Instant::MIN;
    while let Some(change) = table.next_change(at) {
        assert!(changes.last().is_none_or(|last| last.0 < change.0));
        at = Instant::from_words(change.0.cast_unsigned(), 0);
        changes.push(change);
    }
    assert!(!changes.is_empty(), "a table without entries");
    changes
}

fn check(table: &LeapTable, utc: Instant<Utc>, usual: bool) {
    // Any instant may be asked for; what it says of this one as TAI is judged below.
    let _whatever = table.to_utc(Instant::<Tai>::from_bits(utc.to_bits()));
    match table.offset_at(utc) {
        Ok(offset) => {
            assert!(utc.secs() < table.expires());
            let tai = table.to_tai(utc).expect("its offset is known");
            if usual && utc.secs().abs() < 1 << 60 {
                assert_eq!((tai.to_bits() - utc.to_bits()) >> 64, i128::from(offset));
                // A second that was deleted has no TAI instant; it stands for the second after it.
                let second = Duration::from_secs(1);
                let Ok(next) = table.offset_at(utc + second) else { return };
                let wanted = if next < offset { utc + second } else { utc };
                assert_eq!(table.to_utc(tai), Ok((wanted, false)));
            }
        }
        Err(LeapError::Expired { expires }) => assert!(utc.secs() >= expires),
        Err(error) => assert_eq!(error, LeapError::BeforeUtc),
    }
}
