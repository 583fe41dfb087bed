//! cgroup v2: a threaded cgroup below the VM's own, made a partition. If the VM's cgroup is not at
//! the top, every cgroup on the path must grant the processor (cpuset.cpus.exclusive, Linux 6.7): a
//! *remote partition*. The process stays in its cgroup, where libvirt and systemd expect it; only
//! the thread moves.
//!
//! Tested with Linux 7.3: at the top of the tree (`make lab TEST=reserve-kvm`), and as a remote
//! partition below libvirt's cgroup of the vCPU in machine.slice (`TEST=reserve-libvirt-v2`).

use std::path::Path;

use super::{CpusetError, Level, OURS, Plan, controller, folder_of, read};
use crate::scheduling::Change;

const CPUSET: &str = "cpuset";

pub(super) fn plan(root: &Path, pid: u32, tid: u32, processor: usize) -> Result<Plan, CpusetError> {
    let home = folder_of(root, pid, tid, "")?;
    let mut plan = Plan::new();
    let remote = home != root;
    // The first file exists only with the controller, the second one since Linux 6.8.
    let known = [home.join("cpuset.cpus.exclusive"), root.join("cpuset.cpus.isolated")];
    if remote && !known.iter().any(|path| path.exists()) {
        let cgroup = home.strip_prefix(root).unwrap_or(&home).display().to_string();
        return Err(CpusetError::NoRemotePartitions { cgroup });
    }
    let own = home.join(format!("{OURS}cpu{processor}"));
    let (from, to) = (home.join("cgroup.threads"), own.join("cgroup.threads"));
    let moved = (Level::Thread, Change::Moved { tid, to, from });
    if own.exists() {
        return Ok(vec![moved]);
    }
    // From the top down to the VM's cgroup.
    let mut way: Vec<&Path> = home.ancestors().take_while(|path| *path != root).collect();
    way.reverse();
    plan.extend(controller(root, CPUSET)?);
    for folder in way {
        let path = folder.join("cpuset.cpus.exclusive");
        plan.push((Level::Processor, Change::Granted { path, processor }));
        if folder != home {
            plan.extend(controller(folder, CPUSET)?);
        }
    }
    let file = |name: &str, write: &str| {
        let (path, write) = (own.join(name), write.to_owned());
        (Level::Processor, Change::File { path, write, undo: None })
    };
    plan.push((Level::Processor, Change::Folder { path: own.clone() }));
    plan.push(file("cgroup.type", "threaded"));
    if remote {
        // A cgroup that contains processes can have children with controllers only if they are
        // threaded.
        plan.extend(controller(&home, CPUSET)?);
        plan.push(file("cpuset.cpus.exclusive", &processor.to_string()));
    }
    plan.push(file("cpuset.cpus", &processor.to_string()));
    plan.push(file("cpuset.cpus.partition", "root"));
    plan.push(moved);
    Ok(plan)
}

/// The kernel accepts any state, and reports in the same file whether it is valid.
pub(super) fn verify(plan: &[(Level, Change)]) -> Result<(), CpusetError> {
    for (_, change) in plan {
        let Change::File { path, .. } = change else { continue };
        if path.ends_with("cpuset.cpus.partition") {
            let said = read(path)?;
            if said != "root" {
                let cgroup = path.parent().unwrap_or(path).display().to_string();
                return Err(CpusetError::Invalid { cgroup, said });
            }
        }
    }
    Ok(())
}
