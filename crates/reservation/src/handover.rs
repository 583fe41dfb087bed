//! What becomes of a reservation's changes when it is released while others still need some of them.

use crate::held::{Held, Level, Step};

/// Gives the changes of `gone` that others still need to one of those others. Returns the changes to undo, in the order in which
/// they were made, and for each heir its index and how many changes it received.
///
/// Heirs receive them in front: they were made before the heir's own. Of the rest the thread's changes are undone first, then
/// the core's, then the host's, so they stand in the opposite order here.
pub(crate) fn hand_over<C>(
    gone: &mut Held<C>,
    held: &mut [Held<C>],
) -> (Vec<Step<C>>, Vec<(usize, usize)>) {
    let core = gone.core();
    let of_core = held.iter().position(|other| core.is_some() && other.core() == core);
    let of_host = held.iter().position(Held::needs_host);
    let mut undo = Vec::new();
    let (mut to_core, mut to_host) = (Vec::new(), Vec::new());
    for (level, change) in std::mem::take(&mut gone.changes) {
        match level {
            Level::Processor if of_core.is_some() => to_core.push((level, change)),
            Level::Host if of_host.is_some() => to_host.push((level, change)),
            _ => undo.push((level, change)),
        }
    }
    let mut heirs = Vec::new();
    for (heir, changes) in [(of_core, to_core), (of_host, to_host)] {
        if let Some(heir) = heir {
            heirs.push((heir, changes.len()));
            held[heir].changes.splice(0..0, changes);
        }
    }
    undo.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
    (undo, heirs)
}
