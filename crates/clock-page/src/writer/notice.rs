//! What the host announces of a coming disruption: two flags of `vmclock_abi`.

use core::sync::atomic::Ordering::Relaxed;

use super::PageWriter;
use crate::abi::{Notice, vmclock};
use crate::page::WritablePage;

impl<P: WritablePage> PageWriter<P> {
    /// Announces a disruption, or takes that back. It stays until it is taken back, or until the
    /// page starts over ([`Self::start_over`], [`Self::arrive`]): the disruption has then happened.
    ///
    /// Check [`Self::is_intact`] first: like every write, this one hides that something else has
    /// written the page.
    pub fn set_notice(&self, notice: Notice) {
        if self.notice.replace(notice) != notice {
            self.section(Self::store_flags);
        }
    }

    /// What is announced.
    #[must_use]
    pub fn notice(&self) -> Notice {
        self.notice.get()
    }

    /// Stores the flags, which several parts of the writer contribute to.
    pub(super) fn store_flags(&self) {
        let present = match self.generation.get() {
            Some(_) => vmclock::FLAG_VM_GENERATION_PRESENT,
            None => 0,
        };
        let flags = self.clock_flags.get() | self.notice.get().to_flags() | present;
        self.page.word(vmclock::AT_FLAGS).store(flags, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{identity, tsc, update};
    use crate::{ClockStatus, Identity, Notice, Page, PageWriter, Reader};

    #[test]
    fn a_notice_is_read_until_it_is_taken_back_or_has_happened() {
        let page = Page::new();
        let mut writer = PageWriter::take_over(&page, identity(), Some(37));
        let reader = Reader::open(&page, tsc(6000), 0).unwrap();
        let flags = || u64::from_le_bytes(page.bytes()[0x18..0x20].try_into().unwrap());
        assert_eq!(reader.notice(), Notice::None);
        for notice in [Notice::Soon, Notice::Imminent, Notice::None, Notice::Imminent] {
            let before = flags();
            writer.set_notice(notice);
            assert_eq!((reader.notice(), writer.notice()), (notice, notice));
            assert!(writer.is_intact());
            // The clock's own flags stay as they are: bits 1 and 2 are the notice's.
            assert_eq!(flags() & !0b110, before & !0b110);
            writer.publish(&update(5000, 0), &tsc(5000));
            assert_eq!(reader.notice(), notice, "publishing takes nothing back");
            writer.withdraw(ClockStatus::Unknown, Some(37));
            assert_eq!(reader.notice(), notice);
        }
        assert_eq!(flags() & 0b110, 0b110, "imminent is soon, too");
        writer.arrive(Identity { epoch: 9, ..identity() }, Some(37));
        assert_eq!((reader.notice(), flags() & 0b110), (Notice::None, 0));
        writer.set_notice(Notice::Soon);
        let _next = PageWriter::take_over(&page, identity(), Some(37));
        assert_eq!(reader.notice(), Notice::None, "nobody vouches for it any more");
    }

    /// A notice on a page that QEMU has loaded was about the journey that is over.
    #[test]
    fn a_notice_of_another_host_is_not_read() {
        let page = Page::new();
        let writer = PageWriter::take_over(&page, identity(), Some(37));
        writer.set_notice(Notice::Imminent);
        page.word(crate::abi::vmclock::AT_DISRUPTION).fetch_add(1, super::Relaxed);
        assert_eq!(Reader::open(&page, tsc(0), 0).unwrap().notice(), Notice::None);
    }
}
