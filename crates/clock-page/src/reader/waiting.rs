//! How long a read waits for a writer, and how.

use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;

use timevisor_time::{Duration, Period};

use super::Reader;
use crate::Counter;
use crate::abi::entry;
use crate::page::Page;

/// How long a reader waits for a writer. A writer takes well under a microsecond, unless it is
/// preempted; one that takes longer than this has died. Twice what the Linux driver waits
/// (drivers/ptp/ptp_vmclock.c, VMCLOCK_MAX_WAIT).
const PATIENCE: Duration = Duration::from_millis(200);

/// This part of [`PATIENCE`] a reader only spins, which is 20 us where the page knows its period. Later it lets others run, too.
const SPINS: u64 = 10_000;

/// [`PATIENCE`] in ticks where the page does not know its period yet: 0.1 s at 2.6 GHz, 4 s at 62.5
/// MHz.
const PATIENCE_TICKS: u64 = 1 << 28;

/// [`PATIENCE`] in ticks of a 10 GHz counter, faster than any real counter: a damaged page may
/// state a period so short that the wait would never end.
const MOST_TICKS: u64 = 1 << 31;

/// How long a read has been waiting for a writer.
#[derive(Default)]
pub(crate) struct Waiting {
    since: Option<u64>,
    let_others_run: bool,
}

impl<P: Deref<Target = Page>, C: Counter> Reader<P, C> {
    /// True when a writer has taken too long.
    #[cold]
    pub(crate) fn gave_up(&self, waiting: &mut Waiting) -> bool {
        core::hint::spin_loop();
        let now = self.counter.read_unordered();
        let waited = now.wrapping_sub(*waiting.since.get_or_insert(now));
        let period = self.page.entry(self.index)[entry::ESTIMATE + 2].load(Relaxed);
        let patience = match period {
            0 => PATIENCE_TICKS,
            bits => Period::from_bits(bits).ticks_in(PATIENCE).min(MOST_TICKS),
        };
        // Before the start: a counter that is not quite the same on every processor.
        if waited >> 63 != 0 {
            return false;
        }
        // A machine that was stopped has waited for long, and its writer has not had a chance yet.
        if waited > patience && waiting.let_others_run {
            return true;
        }
        if waited > patience / SPINS {
            self.counter.let_others_run();
            waiting.let_others_run = true;
        }
        false
    }
}
