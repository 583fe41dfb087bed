//! What the kernel's refusals mean, and what to do about them. sched_setattr(2) has four error
//! numbers for a dozen reasons.

use std::io;
use std::path::Path;

use timevisor_linux::scheduling::{Change, Policy, without_real_time};
use timevisor_reservation::Held;
use timevisor_schedule::Reservation;

/// The smallest budget that Linux accepts (kernel/sched/deadline.c, DL_SCALE).
const LEAST_BUDGET: u64 = 1 << 10;

const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;

/// Why the kernel rejected a change for `held`.
pub fn explain_refusal(change: &Change, error: &io::Error, held: &Held<Change>) -> String {
    let why = match (change, held.reservation()) {
        (Change::Attributes { tid, set, .. }, _)
            if set.policy == Policy::FIFO && error.raw_os_error() == Some(EPERM) =>
        {
            no_fifo(without_real_time(*tid).as_deref())
        }
        (Change::Attributes { .. }, Some(reservation)) => {
            explain(error, &reservation, period_limits())
        }
        (Change::File { path, .. }, _)
            if is_limit(path) && error.raw_os_error() == Some(EINVAL) =>
        {
            "the kernel takes limits from 1 ms on, of periods from 1 ms to 1 s, and none beyond that of a cgroup above (libvirt's \
             cputune, systemd's CPUQuota)"
                .to_owned()
        }
        _ => error.to_string(),
    };
    format!("{change}: {why}")
}

fn is_limit(path: &Path) -> bool {
    ["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"].iter().any(|name| path.ends_with(name))
}

/// Why a thread may not run under SCHED_FIFO. `file`: the setting of its cgroup that allows no time
/// for SCHED_FIFO.
fn no_fifo(file: Option<&Path>) -> String {
    file.map_or_else(
        || "the kernel does not let us: CAP_SYS_NICE is missing (run timevisord as root)".to_owned(),
        |file| {
            format!(
                "its cgroup has no time for SCHED_FIFO (a kernel with CONFIG_RT_GROUP_SCHED); write some us, such as 10000, into \
                 cpu.rt_runtime_us of every cgroup above it, from the top on, and then into {}",
                file.display()
            )
        },
    )
}

/// The periods that this kernel accepts, ns (sysctl kernel.sched_deadline_period_{min,max}_us,
/// since Linux 5.6; the defaults if they cannot be read).
fn period_limits() -> (u64, u64) {
    let read = |name: &str, default: u64| {
        std::fs::read_to_string(format!("/proc/sys/kernel/sched_deadline_period_{name}_us"))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(default)
            * 1000
    };
    (read("min", 100), read("max", 1 << 22))
}

/// What an error of sched_setattr means for this reservation, and what to do about it. `limits`:
/// the periods that the kernel accepts, ns.
fn explain(error: &io::Error, wanted: &Reservation, limits: (u64, u64)) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    match error.raw_os_error() {
        Some(EINVAL) if wanted.budget() < LEAST_BUDGET => {
            format!("the kernel takes budgets from {LEAST_BUDGET} ns on; ask for more")
        }
        Some(EINVAL) if wanted.period() < limits.0 || wanted.period() > limits.1 => format!(
            "the kernel takes periods from {} to {} us (sysctl kernel.sched_deadline_period_min_us, _max_us)",
            us(limits.0),
            us(limits.1)
        ),
        Some(EINVAL) => "the kernel takes budget <= deadline <= period only".to_owned(),
        Some(EPERM) => "the kernel does not let us: CAP_SYS_NICE is missing (run timevisord as root), or the thread is confined \
                        to some processors of its root domain (give it a dedicated core: --core N)"
            .to_owned(),
        Some(EBUSY) => format!(
            "the processor has no room for {:.1} %: other reservations, and what the kernel keeps for everything else \
             (sysctl kernel.sched_rt_runtime_us, the fair server), take the rest; ask for less, or another core",
            100.0 * wanted.bandwidth()
        ),
        Some(ESRCH) => "the thread has ended; is the VM running?".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use timevisor_reservation::Guarantee;

    use super::*;

    #[test]
    fn every_answer_has_a_next_step() {
        let of = |budget, period| Reservation::shared(budget, period).unwrap();
        let limits = (100_000, 4_194_304_000);
        let say = |code: i32, wanted: Reservation| {
            explain(&io::Error::from_raw_os_error(code), &wanted, limits)
        };
        let usual = of(28_000_000, 50_000_000);
        assert!(say(EINVAL, of(1_000, 1_000_000)).contains("from 1024 ns on"));
        assert!(say(EINVAL, of(20_000, 90_000)).contains("from 100 to 4194304 us"));
        assert!(say(EINVAL, of(20_000, 5_000_000_000)).contains("from 100 to 4194304 us"));
        assert!(say(EINVAL, usual).contains("budget <= deadline"));
        assert!(say(EPERM, usual).contains("--core"));
        assert!(say(EBUSY, usual).contains("56.0 %"));
        assert!(say(ESRCH, usual).contains("running?"));
        assert!(say(5, usual).contains("os error 5"));
        let path = Path::new("/sys/fs/cgroup/cpu/timevisor-limit-7/cpu.cfs_quota_us").to_owned();
        let change = Change::File { path, write: "500".into(), undo: None };
        let held = Held {
            vm: "web".into(),
            vcpu: 0,
            pid: 7,
            start_time: 1,
            tid: 8,
            guarantee: Guarantee::Limit,
            budget: usual.budget(),
            deadline: usual.deadline(),
            period: usual.period(),
            soft: None,
            alone: false,
            followed: false,
            changes: Vec::new(),
            ran: 0,
            since: 0,
        };
        let refused = |code| explain_refusal(&change, &io::Error::from_raw_os_error(code), &held);
        assert!(refused(EINVAL).contains("CPUQuota"), "{}", refused(EINVAL));
        assert!(refused(EPERM).contains("os error 1"), "{}", refused(EPERM));
        let file = Path::new("/sys/fs/cgroup/cpu/machine/web/emulator/cpu.rt_runtime_us");
        let said = no_fifo(Some(file));
        assert!(said.contains("10000") && said.ends_with(&file.display().to_string()), "{said}");
        assert!(no_fifo(None).contains("as root"));
    }
}
