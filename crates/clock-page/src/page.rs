//! The page itself: 4 KiB of atomics, because a reader in another process or guest looks at it
//! while we write.

use core::mem::size_of;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::abi::{PAGE_SIZE, entry, header, vcpus};

/// One page. The first 16 bytes are 32-bit words (the vmclock sequence is one), all others 64-bit
/// words, and no byte is ever accessed at two widths: mixed-width atomic accesses have no defined
/// meaning.
#[repr(C, align(4096))]
pub struct Page {
    head: [AtomicU32; 4],
    words: [AtomicU64; (PAGE_SIZE - 16) / 8],
}

const _: () = assert!(size_of::<Page>() == PAGE_SIZE);

/// A page that may be stored to: memory of this process, or a mapping that was made for writing.
pub trait WritablePage: Deref<Target = Page> {}

impl WritablePage for &Page {}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}

impl Page {
    /// A zeroed page in ordinary memory, for tests and for hand-driven clocks.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            head: [const { AtomicU32::new(0) }; 4],
            words: [const { AtomicU64::new(0) }; (PAGE_SIZE - 16) / 8],
        }
    }

    /// A page in shared memory.
    ///
    /// # Safety
    /// `start` must be 4096-byte aligned and point to 4096 bytes that stay mapped for `'a`. Other
    /// processes may write to them at any time; nobody in this process may access them except
    /// through a `Page`. A read-only mapping must only ever be read.
    #[must_use]
    pub unsafe fn from_mapping<'a>(start: NonNull<u8>) -> &'a Self {
        // SAFETY: the caller vouches for alignment, size and lifetime; all fields are atomics,
        // valid for any bits.
        unsafe { start.cast::<Self>().as_ref() }
    }

    /// The 32-bit word at byte offset `at` (below 0x10).
    #[inline(always)]
    pub(crate) fn head(&self, at: usize) -> &AtomicU32 {
        &self.head[at / 4]
    }

    /// The 64-bit word at byte offset `at` (0x10 or above).
    #[inline(always)]
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[(at - 16) / 8]
    }

    /// The words of timeline entry `index`.
    #[inline(always)]
    pub(crate) fn entry(&self, index: usize) -> &[AtomicU64; entry::SIZE / 8] {
        const WORDS: usize = entry::SIZE / 8;
        let entries = &self.words[(entry::AT_FIRST - 16) / 8..];
        assert!(index < entries.len() / WORDS, "callers check the index against the capacity");
        // SAFETY: the check above: so many entries lie one behind the other in `entries`. An array
        // has its elements' alignment. In safe code every word has an index of its own, and each
        // read pays for it; `as_chunks` is younger than the Rust that this room promises to need.
        unsafe { &*entries.as_ptr().cast::<[AtomicU64; WORDS]>().add(index) }
    }

    /// Which clock entry `index` is.
    #[inline(always)]
    pub(crate) fn clock(&self, index: usize) -> &AtomicU64 {
        self.word(header::AT_CLOCKS + index * size_of::<u64>())
    }

    /// The words of the vCPUs' processor time.
    pub(crate) fn vcpus(&self) -> &[AtomicU64; vcpus::WORDS] {
        let words = self.words[(vcpus::AT_FIRST - 16) / 8..].first_chunk::<{ vcpus::WORDS }>();
        words.expect("they end with the page")
    }

    /// A copy of all bytes, for golden tests and dumps; not consistent while a writer is active.
    #[must_use]
    pub fn bytes(&self) -> [u8; PAGE_SIZE] {
        let mut out = [0; PAGE_SIZE];
        for (chunk, word) in out.chunks_exact_mut(4).zip(&self.head) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        for (chunk, word) in out[16..].chunks_exact_mut(8).zip(&self.words) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        out
    }
}
