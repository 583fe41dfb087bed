//! Which core serves a request.

use timevisor_schedule::Reservation;

use crate::book::Book;
use crate::held::Held;
use crate::host::Host;
use crate::ledger::Ledger;
use crate::request::Request;

/// The result of choosing a core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// This core can keep the reservation.
    Core(usize),
    /// This core can keep it once soft reservations have shrunk, or once reservations that were
    /// given back no longer count.
    MakeRoom(usize),
    /// No core can keep it.
    Refused(String),
}

/// Chooses the requested core, or else the vCPU's current core, or else the last core with room.
/// The first core is never chosen automatically, because the kernel's own work gathers there.
pub(crate) fn choose<H: Host>(
    book: &mut Book<H::Change>,
    request: &Request,
    reservation: &Reservation,
    replaced: Option<usize>,
    host: &H,
) -> Choice {
    let own = replaced.and_then(|index| book.held[index].core());
    let candidates: Vec<usize> = match request.core.or(own) {
        Some(core) => vec![core],
        None => host.online().into_iter().skip(1).rev().collect(),
    };
    let now = host.now();
    let mut refused = "this host has one core, and everything else needs that".to_owned();
    for core in &candidates {
        match book.admits(*core, reservation, request.alone, replaced, now) {
            Ok(()) => return Choice::Core(*core),
            Err(error) => refused = error.to_string(),
        }
    }
    // Soft reservations never block others, but they do block each other.
    let room = |core: &usize| {
        request.at_most.is_none()
            && has_room_soon(book, *core, reservation, request.alone, replaced, now)
    };
    candidates.into_iter().find(room).map_or(Choice::Refused(refused), Choice::MakeRoom)
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
