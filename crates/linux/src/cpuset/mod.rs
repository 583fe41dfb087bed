//! Gives threads exclusive processors. SCHED_DEADLINE guarantees its budget on a processor only if
//! that processor is a separate *root domain*. Otherwise scheduling is global EDF, and a pinned
//! thread is refused (EPERM).
//!
//! | file | owns |
//! | --- | --- |
//! | `v1.rs` | cgroup v1: a cpuset of one processor, and a root without load balancing across processors |
//! | `v2.rs` | cgroup v2: a partition (cpuset.cpus.partition) |
//! | `claims.rs` | which processors others have for themselves |
//! | `moving.rs` | the wait of the first move of a thread, begun early |
//!
//! `v1.rs` and `v2.rs` only plan changes and do not apply them: [`Change`].

mod claims;
mod moving;
mod v1;
mod v2;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use self::claims::{Claim, Claims};
pub use self::moving::expect_move;
use crate::scheduling::Change;
use crate::{affinity, topology};

/// Prefix of the names of all our cgroups.
pub const OURS: &str = "timevisor-";

/// Why a processor cannot be made exclusive.
#[derive(Debug, thiserror::Error)]
pub enum CpusetError {
    /// There is no cpuset controller.
    #[error(
        "no cpuset controller is mounted, so that no processor can be set apart; mount cgroup2 at /sys/fs/cgroup"
    )]
    None,
    /// It is the only processor, or there is no such processor.
    #[error(
        "processor {processor} cannot be set apart; {online} are online, and one must be left for everything else"
    )]
    Processor {
        /// Which.
        processor: usize,
        /// The processors there are.
        online: String,
    },
    /// This cpuset is exclusive, so no other may share a processor with it.
    #[error(
        "cpuset {cpuset} has processor {processor} for itself (cpuset.cpu_exclusive), and no cpuset beside it may have it too; write 0 \
         there, or stop what made it"
    )]
    Exclusive {
        /// The exclusive cpuset.
        cpuset: String,
        /// Which.
        processor: usize,
    },
    /// Linux before 6.7.
    #[error(
        "this kernel makes partitions at the top of the cgroup tree only (cpuset.cpus.exclusive: Linux 6.7), and the VM is in {cgroup}"
    )]
    NoRemotePartitions {
        /// The VM's cgroup.
        cgroup: String,
    },
    /// The kernel did not make the cgroup a partition.
    #[error("the kernel does not make {cgroup} a partition: {said}")]
    Invalid {
        /// Which.
        cgroup: String,
        /// What cpuset.cpus.partition says.
        said: String,
    },
    /// A partition that the VM's cgroup is not in has the processor.
    #[error(
        "another cgroup's partition has processor {processor}, and the VM's cgroup {cgroup} can have no part in that: with cgroup v2, VMs \
         share a core that is set apart only if they are in one cgroup; take another core"
    )]
    Taken {
        /// Which.
        processor: usize,
        /// The VM's cgroup.
        cgroup: String,
    },
    /// The VM is in a partition of others.
    #[error(
        "the VM's cgroup {cgroup} is inside the partition {partition}, and the kernel lets no processor be taken from that; make {cgroup} a \
         partition itself (cpuset.cpus, then cpuset.cpus.partition <- root), or move the VM out of {partition}"
    )]
    InPartition {
        /// The partition.
        partition: String,
        /// The VM's cgroup.
        cgroup: String,
    },
    /// Isolated processors, and a VM that may not use all of them.
    #[error(
        "the isolated processors {isolated} (isolcpus) share one root domain, in which Linux schedules by deadline only threads that may use \
         all of them, and the VM's cgroup {cgroup} has {reach}; let it have {isolated} (the vCPU still gets its own), or isolate by nohz_full \
         and without isolcpus"
    )]
    SharedRootDomain {
        /// The isolated processors.
        isolated: String,
        /// The VM's cgroup.
        cgroup: String,
        /// What it has.
        reach: String,
    },
    /// A processor that is not isolated, on a host that has isolated ones (isolcpus).
    #[error(
        "processor {processor} cannot be set apart so that everything is as before afterwards: where a partition begins or ends, Linux lets \
         every program that is pinned to nothing onto the isolated processors {isolated} (isolcpus), for good; pin the vCPU to one of \
         {isolated} (taskset -p, virsh vcpupin) and reserve that, isolate by nohz_full and without isolcpus, or take --promise global"
    )]
    Spills {
        /// Which.
        processor: usize,
        /// The isolated processors that are in nobody's partition.
        isolated: String,
    },
    /// The VM's cgroup is not in this mount.
    #[error(
        "the VM's cgroup {cgroup} is not visible here: timevisord runs in another cgroup namespace; run it on the host, or in a container \
         with the host's (docker --cgroupns=host, and /sys/fs/cgroup)"
    )]
    OtherNamespace {
        /// What is known of it.
        cgroup: String,
    },
    /// Another failure.
    #[error("{}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// How long a change stays in place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As long as the thread has the processor.
    Thread,
    /// Until the last thread has left the processor.
    Processor,
    /// Until the last processor is released.
    Host,
}

/// The changes that give a thread an exclusive processor, in order.
pub type Plan = Vec<(Level, Change)>;

/// The cpuset controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpusets {
    root: PathBuf,
    unified: bool,
}

impl Cpusets {
    /// Finds where it is mounted.
    ///
    /// # Errors
    /// [`CpusetError::None`].
    pub fn find() -> Result<Self, CpusetError> {
        let path = PathBuf::from("/proc/self/mountinfo");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| CpusetError::Io { path: path.clone(), source })?;
        let found = mounted(&text).ok_or(CpusetError::None)?;
        if found.unified && !read(&found.root.join("cgroup.controllers"))?.contains("cpuset") {
            return Err(CpusetError::None);
        }
        Ok(found)
    }

    /// Of these processors, those that somebody's partition (cgroup v2) has taken from everybody else. With
    /// cgroup v1 a plan names who has them.
    #[must_use]
    pub fn taken(&self, processors: &[usize]) -> Vec<usize> {
        let effective = self.unified.then(|| read(&self.root.join("cpuset.cpus.effective")).ok());
        let Some(left) = effective.flatten().and_then(|text| affinity::list(&text)) else {
            return Vec::new();
        };
        processors.iter().copied().filter(|processor| !left.contains(processor)).collect()
    }

    /// Our cgroups at the top that set processors apart now, whoever made them.
    ///
    /// # Errors
    /// When the controller's folder cannot be read.
    pub fn ours(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.root)? {
            let entry = entry?;
            let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(OURS));
            if is_ours && entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    /// Plans the changes that give this processor to `tid` of process `pid`. The processors `apart`
    /// are already exclusive.
    ///
    /// # Errors
    /// When this is impossible.
    pub fn plan(
        &self,
        pid: u32,
        tid: u32,
        processor: usize,
        apart: &[usize],
    ) -> Result<Plan, CpusetError> {
        let online = affinity::online()
            .map_err(|source| CpusetError::Io { path: "/sys/devices/system/cpu".into(), source })?;
        let rest: Vec<usize> =
            online.iter().copied().filter(|n| *n != processor && !apart.contains(n)).collect();
        if rest.is_empty() || !online.contains(&processor) {
            return Err(CpusetError::Processor { processor, online: affinity::text(&online) });
        }
        if self.unified {
            v2::plan(&self.root, (pid, tid), processor, &self.isolated(&online))
        } else {
            v1::plan(&self.root, pid, tid, processor, &rest)
        }
    }

    /// Of these processors, those that the kernel leaves out of load balancing: isolated at boot, or by somebody's
    /// partition.
    fn isolated(&self, online: &[usize]) -> Vec<usize> {
        let by_partition = read(&self.root.join("cpuset.cpus.isolated")).ok();
        let by_partition = by_partition.and_then(|text| affinity::list(&text)).unwrap_or_default();
        let at_boot = topology::isolated();
        let is_isolated = |n: &usize| at_boot.contains(n) || by_partition.contains(n);
        online.iter().copied().filter(is_isolated).collect()
    }

    /// To be applied after the thread has its policy, if anything is.
    #[must_use]
    pub fn then(&self, plan: &[(Level, Change)], processor: usize) -> Option<(Level, Change)> {
        if self.unified { v2::narrow(plan, processor) } else { None }
    }

    /// Whether a thread may use exactly the processors that its cpuset has (cgroup v2). Then it has chosen none by
    /// itself, and has to get what the cpuset has by the time of the release: another set would outlast all later
    /// changes of the cpuset.
    #[must_use]
    pub fn decides_for(&self, pid: u32, tid: u32, allowed: &[usize]) -> bool {
        self.unified
            && folder_of(&self.root, pid, tid, "")
                .and_then(|home| v2::effective(&self.root, &home))
                .is_ok_and(|has| has == allowed)
    }

    /// Checks, after the plan was applied, whether it took effect.
    ///
    /// # Errors
    /// The reason that the kernel gives.
    pub fn verify(&self, plan: &[(Level, Change)]) -> Result<(), CpusetError> {
        if self.unified { v2::verify(plan) } else { Ok(()) }
    }

    /// Checks whether a change that was made is still in force: the kernel ends partitions when their processor goes
    /// offline, and older ones when somebody else's cpuset gets it.
    ///
    /// # Errors
    /// The reason that the kernel gives.
    pub fn check(change: &Change) -> Result<(), CpusetError> {
        v2::verify_one(change)
    }

    /// Additional changes, to be applied at [`Level::Host`], that are needed because others have
    /// created cpusets since the processors `apart` became exclusive. None on cgroup v2: there, a
    /// partition takes its processors from everyone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn keep_apart(&self, apart: &[usize]) -> Result<Vec<Change>, CpusetError> {
        if self.unified { Ok(Vec::new()) } else { v1::balancing(&self.root, apart) }
    }

    /// To be called after processors were taken or released: lets everything else use all
    /// processors that are not in `apart`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn settle(&self, apart: &[usize]) -> Result<(), CpusetError> {
        if self.unified || apart.is_empty() {
            return Ok(());
        }
        let online = affinity::online()
            .map_err(|source| CpusetError::Io { path: "/sys/devices/system/cpu".into(), source })?;
        let rest: Vec<usize> = online.into_iter().filter(|n| !apart.contains(n)).collect();
        let path = v1::rest(&self.root).join("cpuset.cpus");
        std::fs::write(&path, affinity::text(&rest))
            .map_err(|source| CpusetError::Io { path, source })
    }
}

/// Whether this is the list of processors of the cgroup that a thread is moved to.
#[must_use]
pub fn is_own_list(path: &Path) -> bool {
    let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    path.ends_with("cpuset.cpus")
        && folder.is_some_and(|name| name.starts_with(&format!("{OURS}cpu")))
}

/// The cgroup (v2) that sets a processor apart for the threads of one cgroup, if it does. `cpuset`: a thread's own,
/// which may be such a one already.
#[must_use]
pub fn shared_folder(cpuset: &Path, processor: usize) -> Option<PathBuf> {
    let is_ours = cpuset
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(OURS));
    let home = if is_ours { cpuset.parent()? } else { cpuset };
    Some(home.join(format!("{OURS}cpu{processor}")))
}

/// If v1's cpuset is mounted, v2 has no cpuset controller.
fn mounted(mountinfo: &str) -> Option<Cpusets> {
    let v1 = hierarchy(mountinfo, "cpuset").map(|root| Cpusets { root, unified: false });
    let v2 = || mounts(mountinfo).find(|(_, kind, _)| *kind == "cgroup2");
    v1.or_else(|| v2().map(|(root, ..)| Cpusets { root: root.into(), unified: true }))
}

/// The mount point of this controller in cgroup v1.
pub(crate) fn hierarchy(mountinfo: &str, controller: &str) -> Option<PathBuf> {
    let has = |options: &str| options.split(',').any(|option| option == controller);
    let mut v1 = mounts(mountinfo).filter(|(_, kind, _)| *kind == "cgroup");
    v1.find(|(_, _, options)| has(options)).map(|(root, ..)| root.into())
}

/// Mount point, type and options: `36 35 98:0 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset`
/// (proc_pid_mountinfo(5)).
pub(crate) fn mounts(mountinfo: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        Some((left.split(' ').nth(4)?, right.next()?, right.nth(1)?))
    })
}

fn read(path: &Path) -> Result<String, CpusetError> {
    std::fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .map_err(|source| CpusetError::Io { path: path.to_owned(), source })
}

/// Plans to enable a controller for the children of `folder` (cgroup v2); no change if it is
/// already enabled.
pub(crate) fn controller(
    folder: &Path,
    name: &str,
) -> Result<Option<(Level, Change)>, CpusetError> {
    let path = folder.join("cgroup.subtree_control");
    if read(&path)?.split(' ').any(|has| has == name) {
        return Ok(None);
    }
    let (write, undo) = (format!("+{name}"), Some(format!("-{name}")));
    Ok(Some((Level::Host, Change::File { path, write, undo })))
}

/// The cgroup of a thread as a folder.
pub(crate) fn folder_of(
    root: &Path,
    pid: u32,
    tid: u32,
    controller: &str,
) -> Result<PathBuf, CpusetError> {
    let path = crate::scheduling::cgroup_of(pid, tid, controller).map_err(|source| {
        CpusetError::Io { path: format!("/proc/{pid}/task/{tid}/cgroup").into(), source }
    })?;
    Ok(root.join(path.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_folders() {
        let home = Path::new("/sys/fs/cgroup/machine.slice/web.scope");
        let own = home.join("timevisor-cpu3");
        assert_eq!(shared_folder(home, 3), Some(own.clone()));
        assert_eq!(shared_folder(&own, 2), Some(home.join("timevisor-cpu2")));
        assert!(is_own_list(&own.join("cpuset.cpus")));
        for other in [own.join("cpuset.mems"), home.join("cpuset.cpus")] {
            assert!(!is_own_list(&other), "{other:?}");
        }
        assert!(!is_own_list(Path::new("/sys/fs/cgroup/cpuset/timevisor-rest/cpuset.cpus")));
    }

    #[test]
    fn where_it_is_mounted() {
        let v1 = "41 32 0:33 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset";
        let v2 = "42 32 0:29 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let at = |root: &str, unified| Some(Cpusets { root: root.into(), unified });
        assert_eq!(mounted(&format!("{v2}\n{v1}\n")), at("/sys/fs/cgroup/cpuset", false));
        assert_eq!(mounted(v2), at("/sys/fs/cgroup", true));
        assert_eq!(mounted("22 1 0:20 / /proc rw - proc proc rw"), None);
        let both = "43 32 0:34 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
        assert_eq!(hierarchy(both, "cpu"), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(hierarchy(v1, "cpu"), None);
    }
}
