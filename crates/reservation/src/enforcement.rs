//! The changes of the host for one reservation: made all or none, checked, and undone in the
//! opposite order.

use timevisor_schedule::Reservation;

use crate::held::{Held, Level, Step};
use crate::host::{Because, Host, Unmade};
use crate::restore::Restore;

/// Changes that were not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failed {
    /// Why, and what could not be undone.
    pub why: String,
    /// Nothing is left of the attempt: everything was undone, and no thread's policy was changed meanwhile.
    pub is_clean: bool,
    /// Another core may do.
    pub is_of_core: bool,
}

impl From<Unmade> for Failed {
    /// Of something that was not begun.
    fn from(unmade: Unmade) -> Self {
        let is_of_core = unmade.cause != Because::Anything;
        Self { why: unmade.why, is_clean: true, is_of_core }
    }
}

/// Makes the changes of a reservation from number `from` on. With `wake`, a vCPU that sleeps elsewhere
/// is woken, so that it comes to its core.
///
/// `Some(number)`: the vCPU sleeps and has not moved to its core yet. Make the rest, from that
/// number on, a little later; a sleeping vCPU needs no processor time.
///
/// # Errors
/// The first change that failed. With `from == 0`, everything has been undone. Otherwise other
/// reservations may need what was changed: the caller has to release this reservation.
pub(crate) fn make<H: Host>(
    host: &mut H,
    held: &Held<H::Change>,
    from: usize,
    wake: bool,
) -> Result<Option<usize>, Failed> {
    for (number, (_, change)) in held.changes.iter().enumerate().skip(from) {
        let made = match make_one(host, held, change) {
            Err(unmade) if unmade.cause == Because::Asleep && wake && host.wake(held) => {
                make_one(host, held, change)
            }
            made => made,
        };
        match made {
            Ok(()) => {}
            Err(unmade) if unmade.cause == Because::Asleep => return Ok(Some(number)),
            // The change may have been made in part, so it is undone as well.
            Err(unmade) => return Err(undone(host, held, unmade, number + 1, from)),
        }
    }
    match check(host, held) {
        Ok(()) => Ok(None),
        Err(why) => Err(undone(host, held, Unmade::of_core(why), held.changes.len(), from)),
    }
}

/// Makes one change, unless another thread has the id of its thread by now.
pub(crate) fn make_one<H: Host>(
    host: &mut H,
    held: &Held<H::Change>,
    change: &H::Change,
) -> Result<(), Unmade> {
    if held.may_touch(host, change) {
        return host.make(held, change);
    }
    if host.thread(change).is_some_and(|tid| tid != held.tid) {
        // One of QEMU's others, such as a worker: it needs nothing any more.
        return Ok(());
    }
    let why =
        format!("{change}: the thread has ended; is the VM running, and is the vCPU plugged?");
    Err(Unmade { cause: Because::Anything, why })
}

/// Undoes the first `made` changes, unless others may need some of them.
fn undone<H: Host>(
    host: &mut H,
    held: &Held<H::Change>,
    unmade: Unmade,
    made: usize,
    from: usize,
) -> Failed {
    let Unmade { cause, why } = unmade;
    let is_of_core = cause != Because::Anything;
    if from > 0 {
        return Failed { why, is_clean: false, is_of_core };
    }
    let made = &held.changes[..made];
    let left = release(host, held, made);
    if left.is_empty() {
        let is_clean = !made.iter().any(|(_, change)| host.sets_policy(change));
        return Failed { why, is_clean, is_of_core };
    }
    let why = format!("{why}; and this could not be undone: {}", left.join("; "));
    Failed { why, is_clean: false, is_of_core }
}

/// The changes of a reservation with another budget, and a description of the difference.
pub(crate) fn with_reservation<H: Host>(
    host: &H,
    changes: &[Step<H::Change>],
    reservation: &Reservation,
) -> (Vec<Step<H::Change>>, Vec<String>) {
    let mut words = Vec::new();
    let changed = changes.iter().map(|(level, change)| {
        let with_budget = host.with_reservation(change, reservation);
        words.extend(with_budget.as_ref().map(ToString::to_string));
        (*level, with_budget.unwrap_or_else(|| change.clone()))
    });
    (changed.collect(), words)
}

/// Sets the policies of a reservation's threads again after their budget has changed. The kernel
/// changes all or nothing.
///
/// # Errors
/// The kernel's refusal. The previous settings are still in force then.
pub(crate) fn set_policies<H: Host>(host: &mut H, held: &Held<H::Change>) -> Result<(), String> {
    set_first_policies(host, held, held.changes.len())?;
    check(host, held)
}

/// Like [`set_policies`], for the changes before number `from`, while the vCPU waits for the rest.
///
/// # Errors
/// The kernel's refusal. The previous settings are still in force then.
pub(crate) fn set_first_policies<H: Host>(
    host: &mut H,
    held: &Held<H::Change>,
    from: usize,
) -> Result<(), String> {
    for (_, change) in &held.changes[..from] {
        if host.sets_policy(change) {
            make_one(host, held, change).map_err(|unmade| unmade.why)?;
        }
    }
    Ok(())
}

/// Takes threads out of SCHED_DEADLINE and puts them back. The kernel then starts with a full
/// budget.
///
/// # Errors
/// The kernel's refusal. The thread may be without its reservation then.
pub(crate) fn renew<H: Host>(
    host: &mut H,
    held: &Held<H::Change>,
    reservation: &Reservation,
) -> Result<(), String> {
    for (_, change) in &held.changes {
        if host.with_reservation(change, reservation).is_some() && held.may_touch(host, change) {
            host.undo(change)?;
            host.make(held, change).map_err(|unmade| unmade.why)?;
        }
    }
    check(host, held)
}

/// Checks that a reservation is in force as planned.
///
/// # Errors
/// The first difference.
pub(crate) fn check<H: Host>(host: &H, held: &Held<H::Change>) -> Result<(), String> {
    held.changes.iter().try_for_each(|(_, change)| host.check(held, change))
}

/// Undoes what can be undone, starting with the last change. The result says what could not be
/// undone.
fn undo<'a, H: Restore>(
    host: &mut H,
    changes: impl DoubleEndedIterator<Item = &'a H::Change>,
) -> Vec<String>
where
    H::Change: 'a,
{
    let failed = |change: &H::Change| match host.undo(change) {
        Ok(()) => None,
        Err(error) => Some(format!("{change}: not undone: {error}")),
    };
    changes.rev().filter_map(failed).collect()
}

/// Restores the state before `changes`, which were made for `held`. Threads that have ended, and
/// those of a process that has ended, are left alone, because a later thread may have the same id.
/// The result says what could not be restored.
pub(crate) fn release<H: Restore>(
    host: &mut H,
    held: &Held<H::Change>,
    changes: &[Step<H::Change>],
) -> Vec<String> {
    let alive = host.is_alive(held.pid, held.start_time, held.tid);
    let to_undo: Vec<H::Change> = changes
        .iter()
        .map(|(_, change)| change)
        .filter(|change| host.thread(change).is_none() || (alive && held.may_touch(host, change)))
        .cloned()
        .collect();
    let failed = undo(host, to_undo.iter());
    if alive {
        host.widen(held.pid, changes);
    }
    failed
}

/// Undoes all changes in a journal, without a daemon. The result says what could not be restored.
#[must_use]
pub fn release_all<H: Restore>(host: &mut H, all: &[Held<H::Change>]) -> Vec<String> {
    let (mut problems, mut again) = (Vec::new(), Vec::new());
    for held in all.iter().rev() {
        if !release(host, held, &held.leftover).is_empty() {
            again.push(held);
        }
    }
    for level in [Level::Thread, Level::Processor, Level::Host] {
        for held in all.iter().rev() {
            let of_level = |(at, _): &&Step<H::Change>| *at == level;
            let changes: Vec<_> = held.changes.iter().filter(of_level).cloned().collect();
            problems.extend(release(host, held, &changes));
        }
    }
    // A thread that could not be taken back from a move has left its new core only now.
    for held in again {
        let others = held.leftover.iter().filter(|(_, c)| host.thread(c) != Some(held.tid));
        let others: Vec<_> = others.cloned().collect();
        problems.extend(release(host, held, &others));
    }
    problems
}
