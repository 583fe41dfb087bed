//! Which core serves a request.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use timevisor_schedule::Reservation;

use crate::book::Book;
use crate::held::Held;
use crate::host::{Core, Host};
use crate::ledger::Ledger;
use crate::request::Request;

/// The result of choosing a core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// These cores can keep the reservation; the first one is the best. At least one.
    Cores(Vec<usize>),
    /// This core can keep it once soft reservations have shrunk, or once reservations that were
    /// given back no longer count.
    MakeRoom(usize),
    /// No core can keep it.
    Refused(String),
}

/// Chooses the requested core, or else the vCPU's current core, or else those that [`candidates`]
/// ranks and that have room.
pub(crate) fn choose<H: Host>(
    book: &mut Book<H::Change>,
    request: &Request,
    reservation: &Reservation,
    (tid, replaced): (u32, Option<usize>),
    host: &H,
) -> Choice {
    let own = replaced.and_then(|index| book.held[index].core());
    let (ranked, mut refused) = match request.core.or(own) {
        Some(core) => (vec![core], Vec::new()),
        None => candidates(host.cores(tid), &book.isolated()),
    };
    let now = host.now();
    let mut admitted = Vec::new();
    for core in &ranked {
        match book.admits(*core, reservation, request.alone, replaced, now) {
            Ok(()) => admitted.push(*core),
            Err(error) => refused.push(error.to_string()),
        }
    }
    if !admitted.is_empty() {
        return Choice::Cores(admitted);
    }
    if refused.is_empty() {
        refused.push("this host has one core, and everything else needs that".to_owned());
    }
    // Soft reservations never block others, but they do block each other.
    let room = |core: &usize| {
        request.at_most.is_none()
            && has_room_soon(book, *core, reservation, request.alone, replaced, now)
    };
    ranked
        .into_iter()
        .find(room)
        .map_or_else(|| Choice::Refused(refused.join("; ")), Choice::MakeRoom)
}

/// Cores that may serve a vCPU without being asked for, the best one first; and why the others may not.
///
/// A vCPU keeps to the cores on which it is allowed: others are other programs'. Isolated ones (isolcpus) are
/// those of whoever is pinned to them. The first core comes last, and only where it is the vCPU's only one: the
/// kernel's own work gathers there.
fn candidates(cores: Vec<Core>, isolated: &BTreeSet<usize>) -> (Vec<usize>, Vec<String>) {
    let first = cores.iter().map(|core| core.number).min();
    let is_first = |number: usize| Some(number) == first;
    let ours = |core: &Core| isolated.contains(&core.number);
    // What somebody has set apart, and what is isolated, is in nobody's affinity by itself.
    let is_pinned = cores
        .iter()
        .any(|core| !(core.is_allowed || core.is_isolated || core.taken.is_some() || ours(core)));
    let may = |core: &Core| core.is_allowed || (ours(core) && !is_pinned);
    let only_first =
        cores.len() > 1 && !cores.iter().any(|core| may(core) && !is_first(core.number));
    let (mut ranked, mut refused) = (Vec::new(), Vec::new());
    for core in cores {
        let number = core.number;
        match &core.taken {
            Some(who) if !may(&core) => {
                refused.push(format!("core {number} is set apart by {who}"));
            }
            _ if !may(&core) => refused.push(format!("the vCPU is not allowed on core {number}")),
            _ if is_first(number) && !only_first => {
                refused.push(format!("core {number} is where the kernel's own work gathers"));
            }
            _ => ranked.push(core),
        }
    }
    // A sibling that is busy slows the core down: the first core's, and that of another reservation.
    let disturbed = |core: &Core| {
        core.siblings.iter().any(|other| is_first(*other) || isolated.contains(other))
    };
    ranked
        .sort_by_key(|core| (!core.is_quiet, disturbed(core), !core.is_near, Reverse(core.number)));
    (ranked.into_iter().map(|core| core.number).collect(), refused)
}

/// Whether a core could keep a reservation if soft ones had their minimum budgets and everything
/// given back were free.
fn has_room_soon<C: Clone>(
    book: &Book<C>,
    core: usize,
    reservation: &Reservation,
    alone: bool,
    replaced: Option<usize>,
    now: u64,
) -> bool {
    fn at_least<C>(held: &Held<C>) -> Option<Reservation> {
        let budget = held.soft.map_or(held.budget, |(least, _)| least);
        Reservation::new(budget, held.deadline, held.period).ok()
    }
    let can_shrink = book.held.iter().enumerate().any(|(index, held)| {
        let above = held.soft.is_some_and(|(least, _)| least < held.budget);
        Some(index) != replaced && held.core() == Some(core) && above
    });
    let neighbours = book.neighbours(core, replaced, at_least);
    let mut nothing_freed = Ledger::default();
    let admitted = nothing_freed.admit(core, reservation, alone, &neighbours, 0).is_ok();
    admitted && (can_shrink || book.ledger.is_freeing(core, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four cores that nobody has.
    fn four() -> Vec<Core> {
        (0..4).map(Core::plain).collect()
    }

    fn ranked(cores: Vec<Core>) -> Vec<usize> {
        candidates(cores, &BTreeSet::new()).0
    }

    #[test]
    fn the_last_core_comes_first_and_the_first_never() {
        assert_eq!(ranked(four()), [3, 2, 1]);
        assert_eq!(ranked(four()[..1].to_vec()), [0; 0], "everything else needs it");
    }

    /// A pod of the static CPU manager: its cpuset has core 1 only.
    #[test]
    fn a_vcpu_keeps_to_its_own_cores() {
        let mut pod = four();
        pod.iter_mut().for_each(|core| core.is_allowed = core.number == 1);
        let (cores, refused) = candidates(pod.clone(), &BTreeSet::new());
        assert_eq!(cores, [1]);
        assert!(refused.contains(&"the vCPU is not allowed on core 3".to_owned()), "{refused:?}");
        pod.iter_mut().for_each(|core| core.is_allowed = core.number == 0);
        assert_eq!(ranked(pod), [0], "the only one that it has");
    }

    #[test]
    fn quiet_cores_come_first() {
        let mut cores = four();
        cores[1].is_quiet = true;
        assert_eq!(ranked(cores.clone()), [1, 3, 2]);
        // isolcpus=1: the kernel leaves it out of everybody's affinity, and others may be pinned to it.
        (cores[1].is_isolated, cores[1].is_allowed) = (true, false);
        assert_eq!(ranked(cores.clone()), [3, 2]);
        cores.iter_mut().for_each(|core| core.is_allowed = core.number == 1);
        assert_eq!(ranked(cores), [1], "pinned to it");
    }

    #[test]
    fn what_others_have_set_apart_is_named() {
        let mut cores = four();
        cores[3].taken = Some("cpuset rt".into());
        assert_eq!(candidates(cores.clone(), &BTreeSet::new()).0, [3, 2, 1], "the vCPU's own");
        cores[3].is_allowed = false;
        let (ranked, refused) = candidates(cores, &BTreeSet::new());
        assert_eq!(ranked, [2, 1]);
        assert!(refused[1].contains("core 3 is set apart by cpuset rt"), "{refused:?}");
    }

    /// With cgroup v2 a partition takes its core from everybody's affinity.
    #[test]
    fn a_core_of_ours_is_shared_by_those_who_are_not_pinned() {
        let mut cores = four();
        cores[3].is_allowed = false;
        cores[3].taken = Some("a partition".into());
        assert_eq!(candidates(cores.clone(), &BTreeSet::from([3])).0, [3, 2, 1]);
        cores[2].is_allowed = false;
        assert_eq!(candidates(cores, &BTreeSet::from([3])).0, [1], "pinned to 0 and 1");
        // All that is left is the first core: a soft reservation on ours may make room instead.
        let mut cores = four();
        cores.iter_mut().for_each(|core| core.is_allowed = core.number == 0);
        assert_eq!(candidates(cores, &BTreeSet::from([1, 2, 3])).0, [3, 2, 1]);
    }

    #[test]
    fn busy_siblings_and_far_memory_come_later() {
        let mut cores = four();
        for (core, sibling) in [(0, 2), (2, 0), (1, 3), (3, 1)] {
            cores[core].siblings = vec![sibling];
        }
        assert_eq!(ranked(cores.clone()), [3, 1, 2], "core 0 is busy");
        let (now, _) = candidates(cores.clone(), &BTreeSet::from([3]));
        assert_eq!(now, [3, 2, 1], "core 3 has a reservation, and room");
        cores[3].is_near = false;
        assert_eq!(ranked(cores), [1, 3, 2]);
    }
}
