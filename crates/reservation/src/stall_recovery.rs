//! Puts threads under SCHED_DEADLINE again when the kernel has forgotten to run them.

use std::collections::BTreeMap;

use crate::book::Book;
use crate::enforcement;
use crate::host::{Host, Severity};
use crate::stall::Stall;

/// The last observation of each thread under SCHED_DEADLINE.
#[derive(Debug, Default)]
pub(crate) struct StallRecovery {
    /// By thread id.
    stalls: BTreeMap<u32, Stall>,
}

impl StallRecovery {
    /// Checks every thread, and renews the budget of those that have stalled. A reservation whose
    /// budget cannot be renewed is given up.
    pub(crate) fn look<H: Host>(&mut self, book: &mut Book<H::Change>, host: &mut H) {
        let mut before = std::mem::take(&mut self.stalls);
        let mut stalled = Vec::new();
        for (index, held) in book.held.iter().enumerate() {
            if book.waits(held.tid) || !held.guarantee.is_by_deadline() {
                continue;
            }
            let usage = host.usage(held.pid, held.tid);
            let runnable = host.is_runnable(held.pid, held.tid);
            let (Some(reservation), Some(usage), Some(runnable)) =
                (held.reservation(), usage, runnable)
            else {
                continue;
            };
            let now = host.now();
            let mut stall = before.remove(&held.tid).unwrap_or(Stall::begin(usage.ran, now));
            if stall.observe((usage.ran, runnable), &reservation, host.accounting_lag(), now) {
                stalled.push((index, reservation));
            }
            self.stalls.insert(held.tid, stall);
        }
        // From the last to the first, because a reservation that is given up leaves the list.
        for (index, reservation) in stalled.into_iter().rev() {
            let name = book.held[index].name();
            let text = format!("{name}: the kernel does not let it run; its budget starts again");
            host.tell(Severity::Warn, &text);
            if let Err(why) = enforcement::renew(host, &book.held[index], &reservation) {
                book.give_up(index, &why, host);
            }
        }
    }
}
