//! The ordinary read: nobody writes, the page is this VM's own, and the counter is between the base
//! and the expiry, within 2^32 ticks of the base. [`Reader`] finishes every other case with the same
//! counter value, more slowly.
//!
//! The processor does little else while it reads its counter, so each instruction and each step of
//! the longest chain from the counter to a bound shows in what a read takes. The order of statements
//! here was measured (docs/decisions/0048-the-ordinary-read.md): loads stand behind the counter,
//! because those in front of it delay it; the multiplications come first, and checks follow.

use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;

use timevisor_time::{Instant, Local, Period};

use super::{Reader, Reading};
use crate::Counter;
use crate::abi::entry;
use crate::page::Page;
use crate::seqlock::read_valid;

impl<P: Deref<Target = Page>, C: Counter> Reader<P, C> {
    /// What the entry says at this counter value, which was read after the sequence was found
    /// `even`. `None` says nothing: it is not the ordinary case, or somebody writes.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a check looks at the high halves, too")]
    pub(super) fn ordinary(&self, even: u64, counter: u64) -> Option<Reading> {
        let entry = self.page.entry(self.index);
        let word = |index: usize| entry[index].load(Relaxed);
        let base = word(entry::BASE);
        let ticks = u64::from((counter as u32).wrapping_sub(base as u32));
        // The period first: the multiplication waits for it.
        let line = |at: usize| {
            let span = Period::from_bits(word(at + 2)).span(ticks).to_bits();
            let time = Instant::<Local>::from_words(word(at), word(at + 1)).to_bits();
            Instant::<Local>::from_bits(time.wrapping_add(span))
        };
        let earliest = line(entry::EARLIEST);
        let estimate = line(entry::ESTIMATE);
        let latest = line(entry::LATEST);
        let (meta, error_bits) = (word(entry::META), word(entry::ESTIMATED_ERROR));
        let disruption = word(entry::DISRUPTION);
        let (there, written) = self.markers();
        if there != written {
            return None;
        }
        let until_expiry = word(entry::EXPIRY).wrapping_sub(counter);
        let left = base.wrapping_add(u64::from(u32::MAX)).wrapping_sub(counter);
        if left >> 32 != 0 || until_expiry >> 63 != 0 {
            return None;
        }
        let is_ordered = earliest <= estimate && estimate <= latest;
        if !read_valid(&entry[entry::SEQUENCE], even) || !is_ordered {
            return None;
        }
        let expired = false;
        Some(Reading { counter, earliest, estimate, latest, disruption, error_bits, meta, expired })
    }
}

#[cfg(test)]
#[path = "ordinary_tests.rs"]
mod tests;
