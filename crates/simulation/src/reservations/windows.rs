//! Supplies in theory's worst case: a guest that has the processor in given windows, and the
//! windows of a reservation that only just keeps its guarantee.
//!
//! What it does not do: tell whether a real host would behave like this;
//! [`processor`](super::processor) simulates hosts.

use timevisor_schedule::Reservation;

use super::guest::Guest;
use super::sets::below;
use crate::random::Random;

/// Start and end; ns.
pub type Window = (u64, u64);

/// Runs the guest in these until its jobs are done, or the first one is late.
pub fn run(guest: &mut Guest<'_>, windows: impl IntoIterator<Item = Window>) {
    for (start, end) in windows {
        let mut now = start;
        while now < end {
            guest.release(now);
            let next = guest.next_release().unwrap_or(u64::MAX);
            if !guest.ready() {
                now = next;
                continue;
            }
            let until = end.min(next).min(guest.left().map_or(u64::MAX, |left| now + left));
            guest.run(now, until - now);
            now = until;
        }
        if guest.done() || guest.outcome.missed.is_some() {
            return;
        }
    }
}

/// The whole processor.
#[must_use]
pub fn dedicated() -> [Window; 1] {
    [(0, u64::MAX)]
}

/// The budget that ends at `origin` came immediately; all later ones come as late as possible.
/// `withheld` ns are missing after the origin: an overrun before it, paid back.
pub fn worst(of: Reservation, origin: u64, withheld: u64) -> impl Iterator<Item = Window> {
    let (budget, begun) = (of.budget(), origin - of.budget());
    let mut owed = withheld;
    let late = (1..).map(move |n: u64| {
        let end = begun + n * of.period() + of.deadline();
        let paid = owed.min(budget);
        owed -= paid;
        (end - budget + paid, end)
    });
    core::iter::once((begun, origin)).chain(late)
}

/// From `origin` on, at the start of every period. `withheld` is as in [`worst`].
pub fn at_once(of: Reservation, origin: u64, withheld: u64) -> impl Iterator<Item = Window> {
    let mut owed = withheld;
    (0..).map(move |n: u64| {
        let start = origin + n * of.period();
        let paid = owed.min(of.budget());
        owed -= paid;
        (start, start + of.budget() - paid)
    })
}

/// Anywhere between replenishment and deadline, in two pieces; periods begin at `origin`.
pub fn anywhere(of: Reservation, origin: u64, random: &mut Random) -> impl Iterator<Item = Window> {
    let laxity = of.deadline() - of.budget();
    (0..).flat_map(move |n: u64| {
        let start = origin + n * of.period();
        let (one, two) = (below(random, laxity + 1), below(random, laxity + 1));
        let first = below(random, of.budget() + 1);
        let (early, late) = (one.min(two), one.max(two));
        [(start + early, start + early + first), (start + late + first, start + late + of.budget())]
    })
}
