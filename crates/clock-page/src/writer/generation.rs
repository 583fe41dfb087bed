//! The VM generation counter of `vmclock_abi`: it changes when the VM is loaded from a saved state
//! (a snapshot, a clone), and stays the same while it runs, stops or migrates live.
//!
//! Only a page that is saved and loaded with its VM can have one: QEMU reports no load of a
//! snapshot, and such a page shows it. To QEMU a live migration and a state that is loaded from a
//! file are the same. Whoever moves a VM live therefore says so on the page
//! ([`PageWriter::set_moving`]), and the page takes that along. Without this word the counter
//! changes: a guest that renews its random numbers without need is harmless, one that uses them
//! twice is not.

use core::sync::atomic::Ordering::Relaxed;

use super::{PageWriter, fresh};
use crate::abi::{header, vmclock};
use crate::page::{Page, WritablePage};

impl<P: WritablePage> PageWriter<P> {
    /// Gives the page a generation counter, if it has none yet. For pages that are saved and loaded
    /// with their VM. Check [`Self::is_intact`] first.
    pub fn count_generations(&self) {
        if self.generation.get().is_none() {
            self.generation.set(Some(another(&self.page, self.identity.epoch)));
            self.section(|w| {
                w.store_generation();
                w.store_flags();
            });
        }
    }

    /// The VM generation counter; `None` on a page without one.
    #[must_use]
    pub fn vm_generation(&self) -> Option<u64> {
        self.generation.get()
    }

    /// Says on the page that the VM is being moved live, or no longer is.
    pub fn set_moving(&self, moving: bool) {
        let word = self.generation.get().filter(|_| moving).unwrap_or(0);
        self.page.word(header::AT_MOVING).store(word, Relaxed);
    }

    /// The VM has been loaded, with this page: moved live, or from a saved state.
    pub(super) fn arrive_with_generation(&self, epoch: u64) {
        let found = found(&self.page);
        if self.generation.get().is_some() || found.is_some() {
            let continued = found.filter(|generation| is_moving(&self.page, *generation));
            let generation = continued.unwrap_or_else(|| another(&self.page, epoch));
            self.generation.set(Some(generation));
        }
    }

    pub(super) fn store_generation(&self) {
        if let Some(generation) = self.generation.get() {
            self.page.word(vmclock::AT_VM_GENERATION).store(generation, Relaxed);
        }
    }
}

/// The counter with which a new writer of this page goes on; `None` if it has none. QEMU moves the
/// disruption marker on when it loads the page: another state was then loaded while nobody wrote.
pub(super) fn to_continue(page: &Page, epoch: u64) -> Option<u64> {
    let generation = found(page)?;
    let marker = |at: usize| page.word(at).load(Relaxed);
    let own = marker(vmclock::AT_DISRUPTION) == marker(header::AT_MARKER);
    let same = own || is_moving(page, generation);
    Some(if same { generation } else { another(page, epoch) })
}

/// The counter on the page, whatever wrote it.
fn found(page: &Page) -> Option<u64> {
    let ours = page.word(header::AT_MAGIC).load(Relaxed) == header::MAGIC;
    let flags = page.word(vmclock::AT_FLAGS).load(Relaxed);
    let present = ours && flags & vmclock::FLAG_VM_GENERATION_PRESENT != 0;
    present.then(|| page.word(vmclock::AT_VM_GENERATION).load(Relaxed))
}

fn is_moving(page: &Page, generation: u64) -> bool {
    generation != 0 && page.word(header::AT_MOVING).load(Relaxed) == generation
}

/// A counter that this VM has not had: no two loads have the same epoch and the same marker.
fn another(page: &Page, epoch: u64) -> u64 {
    let before = page.word(vmclock::AT_VM_GENERATION).load(Relaxed);
    let generation = fresh(page, epoch.rotate_left(32));
    if generation == before { generation.wrapping_add(1) } else { generation }.max(1)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{identity, restore, tsc, update};
    use super::*;
    use crate::{ClockStatus, Identity, Reader};

    fn on(page: &Page) -> Option<u64> {
        Reader::open(page, tsc(6000), 0).unwrap().vm_generation()
    }

    /// As QEMU does with its device when it loads the VM.
    fn load(page: &Page, saved: &[u8]) {
        restore(page, saved);
        page.word(vmclock::AT_DISRUPTION).fetch_add(1, Relaxed);
    }

    #[test]
    fn a_page_has_a_counter_only_if_it_was_given_one() {
        let page = Page::new();
        let mut writer = PageWriter::take_over(&page, identity(), Some(37));
        writer.publish(&update(0, 0), &tsc(0));
        writer.arrive(Identity { epoch: 5, ..identity() }, Some(37));
        assert_eq!((on(&page), writer.vm_generation()), (None, None));
        writer.count_generations();
        let first = on(&page);
        assert!(first.is_some_and(|generation| generation != 0) && writer.is_intact());
        writer.count_generations();
        assert_eq!((on(&page), writer.vm_generation()), (first, first));
    }

    #[test]
    fn it_stays_through_pauses_and_restarts_of_the_daemon() {
        let page = Page::new();
        let mut writer = PageWriter::take_over(&page, identity(), Some(37));
        writer.count_generations();
        let first = on(&page);
        writer.publish(&update(0, 0), &tsc(0));
        writer.withdraw(ClockStatus::Unknown, Some(37));
        writer.disrupt();
        writer.publish(&update(0, 0), &tsc(0));
        assert_eq!(on(&page), first);
        let again = Identity { epoch: 77, ..identity() };
        let mut next = PageWriter::take_over(&page, again, Some(37));
        next.publish(&update(0, 0), &tsc(0));
        assert_eq!((on(&page), next.vm_generation()), (first, first));
        let update = Update { target: *next.in_force().unwrap(), ..update(0, 0) };
        let _third = PageWriter::recover(&page, again, &update, &tsc(500_000));
        assert_eq!(on(&page), first);
    }

    #[test]
    fn each_load_of_a_saved_state_has_another_one() {
        let page = Page::new();
        let mut writer = PageWriter::take_over(&page, identity(), Some(37));
        writer.count_generations();
        writer.withdraw(ClockStatus::Unknown, Some(37));
        let saved = page.bytes();
        let mut seen = vec![on(&page)];
        for epoch in 1..=3 {
            load(&page, &saved);
            assert_eq!(on(&page), None, "it is not known until somebody has written the page");
            writer.arrive(Identity { epoch, ..identity() }, Some(37));
            assert!(!seen.contains(&on(&page)), "{seen:?}");
            seen.push(on(&page));
        }
        // Loaded while no daemon ran, twice.
        for epoch in 4..=5 {
            load(&page, &saved);
            let _next = PageWriter::take_over(&page, Identity { epoch, ..identity() }, Some(37));
            assert!(!seen.contains(&on(&page)), "{seen:?}");
            seen.push(on(&page));
        }
        // A load that moves no marker on is told from a live migration, too.
        restore(&page, &saved);
        writer.arrive(Identity { epoch: 6, ..identity() }, Some(37));
        assert!(!seen.contains(&on(&page)), "{seen:?}");
    }

    #[test]
    fn a_live_migration_takes_it_along() {
        let source = Page::new();
        let mut writer = PageWriter::take_over(&source, identity(), Some(37));
        writer.count_generations();
        writer.set_moving(true);
        writer.withdraw(ClockStatus::Unknown, Some(37));
        let moved = source.bytes();

        let page = Page::new();
        let there = Identity { epoch: 99, host: [7; 16], ..identity() };
        let mut writer = PageWriter::take_over(&page, there, Some(37));
        writer.count_generations();
        assert_ne!(on(&page), on(&source));
        load(&page, &moved);
        writer.arrive(there, Some(37));
        assert_eq!((on(&page), writer.vm_generation()), (on(&source), on(&source)));
        // It has arrived: what is saved from now on is no live migration.
        let saved = page.bytes();
        load(&page, &saved);
        writer.arrive(Identity { epoch: 100, ..there }, Some(37));
        assert_ne!(on(&page), on(&source));

        // Nobody was there when it arrived.
        let page = Page::new();
        load(&page, &moved);
        let _late = PageWriter::take_over(&page, there, Some(37));
        assert_eq!(on(&page), on(&source));
    }

    #[test]
    fn a_migration_that_failed_leaves_no_mark() {
        let page = Page::new();
        let mut writer = PageWriter::take_over(&page, identity(), Some(37));
        writer.count_generations();
        let first = on(&page);
        writer.set_moving(true);
        writer.set_moving(false);
        let saved = page.bytes();
        load(&page, &saved);
        writer.arrive(Identity { epoch: 3, ..identity() }, Some(37));
        assert_ne!(on(&page), first);
    }

    use super::super::Update;
}
