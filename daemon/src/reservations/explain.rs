//! What the kernel's refusals mean, and what to do about them. sched_setattr(2) has four error
//! numbers for a dozen reasons.

use std::io;
use std::path::Path;

use timevisor_linux::scheduling::{Change, Policy, without_real_time};
use timevisor_reservation::{Because, Held};
use timevisor_schedule::Reservation;

/// The smallest budget that Linux accepts (kernel/sched/deadline.c, DL_SCALE).
const LEAST_BUDGET: u64 = 1 << 10;

const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;

/// Of linux/capability.h.
const CAP_SYS_NICE: u32 = 23;

/// Why the kernel rejected a change for `held`.
pub fn explain_refusal(change: &Change, error: &io::Error, held: &Held<Change>) -> String {
    let why = match (change, held.reservation()) {
        (Change::Attributes { tid, set, .. }, _)
            if set.policy == Policy::FIFO && error.raw_os_error() == Some(EPERM) =>
        {
            no_fifo(without_real_time(*tid).as_deref())
        }
        (change, _) if error.raw_os_error() == Some(ESRCH) && change.tid().is_some() => {
            "the thread has ended; is the VM running, and is the vCPU plugged?".to_owned()
        }
        (Change::Attributes { .. }, Some(reservation)) => {
            explain(error, &reservation, &Kernel::here())
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

/// Whether another core may do where this one fails.
pub fn cause_of(error: &io::Error) -> Because {
    cause(
        error,
        has_sys_nice(&std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default()),
    )
}

fn cause(error: &io::Error, has_sys_nice: bool) -> Because {
    match error.raw_os_error() {
        Some(ESRCH | ENOSYS) => Because::Anything,
        Some(EPERM) if !has_sys_nice => Because::Anything,
        _ => Because::Core,
    }
}

/// Why a core cannot be used, if it cannot run anything now.
pub fn why_not_core(core: usize) -> Option<String> {
    let folder = Path::new("/sys/devices/system/cpu").join(format!("cpu{core}"));
    let online = std::fs::read_to_string(folder.join("online")).ok()?;
    off_line(core, online.trim() == "0")
}

fn off_line(core: usize, is_offline: bool) -> Option<String> {
    is_offline.then(|| {
        format!(
            "core {core} is offline; write 1 into /sys/devices/system/cpu/cpu{core}/online, or take another core"
        )
    })
}

/// Whether a thread of this status (proc_pid_status(5)) may set others' scheduling.
fn has_sys_nice(status: &str) -> bool {
    let field = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = field.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    set.is_none_or(|set| set & 1 << CAP_SYS_NICE != 0)
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

/// What this kernel accepts, and from whom.
struct Kernel {
    /// Periods, ns.
    periods: (u64, u64),
    /// How much of a period real-time threads may have together, us; -1: all. With 0 there is no
    /// SCHED_DEADLINE.
    share: i64,
    has_sys_nice: bool,
}

impl Kernel {
    /// Sysctl kernel.sched_deadline_period_{min,max}_us (since Linux 5.6) and sched_rt_runtime_us; the
    /// defaults if they cannot be read.
    fn here() -> Self {
        fn read<T: std::str::FromStr>(name: &str, default: T) -> T {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok();
            text.and_then(|text| text.trim().parse().ok()).unwrap_or(default)
        }
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        Self {
            periods: (
                read("sched_deadline_period_min_us", 100) * 1000,
                read("sched_deadline_period_max_us", 1 << 22) * 1000,
            ),
            share: read("sched_rt_runtime_us", 950_000),
            has_sys_nice: has_sys_nice(&status),
        }
    }
}

/// What an error of sched_setattr means for this reservation, and what to do about it.
fn explain(error: &io::Error, wanted: &Reservation, kernel: &Kernel) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    let limits = kernel.periods;
    match error.raw_os_error() {
        Some(EINVAL) if wanted.budget() < LEAST_BUDGET => {
            format!("the kernel takes budgets from {LEAST_BUDGET} ns on; ask for more")
        }
        Some(EINVAL) if wanted.period() < limits.0 || wanted.period() > limits.1 => format!(
            "the kernel takes periods from {} to {} us (sysctl kernel.sched_deadline_period_min_us, _max_us)",
            us(limits.0),
            us(limits.1)
        ),
        Some(EINVAL) => "the kernel takes budget <= deadline <= period only, and no SCHED_DEADLINE if it is older than \
                         Linux 3.14; --promise limit needs neither"
            .to_owned(),
        Some(ENOSYS) => "this kernel, or a sandbox around timevisord, has no sched_setattr(2), and so no SCHED_DEADLINE \
                         (Linux 3.14); --promise limit does without"
            .to_owned(),
        Some(EPERM) if !kernel.has_sys_nice => {
            "CAP_SYS_NICE is missing; run timevisord as root, or give the unit reservations.conf".to_owned()
        }
        Some(EPERM) if kernel.share == 0 => "sysctl kernel.sched_rt_runtime_us is 0, which leaves SCHED_DEADLINE no time; \
                                             `sysctl -w kernel.sched_rt_runtime_us=950000`"
            .to_owned(),
        Some(EPERM) => "the kernel does not let us: the thread is confined to some processors of its root domain (give it a \
                        dedicated core: --core N), or a sandbox around timevisord forbids sched_setattr(2)"
            .to_owned(),
        Some(EBUSY) => format!(
            "the processor has no room for {:.1} %: other reservations, and what the kernel keeps for everything else \
             (sysctl kernel.sched_rt_runtime_us is {}; the fair server), take the rest; ask for less, or another core",
            100.0 * wanted.bandwidth(),
            kernel.share
        ),
        Some(ESRCH) => "the thread has ended; is the VM running?".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use timevisor_reservation::Guarantee;

    use super::*;

    #[test]
    fn every_answer_has_a_next_step() {
        let of = |budget, period| Reservation::shared(budget, period).unwrap();
        let mut kernel =
            Kernel { periods: (100_000, 4_194_304_000), share: 950_000, has_sys_nice: true };
        let tell = |code: i32, wanted: Reservation, kernel: &Kernel| {
            explain(&io::Error::from_raw_os_error(code), &wanted, kernel)
        };
        let say = |code: i32, wanted: Reservation| tell(code, wanted, &kernel);
        let usual = of(28_000_000, 50_000_000);
        assert!(say(EINVAL, of(1_000, 1_000_000)).contains("from 1024 ns on"));
        assert!(say(EINVAL, of(20_000, 90_000)).contains("from 100 to 4194304 us"));
        assert!(say(EINVAL, of(20_000, 5_000_000_000)).contains("from 100 to 4194304 us"));
        assert!(say(EINVAL, usual).contains("budget <= deadline"));
        assert!(say(EPERM, usual).contains("--core"));
        assert!(say(EBUSY, usual).contains("56.0 %"));
        assert!(say(EBUSY, usual).contains("sched_rt_runtime_us is 950000"));
        assert!(say(ENOSYS, usual).contains("--promise limit"));
        assert!(say(ESRCH, usual).contains("running?"));
        assert!(say(5, usual).contains("os error 5"));
        kernel.share = 0;
        let off = tell(EPERM, usual, &kernel);
        assert!(off.contains("sysctl -w kernel.sched_rt_runtime_us"), "{off}");
        kernel.has_sys_nice = false;
        assert!(
            tell(EPERM, usual, &kernel)
                .starts_with("CAP_SYS_NICE is missing; run timevisord as root")
        );
        let of = |code, nice| cause(&io::Error::from_raw_os_error(code), nice);
        let anything = [(EPERM, false), (ESRCH, true), (ENOSYS, true)];
        assert!(anything.iter().all(|(code, nice)| of(*code, *nice) == Because::Anything));
        let core = [(EPERM, true), (EBUSY, true), (EBUSY, false), (EINVAL, true)];
        assert!(core.iter().all(|(code, nice)| of(*code, *nice) == Because::Core));
        assert!(
            !has_sys_nice("CapEff:\t0000000000000000\n")
                && has_sys_nice("CapEff:\t0000000000800000\n")
        );
        assert!(off_line(3, true).unwrap().contains("cpu3/online") && off_line(3, false).is_none());
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
            threads: BTreeMap::new(),
            leftover: Vec::new(),
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
        let change = Change::Moved { tid: 8, to: "/new/tasks".into(), from: "/old/tasks".into() };
        let ended = explain_refusal(&change, &io::Error::from_raw_os_error(ESRCH), &held);
        assert!(ended.contains("is the vCPU plugged?"), "{ended}");
    }
}
