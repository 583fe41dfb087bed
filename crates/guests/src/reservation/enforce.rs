//! From a reservation to changes of the host, made all or not at all, and undone in the opposite order.

use std::collections::BTreeSet;
use std::io;

use serde::{Deserialize, Serialize};
use timevisor_linux::affinity::allowed_of;
use timevisor_linux::cpu_limit;
use timevisor_linux::cpuset::{Cpusets, Level};
use timevisor_linux::kvm::no_halt_polling;
use timevisor_linux::scheduling::{Attributes, Change, Policy, processor_of, threads};
use timevisor_schedule::Reservation;

use super::explain::EnforceError;

/// The priority of SCHED_FIFO, as a fallback and for an emulator's main loop: below everything else that is real-time.
const FIFO_PRIORITY: u32 = 1;

/// What the host promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// The budget in every period: SCHED_DEADLINE on a processor that is a root domain of its own.
    Core(usize),
    /// Bounded tardiness: SCHED_DEADLINE on all processors.
    Global,
    /// Before everything that is not real-time, without a budget: SCHED_FIFO.
    Fifo,
    /// Nothing: at most the budget in a period, and the greatest weight beside others of its cgroup.
    Limit,
}

impl Guarantee {
    /// Whether the thread is under SCHED_DEADLINE.
    #[must_use]
    pub const fn is_by_deadline(self) -> bool {
        matches!(self, Self::Core(_) | Self::Global)
    }
}

/// A reservation for a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// QEMU.
    pub pid: u32,
    /// The vCPU's thread.
    pub tid: u32,
    /// TCG.
    pub emulated: bool,
    /// How much.
    pub reservation: Reservation,
    /// What is promised.
    pub guarantee: Guarantee,
}

/// What has to change, in order.
pub type Planned = Vec<(Level, Change)>;

/// What has to change on this host, where the processors `apart` are set apart already. Changes nothing.
///
/// # Errors
/// Why it cannot be.
pub fn plan(
    wanted: &Wanted,
    apart: &BTreeSet<usize>,
) -> Result<(Planned, Option<Cpusets>), EnforceError> {
    let tid = wanted.tid;
    let io = |what: &str| {
        let what = format!("cannot read {what} of thread {tid}");
        move |source: io::Error| EnforceError::Io { what, source }
    };
    if wanted.guarantee == Guarantee::Limit {
        let (budget, period) = (wanted.reservation.budget(), wanted.reservation.period());
        return Ok((cpu_limit::plan(wanted.pid, tid, budget, period)?, None));
    }
    let before = Attributes::of(tid).map_err(io("the policy"))?;
    let mut planned = Planned::new();
    let mut cpusets = None;
    if let Guarantee::Core(processor) = wanted.guarantee {
        let found = Cpusets::find()?;
        let allowed = allowed_of(tid).map_err(io("the processors"))?;
        // Undone last: a thread that leaves a cpuset keeps the processors that it had there.
        let same = Change::Affinity { tid, allow: allowed.clone(), before: allowed };
        planned.push((Level::Thread, same));
        let apart: Vec<usize> = apart.iter().copied().filter(|n| *n != processor).collect();
        planned.extend(found.plan(wanted.pid, tid, processor, &apart)?);
        planned.extend(others(wanted, processor)?);
        if !wanted.emulated {
            planned.extend(no_halt_polling().map(|change| (Level::Host, change)));
        }
        cpusets = Some(found);
    }
    let set = if wanted.guarantee == Guarantee::Fifo {
        Attributes::fifo(FIFO_PRIORITY)
    } else {
        attributes(&wanted.reservation)
    };
    planned.push((Level::Thread, Change::Attributes { tid, set, before }));
    if wanted.emulated && wanted.pid != tid {
        // The guest's timer interrupts come from there; KVM's from the kernel.
        let before = Attributes::of(wanted.pid).map_err(io("the policy"))?;
        let set = Attributes::fifo(FIFO_PRIORITY);
        planned.push((Level::Thread, Change::Attributes { tid: wanted.pid, set, before }));
    }
    Ok((planned, cpusets))
}

/// QEMU's main loop and its other threads would starve where a vCPU has a reservation: deadlines come before everything else.
fn others(wanted: &Wanted, processor: usize) -> Result<Planned, EnforceError> {
    let io = |source| EnforceError::Io { what: "cannot read QEMU's threads".to_owned(), source };
    let mut planned = Planned::new();
    for thread in threads(wanted.pid).map_err(io)? {
        let tid = thread.tid;
        let scheduled = Attributes::of(tid).map(|attributes| attributes.policy);
        // Another vCPU with a reservation of its own: its affinity cannot be changed, nor has it to.
        if tid == wanted.tid || scheduled.is_ok_and(|policy| policy == Policy::DEADLINE) {
            continue;
        }
        let before = allowed_of(tid).map_err(io)?;
        let allow: Vec<usize> = before.iter().copied().filter(|n| *n != processor).collect();
        if !allow.is_empty() && allow != before {
            planned.push((Level::Thread, Change::Affinity { tid, allow, before }));
        }
    }
    Ok(planned)
}

/// Makes all of it, from the change with number `from` on. On an error everything that was made is undone; where `from` is not the
/// first one, the caller does that, who knows what others have come to need meanwhile.
///
/// `Some(number)`: the vCPU sleeps, and has not come to its core yet; the kernel refuses until it runs. Make the rest, from
/// that change on, a little later. A vCPU that sleeps needs no processor time.
///
/// # Errors
/// The first change that the kernel refuses, explained.
pub fn make(
    wanted: &Wanted,
    planned: &[(Level, Change)],
    cpusets: Option<&Cpusets>,
    from: usize,
) -> Result<Option<usize>, EnforceError> {
    for (done, (_, change)) in planned.iter().enumerate().skip(from) {
        let made = match change.make() {
            Err(error) if is_asleep_elsewhere(wanted, change, &error) => return Ok(Some(done)),
            // It may have come to its core between that answer and the question where it is.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => change.make(),
            made => made,
        };
        let made = made.map_err(|e| EnforceError::refused(change, &e, &wanted.reservation));
        // A partition is one or not before the thread is moved there.
        let moves = matches!(change, Change::Moved { .. });
        let verified = made.and_then(|()| match cpusets.filter(|_| moves) {
            Some(cpusets) => Ok(cpusets.verify(planned)?),
            None => Ok(()),
        });
        if let Err(error) = verified {
            // The one that failed may have been half made.
            return Err(if from == 0 { undone(error, &planned[..=done]) } else { error });
        }
    }
    let fail = |error| if from == 0 { undone(error, planned) } else { error };
    check(planned).map_err(fail).map(|()| None)
}

/// The kernel looks at the root domain of the core that the thread was on last (`__sched_setscheduler`).
fn is_asleep_elsewhere(wanted: &Wanted, change: &Change, error: &io::Error) -> bool {
    let Guarantee::Core(core) = wanted.guarantee else { return false };
    matches!(change, Change::Attributes { tid, .. } if *tid == wanted.tid)
        && error.kind() == io::ErrorKind::PermissionDenied
        && processor_of(wanted.pid, wanted.tid).is_ok_and(|last| last != core)
}

fn undone(error: EnforceError, made: &[(Level, Change)]) -> EnforceError {
    let left = undo(made.iter().map(|(_, change)| change));
    if left.is_empty() {
        return error;
    }
    EnforceError::NotUndone { error: Box::new(error), left: left.join("; ") }
}

/// The same changes with another reservation, and what that changes in words.
#[must_use]
pub fn with_reservation(
    changes: &[(Level, Change)],
    reservation: &Reservation,
) -> (Planned, Vec<String>) {
    let mut words = Vec::new();
    let changed = changes.iter().map(|(level, change)| match change {
        Change::Attributes { tid, set, before } if set.policy == Policy::DEADLINE => {
            let (tid, before) = (*tid, *before);
            let set = attributes(reservation);
            let change = Change::Attributes { tid, set, before };
            words.push(change.to_string());
            (*level, change)
        }
        other => (*level, other.clone()),
    });
    (changed.collect(), words)
}

/// Makes the attributes of these again; the kernel changes all or nothing.
///
/// # Errors
/// As [`make`]; what was in force before still is.
pub fn make_again(
    reservation: &Reservation,
    changes: &[(Level, Change)],
) -> Result<(), EnforceError> {
    let attributes =
        changes.iter().map(|(_, c)| c).filter(|c| matches!(c, Change::Attributes { .. }));
    for change in attributes {
        change.make().map_err(|e| EnforceError::refused(change, &e, reservation))?;
    }
    check(changes)
}

/// Takes threads out of SCHED_DEADLINE and puts them back there, which the kernel begins anew with.
///
/// # Errors
/// As [`make`]; the thread may be without its reservation then.
pub fn begin_anew(
    reservation: &Reservation,
    changes: &[(Level, Change)],
) -> Result<(), EnforceError> {
    for (_, change) in changes {
        if matches!(change, Change::Attributes { set, .. } if set.policy == Policy::DEADLINE) {
            let refused = |error| EnforceError::refused(change, &error, reservation);
            change.undo().and_then(|()| change.make()).map_err(refused)?;
        }
    }
    check(changes)
}

fn attributes(of: &Reservation) -> Attributes {
    Attributes::deadline(of.budget(), of.deadline(), of.period())
}

/// That threads are scheduled as planned.
///
/// # Errors
/// The first one that is not, or cannot be asked.
pub fn check(planned: &[(Level, Change)]) -> Result<(), EnforceError> {
    for (_, change) in planned {
        let Change::Attributes { tid, set, .. } = change else { continue };
        let found = Attributes::of(*tid).map_err(|source| EnforceError::Io {
            what: format!("cannot read the policy of thread {tid}"),
            source,
        })?;
        if !found.is_same(set) {
            let (set, found) = (set.to_string(), found.to_string());
            return Err(EnforceError::Differs { tid: *tid, set, found });
        }
    }
    Ok(())
}

/// Undoes these, the last one first; all that can be. What could not.
fn undo<'a>(changes: impl DoubleEndedIterator<Item = &'a Change>) -> Vec<String> {
    let failed = |change: &Change| match change.undo() {
        Ok(()) => None,
        Err(error) => Some(format!("{change}: not undone: {error}")),
    };
    changes.rev().filter_map(failed).collect()
}

/// Brings back what was before. `alive`: the process still runs; a later thread may have the id of one that has ended.
/// What could not be brought back.
#[must_use]
pub fn release(pid: u32, changes: &[(Level, Change)], alive: bool) -> Vec<String> {
    let kept = |change: &&Change| alive || change.tid().is_none();
    let failed = undo(changes.iter().map(|(_, change)| change).filter(kept));
    if alive {
        widen(pid, changes);
    }
    failed
}

/// Threads that QEMU started meanwhile have inherited where they may run.
fn widen(pid: u32, changes: &[(Level, Change)]) {
    let main = changes.iter().find_map(|(_, change)| match change {
        Change::Affinity { tid, allow, before } if *tid == pid => Some((allow, before)),
        _ => None,
    });
    let Some((narrow, wide)) = main else { return };
    for thread in threads(pid).unwrap_or_default() {
        if allowed_of(thread.tid).is_ok_and(|allowed| allowed == *narrow) {
            let change =
                Change::Affinity { tid: thread.tid, allow: wide.clone(), before: narrow.clone() };
            let _ = change.make();
        }
    }
}
