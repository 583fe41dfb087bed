//! What happens to a reservation's changes when it is released while other reservations still need
//! some of them.

use crate::held::{Held, Level, Step};
use crate::host::{Host, Restore};

/// What a release does with the changes of the departing reservation.
#[derive(Debug)]
pub(crate) struct HandOver<C> {
    /// Changes to undo, in the order in which they were made.
    pub(crate) undo: Vec<Step<C>>,
    /// For each heir: its index, and how many changes were inserted before its own.
    pub(crate) heirs: Vec<(usize, usize)>,
}

/// What the host knows about changes.
pub(crate) trait Threads<C> {
    /// [`crate::Restore::thread`].
    fn thread(&self, change: &C) -> Option<u32>;
    /// [`crate::Host::rebase`].
    fn rebase(&self, pid: u32, gone: &C, later: &C) -> Option<C>;
}

impl<H: Host> Threads<H::Change> for H {
    fn thread(&self, change: &H::Change) -> Option<u32> {
        Restore::thread(self, change)
    }

    fn rebase(&self, pid: u32, gone: &H::Change, later: &H::Change) -> Option<H::Change> {
        Host::rebase(self, pid, gone, later)
    }
}

/// Passes those changes of `gone` that other reservations still need to one of them. `gone` has
/// already been removed from `held`, where it was number `index`. `held` is in the order in which
/// the reservations were made.
///
/// Heirs receive changes at the front, because these were made before the heir's own. Of the
/// remaining changes, the thread's are undone first, then the core's, then the host's; they are
/// listed here in the opposite order.
pub(crate) fn hand_over<C>(
    gone: &mut Held<C>,
    index: usize,
    held: &mut [Held<C>],
    host: &impl Threads<C>,
) -> HandOver<C> {
    let (core, pid, tid) = (gone.core(), gone.pid, gone.tid);
    let shares_core = |other: &Held<C>| core.is_some() && other.core() == core;
    let of_core = held.iter().position(shares_core);
    let of_host = held.iter().position(Held::needs_host);
    // A later vCPU of the same VM on the same core found the other threads of its process already
    // moved off that core.
    let sibling = held.iter().skip(index).position(|other| other.pid == pid && shares_core(other));
    let sibling = sibling.map(|after| index + after);
    let mut undo = Vec::new();
    let (mut to_core, mut to_host, mut to_sibling) = (Vec::new(), Vec::new(), Vec::new());
    // From the last to the first: a later change of a setting restores what an earlier one set.
    for (level, change) in std::mem::take(&mut gone.changes).into_iter().rev() {
        let of_others = host.thread(&change).is_some_and(|thread| thread != tid);
        match level {
            Level::Processor if of_core.is_some() => to_core.push((level, change)),
            Level::Host if of_host.is_some() => to_host.push((level, change)),
            Level::Thread if of_others && sibling.is_some() => to_sibling.push((level, change)),
            Level::Thread if is_overlaid(&change, pid, &mut held[index..], host) => {}
            _ => undo.push((level, change)),
        }
    }
    for changes in [&mut undo, &mut to_core, &mut to_host, &mut to_sibling] {
        changes.reverse();
    }
    let mut heirs = Vec::new();
    for (heir, mut changes) in [(sibling, to_sibling), (of_core, to_core), (of_host, to_host)] {
        if let Some(heir) = heir {
            // The heir knows another thread by that id: that of the change has ended.
            changes.retain(|(_, change)| {
                let of = |held: &Held<C>| held.threads.get(&host.thread(change)?).copied();
                of(&held[heir]).is_none_or(|known| of(gone).is_none_or(|then| then == known))
            });
            heirs.push((heir, changes.len()));
            for tid in changes.iter().filter_map(|(_, change)| host.thread(change)) {
                if let Some(started) = gone.threads.get(&tid) {
                    held[heir].threads.entry(tid).or_insert(*started);
                }
            }
            held[heir].changes.splice(0..0, changes);
        }
    }
    undo.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
    HandOver { undo, heirs }
}

/// Whether a later reservation changed the same setting of a thread. The old value is then passed
/// to that reservation: undoing `change` would break the later reservation, which would in turn
/// restore a value that we had set.
pub(crate) fn is_overlaid<C>(
    change: &C,
    pid: u32,
    later: &mut [Held<C>],
    host: &impl Threads<C>,
) -> bool {
    let mut overlaid = false;
    let of_process = later.iter_mut().filter(|held| held.pid == pid);
    for (_, other) in of_process.flat_map(|held| &mut held.changes) {
        if let Some(rebased) = host.rebase(pid, change, other) {
            overlaid |= host.thread(change) == host.thread(other);
            *other = rebased;
        }
    }
    overlaid
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::guarantee::Guarantee;

    /// A change of a thread: the setting, the new value, the old value.
    type Change = (char, u32, u32);

    fn held(vcpu: u32, guarantee: Guarantee, changes: &[Step<Change>]) -> Held<Change> {
        Held {
            vm: "web".into(),
            vcpu,
            pid: 1,
            start_time: 1,
            tid: 10 + vcpu,
            guarantee,
            budget: 1,
            deadline: 1,
            period: 1,
            soft: None,
            alone: false,
            followed: false,
            changes: changes.to_vec(),
            threads: BTreeMap::new(),
            leftover: Vec::new(),
            ran: 0,
            since: 0,
        }
    }

    /// Only 'm' is a setting of another thread, the main thread.
    struct Rules;

    impl Threads<Change> for Rules {
        fn thread(&self, change: &Change) -> Option<u32> {
            (change.0 == 'm').then_some(1)
        }

        fn rebase(&self, _: u32, gone: &Change, later: &Change) -> Option<Change> {
            (gone.0 == later.0 && gone.1 == later.2).then_some((later.0, later.1, gone.2))
        }
    }

    const HOST: Step<Change> = (Level::Host, ('h', 1, 0));
    const CORE: Step<Change> = (Level::Processor, ('c', 1, 0));
    const OWN: Step<Change> = (Level::Thread, ('o', 1, 0));

    #[test]
    fn others_inherit_what_they_need_and_the_rest_is_undone_from_the_thread_outwards() {
        let all = [OWN, HOST, CORE];
        let gone = || held(0, Guarantee::Core(1), &all);
        let none = hand_over(&mut gone(), 0, &mut [], &Rules);
        assert_eq!(none.undo, [HOST, CORE, OWN]);

        let mut same_core = [held(1, Guarantee::Core(1), &[OWN])];
        let over = hand_over(&mut gone(), 1, &mut same_core, &Rules);
        assert_eq!((over.undo, over.heirs), (vec![OWN], vec![(0, 1), (0, 1)]));
        assert_eq!(same_core[0].changes, [HOST, CORE, OWN]);

        let mut other_core = [held(1, Guarantee::Core(2), &[])];
        let over = hand_over(&mut gone(), 1, &mut other_core, &Rules);
        assert_eq!((over.undo, over.heirs), (vec![CORE, OWN], vec![(0, 1)]));

        let mut global = [held(1, Guarantee::Global, &[])];
        assert_eq!(hand_over(&mut gone(), 1, &mut global, &Rules).undo, [HOST, CORE, OWN]);
    }

    #[test]
    fn a_later_change_of_the_same_setting_takes_over_the_old_value() {
        let of = |set, before| (Level::Thread, ('m', set, before));
        let mut later = [held(1, Guarantee::Fifo, &[OWN, of(2, 1)])];
        let over = hand_over(&mut held(0, Guarantee::Fifo, &[of(1, 0)]), 0, &mut later, &Rules);
        assert_eq!(over.undo, []);
        assert_eq!(later[0].changes, [OWN, of(2, 0)]);
        // An earlier reservation is not affected.
        let mut earlier = [held(0, Guarantee::Fifo, &[of(1, 0)])];
        let over = hand_over(&mut held(1, Guarantee::Fifo, &[of(2, 1)]), 1, &mut earlier, &Rules);
        assert_eq!((over.undo, &earlier[0].changes[..]), (vec![of(2, 1)], &[of(1, 0)][..]));
    }

    #[test]
    fn a_later_vcpu_on_the_same_core_inherits_the_main_thread() {
        let main = (Level::Thread, ('m', 1, 0));
        let mut later = [held(1, Guarantee::Core(1), &[OWN])];
        let mut gone = held(0, Guarantee::Core(1), &[main, OWN]);
        let over = hand_over(&mut gone, 0, &mut later, &Rules);
        assert_eq!((over.undo, &later[0].changes[..]), (vec![OWN], &[main, OWN][..]));
        // Another VM does not need the change.
        let mut other = [Held { pid: 2, ..held(1, Guarantee::Core(1), &[]) }];
        let mut gone = held(0, Guarantee::Core(1), &[main]);
        assert_eq!(hand_over(&mut gone, 0, &mut other, &Rules).undo, [main]);
    }
}
