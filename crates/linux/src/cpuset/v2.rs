//! cgroup v2: a threaded cgroup below the VM's own. The process stays in its cgroup, where libvirt, systemd and
//! kubelet expect it; only the thread moves.
//!
//! | the processor | what is made |
//! | --- | --- |
//! | any other | the cgroup is a partition. If the VM's cgroup is not at the top, every cgroup on the path must grant the processor (cpuset.cpus.exclusive, Linux 6.7): a *remote partition* |
//! | in a partition that is the VM's own cgroup | a partition below it: nothing has to be granted |
//! | isolated at boot (isolcpus), or in an isolated partition | no partition: see [`isolated`] |
//! | any other of a host with `isolcpus` | none: [`CpusetError::Spills`] |
//!
//! What it does not do: take a processor from a partition further up. The kernel gives a remote partition only what
//! nobody has taken, and a grant would make that partition smaller. It refuses.
//!
//! Tested with Linux 7.3 (`make lab TEST=reserve-kvm`, `reserve-libvirt-v2`, `reserve-isolcpus`,
//! `reserve-kubernetes`, `reserve-slices`).

use std::path::Path;

use super::{CpusetError, Level, OURS, Plan, controller, folder_of, read};
use crate::scheduling::Change;
use crate::{affinity, topology};

const CPUSET: &str = "cpuset";

/// `isolated`: the processors that the kernel leaves out of load balancing.
pub(super) fn plan(
    root: &Path,
    (pid, tid): (u32, u32),
    processor: usize,
    isolated: &[usize],
) -> Result<Plan, CpusetError> {
    let home = home_of(root, pid, tid)?;
    let own = home.join(format!("{OURS}cpu{processor}"));
    let (from, to) = (home.join("cgroup.threads"), own.join("cgroup.threads"));
    let moved = (Level::Thread, Change::Moved { tid, to, from });
    if isolated.contains(&processor) {
        return self::isolated(root, &home, &own, tid, isolated, moved);
    }
    let mut plan = Plan::new();
    // One that is left over and no partition is made again.
    if is_partition(&own) {
        return Ok(vec![moved]);
    }
    // From the top down to the VM's cgroup.
    let mut way: Vec<&Path> = home.ancestors().take_while(|path| *path != root).collect();
    way.reverse();
    let is_nested = home != root && is_partition(&home);
    if let Some(above) = way.iter().find(|folder| !is_nested && is_partition(folder)) {
        let name = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
        return Err(CpusetError::InPartition { partition: name(above), cgroup: name(&home) });
    }
    if !is_nested && !effective(root, root)?.contains(&processor) {
        let cgroup = home.strip_prefix(root).unwrap_or(&home).display().to_string();
        return Err(CpusetError::Taken { processor, cgroup });
    }
    // Where a partition begins or ends, the kernel lets everybody above it use what is left, isolated processors
    // included (`cpuset_update_tasks_cpumask`), and no call takes exactly that back.
    let left = effective(root, root)?;
    let spilt: Vec<usize> = isolated.iter().copied().filter(|n| left.contains(n)).collect();
    if !is_nested && !spilt.is_empty() {
        return Err(CpusetError::Spills { processor, isolated: affinity::text(&spilt) });
    }
    let remote = home != root && !is_nested;
    // The first file exists only with the controller, the second one since Linux 6.8.
    let known = [home.join("cpuset.cpus.exclusive"), root.join("cpuset.cpus.isolated")];
    if remote && !known.iter().any(|path| path.exists()) {
        let cgroup = home.strip_prefix(root).unwrap_or(&home).display().to_string();
        return Err(CpusetError::NoRemotePartitions { cgroup });
    }
    plan.extend(controller(root, CPUSET)?);
    for folder in way {
        if remote {
            let path = folder.join("cpuset.cpus.exclusive");
            plan.push((Level::Processor, Change::Granted { path, processor }));
        }
        if folder != home {
            plan.extend(controller(folder, CPUSET)?);
        }
    }
    plan.push((Level::Processor, Change::Folder { path: own.clone() }));
    plan.push(file(&own, "cgroup.type", "threaded"));
    if home != root {
        // A cgroup that contains processes can have children with controllers only if they are
        // threaded.
        plan.extend(controller(&home, CPUSET)?);
    }
    if remote {
        plan.push(file(&own, "cpuset.cpus.exclusive", &processor.to_string()));
    }
    plan.push(file(&own, "cpuset.cpus", &processor.to_string()));
    plan.push(file(&own, "cpuset.cpus.partition", "root"));
    plan.push(moved);
    Ok(plan)
}

/// Isolated processors belong to no scheduling domain, and all of them share one root domain. The kernel makes none
/// of them a partition (`prstate_housekeeping_conflict` in kernel/cgroup/cpuset.c), and takes a thread into
/// SCHED_DEADLINE there only if it may use all of them (`__sched_setscheduler`). A cpuset may become smaller
/// afterwards: so the thread is allowed on all of them until it has its policy, and then on its own one
/// ([`narrow`]). Nobody balances load between them, so that each is scheduled by itself.
fn isolated(
    root: &Path,
    home: &Path,
    own: &Path,
    tid: u32,
    isolated: &[usize],
    moved: (Level, Change),
) -> Result<Plan, CpusetError> {
    let reach = effective(root, home)?;
    if !isolated.iter().all(|processor| reach.contains(processor)) {
        return Err(CpusetError::SharedRootDomain {
            isolated: affinity::text(isolated),
            cgroup: home.strip_prefix(root).unwrap_or(home).display().to_string(),
            reach: affinity::text(&reach),
        });
    }
    let before = affinity::allowed_of(tid)
        .map_err(|source| CpusetError::Io { path: format!("/proc/{tid}/status").into(), source })?;
    // One that its cpuset decides for gets back what that has by then.
    let before = if before == reach { topology::present() } else { before };
    let allow = isolated.to_vec();
    let mut plan = vec![(Level::Thread, Change::Affinity { tid, allow, before })];
    if !own.exists() {
        plan.extend(controller(root, CPUSET)?);
        let mut way: Vec<&Path> = home.ancestors().take_while(|path| *path != root).collect();
        way.reverse();
        for folder in way.into_iter().filter(|folder| *folder != home) {
            plan.extend(controller(folder, CPUSET)?);
        }
        plan.push((Level::Processor, Change::Folder { path: own.to_owned() }));
        plan.push(file(own, "cgroup.type", "threaded"));
        if home != root {
            plan.extend(controller(home, CPUSET)?);
        }
    }
    // Those that are there already go back to their core, should this one not come after all.
    let undo = if own.exists() { read(&own.join("cpuset.cpus")).ok() } else { None };
    let (path, write) = (own.join("cpuset.cpus"), affinity::text(isolated));
    plan.push((Level::Processor, Change::File { path, write, undo }));
    plan.push(moved);
    Ok(plan)
}

/// What has to be written after the thread has its policy, if anything; see [`isolated`].
pub(super) fn narrow(plan: &[(Level, Change)], processor: usize) -> Option<(Level, Change)> {
    let is_partition = |change: &Change| matches!(change, Change::File { path, .. } if path.ends_with("cpuset.cpus.partition"));
    let is_wide = |change: &Change| matches!(change, Change::File { path, .. } if path.ends_with("cpuset.cpus"));
    if plan.iter().any(|(_, change)| is_partition(change)) {
        return None;
    }
    plan.iter().find_map(|(level, change)| match change {
        Change::File { path, .. } if is_wide(change) => {
            let write = processor.to_string();
            Some((*level, Change::File { path: path.clone(), write, undo: None }))
        }
        _ => None,
    })
}

/// The kernel accepts any state, and reports in the same file whether it is valid.
pub(super) fn verify(plan: &[(Level, Change)]) -> Result<(), CpusetError> {
    plan.iter().try_for_each(|(_, change)| verify_one(change))
}

/// Whether a partition that was made is still valid.
pub(super) fn verify_one(change: &Change) -> Result<(), CpusetError> {
    let Change::File { path, .. } = change else { return Ok(()) };
    if path.ends_with("cpuset.cpus.partition") {
        let said = read(path)?;
        if said != "root" {
            let cgroup = path.parent().unwrap_or(path).display().to_string();
            return Err(CpusetError::Invalid { cgroup, said });
        }
    }
    Ok(())
}

/// Whether a cgroup is a valid partition.
pub(super) fn is_partition(cgroup: &Path) -> bool {
    read(&cgroup.join("cpuset.cpus.partition"))
        .is_ok_and(|said| said == "root" || said == "isolated")
}

/// The processors that a cgroup has now. Without the controller it has those of the one above.
pub(super) fn effective(root: &Path, cgroup: &Path) -> Result<Vec<usize>, CpusetError> {
    let mut above = cgroup.ancestors().take_while(|path| path.starts_with(root));
    let found = above.find_map(|path| read(&path.join("cpuset.cpus.effective")).ok());
    let text = match found {
        Some(text) => text,
        None => read(&root.join("cpuset.cpus.effective"))?,
    };
    Ok(affinity::list(&text).unwrap_or_default())
}

/// The cgroup of a thread, which must be visible here.
fn home_of(root: &Path, pid: u32, tid: u32) -> Result<std::path::PathBuf, CpusetError> {
    let home = folder_of(root, pid, tid, "")?;
    // Seen from a cgroup namespace that the thread is not in, its path begins with /.. (cgroup_namespaces(7)).
    let is_outside = home.components().any(|part| part == std::path::Component::ParentDir);
    if is_outside || !home.is_dir() {
        return Err(CpusetError::OtherNamespace { cgroup: home.display().to_string() });
    }
    Ok(home)
}

fn file(own: &Path, name: &str, write: &str) -> (Level, Change) {
    let (path, write) = (own.join(name), write.to_owned());
    (Level::Processor, Change::File { path, write, undo: None })
}
