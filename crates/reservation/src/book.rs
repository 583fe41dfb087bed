//! All held reservations: release, change of the budget, and what both leave behind.

use std::collections::BTreeSet;

use timevisor_schedule::Reservation;

use crate::audit::Audit;
use crate::enforcement;
use crate::handover::{HandOver, hand_over};
use crate::held::{Held, Level, Step};
use crate::host::{Host, Severity};
use crate::ledger::{Ledger, Neighbour, Refused};
use crate::request::{Reason, Refusal};

/// A vCPU that has not run since it was assigned its core. Its changes from number `from` on still
/// have to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) tid: u32,
    pub(crate) from: usize,
}

/// A reservation that was given up; kept until the next request for the same vCPU.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) vm: String,
    pub(crate) vcpu: u32,
    pub(crate) why: String,
}

/// Why a core is not for a vCPU.
pub(crate) const CROWDED: &str = "the VM's other threads would have no core besides those of its reserved vCPUs;      release one of them, or take another core";

/// All held reservations.
#[derive(Debug)]
pub(crate) struct Book<C> {
    pub(crate) held: Vec<Held<C>>,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) ledger: Ledger,
    pub(crate) audit: Audit,
}

impl<C: Clone> Book<C> {
    pub(crate) fn new(held: Vec<Held<C>>) -> Self {
        Self {
            held,
            waiting: Vec::new(),
            failures: Vec::new(),
            ledger: Ledger::default(),
            audit: Audit::default(),
        }
    }

    /// The index of a vCPU's reservation.
    pub(crate) fn find(&self, vm: &str, vcpu: u32) -> Option<usize> {
        self.held.iter().position(|held| held.is_for(vm, vcpu))
    }

    /// Whether a reservation is waiting for its vCPU to run.
    pub(crate) fn waits(&self, tid: u32) -> bool {
        self.waiting.iter().any(|waiting| waiting.tid == tid)
    }

    /// The isolated cores.
    pub(crate) fn isolated(&self) -> BTreeSet<usize> {
        self.held.iter().filter_map(Held::core).collect()
    }

    /// Stores the held reservations. A failure is logged: the journal then lists more than is held,
    /// and a restart undoes the difference.
    pub(crate) fn store<H: Host<Change = C>>(&self, host: &mut H) {
        if let Err(error) = host.write(&self.held) {
            host.tell(Severity::Error, &error);
        }
    }

    /// Undoes the changes of one reservation, except those that others need. The result says what
    /// could not be undone.
    pub(crate) fn give_back<H: Host<Change = C>>(
        &mut self,
        index: usize,
        host: &mut H,
    ) -> Vec<String> {
        let mut gone = self.held.remove(index);
        self.waiting.retain(|waiting| waiting.tid != gone.tid);
        let HandOver { undo, heirs } = hand_over(&mut gone, index, &mut self.held, host);
        for (heir, received) in heirs {
            let tid = self.held[heir].tid;
            // The positions in the heir's changes are counted from the front.
            self.waiting.iter_mut().filter(|w| w.tid == tid).for_each(|w| w.from += received);
        }
        let mut problems = enforcement::release(host, &gone, &undo);
        let leftover = std::mem::take(&mut gone.leftover);
        problems.extend(enforcement::release(host, &gone, &leftover));
        let isolated: Vec<usize> = self.isolated().into_iter().collect();
        if gone.core().is_some() {
            problems.extend(host.settle(&isolated).err());
        }
        if let Some(reservation) = gone.reservation() {
            let now = host.now();
            if let Some(core) = gone.core() {
                self.ledger.free(core, reservation, now);
            }
            if gone.guarantee.is_by_deadline() {
                self.ledger.leave(gone.tid, &reservation, now);
            }
        }
        self.store(host);
        self.settle_process(gone.pid, host);
        problems
    }

    /// Ends moves to another core in the middle of which an earlier daemon died: undoes what was
    /// prepared on the new core, or what is left on the old one.
    ///
    /// Returns the threads that could not be taken back to where their reservation is: these are to be given
    /// back, and with them what is left of the move.
    pub(crate) fn end_moves<H: Host<Change = C>>(&mut self, host: &mut H) -> Vec<u32> {
        let (mut moved, mut astray) = (false, Vec::new());
        for index in 0..self.held.len() {
            if self.held[index].leftover.is_empty() {
                continue;
            }
            moved = true;
            let name = self.held[index].name();
            let held = &mut self.held[index];
            let mut leftover = std::mem::take(&mut held.leftover);
            let problems = enforcement::release(host, held, &leftover);
            if !problems.is_empty() {
                leftover.retain(|(_, change)| host.thread(change) != Some(held.tid));
                held.leftover = leftover;
                astray.push(held.tid);
            }
            for problem in problems {
                host.tell(Severity::Warn, &format!("{name}: {problem}"));
            }
        }
        if moved {
            let isolated: Vec<usize> = self.isolated().into_iter().collect();
            if let Err(why) = host.settle(&isolated) {
                host.tell(Severity::Warn, &why);
            }
            self.store(host);
        }
        astray
    }

    /// Brings threads that several reservations of a process share into the state that the
    /// remaining reservations need: a release restores the earlier policy and cores of such
    /// threads.
    pub(crate) fn settle_process<H: Host<Change = C>>(&mut self, pid: u32, host: &mut H) {
        for index in 0..self.held.len() {
            if self.held[index].pid == pid
                && let Err(why) = self.settle_one(index, host)
            {
                let name = self.held[index].name();
                host.tell(Severity::Warn, &format!("{name}: {why}"));
            }
        }
    }

    fn settle_one<H: Host<Change = C>>(
        &mut self,
        index: usize,
        host: &mut H,
    ) -> Result<(), String> {
        let strays = host.strays(&self.held[index])?;
        self.forget_ended(index, &strays, host);
        // One that an earlier daemon stored and did not make is made; it is not there twice.
        let held = &self.held[index];
        let is_known = |new: &C| held.changes.iter().any(|(_, old)| host.sets_the_same(old, new));
        let new: Vec<_> = strays.iter().filter(|new| !is_known(new)).cloned().collect();
        if !new.is_empty() {
            let steps = new.into_iter().map(|change| (Level::Thread, change));
            self.held[index].changes.extend(steps);
            self.held[index].note_threads(host);
            // A change is written to the journal before it is made.
            host.write(&self.held)?;
        }
        let held = &self.held[index];
        let is_lost = |change: &C| {
            host.sets_policy(change)
                && host.thread(change) != Some(held.tid)
                && held.may_touch(host, change)
                && host.check(held, change).is_err()
        };
        let waits = self.waits(held.tid);
        let of_held = held.changes.iter().map(|(_, change)| change);
        let lost: Vec<C> = of_held.filter(|change| !waits && is_lost(change)).cloned().collect();
        for change in strays.into_iter().chain(lost) {
            enforcement::make_one(host, held, &change).map_err(|unmade| unmade.why)?;
        }
        Ok(())
    }

    /// Drops the changes of threads that have ended, where another thread with the same id is to be
    /// changed now.
    fn forget_ended<H: Host<Change = C>>(&mut self, index: usize, new: &[C], host: &H) {
        let Self { held, waiting, .. } = self;
        let held = &mut held[index];
        for tid in new.iter().filter_map(|change| host.thread(change)) {
            let now = host.thread_started(held.pid, tid);
            if tid == held.tid || held.threads.get(&tid).is_none_or(|then| Some(*then) == now) {
                continue;
            }
            held.threads.remove(&tid);
            let is_old = |(_, change): &Step<C>| host.thread(change) == Some(tid);
            for waiting in waiting.iter_mut().filter(|waiting| waiting.tid == held.tid) {
                let before = &held.changes[..waiting.from.min(held.changes.len())];
                waiting.from -= before.iter().filter(|step| is_old(step)).count();
            }
            held.changes.retain(|step| !is_old(step));
        }
    }

    /// Releases a reservation that cannot be kept, and remembers why.
    pub(crate) fn give_up<H: Host<Change = C>>(&mut self, index: usize, why: &str, host: &mut H) {
        let name = self.held[index].name();
        host.tell(Severity::Warn, &format!("{name}: not reserved: {why}"));
        let (vm, vcpu) = (self.held[index].vm.clone(), self.held[index].vcpu);
        let mut reasons = vec![why.to_owned()];
        reasons.extend(self.give_back(index, host));
        self.failures.push(Failure { vm, vcpu, why: reasons.join("; ") });
    }

    /// Gives a thread on its core another budget. The thread is never without a reservation. The
    /// result describes what has changed.
    ///
    /// # Errors
    /// Why the change failed; the reservation is unchanged.
    pub(crate) fn change<H: Host<Change = C>>(
        &mut self,
        index: usize,
        reservation: &Reservation,
        (alone, soft): (bool, Option<(u64, u64)>),
        host: &mut H,
    ) -> Result<Vec<String>, Refusal> {
        let before = self.held[index].clone();
        let (changes, words) = enforcement::with_reservation(host, &before.changes, reservation);
        self.held[index] = Held {
            budget: reservation.budget(),
            deadline: reservation.deadline(),
            period: reservation.period(),
            soft,
            alone,
            changes,
            ..before.clone()
        };
        // A vCPU that has not moved to its core yet cannot have a budget there. Its outstanding
        // changes are made with the new budget when it runs.
        let waits_from = self.waiting.iter().find(|w| w.tid == before.tid).map(|w| w.from);
        let changed = match host.write(&self.held) {
            Ok(()) => match waits_from {
                Some(from) => enforcement::set_first_policies(host, &self.held[index], from),
                None => enforcement::set_policies(host, &self.held[index]),
            },
            Err(error) => Err(error),
        };
        if let Err(why) = changed {
            self.held[index] = before;
            self.store(host);
            return Err(Refusal::new(Reason::Unsupported, why, "the reservation is as it was"));
        }
        self.audit.restart(before.tid);
        if let (Some(core), Some(old)) = (before.core(), before.reservation())
            && let Some(used) = still_used(&old, reservation)
        {
            self.ledger.free(core, used, host.now());
        }
        Ok(words)
    }

    /// Whether a reservation would leave the other threads of its process no core: those of its other
    /// vCPUs have taken the rest from them.
    pub(crate) fn crowds_out<H: Host<Change = C>>(
        &self,
        tid: u32,
        pid: u32,
        core: usize,
        host: &H,
    ) -> bool {
        let has_others = self.held.iter().any(|held| held.pid == pid && held.tid != tid);
        let cores = host.cores(Some(pid));
        let mut allowed = cores.iter().filter(|core| core.is_allowed).map(|core| core.number);
        has_others && allowed.all(|other| other == core)
    }

    /// Whether a core can keep a reservation in addition to its present ones, except for
    /// reservation number `replaced`.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn admits(
        &mut self,
        core: usize,
        reservation: &Reservation,
        alone: bool,
        replaced: Option<usize>,
        now: u64,
    ) -> Result<(), Refused> {
        let neighbours = self.neighbours(core, replaced, Held::reservation);
        self.ledger.admit(core, reservation, alone, &neighbours, now)
    }

    /// The reservations on a core except for number `replaced`, each with the size that `of`
    /// returns.
    pub(crate) fn neighbours(
        &self,
        core: usize,
        replaced: Option<usize>,
        of: fn(&Held<C>) -> Option<Reservation>,
    ) -> Vec<Neighbour> {
        let on_core = self
            .held
            .iter()
            .enumerate()
            .filter(|(index, held)| Some(*index) != replaced && held.core() == Some(core));
        on_core
            .filter_map(|(_, held)| {
                Some(Neighbour { name: held.name(), reservation: of(held)?, alone: held.alone })
            })
            .collect()
    }
}

/// The part of an old budget that is still in use after a change: the current period keeps its
/// budget and deadline.
fn still_used(old: &Reservation, new: &Reservation) -> Option<Reservation> {
    if (old.deadline(), old.period()) != (new.deadline(), new.period()) {
        return Some(*old);
    }
    let less = old.budget().checked_sub(new.budget())?;
    Reservation::shared(less, old.period()).ok()
}
