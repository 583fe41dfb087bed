//! The held reservations and their state, for display.

use timevisor_schedule::audit::{Cause, Stretch, Tally};

use crate::configured::Configured;
use crate::enforcement;
use crate::held::Held;
use crate::host::Host;
use crate::machine::Reservations;
use crate::request::{Reason, Refusal};

/// A reservation as it is displayed.
#[derive(Clone, Debug)]
pub struct Row<'a, C> {
    /// The reservation.
    pub held: &'a Held<C>,
    /// How long it has been held, ns.
    pub age: u64,
    /// How long the thread has run since then, ns; `None` once it has ended.
    pub ran: Option<u64>,
    /// How long the thread has been runnable without running since it began, ns.
    pub waited: Option<u64>,
    /// The findings of the audit, and the largest deficit in one interval, ns; `None` before the
    /// first sample.
    pub audit: Option<(Tally, u64)>,
    /// Why the guarantee does not hold at the moment.
    pub problem: Option<String>,
}

impl<C: Clone + PartialEq + std::fmt::Debug + std::fmt::Display> Reservations<C> {
    /// All held reservations, with their state.
    pub fn rows<H: Host<Change = C>>(&self, host: &H) -> Vec<Row<'_, C>> {
        let now = host.now();
        let row = |held| self.row(held, host, now);
        self.book.held.iter().map(row).collect()
    }

    fn row<'a, H: Host<Change = C>>(&self, held: &'a Held<C>, host: &H, now: u64) -> Row<'a, C> {
        let usage = host.usage(held.pid, held.tid);
        Row {
            held,
            age: now.saturating_sub(held.since),
            ran: usage.map(|usage| usage.ran.saturating_sub(held.ran)),
            waited: usage.map(|usage| usage.waited),
            audit: self.book.audit.of(held.tid),
            problem: self.problem(held, host),
        }
    }

    fn problem<H: Host<Change = C>>(&self, held: &Held<C>, host: &H) -> Option<String> {
        if self.book.waits(held.tid) {
            return Some("waits for the vCPU to run".to_owned());
        }
        let joined = self.isolation.problem().filter(|_| held.core().is_some());
        enforcement::check(host, held)
            .err()
            .or_else(|| joined.map(|why| format!("its core may not be isolated: {why}")))
    }

    /// Why requested reservations are not held.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let failures = self.book.failures.iter();
        let failures = failures.map(|of| format!("VM {} vCPU {}: {}", of.vm, of.vcpu, of.why));
        let unreadable = self.unreadable().map(|refusal| refusal.to_string());
        let configured = self.configured.iter().filter_map(Configured::problem);
        unreadable.into_iter().chain(failures).chain(configured).collect()
    }

    /// Why a guest's job that was pending from `from` to `to` (ns of [`Host::now`]) was late, and
    /// what its vCPU received meanwhile.
    ///
    /// # Errors
    /// [`Reason::NotFound`] if there is no reservation, or that time is no longer remembered.
    pub fn missed(
        &self,
        (vm, vcpu): (&str, u32),
        from: u64,
        to: u64,
    ) -> Result<(Cause, Stretch), Refusal> {
        let Some(index) = self.book.find(vm, vcpu) else {
            let text = format!("VM {vm} has no reservation for vCPU {vcpu}");
            return Err(Refusal::new(Reason::NotFound, text, "see `timevisor reserve list`"));
        };
        self.book.audit.missed(&self.book.held[index], from, to).ok_or_else(|| {
            Refusal::new(
                Reason::NotFound,
                "that time is not remembered".to_owned(),
                "ask within a minute, for a time in which the reservation was in force and stayed the same",
            )
        })
    }
}
