//! What each core of the host could do for a vCPU, and why not: what [`Reservations::apply`] would choose from.

use timevisor_schedule::Reservation;

use crate::book::Book;
use crate::core_choice::{has_room_soon, ranked};
use crate::guarantee::{Guarantee, Wanted};
use crate::held::Held;
use crate::host::{Core, Guests, Host};
use crate::machine::Reservations;
use crate::request::{Reason, Refusal};

/// What a core could do for a vCPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The core, and what the host says of it.
    pub core: Core,
    /// In which order it would be tried, from 1 on; `None` if it would not.
    pub place: Option<usize>,
    /// Why it would not be tried, or why it cannot keep what was asked for.
    pub why_not: Option<String>,
    /// The reservations that it has.
    pub reserved: Vec<String>,
    /// The greatest budget in the period that it could keep beside them, ns; 0 for none. The kernel may take less.
    pub left: u64,
}

/// What [`Reservations::candidates`] is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question<'a> {
    /// A VM and its vCPU; `None` is one that is pinned to nothing.
    pub vcpu: Option<(&'a str, u32)>,
    /// The budget that is wanted, ns; `None` asks only what is left.
    pub budget: Option<u64>,
    /// Its period, ns.
    pub period: u64,
    /// It wants the core for itself.
    pub alone: bool,
}

impl<C: Clone + PartialEq + std::fmt::Debug + std::fmt::Display> Reservations<C> {
    /// All cores, those that would be tried first, in the order of [`Self::apply`] without a core; then the others
    /// by their numbers. Changes nothing.
    ///
    /// # Errors
    /// When there is no such vCPU, or budget and period are no reservation.
    pub fn candidates<H: Host<Change = C>>(
        &mut self,
        asked: &Question<'_>,
        host: &H,
        guests: &impl Guests,
    ) -> Result<Vec<Candidate>, Refusal> {
        let bad = |error: timevisor_schedule::InvalidReservation| {
            let step = "see docs/reference/reservations.md";
            Refusal::new(Reason::BadRequest, error.to_string(), step)
        };
        let wanted =
            Reservation::shared(asked.budget.unwrap_or(LEAST), asked.period).map_err(bad)?;
        let target = asked.vcpu.map(|(vm, vcpu)| guests.vcpu(vm, vcpu)).transpose()?;
        let replaced = asked.vcpu.and_then(|(vm, vcpu)| self.book.find(vm, vcpu));
        let cores = host.cores(target.map(|target| target.tid));
        let (ranked, refused) = match replaced.and_then(|index| self.book.held[index].core()) {
            // It stays where it is, and may run nowhere else while it is there.
            Some(own) => (vec![own], elsewhere(own, &cores)),
            None => ranked(cores.clone(), &self.book.isolated()),
        };
        let now = host.now();
        let mut found = Vec::new();
        let rest = refused.iter().map(|(number, _)| *number);
        for number in ranked.iter().copied().chain(rest) {
            let Some(core) = cores.iter().find(|core| core.number == number) else { continue };
            let why_not = refused.iter().find(|(other, _)| *other == number);
            let book = &mut self.book;
            let room = book.admits(number, &wanted, asked.alone, replaced, now).map_err(|error| {
                if has_room_soon(book, number, &wanted, asked.alone, replaced, now) {
                    format!("core {number} has room as soon as what others give up is free")
                } else {
                    error.to_string()
                }
            });
            let left = if core.is_online { left(book, number, asked, replaced, now) } else { 0 };
            let reserved = book.neighbours(number, replaced, Held::reservation);
            found.push(Candidate {
                core: core.clone(),
                place: None,
                why_not: why_not.map(|(_, why)| why.clone()).or_else(|| room.err()),
                reserved: reserved.into_iter().map(|neighbour| neighbour.name).collect(),
                left,
            });
        }
        // What the host itself can see before anything is changed.
        for candidate in found.iter_mut().filter(|candidate| candidate.why_not.is_none()) {
            let guarantee = Guarantee::Core(candidate.core.number);
            let wanted = |target| Wanted { target, reservation: wanted, guarantee };
            let isolated = self.book.isolated();
            candidate.why_not = target.and_then(|target| {
                host.plan(&wanted(target), &isolated).err().map(|unmade| unmade.why)
            });
        }
        let tried = found.iter_mut().filter(|candidate| candidate.why_not.is_none());
        tried.enumerate().for_each(|(index, candidate)| candidate.place = Some(index + 1));
        let order = |of: &Candidate| (of.place.is_none(), of.place, of.core.number);
        found.sort_by_key(order);
        Ok(found)
    }
}

/// Why the cores but the one that a vCPU has reserved do not serve it.
fn elsewhere(own: usize, cores: &[Core]) -> Vec<(usize, String)> {
    let others = cores.iter().map(|core| core.number).filter(|number| *number != own);
    let why = format!("the vCPU has a reservation on core {own}, and that is changed there");
    others.map(|number| (number, why.clone())).collect()
}

/// The least budget that Linux accepts, ns (kernel/sched/deadline.c, DL_SCALE).
const LEAST: u64 = 1 << 10;
/// What is left is said in these steps, ns.
const STEP: u64 = 10_000;
/// Kernels admit at most this part of a core, 1/1000 (the default of sched_rt_runtime_us).
const MOST: u64 = 950;

/// The greatest budget in the period that a core keeps beside what it has; 0 for none.
fn left<C: Clone>(
    book: &mut Book<C>,
    core: usize,
    asked: &Question<'_>,
    replaced: Option<usize>,
    now: u64,
) -> u64 {
    let mut keeps = |budget: u64| {
        Reservation::shared(budget, asked.period)
            .is_ok_and(|wanted| book.admits(core, &wanted, asked.alone, replaced, now).is_ok())
    };
    // What it keeps, and what it does not, in steps.
    let (mut least, mut more) = (0, asked.period / 1000 * MOST / STEP + 1);
    while least + 1 < more {
        let middle = least.midpoint(more);
        if keeps(middle * STEP) {
            least = middle;
        } else {
            more = middle;
        }
    }
    least * STEP
}
