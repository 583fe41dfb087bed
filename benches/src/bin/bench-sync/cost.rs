//! What one reference costs: CPU time per exchange, and memory.

use anyhow::{Result, bail};
use timevisor_estimate::estimators::radclock::{Radclock, RadclockParameters};
use timevisor_estimate::{Estimator, Exchange, Parameters, ReferenceClock};
use timevisor_simulation::trace::{Row, Trace, nominal_period};
use timevisor_time::RateError;

use crate::heap;

/// How often the day is fed; the fastest pass counts, for a busy machine only ever adds.
const PASSES: usize = 5;
/// By then every window is full, and nothing more should be allocated.
const SETTLED: usize = 1000;

/// Of one estimator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Mean CPU time of an exchange in the fastest pass, ns.
    pub(crate) mean_ns: f64,
    /// The slowest per cent of its exchanges takes at least this, ns.
    pub(crate) p99_ns: f64,
    /// The state with all its heap after the day, bytes.
    pub(crate) state_bytes: f64,
    /// By how much the heap grew after every window was full, until the end of the day, bytes.
    pub(crate) growth_bytes: f64,
    /// Allocations per exchange once every window is full.
    pub(crate) allocations: f64,
}

/// CPU time of this thread, ns.
fn cpu_ns() -> Result<i64> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec for the call to fill.
    if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) } != 0 {
        bail!("the kernel does not tell a thread's CPU time: {}", std::io::Error::last_os_error());
    }
    Ok(now.tv_sec * 1_000_000_000 + now.tv_nsec)
}

/// Feeds all rows to a new `make()`; `size` is that of what it makes.
fn measure<T>(
    rows: &[Row],
    make: impl Fn() -> T,
    mut observe: impl FnMut(&mut T, &Exchange),
) -> Result<Cost> {
    let mut fastest: Option<Cost> = None;
    let mut each = vec![0; rows.len()];
    for _ in 0..PASSES {
        let before = heap::live();
        let mut subject = make();
        let (mut counted, mut settled_at) = (0, before);
        let begin = cpu_ns()?;
        let mut last = begin;
        for (row, (n, each)) in rows.iter().zip(each.iter_mut().enumerate()) {
            if n == SETTLED {
                (counted, settled_at) = (heap::allocations(), heap::live());
            }
            observe(&mut subject, &row.exchange);
            let now = cpu_ns()?;
            *each = now - last;
            last = now;
        }
        let settled = rows.len().saturating_sub(SETTLED).max(1) as f64;
        let allocations = (heap::allocations() - counted) as f64 / settled;
        let growth_bytes = heap::live() as f64 - settled_at as f64;
        let state_bytes = (heap::live() - before + size_of::<T>()) as f64;
        let mean_ns = (last - begin) as f64 / rows.len() as f64;
        if fastest.is_none_or(|fastest| mean_ns < fastest.mean_ns) {
            let mut sorted = each.clone();
            sorted.sort_unstable();
            let p99_ns = sorted[(sorted.len() * 99).div_ceil(100) - 1] as f64;
            fastest = Some(Cost { mean_ns, p99_ns, state_bytes, growth_bytes, allocations });
        }
    }
    match fastest {
        Some(cost) => Ok(cost),
        None => bail!("a trace without exchanges costs nothing"),
    }
}

/// The production clock: estimator and bounds together.
pub(crate) fn ours(trace: &Trace) -> Result<Cost> {
    let parameters = Parameters::default();
    measure(
        &trace.rows,
        || ReferenceClock::new(&parameters, nominal_period(), RateError::ZERO),
        |clock, exchange| {
            std::hint::black_box(clock.observe(exchange));
        },
    )
}

/// RADclock, which has no bounds.
pub(crate) fn radclock(trace: &Trace) -> Result<Cost> {
    measure(
        &trace.rows,
        || Radclock::new(&RadclockParameters::good(), nominal_period()),
        Estimator::observe,
    )
}
