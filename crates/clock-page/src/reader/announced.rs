//! What the page says of disruptions that come, and of loads that have happened. Each is one word,
//! so it needs no sequence lock.

use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;

use super::Reader;
use crate::Counter;
use crate::abi::{Notice, vmclock};
use crate::page::Page;

impl<P: Deref<Target = Page>, C: Counter> Reader<P, C> {
    /// What the host announces. A notice on a page that was loaded with the VM is over.
    #[must_use]
    pub fn notice(&self) -> Notice {
        if self.was_loaded() { Notice::None } else { Notice::from_flags(self.flags()) }
    }

    /// The VM generation counter: another one tells that the VM was loaded from a saved state, such
    /// as a snapshot or a clone. `None` on a page without one, and until a page that was loaded with
    /// the VM has been written.
    #[must_use]
    pub fn vm_generation(&self) -> Option<u64> {
        let present = self.flags() & vmclock::FLAG_VM_GENERATION_PRESENT != 0;
        let generation = self.page.word(vmclock::AT_VM_GENERATION).load(Relaxed);
        (present && !self.was_loaded()).then_some(generation)
    }

    fn was_loaded(&self) -> bool {
        let (there, written) = self.markers();
        there != written && written != 0
    }

    fn flags(&self) -> u64 {
        self.page.word(vmclock::AT_FLAGS).load(Relaxed)
    }
}
