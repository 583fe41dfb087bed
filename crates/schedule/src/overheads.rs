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
    /// How late each of the host's timers may be: a replenishment, and a wake-up. What the guest's own way
    /// from its timer to its task takes is in the tasks' costs ([`Overhead`](crate::Overhead)).
    pub latency: u64,
    /// Of any time, what interrupts and the hypervisor's own work may take, in parts per million. All of it may
    /// come while the vCPU's thread is charged.
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

    /// What interference takes in this time, ns; rounded up.
    #[must_use]
    pub fn taken_in(&self, time: u64) -> u64 {
        let taken = (u128::from(time) * u128::from(self.interference_ppm)).div_ceil(1_000_000);
        u64::try_from(taken).unwrap_or(u64::MAX)
    }
}
