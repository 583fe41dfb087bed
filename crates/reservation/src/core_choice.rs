//! Which core serves a request, and why each of the others does not.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use timevisor_schedule::Reservation;

use crate::book::Book;
use crate::held::Held;
use crate::host::{Claim, Core, Host};
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

/// Chooses the requested core, or else the vCPU's current core, or else those that [`ranked`]
/// says and that have room.
pub(crate) fn choose<H: Host>(
    book: &mut Book<H::Change>,
    request: &Request,
    reservation: &Reservation,
    (tid, replaced): (u32, Option<usize>),
    host: &H,
) -> Choice {
    let own = replaced.and_then(|index| book.held[index].core());
    let cores = host.cores(Some(tid));
    let (ranked, mut refused) = match request.core.or(own) {
        Some(core) => match unusable(core, &cores) {
            Some(why) => return Choice::Refused(why),
            None => (vec![core], Vec::new()),
        },
        None => {
            let (ranked, refused) = ranked(cores, &book.isolated());
            (ranked, refused.into_iter().map(|(_, why)| why).collect())
        }
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

/// Why a core that was asked for cannot serve anybody: it is offline, or there is none of that number.
fn unusable(core: usize, cores: &[Core]) -> Option<String> {
    let online = || {
        let online = cores.iter().filter(|core| core.is_online);
        online.map(|core| core.number.to_string()).collect::<Vec<_>>().join(", ")
    };
    match cores.iter().find(|known| known.number == core) {
        Some(known) if known.is_online => None,
        Some(_) => Some(format!(
            "core {core} is offline; write 1 to /sys/devices/system/cpu/cpu{core}/online, or take one of {}",
            online()
        )),
        None => Some(format!("this host has no core {core}; it has {}", online())),
    }
}

/// Cores that may serve a vCPU without being asked for, the best one first; and why the others may not.
///
/// A vCPU keeps to the cores on which it is allowed: others are other programs'. Isolated ones (isolcpus) are
/// those of programs and VMs that are pinned to them. A vCPU that is pinned to nothing leaves alone what one
/// other cpuset has for itself, and takes what no cpuset names before what several share. The first core comes
/// last, and only where it is the vCPU's only one: the kernel's own work gathers there.
pub(crate) fn ranked(
    cores: Vec<Core>,
    isolated: &BTreeSet<usize>,
) -> (Vec<usize>, Vec<(usize, String)>) {
    let (cores, offline): (Vec<Core>, Vec<Core>) =
        cores.into_iter().partition(|core| core.is_online);
    let first = cores.iter().map(|core| core.number).min();
    let is_first = |number: usize| Some(number) == first;
    let ours = |core: &Core| isolated.contains(&core.number);
    let is_closed = |core: &Core| ours(core) && !core.can_share;
    // What somebody has set apart, and what is isolated, is in nobody's affinity by itself.
    let is_pinned = cores
        .iter()
        .any(|core| !(core.is_allowed || core.is_isolated || core.taken.is_some() || ours(core)));
    let is_anothers = |core: &Core| !is_pinned && matches!(core.claim, Some(Claim::Own(_)));
    let may_run = |core: &Core| core.is_allowed || (ours(core) && !is_pinned);
    let may = |core: &Core| may_run(core) && !is_anothers(core) && !is_closed(core);
    // That others have all the rest does not make the first core its only one.
    let only_first =
        cores.len() > 1 && !cores.iter().any(|core| may_run(core) && !is_first(core.number));
    let mut left = Vec::new();
    let mut refused: Vec<(usize, String)> = offline
        .into_iter()
        .map(|core| (core.number, format!("core {} is offline", core.number)))
        .collect();
    for core in cores {
        let number = core.number;
        let why = match (&core.taken, &core.claim) {
            _ if is_closed(&core) => format!(
                "core {number} is reserved for a VM in another cgroup (with cgroup v2, only VMs in one cgroup share a core)"
            ),
            (Some(who), _) if !may(&core) && !core.is_allowed => {
                format!("core {number} is set apart by {who}")
            }
            (_, Some(Claim::Own(who))) if is_anothers(&core) => {
                format!("core {number} is {who}'s: only this cpuset has it")
            }
            _ if !may(&core) && core.is_isolated => {
                format!("core {number} is isolated (isolcpus), and the vCPU is not pinned to it")
            }
            _ if !may(&core) => format!("the vCPU is not allowed on core {number}"),
            _ if is_first(number) && !only_first => {
                format!("core {number} is where the kernel's own work gathers")
            }
            _ => {
                left.push(core);
                continue;
            }
        };
        refused.push((number, why));
    }
    // A sibling that is busy slows the core down: the first core's, and that of another reservation.
    let disturbed = |core: &Core| {
        core.siblings.iter().any(|other| is_first(*other) || isolated.contains(other))
    };
    left.sort_by_key(|core| {
        let order = (&core.claim, !core.is_quiet, disturbed(core), !core.is_near);
        (order.0.clone(), order.1, order.2, order.3, Reverse(core.number))
    });
    refused.sort();
    (left.into_iter().map(|core| core.number).collect(), refused)
}

/// Whether a core could keep a reservation if soft ones had their minimum budgets and everything
/// given back were free.
pub(crate) fn has_room_soon<C: Clone>(
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

    fn order(cores: Vec<Core>) -> Vec<usize> {
        ranked(cores, &BTreeSet::new()).0
    }

    fn why_not(cores: Vec<Core>) -> Vec<String> {
        ranked(cores, &BTreeSet::new()).1.into_iter().map(|(_, why)| why).collect()
    }

    #[test]
    fn the_last_core_comes_first_and_the_first_never() {
        assert_eq!(order(four()), [3, 2, 1]);
        assert_eq!(order(four()[..1].to_vec()), [0; 0], "everything else needs it");
    }

    /// A pod of the static CPU manager: its cpuset has core 1 only.
    #[test]
    fn a_vcpu_keeps_to_its_own_cores() {
        let mut pod = four();
        pod.iter_mut().for_each(|core| core.is_allowed = core.number == 1);
        assert_eq!(order(pod.clone()), [1]);
        let refused = why_not(pod.clone());
        assert!(refused.contains(&"the vCPU is not allowed on core 3".to_owned()), "{refused:?}");
        pod.iter_mut().for_each(|core| core.is_allowed = core.number == 0);
        assert_eq!(order(pod), [0], "the only one that it has");
    }

    #[test]
    fn quiet_cores_come_first() {
        let mut cores = four();
        cores[1].is_quiet = true;
        assert_eq!(order(cores.clone()), [1, 3, 2]);
        // isolcpus=1: the kernel leaves it out of everybody's affinity, and others may be pinned to it.
        (cores[1].is_isolated, cores[1].is_allowed) = (true, false);
        assert_eq!(order(cores.clone()), [3, 2]);
        cores.iter_mut().for_each(|core| core.is_allowed = core.number == 1);
        assert_eq!(order(cores), [1], "pinned to it");
    }

    #[test]
    fn what_others_have_set_apart_is_named() {
        let mut cores = four();
        cores[3].taken = Some("cpuset rt".into());
        assert_eq!(order(cores.clone()), [3, 2, 1], "the vCPU's own");
        cores[3].is_allowed = false;
        assert_eq!(order(cores.clone()), [2, 1]);
        let refused = why_not(cores);
        assert!(refused[1].contains("core 3 is set apart by cpuset rt"), "{refused:?}");
    }

    /// With cgroup v2 a partition takes its core from everybody's affinity.
    #[test]
    fn a_core_of_ours_is_shared_by_those_who_are_not_pinned() {
        let mut cores = four();
        cores[3].is_allowed = false;
        cores[3].taken = Some("a partition".into());
        assert_eq!(ranked(cores.clone(), &BTreeSet::from([3])).0, [3, 2, 1]);
        cores[2].is_allowed = false;
        assert_eq!(ranked(cores, &BTreeSet::from([3])).0, [1], "pinned to 0 and 1");
        // All that is left is the first core: a soft reservation on ours may make room instead.
        let mut cores = four();
        cores.iter_mut().for_each(|core| core.is_allowed = core.number == 0);
        assert_eq!(ranked(cores, &BTreeSet::from([1, 2, 3])).0, [3, 2, 1]);
    }

    #[test]
    fn busy_siblings_and_far_memory_come_later() {
        let mut cores = four();
        for (core, sibling) in [(0, 2), (2, 0), (1, 3), (3, 1)] {
            cores[core].siblings = vec![sibling];
        }
        assert_eq!(order(cores.clone()), [3, 1, 2], "core 0 is busy");
        let (now, _) = ranked(cores.clone(), &BTreeSet::from([3]));
        assert_eq!(now, [3, 2, 1], "core 3 has a reservation, and room");
        cores[3].is_near = false;
        assert_eq!(order(cores), [1, 3, 2]);
    }

    /// A node with Kubernetes' static CPU manager: core 3 is a container's, 0 to 2 are the pool of the others.
    #[test]
    fn what_one_cpuset_has_for_itself_is_left_alone() {
        let mut node = four();
        node.iter_mut().for_each(|core| core.claim = Some(Claim::Shared));
        node[3].claim = Some(Claim::Own("kubepods.slice/cri-b.scope".into()));
        assert_eq!(order(node.clone()), [2, 1], "a VM beside the pods");
        let refused = why_not(node.clone());
        assert!(refused[1].contains("core 3 is kubepods.slice/cri-b.scope's"), "{refused:?}");
        // A core that no cpuset names comes first.
        node[1].claim = None;
        assert_eq!(order(node.clone()), [1, 2]);
        // All but the first core are others': it is still not taken.
        let mut all = node.clone();
        all.iter_mut().for_each(|core| core.claim = Some(Claim::Own("a.scope".into())));
        assert_eq!(order(all), [0; 0]);
        // The vCPU is pinned to what another cpuset has, too: it is the last that it gets, and it gets it.
        node.iter_mut().for_each(|core| core.is_allowed = core.number >= 2);
        assert_eq!(order(node), [2, 3]);
    }

    /// With cgroup v2 another VM's partition has them: none of them is worth an attempt.
    #[test]
    fn reserved_cores_of_other_cgroups_are_not_tried() {
        let mut cores = four();
        for core in &mut cores[1..3] {
            (core.is_allowed, core.can_share) = (false, false);
            core.taken = Some("a partition".into());
        }
        let (tried, refused) = ranked(cores.clone(), &BTreeSet::from([1, 2]));
        assert_eq!(tried, [3]);
        assert!(
            refused[1].1.contains("core 1 is reserved for a VM in another cgroup"),
            "{refused:?}"
        );
        cores[2].can_share = true;
        assert_eq!(ranked(cores, &BTreeSet::from([1, 2])).0, [3, 2]);
    }

    #[test]
    fn cores_that_are_offline_are_named() {
        let mut cores = four();
        (cores[3].is_online, cores[0].is_online) = (false, false);
        assert_eq!(order(cores.clone()), [2], "core 1 is the first one now");
        let refused = why_not(cores.clone());
        assert_eq!(refused[0], "core 0 is offline");
        assert!(unusable(3, &cores).unwrap().contains("cpu3/online"));
        assert!(unusable(9, &cores).unwrap().contains("no core 9; it has 1, 2"));
        assert_eq!(unusable(1, &cores), None);
    }
}
