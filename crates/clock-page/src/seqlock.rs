//! The sequence lock of the page: odd while a writer is inside, even otherwise.
//!
//! Writer: odd (relaxed), fence(release), data, even (release). Reader: load (acquire), data,
//! fence(acquire), load (relaxed). Both fences are needed: the release fence keeps the data stores
//! behind the odd store, the acquire fence keeps the data loads before the second sequence load.
//! The loom tests below take each away and see a torn read.
//!
//! Limitations: one writer at a time (crates/linux takes a file lock); readers spin while the
//! writer is inside.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A sequence word: 32 bits in the vmclock ABI, 64 bits in a timeline entry.
pub trait Sequence {
    /// Loads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Stores the word, wrapping to its width.
    fn store(&self, value: u64, order: Ordering);
}

impl Sequence for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
}

impl Sequence for AtomicU32 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        u64::from(AtomicU32::load(self, order))
    }
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a sequence wraps at its word's width")]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU32::store(self, value as u32, order);
    }
}

/// Enters the write section and returns the odd sequence for [`write_end`].
///
/// An already odd sequence (its writer died inside) is kept, so that `write_end` repairs it.
#[inline(always)]
pub fn write_begin<Q: Sequence>(sequence: &Q) -> u64 {
    write_begin_with::<true, Q>(sequence)
}

#[inline(always)]
fn write_begin_with<const FENCE: bool, Q: Sequence>(sequence: &Q) -> u64 {
    let odd = sequence.load(Ordering::Relaxed) | 1;
    sequence.store(odd, Ordering::Relaxed);
    if FENCE {
        fence(Ordering::Release);
    }
    odd
}

/// Leaves the write section.
#[inline(always)]
pub fn write_end<Q: Sequence>(sequence: &Q, odd: u64) {
    sequence.store(odd.wrapping_add(1), Ordering::Release);
}

/// Begins a read; `None` while a writer is inside.
#[inline(always)]
pub fn read_begin<Q: Sequence>(sequence: &Q) -> Option<u64> {
    let even = sequence.load(Ordering::Acquire);
    if even & 1 == 0 { Some(even) } else { None }
}

/// True when everything loaded since [`read_begin`] belongs to one publication.
#[inline(always)]
pub fn read_valid<Q: Sequence>(sequence: &Q, even: u64) -> bool {
    read_valid_with::<true, Q>(sequence, even)
}

#[inline(always)]
fn read_valid_with<const FENCE: bool, Q: Sequence>(sequence: &Q, even: u64) -> bool {
    if FENCE {
        fence(Ordering::Acquire);
    }
    sequence.load(Ordering::Relaxed) == even
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_odd_sequence_is_repaired_by_the_next_write() {
        let sequence = AtomicU32::new(7);
        assert_eq!(read_begin(&sequence), None);
        let odd = write_begin(&sequence);
        write_end(&sequence, odd);
        assert_eq!(read_begin(&sequence), Some(8));
    }

    #[test]
    fn a_32_bit_sequence_wraps_to_even() {
        let sequence = AtomicU32::new(u32::MAX - 1);
        let odd = write_begin(&sequence);
        assert_eq!(read_begin(&sequence), None);
        write_end(&sequence, odd);
        assert_eq!(read_begin(&sequence), Some(0));
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p timevisor-clock-page --release seqlock` (part of
/// `make check`).
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;

    struct Shared {
        sequence: AtomicU64,
        data: [AtomicU64; 2],
    }

    /// A writer publishes (1, 1); a reader that accepts a snapshot must not see (0, 1) or (1, 0).
    fn torn_reads_are_refused<const WRITE_FENCE: bool, const READ_FENCE: bool>() {
        loom::model(|| {
            let shared = Arc::new(Shared {
                sequence: AtomicU64::new(0),
                data: [AtomicU64::new(0), AtomicU64::new(0)],
            });
            let writer = {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let odd = write_begin_with::<WRITE_FENCE, _>(&shared.sequence);
                    shared.data[0].store(1, Ordering::Relaxed);
                    shared.data[1].store(1, Ordering::Relaxed);
                    write_end(&shared.sequence, odd);
                })
            };
            if let Some(even) = read_begin(&shared.sequence) {
                let first = shared.data[0].load(Ordering::Relaxed);
                let second = shared.data[1].load(Ordering::Relaxed);
                if read_valid_with::<READ_FENCE, _>(&shared.sequence, even) {
                    assert_eq!(first, second, "torn read accepted");
                }
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn with_both_fences_no_read_is_torn() {
        torn_reads_are_refused::<true, true>();
    }

    #[test]
    #[should_panic(expected = "torn read accepted")]
    fn without_the_writers_fence_a_read_tears() {
        torn_reads_are_refused::<false, true>();
    }

    #[test]
    #[should_panic(expected = "torn read accepted")]
    fn without_the_readers_fence_a_read_tears() {
        torn_reads_are_refused::<true, false>();
    }
}
