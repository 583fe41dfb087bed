//! Soft reservations: budgets that follow what is used (`timevisor_schedule::adaptive`), and give way to others.

use timevisor_guests::reservation::Held;
use timevisor_linux::scheduling::{Schedstat, schedstat};
use timevisor_schedule::Reservation;
use timevisor_schedule::adaptive::{Adaptive, Limits, Used};
use timevisor_time::Duration;

use super::{Reservations, name_of, now_ns};

/// A look takes so many ns at least, and whole periods: the kernel counts by its ticks.
const LOOK: u64 = 100_000_000;

pub(super) struct Soft {
    tid: u32,
    adaptive: Adaptive,
    last: Option<(u64, Schedstat)>,
    next: u64,
}

impl Soft {
    fn new(held: &Held) -> Option<Self> {
        let (least, most) = held.soft?;
        let adaptive = Adaptive::new(Limits { least, most }, held.budget);
        Some(Self { tid: held.tid, adaptive, last: None, next: 0 })
    }

    /// What a period has shown since the last look.
    fn used(&mut self, held: &Held, now: u64) -> Option<Used> {
        let stat = schedstat(held.pid, held.tid).ok()?;
        let (then, before) = self.last.replace((now, stat))?;
        let length = now.checked_sub(then).filter(|length| *length >= held.period)?;
        let of_period = |ns: u64| {
            let scaled = u128::from(ns) * u128::from(held.period) / u128::from(length);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let ran = of_period(stat.ran.saturating_sub(before.ran));
        let waited = of_period(stat.waited.saturating_sub(before.waited));
        // A thread that is out of budget waits.
        let wanted_more = ran >= held.budget / 10 * 9 && waited > held.period / 20;
        Some(Used { ran, wanted_more })
    }
}

impl Reservations {
    /// Begins to follow what a reservation uses, if it is soft.
    pub(super) fn follow(&mut self, index: usize) {
        let held = &self.held[index];
        self.soft.retain(|soft| soft.tid != held.tid);
        self.soft.extend(Soft::new(held));
        self.next_look = self.next_look.min(self.next_soft());
    }

    /// When the next one is to be looked at.
    pub(super) fn next_soft(&self) -> Duration {
        let next = self.soft.iter().map(|soft| soft.next).min();
        next.map_or(Duration::MAX, |ns| Duration::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX)))
    }

    /// Looks at those whose time has come.
    pub(super) fn follow_soft(&mut self) {
        let now = now_ns();
        let mut all = std::mem::take(&mut self.soft);
        all.retain_mut(|soft| {
            let Some(index) = self.held.iter().position(|held| held.tid == soft.tid) else {
                return false;
            };
            if now < soft.next {
                return true;
            }
            let held = &self.held[index];
            soft.next = now + held.period * LOOK.div_ceil(held.period);
            let wished = soft.used(held, now).and_then(|used| soft.adaptive.observe(used));
            if let Some(budget) = wished {
                self.grant(index, soft, budget);
            }
            true
        });
        self.soft = all;
    }

    fn grant(&mut self, index: usize, soft: &mut Soft, budget: u64) {
        let held = &self.held[index];
        let (deadline, period, alone, limits) = (held.deadline, held.period, held.alone, held.soft);
        let name = name_of(held);
        let (core, raised) = (held.core(), budget > held.budget);
        let Ok(reservation) = Reservation::new(budget, deadline, period) else { return };
        let room = match core.filter(|_| raised) {
            Some(core) => self.admits(core, &reservation, alone, Some(index)).is_ok(),
            None => true,
        };
        let changed = room && self.change(index, &reservation, alone, limits).is_ok();
        if changed {
            soft.adaptive.granted(budget);
            tracing::info!("{name}: {:.1} ms from now on", budget as f64 / 1e6);
        } else {
            soft.adaptive.refused();
        }
    }

    /// Whether a core could keep a reservation if soft ones had their least budgets.
    pub(super) fn has_room_without_softness(
        &mut self,
        core: usize,
        reservation: &Reservation,
        alone: bool,
        replaced: Option<usize>,
    ) -> bool {
        fn at_least(held: &Held) -> Option<Reservation> {
            let budget = held.soft.map_or(held.budget, |(least, _)| least);
            Reservation::new(budget, held.deadline, held.period).ok()
        }
        let squeezed = self.held.iter().enumerate().any(|(index, held)| {
            let above = held.soft.is_some_and(|(least, _)| least < held.budget);
            Some(index) != replaced && held.core() == Some(core) && above
        });
        let neighbours = self.neighbours(core, replaced, at_least);
        // What was freed a moment ago is not there yet: that is another reason to ask again.
        let mut nothing_freed = timevisor_guests::reservation::Ledger::default();
        let admitted = nothing_freed.admit(core, reservation, alone, &neighbours, 0).is_ok();
        admitted && (squeezed || self.ledger.is_freeing(core, now_ns()))
    }

    /// Gives soft reservations on a core their least budgets.
    pub(super) fn make_room(&mut self, core: usize, replaced: Option<usize>) {
        let mut all = std::mem::take(&mut self.soft);
        for soft in &mut all {
            let found = self.held.iter().position(|held| held.tid == soft.tid);
            let Some(index) = found.filter(|index| Some(*index) != replaced) else { continue };
            let least = soft.adaptive.limits().least;
            if self.held[index].core() == Some(core) && self.held[index].budget > least {
                self.grant(index, soft, least);
            }
        }
        self.soft = all;
    }
}
