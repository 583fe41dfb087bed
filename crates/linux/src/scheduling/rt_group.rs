//! CONFIG_RT_GROUP_SCHED: on cgroup v1, every cgroup except the root has no budget for SCHED_FIFO
//! and SCHED_RR until one is assigned (Documentation/scheduler/sched-rt-group.rst). SCHED_DEADLINE
//! is not affected (6.18: `rt_policy` in `__sched_setscheduler`).

use std::path::{Path, PathBuf};

use super::cgroup_of;

/// What prevents SCHED_FIFO for a thread: the file in which its cgroup's budget is zero. `None` if
/// the cause is different, or the thread has ended.
#[must_use]
pub fn without_real_time(tid: u32) -> Option<PathBuf> {
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let root = crate::cpuset::hierarchy(&mountinfo, "cpu")?;
    of_group(&root, &cgroup_of(tid, tid, "cpu").ok()?)
}

fn of_group(root: &Path, cgroup: &str) -> Option<PathBuf> {
    let file = root.join(cgroup.trim_start_matches('/')).join("cpu.rt_runtime_us");
    (std::fs::read_to_string(&file).ok()?.trim() == "0").then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_group_has_none() {
        let root = tempfile::tempdir().unwrap();
        for (group, runtime) in [("web", Some("0\n")), ("db", Some("10000\n")), ("old", None)] {
            std::fs::create_dir(root.path().join(group)).unwrap();
            if let Some(runtime) = runtime {
                std::fs::write(root.path().join(group).join("cpu.rt_runtime_us"), runtime).unwrap();
            }
        }
        let of = |group: &str| of_group(root.path(), group);
        assert_eq!(of("/web"), Some(root.path().join("web/cpu.rt_runtime_us")));
        assert_eq!((of("/db"), of("/old"), of("/gone")), (None, None, None));
        assert_eq!(without_real_time(4_194_000), None);
    }
}
