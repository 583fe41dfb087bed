//! cgroup v1: the root stops balancing load over all processors. Instead, one cpuset covers the
//! exclusive processor and another one all others, so that each is a separate root domain.
//!
//! Processes are not moved: those on the processor share the time that the reservation leaves. The
//! cpusets of others (libvirt, systemd) that balance load over the processor stop doing so; nothing
//! else about them changes.
//!
//! What it does not do: work around an exclusive cpuset (cpuset.cpu_exclusive). It refuses, and
//! names that cpuset.

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
    exclusive(root, &[&[processor], rest_of].concat())?;
    let memory = read(&root.join("cpuset.mems"))?;
    let balance = root.join("cpuset.sched_load_balance");
    let mut plan = Plan::new();
    let (own, rest) = (root.join(format!("{OURS}cpu{processor}")), rest(root));
    if rest.exists() {
        // Other processors are already exclusive.
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
    let others = balancing(root, &[processor])?;
    plan.extend(others.into_iter().map(|change| (Level::Host, change)));
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

/// The cpusets of others that balance load between one of these processors and any other one. Two
/// cpusets that balance over the same processor, such as theirs and ours, form one root domain.
pub(super) fn balancing(root: &Path, processors: &[usize]) -> Result<Vec<Change>, CpusetError> {
    let mut found = Vec::new();
    of_others(root, &mut |path| {
        let all = processors_of(path)?;
        let joins = all.len() > 1 && processors.iter().any(|processor| all.contains(processor));
        if joins && read(&path.join("cpuset.sched_load_balance"))? != "0" {
            found.push(Change::Unbalanced { path: path.to_owned() });
        }
        Ok(())
    })?;
    Ok(found)
}

/// Checks for exclusive cpusets. No cpuset may share a processor with an exclusive sibling: the
/// kernel rejects the second one with EINVAL.
fn exclusive(root: &Path, ours: &[usize]) -> Result<(), CpusetError> {
    of_others(root, &mut |path| {
        let beside = path.parent() == Some(root);
        if beside && read(&path.join("cpuset.cpu_exclusive"))? == "1" {
            let all = processors_of(path)?;
            if let Some(processor) = ours.iter().copied().find(|n| all.contains(n)) {
                let cpuset = path.strip_prefix(root).unwrap_or(path).display().to_string();
                return Err(CpusetError::Exclusive { cpuset, processor });
            }
        }
        Ok(())
    })
}

/// The cpuset's processors; a new cpuset has none.
fn processors_of(cpuset: &Path) -> Result<Vec<usize>, CpusetError> {
    Ok(affinity::list(&read(&cpuset.join("cpuset.cpus"))?).unwrap_or_default())
}

/// Looks at every cpuset below `folder` that is not ours. One that disappears in the meantime is
/// skipped.
fn of_others(
    folder: &Path,
    look: &mut impl FnMut(&Path) -> Result<(), CpusetError>,
) -> Result<(), CpusetError> {
    let io = |source| CpusetError::Io { path: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let is_ours = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(OURS));
        if is_ours || !path.is_dir() {
            continue;
        }
        match look(&path).and_then(|()| of_others(&path, look)) {
            Err(CpusetError::Io { .. }) if !path.exists() => {}
            looked => looked?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpuset(root: &Path, path: &str, cpus: &str, balance: &str, exclusive: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(&path).unwrap();
        let files = [("cpus", cpus), ("sched_load_balance", balance), ("cpu_exclusive", exclusive)];
        for (name, text) in files {
            std::fs::write(path.join(format!("cpuset.{name}")), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn who_balances_load_over_a_processor() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        cpuset(root, "machine", "0-3", "0", "0");
        cpuset(root, "machine/web", "2-3", "1", "0");
        cpuset(root, "machine/web/vcpu0", "3", "1", "0");
        cpuset(root, "machine/web/emulator", "0-3", "1", "0");
        cpuset(root, "new", "", "1", "0");
        cpuset(root, "timevisor-rest", "0-2", "1", "0");
        let found = |processors: &[usize]| {
            let mut found: Vec<String> = balancing(root, processors)
                .unwrap()
                .iter()
                .map(|change| match change {
                    Change::Unbalanced { path } => {
                        path.strip_prefix(root).unwrap().display().to_string()
                    }
                    other => panic!("{other:?}"),
                })
                .collect();
            found.sort();
            found
        };
        assert_eq!(found(&[1]), ["machine/web/emulator"]);
        // A cpuset of one processor balances nothing, whatever its setting says.
        assert_eq!(found(&[1, 3]), ["machine/web", "machine/web/emulator"]);
        assert_eq!(found(&[]), [""; 0]);
    }

    #[test]
    fn an_exclusive_cpuset_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        cpuset(root, "db", "2-3", "1", "1");
        // A cpuset is exclusive only among its siblings.
        cpuset(root, "machine", "0-1", "1", "0");
        cpuset(root, "machine/web", "1", "1", "1");
        assert!(exclusive(root, &[0, 1]).is_ok());
        let refused = exclusive(root, &[1, 2]).unwrap_err();
        assert!(
            matches!(&refused, CpusetError::Exclusive { cpuset, processor: 2 } if cpuset == "db"),
            "{refused}"
        );
    }
}
