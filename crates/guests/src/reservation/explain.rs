//! What the kernel's answers mean. sched_setattr(2) has four numbers for a dozen reasons.

use std::io;
use std::path::Path;

use timevisor_linux::cpu_limit::LimitError;
use timevisor_linux::cpuset::CpusetError;
use timevisor_linux::scheduling::{Change, Policy, without_real_time};
use timevisor_schedule::Reservation;

/// The least budget that Linux takes (kernel/sched/deadline.c, DL_SCALE).
const LEAST_BUDGET: u64 = 1 << 10;

const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;

/// Why a reservation was not made.
#[derive(Debug, thiserror::Error)]
pub enum EnforceError {
    /// No processor can be set apart.
    #[error(transparent)]
    Cpuset(#[from] CpusetError),
    /// No cgroup can be limited.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The kernel refused a change.
    #[error("{change}: {why}")]
    Refused {
        /// What was to be changed.
        change: String,
        /// What that means and what to do.
        why: String,
    },
    /// The kernel took it and says something else now.
    #[error(
        "thread {tid} is scheduled as {found} and not as {set}; is another program setting it?"
    )]
    Differs {
        /// Which thread.
        tid: u32,
        /// What it should be.
        set: String,
        /// What it is.
        found: String,
    },
    /// The same, and something stays changed.
    #[error("{error}; and what could not be undone: {left}")]
    NotUndone {
        /// Why it failed.
        error: Box<EnforceError>,
        /// What is left.
        left: String,
    },
    /// A thread or file could not be read.
    #[error("{what}")]
    Io {
        /// Which.
        what: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl EnforceError {
    /// From the kernel's answer to a change.
    #[must_use]
    pub fn refused(change: &Change, error: &io::Error, wanted: &Reservation) -> Self {
        let why = match change {
            Change::Attributes { tid, set, .. }
                if set.policy == Policy::FIFO && error.raw_os_error() == Some(EPERM) =>
            {
                no_fifo(without_real_time(*tid).as_deref())
            }
            Change::Attributes { .. } => explain(error, wanted, period_limits()),
            Change::File { path, .. } if is_limit(path) && error.raw_os_error() == Some(EINVAL) => {
                "the kernel takes limits from 1 ms on, of periods from 1 ms to 1 s, and none beyond that of a cgroup above (libvirt's \
                 cputune, systemd's CPUQuota)"
                    .to_owned()
            }
            _ => error.to_string(),
        };
        Self::Refused { change: change.to_string(), why }
    }
}

fn is_limit(path: &Path) -> bool {
    ["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"].iter().any(|name| path.ends_with(name))
}

/// Why a thread is not let to be SCHED_FIFO. `file`: where its cgroup has no time for that.
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

/// The periods that this kernel takes, ns (sysctl kernel.sched_deadline_period_{min,max}_us, Linux 5.6; its defaults where not readable).
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

/// What an answer to sched_setattr means for this reservation, and what to do. `limits`: the periods that the kernel takes, ns.
#[must_use]
pub fn explain(error: &io::Error, wanted: &Reservation, limits: (u64, u64)) -> String {
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
                        to some processors of its root domain (give it a core of its own: --core N)"
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
        let refused = |code| {
            EnforceError::refused(&change, &io::Error::from_raw_os_error(code), &usual).to_string()
        };
        assert!(refused(EINVAL).contains("CPUQuota"), "{}", refused(EINVAL));
        assert!(refused(EPERM).contains("os error 1"), "{}", refused(EPERM));
        let file = Path::new("/sys/fs/cgroup/cpu/machine/web/emulator/cpu.rt_runtime_us");
        let said = no_fifo(Some(file));
        assert!(said.contains("10000") && said.ends_with(&file.display().to_string()), "{said}");
        assert!(no_fifo(None).contains("as root"));
    }
}
