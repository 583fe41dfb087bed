//! [`Overheads`]: what a host takes from what a reservation would supply.
//!
//! What it does not do: measure them (`timevisor reserve measure`).

/// What every host takes. Times are in ns. All of them are worst cases: a job that is late inside a reservation which was
/// planned with them is a defect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overheads {
    /// 1 / HZ if budgets are enforced by the tick, else 0. A reservation runs on until the next tick, and
    /// has that much less later.
    pub tick: u64,
    /// How late a replenishment or a wake-up may be: timers, interrupts that are off, the way into the
    /// guest.
    pub latency: u64,
    /// Of each budget, what the guest does not have, in parts per million: interrupts, and the hypervisor's
    /// own work, while the vCPU's thread is charged.
    pub interference_ppm: u32,
    /// How much more of it may come at once.
    pub burst: u64,
}

impl Overheads {
    /// Of a host that nobody has measured: the tick of most distributions' kernels (CONFIG_HZ=250), and what
    /// docs/evaluation/reservation-analysis.md shows of hosts under load.
    pub const UNMEASURED: Self =
        Self { tick: 4_000_000, latency: 500_000, interference_ppm: 10_000, burst: 500_000 };

    /// A tick, and nothing else.
    #[must_use]
    pub const fn of_tick(tick: u64) -> Self {
        Self { tick, latency: 0, interference_ppm: 0, burst: 0 }
    }

    /// What interference leaves of this budget, ns; rounded down.
    #[must_use]
    pub fn left(&self, budget: u64) -> u64 {
        let left = u128::from(budget) * u128::from(self.share()) / u128::from(MILLION);
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    /// How long it takes at most to get this much of a processor that nothing else takes; rounded up. No
    /// longer than the budget of which that much is left.
    #[must_use]
    pub fn stretched(&self, left: u64) -> u64 {
        let time =
            (u128::from(left) * u128::from(MILLION)).div_ceil(u128::from(self.share().max(1)));
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    fn share(&self) -> u32 {
        MILLION.saturating_sub(self.interference_ppm)
    }
}

const MILLION: u32 = 1_000_000;
