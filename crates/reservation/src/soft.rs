//! Soft reservations: their budgets follow the actual use (`timevisor_schedule::adaptive`), and
//! they give way to other reservations.

use timevisor_schedule::Reservation;
use timevisor_schedule::adaptive::{Adaptive, Limits, Used};

use crate::book::Book;
use crate::core_isolation::CoreIsolation;
use crate::held::Held;
use crate::host::{Host, Severity, Usage};

/// Minimum time between two samples, ns; rounded up to whole periods. The kernel accounts at its
/// ticks.
const LOOK: u64 = 100_000_000;

#[derive(Debug)]
struct Soft {
    tid: u32,
    adaptive: Adaptive,
    last: Option<(u64, Usage)>,
    next: u64,
}

impl Soft {
    fn new<C>(held: &Held<C>) -> Option<Self> {
        let (least, most) = held.soft?;
        let adaptive = Adaptive::new(Limits { least, most }, held.budget);
        Some(Self { tid: held.tid, adaptive, last: None, next: 0 })
    }

    /// The average use per period since the last sample.
    fn used<H: Host>(&mut self, held: &Held<H::Change>, host: &H, now: u64) -> Option<Used> {
        let usage = host.usage(held.pid, held.tid)?;
        let (then, before) = self.last.replace((now, usage))?;
        let length = now.checked_sub(then).filter(|length| *length >= held.period)?;
        let of_period = |ns: u64| {
            let scaled = u128::from(ns) * u128::from(held.period) / u128::from(length);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let ran = of_period(usage.ran.saturating_sub(before.ran));
        let waited = of_period(usage.waited.saturating_sub(before.waited));
        // A thread that has exhausted its budget counts as waiting.
        let wanted_more = ran >= held.budget / 10 * 9 && waited > held.period / 20;
        Some(Used { ran, wanted_more })
    }
}

/// All soft reservations.
#[derive(Debug, Default)]
pub(crate) struct SoftBudgets {
    all: Vec<Soft>,
}

impl SoftBudgets {
    /// Starts to follow a reservation's use, if the reservation is soft.
    pub(crate) fn follow<C>(&mut self, held: &Held<C>) {
        self.all.retain(|soft| soft.tid != held.tid);
        self.all.extend(Soft::new(held));
    }

    /// When the next sample is due, ns; `u64::MAX` without soft reservations.
    pub(crate) fn next(&self) -> u64 {
        self.all.iter().map(|soft| soft.next).min().unwrap_or(u64::MAX)
    }

    /// Samples the reservations that are due.
    pub(crate) fn look<H: Host>(
        &mut self,
        book: &mut Book<H::Change>,
        isolation: &mut CoreIsolation,
        host: &mut H,
    ) {
        let now = host.now();
        self.all.retain_mut(|soft| {
            let Some(index) = book.held.iter().position(|held| held.tid == soft.tid) else {
                return false;
            };
            if now < soft.next {
                return true;
            }
            let held = &book.held[index];
            soft.next = now.saturating_add(held.period * LOOK.div_ceil(held.period));
            let wished = soft.used(held, host, now).and_then(|used| soft.adaptive.observe(used));
            if let Some(budget) = wished {
                grant(soft, index, budget, book, isolation, host);
            }
            true
        });
    }

    /// Shrinks the soft reservations on a core to their minimum budgets, except for number
    /// `replaced`.
    pub(crate) fn make_room<H: Host>(
        &mut self,
        core: usize,
        replaced: Option<usize>,
        book: &mut Book<H::Change>,
        isolation: &mut CoreIsolation,
        host: &mut H,
    ) {
        for soft in &mut self.all {
            let found = book.held.iter().position(|held| held.tid == soft.tid);
            let Some(index) = found.filter(|index| Some(*index) != replaced) else { continue };
            let least = soft.adaptive.limits().least;
            if book.held[index].core() == Some(core) && book.held[index].budget > least {
                grant(soft, index, least, book, isolation, host);
            }
        }
    }
}

fn grant<H: Host>(
    soft: &mut Soft,
    index: usize,
    budget: u64,
    book: &mut Book<H::Change>,
    isolation: &mut CoreIsolation,
    host: &mut H,
) {
    let held = &book.held[index];
    let (deadline, period, alone, limits) = (held.deadline, held.period, held.alone, held.soft);
    let name = held.name();
    let (core, raised) = (held.core(), budget > held.budget);
    let Ok(reservation) = Reservation::new(budget, deadline, period) else { return };
    let room = match core.filter(|_| raised) {
        Some(core) => book.admits(core, &reservation, alone, Some(index), host.now()).is_ok(),
        None => true,
    };
    let mut change = || {
        // A VM that has just started may have joined the core to others; the kernel would then
        // refuse.
        isolation.restore(book, host);
        book.change(index, &reservation, (alone, limits), host)
    };
    if room && change().is_ok() {
        soft.adaptive.granted(budget);
        let text = format!("{name}: {:.1} ms from now on", budget as f64 / 1e6);
        host.tell(Severity::Info, &text);
    } else {
        soft.adaptive.refused();
    }
}
