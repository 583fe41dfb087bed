//! Moving a reservation to another core, without the vCPU leaving SCHED_DEADLINE.
//!
//! Make before break: the new core is set apart, then the kernel takes the thread there with its
//! policy and what is left of its budget, then the old core is given back. The journal says at each
//! step what has to be undone if the daemon dies there ([`Held::leftover`]): before the thread is on
//! its new core, what was prepared there; afterwards, what is left on the old one.

use std::collections::BTreeSet;

use crate::book::{Book, CROWDED};
use crate::enforcement;
use crate::guarantee::{Guarantee, Wanted};
use crate::handover::{HandOver, hand_over, is_overlaid};
use crate::held::{Held, Level, Step};
use crate::host::{Guests, Host, Moved, Severity};
use crate::machine::Reservations;
use crate::request::{Reason, Refusal};

/// The changes that take a reservation's thread to another core.
struct Way<C> {
    /// The new core, in order, and the move itself from the old one and back.
    there: Vec<Step<C>>,
    /// What the reservation needs on its new core, without the move.
    needs: Vec<Step<C>>,
    /// The move, from and back to where the thread was before its reservation.
    for_good: Step<C>,
    /// The policies of other threads of the process, as they would be changed now.
    policies: Vec<Step<C>>,
}

impl<C: Clone + PartialEq + std::fmt::Debug + std::fmt::Display> Reservations<C> {
    /// Moves a vCPU's reservation to another core. The result describes what has changed.
    ///
    /// # Errors
    /// Why it stays where it was; nothing has changed then, unless the message says what could not
    /// be undone.
    pub fn relocate<H: Host<Change = C>>(
        &mut self,
        (vm, vcpu): (&str, u32),
        core: usize,
        dry_run: bool,
        host: &mut H,
        guests: &impl Guests,
    ) -> Result<Vec<String>, Refusal> {
        let unsupported =
            |text: String| Refusal::new(Reason::Unsupported, text, "see `timevisor reserve list`");
        let Some(index) = self.book.find(vm, vcpu) else {
            let text = format!("VM {vm} has no reservation for vCPU {vcpu}");
            return Err(Refusal::new(Reason::NotFound, text, "see `timevisor reserve list`"));
        };
        let held = &self.book.held[index];
        let name = held.name();
        let Some(old) = held.core() else {
            return Err(unsupported(format!(
                "{name}: only --promise core has a core to move from"
            )));
        };
        if old == core {
            let text = format!("{name} is on core {core} already");
            return Err(Refusal::new(Reason::BadRequest, text, "name another one"));
        }
        if self.book.waits(held.tid) {
            let text = format!("{name} waits for the vCPU to run, so nothing can move yet");
            let step = "apply it with --core, or try again when it is in force";
            return Err(Refusal::new(Reason::Unavailable, text, step));
        }
        let target = guests.vcpu(vm, vcpu)?;
        enforcement::check(host, held).map_err(|why| unsupported(format!("{name}: {why}")))?;
        let is_same = target.tid == held.tid && target.start_time == held.start_time;
        let (Some(reservation), true) = (held.reservation(), is_same) else {
            return Err(unsupported(format!("{name}: another thread runs that vCPU by now")));
        };
        let (alone, now) = (held.alone, host.now());
        self.book.admits(core, &reservation, alone, Some(index), now).map_err(|refused| {
            let step = "the reservation is as it was; see `timevisor reserve list`";
            Refusal::new(Reason::Unavailable, refused.to_string(), step)
        })?;
        let wanted = Wanted { target, reservation, guarantee: Guarantee::Core(core) };
        if self.book.crowds_out(target.tid, target.pid, core, host) {
            return Err(refused(core, CROWDED));
        }
        let way = self.book.way(index, &wanted, host).map_err(|why| refused(core, &why))?;
        let words: Vec<String> = way.there.iter().map(|(_, change)| change.to_string()).collect();
        if dry_run {
            return Ok(words);
        }
        self.book.go(index, core, &way, host).map_err(|why| refused(core, &why))?;
        let left = self.book.leave(index, core, way, host);
        let problems = left.map_err(|why| refused(core, &why))?;
        self.book.audit.restart(target.tid);
        self.book.ledger.free(old, reservation, host.now());
        self.book.settle_process(target.pid, host);
        host.tell(Severity::Info, &format!("{name}: moved from core {old} to core {core}"));
        if problems.is_empty() {
            return Ok(words);
        }
        let text =
            format!("it has moved, but core {old} is not as it was: {}", problems.join("; "));
        Err(Refusal::new(Reason::Internal, text, "bring it back by hand"))
    }
}

impl<C: Clone + PartialEq> Book<C> {
    /// Plans the way to another core.
    fn way<H: Host<Change = C>>(
        &self,
        index: usize,
        wanted: &Wanted,
        host: &H,
    ) -> Result<Way<C>, String> {
        let held = &self.held[index];
        let isolated: BTreeSet<usize> = self.isolated();
        let planned = host.plan(wanted, &isolated).map_err(|unmade| unmade.why)?;
        let (mut there, mut needs, mut policies, mut for_good) =
            (Vec::new(), Vec::new(), Vec::new(), None);
        for (level, change) in planned {
            match host.thread(&change) {
                None => {
                    there.push((level, change.clone()));
                    needs.push((level, change));
                }
                Some(tid) if tid == held.tid => {
                    let moves =
                        held.changes.iter().find_map(|(_, old)| moves_on(host, old, &change));
                    if let Some((from_here, from_home)) = moves {
                        there.push((level, from_here));
                        for_good = Some((level, from_home));
                    }
                }
                Some(_) if host.sets_policy(&change) => policies.push((level, change)),
                // Other threads leave the new core once the old one is theirs again.
                Some(_) => {}
            }
        }
        let for_good = for_good.ok_or("this host has no way from one core to another")?;
        Ok(Way { there, needs, for_good, policies })
    }

    /// Sets the new core apart and takes the thread there.
    fn go<H: Host<Change = C>>(
        &mut self,
        index: usize,
        core: usize,
        way: &Way<C>,
        host: &mut H,
    ) -> Result<(), String> {
        let before = self.held[index].clone();
        let on_its_way =
            Held { guarantee: Guarantee::Core(core), changes: way.there.clone(), ..before.clone() };
        self.held[index].leftover.clone_from(&way.there);
        // A change is written to the journal before it is made.
        if let Err(why) = host.write(&self.held) {
            self.held[index] = before;
            return Err(why);
        }
        let made = way.there.iter().try_for_each(|(_, change)| {
            enforcement::make_one(host, &on_its_way, change).map_err(|unmade| unmade.why)
        });
        let there = made.and_then(|()| {
            arrives(host, &on_its_way)?;
            enforcement::check(host, &before)
        });
        let Err(why) = there else { return Ok(()) };
        self.held[index] = before;
        Err(self.back(index, &way.there, why, host))
    }

    /// Undoes the way of a reservation that stays on its core. Returns why, and what could not be
    /// undone.
    fn back<H: Host<Change = C>>(
        &self,
        index: usize,
        there: &[Step<C>],
        why: String,
        host: &mut H,
    ) -> String {
        let mut reasons = vec![why];
        reasons.extend(enforcement::release(host, &self.held[index], there));
        let isolated: Vec<usize> = self.isolated().into_iter().collect();
        reasons.extend(host.settle(&isolated).err());
        self.store(host);
        reasons.join("; ")
    }

    /// Gives the old core back. The result says what could not be undone.
    ///
    /// # Errors
    /// Why the thread was taken back to the old core: that it has moved could not be stored.
    fn leave<H: Host<Change = C>>(
        &mut self,
        index: usize,
        core: usize,
        way: Way<C>,
        host: &mut H,
    ) -> Result<Vec<String>, String> {
        let (all_before, waiting_before) = (self.held.clone(), self.waiting.clone());
        let mut moved = self.held.remove(index);
        let mut gone = Held { changes: Vec::new(), ..moved.clone() };
        let mut stays = Vec::new();
        let Way { there, needs, for_good, policies } = way;
        let mut arrives = Some((needs, for_good));
        for (level, change) in std::mem::take(&mut moved.changes) {
            let thread = host.thread(&change);
            let of_others = thread.is_some_and(|tid| tid != moved.tid);
            let is_move = arrives
                .as_ref()
                .is_some_and(|(_, (_, for_good))| moves_on(host, &change, for_good).is_some());
            if level == Level::Processor || (of_others && !host.sets_policy(&change)) {
                gone.changes.push((level, change));
            } else if is_move && let Some((needs, for_good)) = arrives.take() {
                stays.extend(needs);
                stays.push(for_good);
            } else if of_others
                && is_overlaid(&change, moved.pid, &mut self.held[index..], host)
                && let Some(again) = policies.iter().find(|(_, new)| host.thread(new) == thread)
            {
                stays.push(again.clone());
            } else {
                stays.push((level, change));
            }
        }
        let HandOver { undo, heirs } = hand_over(&mut gone, index, &mut self.held, host);
        for (heir, received) in heirs {
            let tid = self.held[heir].tid;
            self.waiting.iter_mut().filter(|w| w.tid == tid).for_each(|w| w.from += received);
        }
        moved.guarantee = Guarantee::Core(core);
        moved.changes = stays;
        moved.leftover.clone_from(&undo);
        moved.note_threads(host);
        // What it changes from now on is on top of what the others have changed.
        self.held.push(moved);
        if let Err(why) = host.write(&self.held) {
            (self.held, self.waiting) = (all_before, waiting_before);
            self.held[index].leftover.clear();
            return Err(self.back(index, &there, why, host));
        }
        let last = self.held.len() - 1;
        let mut problems = enforcement::release(host, &self.held[last], &undo);
        let isolated: Vec<usize> = self.isolated().into_iter().collect();
        problems.extend(host.settle(&isolated).err());
        self.held[last].leftover.clear();
        self.store(host);
        Ok(problems)
    }
}

/// Where both move the same thread to another group, `earlier` first: `later` as a move from and back
/// to where `earlier` went, and as one from and back to where the thread was before that.
fn moves_on<H: Host>(
    host: &H,
    earlier: &H::Change,
    later: &H::Change,
) -> Option<(H::Change, H::Change)> {
    let (earlier, later) = (host.moved(earlier)?, host.moved(later)?);
    if earlier.tid != later.tid {
        return None;
    }
    let from = |from| host.moving(Moved { tid: later.tid, to: later.to.clone(), from });
    Some((from(earlier.to), from(earlier.from)))
}

/// A thread that was woken and is not there yet has just gone to sleep, or is waking up by itself.
const MOST_WAKES: usize = 100;

/// Has a thread that sleeps come to its new core: the kernel takes it along when it wakes up. The old core
/// is not freed before, because the thread's bandwidth and its next wake-up are there.
///
/// # Errors
/// When it stays where it was.
fn arrives<H: Host>(host: &mut H, held: &Held<H::Change>) -> Result<(), String> {
    for _ in 0..MOST_WAKES {
        if host.is_on_core(held) {
            return Ok(());
        }
        if !host.wake(held) && host.is_runnable(held.pid, held.tid) != Some(true) {
            break;
        }
    }
    if host.is_on_core(held) {
        return Ok(());
    }
    Err("the vCPU sleeps and cannot be woken (a debugger has it, it is stopped, or it waits for a disk); \
         move it when it runs"
        .to_owned())
}

fn refused(core: usize, why: &str) -> Refusal {
    let text = format!("not moved to core {core}: {why}");
    Refusal::new(Reason::Unsupported, text, "the reservation is as it was")
}
