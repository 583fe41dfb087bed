//! Limits a thread's processor time with the cpu controller's bandwidth control (cgroup v1:
//! cpu.cfs_quota_us, v2: cpu.max). The thread gets a new cgroup below its current one, with the
//! highest weight among its siblings.
//!
//! It only plans changes and does not apply them: [`Change`]. Tested on cgroup v1
//! (`make lab TEST=reserve`); v2 is covered only by unit tests of the plan.

use std::path::{Path, PathBuf};

use crate::cpuset::{CpusetError, Level, OURS, Plan, controller, folder_of, hierarchy, mounts};
use crate::scheduling::Change;

/// The highest weights (kernel/sched/sched.h, include/linux/cgroup.h).
const SHARES: &str = "262144";
const WEIGHT: &str = "10000";

/// Why no limit can be set.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// There is no cpu controller.
    #[error("no cpu controller is mounted; mount cgroup2 at /sys/fs/cgroup")]
    None,
    /// A cgroup cannot be read.
    #[error(transparent)]
    Cgroup(#[from] CpusetError),
}

/// Plans the changes that limit thread `tid` of process `pid` to `budget` in each `period`, ns.
///
/// # Errors
/// When the limit cannot be planned.
pub fn plan(pid: u32, tid: u32, budget: u64, period: u64) -> Result<Plan, LimitError> {
    let path = PathBuf::from("/proc/self/mountinfo");
    let text = std::fs::read_to_string(&path).map_err(|source| CpusetError::Io { path, source })?;
    let limits =
        Limits { tid, quota: (budget / 1000).to_string(), period: (period / 1000).to_string() };
    if let Some(root) = hierarchy(&text, "cpu") {
        return Ok(limits.v1(&home(folder_of(&root, pid, tid, "cpu")?)));
    }
    let (root, ..) =
        mounts(&text).find(|(_, kind, _)| *kind == "cgroup2").ok_or(LimitError::None)?;
    let root = PathBuf::from(root);
    let home = home(folder_of(&root, pid, tid, "")?);
    Ok(limits.v2(&root, &home)?)
}

/// The cgroup in which the thread was before we moved it.
fn home(folder: PathBuf) -> PathBuf {
    let ours = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(OURS));
    match folder.parent() {
        Some(parent) if ours => parent.to_owned(),
        _ => folder,
    }
}

struct Limits {
    tid: u32,
    /// In microseconds.
    quota: String,
    period: String,
}

impl Limits {
    fn own(&self, home: &Path) -> PathBuf {
        home.join(format!("{OURS}limit-{}", self.tid))
    }

    fn v1(&self, home: &Path) -> Plan {
        let own = self.own(home);
        // The quota comes last, because it may not exceed the period.
        let files = [
            ("cpu.shares", SHARES),
            ("cpu.cfs_period_us", self.period.as_str()),
            ("cpu.cfs_quota_us", self.quota.as_str()),
        ];
        let (from, to) = (home.join("tasks"), own.join("tasks"));
        let mut plan = written(&own, &files);
        plan.push((Level::Thread, Change::Moved { tid: self.tid, to, from }));
        plan
    }

    fn v2(&self, root: &Path, home: &Path) -> Result<Plan, CpusetError> {
        let own = self.own(home);
        let max = format!("{} {}", self.quota, self.period);
        let mut above: Vec<&Path> = home.ancestors().take_while(|path| *path != root).collect();
        above.push(root);
        above.reverse();
        above.retain(|folder| *folder != home);
        let mut plan = Plan::new();
        for folder in above {
            plan.extend(controller(folder, "cpu")?);
        }
        // A cgroup that contains processes can have children with controllers only if they are
        // threaded.
        plan.extend(written(&own, &[("cgroup.type", "threaded")]));
        plan.extend(controller(home, "cpu")?);
        plan.extend(written(&own, &[("cpu.weight", WEIGHT), ("cpu.max", &max)]).split_off(1));
        let (from, to) = (home.join("cgroup.threads"), own.join("cgroup.threads"));
        plan.push((Level::Thread, Change::Moved { tid: self.tid, to, from }));
        Ok(plan)
    }
}

/// Plans a cgroup with these files, which are removed together with it.
fn written(own: &Path, files: &[(&str, &str)]) -> Plan {
    let folder = Change::Folder { path: own.to_owned() };
    let file = |(name, write): &(&str, &str)| Change::File {
        path: own.join(name),
        write: (*write).to_owned(),
        undo: None,
    };
    let all = std::iter::once(folder).chain(files.iter().map(file));
    all.map(|change| (Level::Thread, change)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(plan: &Plan, root: &Path) -> Vec<String> {
        let root = format!("{}/", root.display());
        plan.iter().map(|(_, change)| change.to_string().replace(&root, "")).collect()
    }

    const LIMITS: fn() -> Limits =
        || Limits { tid: 7, quota: "20000".to_owned(), period: "50000".to_owned() };

    #[test]
    fn a_quota_and_the_greatest_share() {
        let root = Path::new("/sys/fs/cgroup/cpu");
        let expected = [
            "mkdir machine/timevisor-limit-7",
            "machine/timevisor-limit-7/cpu.shares <- 262144",
            "machine/timevisor-limit-7/cpu.cfs_period_us <- 50000",
            "machine/timevisor-limit-7/cpu.cfs_quota_us <- 20000",
            "machine/timevisor-limit-7/tasks <- 7",
        ];
        let home = root.join("machine");
        assert_eq!(text(&LIMITS().v1(&home), root), expected);
        // A thread that is already in one of our cgroups is planned for as if it were not.
        assert_eq!(super::home(home.join("timevisor-limit-7")), home);
        assert_eq!(super::home(home.clone()), home);
    }

    #[test]
    fn a_threaded_cgroup_below_the_vms() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("machine.slice/web");
        std::fs::create_dir_all(&home).unwrap();
        for (path, has) in
            [("", "cpuset cpu"), ("machine.slice", "memory"), ("machine.slice/web", "")]
        {
            std::fs::write(folder.path().join(path).join("cgroup.subtree_control"), has).unwrap();
        }
        let own = "machine.slice/web/timevisor-limit-7";
        let expected = [
            "machine.slice/cgroup.subtree_control <- +cpu".to_owned(),
            format!("mkdir {own}"),
            format!("{own}/cgroup.type <- threaded"),
            "machine.slice/web/cgroup.subtree_control <- +cpu".to_owned(),
            format!("{own}/cpu.weight <- 10000"),
            format!("{own}/cpu.max <- 20000 50000"),
            format!("{own}/cgroup.threads <- 7"),
        ];
        let plan = LIMITS().v2(folder.path(), &home).unwrap();
        assert_eq!(text(&plan, folder.path()), expected);
    }
}
