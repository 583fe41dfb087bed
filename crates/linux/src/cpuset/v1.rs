//! cgroup v1: the root stops balancing load over all processors, a cpuset with the processor alone and one with all others
//! do so instead. Every one of them is a root domain of its own.
//!
//! Processes stay where they are: those that the kernel had on the processor share what the reservation leaves there.

use std::path::{Path, PathBuf};

use super::{CpusetError, Level, OURS, Plan, folder_of, read};
use crate::affinity;
use crate::scheduling::Change;

/// The cpuset of all other processors.
pub(super) fn rest(root: &Path) -> PathBuf {
    root.join(format!("{OURS}rest"))
}

pub(super) fn plan(
    root: &Path,
    pid: u32,
    tid: u32,
    processor: usize,
    rest_of: &[usize],
) -> Result<Plan, CpusetError> {
    balanced_elsewhere(root, root, processor)?;
    let memory = read(&root.join("cpuset.mems"))?;
    let balance = root.join("cpuset.sched_load_balance");
    let mut plan = Plan::new();
    let (own, rest) = (root.join(format!("{OURS}cpu{processor}")), rest(root));
    if rest.exists() {
        // Other processors are set apart already.
        let path = rest.join("cpuset.cpus");
        let (write, undo) = (affinity::text(rest_of), Some(read(&path)?));
        plan.push((Level::Thread, Change::File { path, write, undo }));
    } else {
        plan.extend(cpuset(Level::Host, &rest, &affinity::text(rest_of), &memory));
    }
    if !own.exists() {
        plan.extend(cpuset(Level::Processor, &own, &processor.to_string(), &memory));
    }
    if read(&balance)? != "0" {
        let undo = Some("1".to_owned());
        plan.push((Level::Host, Change::File { path: balance, write: "0".into(), undo }));
    }
    let from = folder_of(root, pid, tid, "cpuset")?.join("tasks");
    plan.push((Level::Thread, Change::Moved { tid, to: own.join("tasks"), from }));
    Ok(plan)
}

fn cpuset(level: Level, path: &Path, processors: &str, memory: &str) -> Plan {
    let file = |name: &str, write: &str| Change::File {
        path: path.join(name),
        write: write.to_owned(),
        undo: None,
    };
    vec![
        (level, Change::Folder { path: path.to_owned() }),
        (level, file("cpuset.cpus", processors)),
        (level, file("cpuset.mems", memory)),
    ]
}

/// Two cpusets that balance load over the same processor are one root domain.
fn balanced_elsewhere(root: &Path, folder: &Path, processor: usize) -> Result<(), CpusetError> {
    let io = |source| CpusetError::Io { path: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let is_ours = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(OURS));
        if !path.is_dir() || is_ours {
            continue;
        }
        let has = affinity::list(&read(&path.join("cpuset.cpus"))?)
            .is_some_and(|all| all.contains(&processor));
        if has && read(&path.join("cpuset.sched_load_balance"))? != "0" {
            let cpuset = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            return Err(CpusetError::Balanced { cpuset, processor });
        }
        balanced_elsewhere(root, &path, processor)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_elses_cpuset_is_named() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, cpus: &str, balance: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("cpuset.cpus"), cpus).unwrap();
            std::fs::write(path.join("cpuset.sched_load_balance"), balance).unwrap();
        };
        make("machine", "0-3", "0");
        make("machine/web", "2-3", "1");
        make("timevisor-cpu1", "1", "1");
        let check = |n| balanced_elsewhere(root.path(), root.path(), n);
        assert!(check(1).is_ok());
        let refused = check(2).unwrap_err();
        assert!(
            matches!(&refused, CpusetError::Balanced { cpuset, processor: 2 } if cpuset == "machine/web"),
            "{refused}"
        );
    }
}
