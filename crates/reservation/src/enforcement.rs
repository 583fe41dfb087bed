//! The changes of the host for one reservation: made all or none, checked, and undone in the
//! opposite order.

use timevisor_schedule::Reservation;

use crate::held::{Held, Level, Step};
use crate::host::{Host, Restore};

/// Changes that were not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failed {
    /// Why, and what could not be undone.
    pub why: String,
    /// Nothing is left of the attempt: everything was undone, and no thread's policy was changed meanwhile.
    pub is_clean: bool,
}

/// Makes the changes of a reservation from number `from` on.
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
) -> Result<Option<usize>, Failed> {
    for (number, (_, change)) in held.changes.iter().enumerate().skip(from) {
        match host.make(held, change) {
            Ok(()) => {}
            Err(unmade) if unmade.asleep => return Ok(Some(number)),
            // The change may have been made in part, so it is undone as well.
            Err(unmade) => return Err(undone(host, unmade.why, &held.changes[..=number], from)),
        }
    }
    match check(host, held) {
        Ok(()) => Ok(None),
        Err(why) => Err(undone(host, why, &held.changes, from)),
    }
}

fn undone<H: Host>(host: &mut H, why: String, made: &[Step<H::Change>], from: usize) -> Failed {
    if from > 0 {
        return Failed { why, is_clean: false };
    }
    let left = undo(host, made.iter().map(|(_, change)| change));
    if left.is_empty() {
        let is_clean = !made.iter().any(|(_, change)| host.sets_policy(change));
        return Failed { why, is_clean };
    }
    let why = format!("{why}; and this could not be undone: {}", left.join("; "));
    Failed { why, is_clean: false }
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
            host.make(held, change).map_err(|unmade| unmade.why)?;
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
        if host.with_reservation(change, reservation).is_some() {
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

/// Restores the state before `changes`, which were made for `held`. Threads of a process that has
/// ended are left alone, because a later thread may have the same id. The result says what could
/// not be restored.
pub(crate) fn release<H: Restore>(
    host: &mut H,
    held: &Held<H::Change>,
    changes: &[Step<H::Change>],
) -> Vec<String> {
    let alive = host.is_alive(held.pid, held.start_time, held.tid);
    let to_undo: Vec<H::Change> = changes
        .iter()
        .map(|(_, change)| change)
        .filter(|change| alive || host.thread(change).is_none())
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
    let mut problems = Vec::new();
    for level in [Level::Thread, Level::Processor, Level::Host] {
        for held in all.iter().rev() {
            let of_level = |(at, _): &&Step<H::Change>| *at == level;
            let changes: Vec<_> = held.changes.iter().filter(of_level).cloned().collect();
            problems.extend(release(host, held, &changes));
        }
    }
    problems
}
