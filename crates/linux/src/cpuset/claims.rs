//! Which processors others have for themselves, as their cpusets say (cgroup v1 and v2).
//!
//! A cpuset that has some of the processors, and not all, is somebody's decision: the static CPU manager of
//! Kubernetes, libvirt's vcpupin, systemd's AllowedCPUs=. A processor that only one such cpuset has is that one's
//! own; one that several have is a pool that they share.
//!
//! What it does not see: programs that pin themselves, and cpusets that nobody is in.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use super::{Cpusets, OURS, folder_of, read};
use crate::affinity;

/// What others' cpusets say of a processor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Several have it, beside others.
    Shared,
    /// This one alone has it.
    Own(String),
}

/// Every cpuset that is somebody's decision, and the partitions (cgroup v2), each with one of its processors.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claims {
    root: PathBuf,
    listed: Vec<(usize, PathBuf)>,
    partitions: Vec<(usize, PathBuf)>,
}

impl Cpusets {
    /// Reads all cpusets but ours. One that cannot be read says nothing. `online`: the processors there are.
    #[must_use]
    pub fn claims(&self, online: &[usize]) -> Claims {
        let mut found = Claims { root: self.root.clone(), ..Claims::default() };
        let walk = Walk { online, unified: self.unified, left: Cell::new(MOST) };
        walk.below(&self.root, DEPTH, &mut found);
        found
    }

    /// The cpuset of a thread.
    #[must_use]
    pub fn of_thread(&self, tid: u32) -> Option<PathBuf> {
        folder_of(&self.root, tid, tid, if self.unified { "" } else { "cpuset" }).ok()
    }
}

impl Claims {
    /// What the cpusets of others say of a processor. `own`: the asker's, which with those above and below it is
    /// not others'; `None` is the root.
    #[must_use]
    pub fn on(&self, processor: usize, own: Option<&Path>) -> Option<Claim> {
        let own = own.unwrap_or(&self.root);
        let is_others =
            |path: &Path| !own.starts_with(path) && (own == self.root || !path.starts_with(own));
        let mut all = self.listed.iter().filter(|(of, path)| *of == processor && is_others(path));
        let (first, second) = (all.next(), all.next());
        let (_, path) = first?;
        Some(if second.is_some() { Claim::Shared } else { Claim::Own(self.name(path)) })
    }

    /// The partition that has taken a processor from everybody else.
    #[must_use]
    pub fn partition(&self, processor: usize) -> Option<String> {
        let found = self.partitions.iter().find(|(of, _)| *of == processor);
        found.map(|(_, path)| self.name(path))
    }

    fn name(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// So many cpusets are looked at, and so many levels: users may make any number of cgroups, and the clock's
/// thread must not wait for that. A host has some hundred.
const MOST: usize = 2000;
const DEPTH: usize = 16;

struct Walk<'a> {
    online: &'a [usize],
    unified: bool,
    /// Cpusets that may still be looked at.
    left: Cell<usize>,
}

impl Walk<'_> {
    /// Looks at the cpusets below a folder. Returns whether threads are in any of them.
    fn below(&self, folder: &Path, depth: usize, found: &mut Claims) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return false };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let others = entries.filter(|entry| {
            let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(OURS));
            !is_ours && entry.file_type().is_ok_and(|kind| kind.is_dir())
        });
        // All of them first: no folder stays open while those below it are looked at.
        let paths: Vec<_> = others.map(|entry| entry.path()).take(self.left.get()).collect();
        let mut populated = false;
        for path in paths {
            let Some(left) = self.left.get().checked_sub(1) else { break };
            self.left.set(left);
            populated |= self.at(&path, depth, found);
        }
        populated
    }

    /// Looks at one cpuset, and at those below it. Returns whether threads are in any of them.
    fn at(&self, path: &Path, depth: usize, found: &mut Claims) -> bool {
        // Without the controller, none below has it either.
        let Ok(text) = read(&path.join("cpuset.cpus")) else { return false };
        if self.unified {
            if !read(&path.join("cgroup.events")).is_ok_and(|said| said.contains("populated 1")) {
                return false;
            }
            let taken = partition(path).into_iter();
            found.partitions.extend(taken.map(|processor| (processor, path.to_owned())));
        }
        let before = found.listed.len();
        let below = self.below(path, depth, found);
        let tasks = || read(&path.join("tasks")).is_ok_and(|tasks| !tasks.is_empty());
        let populated = self.unified || below || tasks();
        let list = affinity::list(&text).unwrap_or_default();
        if populated && self.online.iter().any(|processor| !list.contains(processor)) {
            // What a cpuset below has decided is said by that one.
            let said: Vec<usize> = found.listed[before..].iter().map(|(of, _)| *of).collect();
            let new = list.into_iter().filter(|processor| !said.contains(processor));
            found.listed.extend(new.map(|processor| (processor, path.to_owned())));
        }
        populated
    }
}

/// The processors of a valid partition; none if it is no partition.
fn partition(path: &Path) -> Vec<usize> {
    if !super::v2::is_partition(path) {
        return Vec::new();
    }
    let of = |name: &str| read(&path.join(name)).ok().and_then(|text| affinity::list(&text));
    // The first file is there since Linux 6.7.
    of("cpuset.cpus.exclusive.effective")
        .or_else(|| of("cpuset.cpus.effective"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONLINE: [usize; 4] = [0, 1, 2, 3];

    /// A hierarchy of cgroup v2: path, cpuset.cpus, whether processes are in it or below.
    fn hierarchy(cpusets: &[(&str, &str, bool)]) -> (tempfile::TempDir, Cpusets) {
        let folder = tempfile::tempdir().unwrap();
        for (path, cpus, populated) in cpusets {
            let path = folder.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("cpuset.cpus"), format!("{cpus}\n")).unwrap();
            let events = format!("populated {}\nfrozen 0\n", u8::from(*populated));
            std::fs::write(path.join("cgroup.events"), events).unwrap();
        }
        let cpusets = Cpusets { root: folder.path().to_owned(), unified: true };
        (folder, cpusets)
    }

    fn own(name: &str) -> Option<Claim> {
        Some(Claim::Own(name.to_owned()))
    }

    /// What kubelet's static CPU manager writes: only into containers' cgroups.
    #[test]
    fn a_container_with_cores_of_its_own_beside_the_shared_pool() {
        let (folder, cpusets) = hierarchy(&[
            ("kubepods.slice", "", true),
            ("kubepods.slice/pod-a.slice", "", true),
            ("kubepods.slice/pod-a.slice/cri-a.scope", "0-2", true),
            ("kubepods.slice/pod-b.slice", "", true),
            ("kubepods.slice/pod-b.slice/cri-b.scope", "3", true),
            ("kubepods.slice/pod-c.slice", "", true),
            ("kubepods.slice/pod-c.slice/cri-c.scope", "0-2", true),
            // One that has ended.
            ("kubepods.slice/pod-d.slice", "", false),
            ("kubepods.slice/pod-d.slice/cri-d.scope", "1", false),
            ("machine.slice", "", true),
        ]);
        let claims = cpusets.claims(&ONLINE);
        let b = "kubepods.slice/pod-b.slice/cri-b.scope";
        for own_cpuset in [None, Some(folder.path().join("machine.slice"))] {
            let on = |processor| claims.on(processor, own_cpuset.as_deref());
            assert_eq!((on(3), on(2), on(0)), (own(b), Some(Claim::Shared), Some(Claim::Shared)));
        }
        // A VM in B, in a cgroup below it.
        let below = folder.path().join(b).join("timevisor-cpu3");
        assert_eq!(claims.on(3, Some(&below)), None);
        // A VM in A.
        let a = folder.path().join("kubepods.slice/pod-a.slice/cri-a.scope");
        assert_eq!(claims.on(2, Some(&a)), own("kubepods.slice/pod-c.slice/cri-c.scope"));
    }

    #[test]
    fn what_has_all_of_them_has_decided_nothing_and_the_lowest_cpuset_speaks() {
        let (folder, cpusets) = hierarchy(&[
            ("system.slice", "0-1", true),
            ("system.slice/db.service", "1", true),
            ("user.slice", "0-3", true),
            ("machine.slice", "", true),
            ("machine.slice/qemu-1-db.scope", "2-3", true),
            ("machine.slice/qemu-1-db.scope/vcpu0", "3", true),
            ("machine.slice/qemu-1-db.scope/timevisor-cpu2", "2", true),
        ]);
        let partition = folder.path().join("machine.slice/qemu-1-db.scope/vcpu0");
        std::fs::write(partition.join("cpuset.cpus.partition"), "isolated\n").unwrap();
        std::fs::write(partition.join("cpuset.cpus.effective"), "3\n").unwrap();
        let claims = cpusets.claims(&ONLINE);
        assert_eq!(claims.on(0, None), own("system.slice"));
        assert_eq!(claims.on(1, None), own("system.slice/db.service"));
        assert_eq!(claims.on(2, None), own("machine.slice/qemu-1-db.scope"));
        let vcpu = "machine.slice/qemu-1-db.scope/vcpu0";
        assert_eq!(claims.on(3, None), own(vcpu));
        assert_eq!((claims.partition(3).as_deref(), claims.partition(2)), (Some(vcpu), None));
        std::fs::write(partition.join("cpuset.cpus.partition"), "isolated invalid (x)\n").unwrap();
        assert_eq!(cpusets.claims(&ONLINE).partition(3), None);
    }
}
