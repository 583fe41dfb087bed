//! Plans the changes of a Linux host that implement a reservation, in order. Changes nothing
//! itself.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use timevisor_linux::affinity::allowed_of;
use timevisor_linux::cpu_limit;
use timevisor_linux::cpuset::{Cpusets, Level};
use timevisor_linux::kvm::no_halt_polling;
use timevisor_linux::scheduling::{Attributes, Change, Policy, threads};
use timevisor_linux::topology;
use timevisor_reservation::{Guarantee, Wanted};
use timevisor_schedule::Reservation;

/// The SCHED_FIFO priority of the fallback and of an emulator's main loop: the lowest real-time
/// priority.
const FIFO_PRIORITY: u32 = 1;

/// The changes for `wanted`, when the cores `isolated` are already isolated.
///
/// # Errors
/// Why no plan is possible.
pub fn plan(wanted: &Wanted, isolated: &BTreeSet<usize>) -> Result<Vec<(Level, Change)>> {
    let (pid, tid) = (wanted.target.pid, wanted.target.tid);
    if wanted.guarantee == Guarantee::Limit {
        let (budget, period) = (wanted.reservation.budget(), wanted.reservation.period());
        return Ok(cpu_limit::plan(pid, tid, budget, period)?);
    }
    let before =
        Attributes::of(tid).with_context(|| format!("cannot read the policy of thread {tid}"))?;
    let (mut planned, mut last) = (Vec::new(), None);
    if let Guarantee::Core(core) = wanted.guarantee {
        let allowed = allowed_of(tid)
            .with_context(|| format!("cannot read the processors of thread {tid}"))?;
        let cpusets = Cpusets::find()?;
        if !cpusets.decides_for(pid, tid, &allowed) {
            // Undone last: a thread that leaves a cpuset keeps the processors that it had there.
            let same = Change::Affinity { tid, allow: allowed.clone(), before: allowed };
            planned.push((Level::Thread, same));
        }
        let isolated: Vec<usize> = isolated.iter().copied().filter(|n| *n != core).collect();
        let made = cpusets.plan(pid, tid, core, &isolated)?;
        last = cpusets.then(&made, core);
        planned.extend(made);
        let others = off_core(pid, tid, core)?;
        planned.extend(others.into_iter().map(|change| (Level::Thread, change)));
        if !wanted.target.emulated {
            planned.extend(no_halt_polling().map(|change| (Level::Host, change)));
        }
    }
    let set = match wanted.guarantee {
        Guarantee::Fifo => Attributes::fifo(FIFO_PRIORITY),
        _ => attributes(&wanted.reservation),
    };
    planned.push((Level::Thread, Change::Attributes { tid, set, before }));
    planned.extend(last);
    if wanted.target.emulated && pid != tid {
        // QEMU's main loop generates the guest's timer interrupts; under KVM, the kernel does.
        let before = Attributes::of(pid)
            .with_context(|| format!("cannot read the policy of thread {pid}"))?;
        let set = Attributes::fifo(FIFO_PRIORITY);
        planned.push((Level::Thread, Change::Attributes { tid: pid, set, before }));
    }
    Ok(planned)
}

/// Moves QEMU's main loop and its other threads off the core of its vCPU `tid`. They would starve
/// there, because SCHED_DEADLINE threads run before everything else.
pub fn off_core(pid: u32, tid: u32, core: usize) -> Result<Vec<Change>> {
    let unreadable = "cannot read QEMU's threads";
    let cpusets = Cpusets::find()?;
    let mut planned = Vec::new();
    for thread in threads(pid).context(unreadable)? {
        let scheduled = Attributes::of(thread.tid).map(|attributes| attributes.policy);
        // The affinity of a vCPU with its own reservation cannot be changed, and need not be.
        if thread.tid == tid || scheduled.is_ok_and(|policy| policy == Policy::DEADLINE) {
            continue;
        }
        let before = allowed_of(thread.tid).context(unreadable)?;
        let allow: Vec<usize> = before.iter().copied().filter(|n| *n != core).collect();
        if !allow.is_empty() && allow != before {
            // Afterwards, one that its cpuset decides for is to follow that again, as it will be by then.
            let is_free = cpusets.decides_for(pid, thread.tid, &before);
            let before = if is_free { topology::present() } else { before };
            planned.push(Change::Affinity { tid: thread.tid, allow, before });
        }
    }
    Ok(planned)
}

/// SCHED_DEADLINE attributes with this reservation.
pub fn attributes(of: &Reservation) -> Attributes {
    Attributes::deadline(of.budget(), of.deadline(), of.period())
}
