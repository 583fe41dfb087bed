//! The cgroups (v1) that a libvirtd without systemd makes for its domains:
//! `/machine/qemu-1-NAME.libvirt-qemu/{emulator,vcpu0}`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;

use crate::interrupt;

/// The folder of all domains of such a libvirtd.
const MACHINE: &str = "machine";
/// How long to wait for the kernel to release ended processes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The cgroups in this machine's hierarchies; empty ones are removed on drop.
#[derive(Debug)]
pub struct Cgroups {
    folders: Vec<PathBuf>,
}

impl Cgroups {
    /// Uses the hierarchies of these controllers on this machine.
    ///
    /// # Errors
    /// When a controller is not available with cgroup v1, or domains of another libvirtd are
    /// running there.
    pub fn new(controllers: &[&str]) -> anyhow::Result<Self> {
        let mut folders = Vec::new();
        for controller in controllers {
            let root = Path::new("/sys/fs/cgroup").join(controller);
            ensure!(
                root.join("tasks").exists(),
                "cgroup v1's {controller} is not at {}; this test is about that",
                root.display()
            );
            let machine = root.join(MACHINE);
            // An earlier libvirtd leaves its folder behind; only running domains are a problem.
            ensure!(
                !holds_processes(&machine),
                "domains of another libvirtd run in {}; stop them and run again",
                machine.display()
            );
            remove(&machine);
            folders.push(machine);
        }
        Ok(Self { folders })
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for folder in &self.folders {
            let _ = interrupt::poll_until(PATIENCE, || {
                remove(folder);
                Ok((!folder.exists()).then_some(()))
            });
        }
    }
}

/// Whether `folder` or any folder below it contains a process.
fn holds_processes(folder: &Path) -> bool {
    let here = fs::read_to_string(folder.join("tasks")).is_ok_and(|tasks| !tasks.trim().is_empty());
    let below = || fs::read_dir(folder).into_iter().flatten().flatten();
    here || below().any(|entry| entry.path().is_dir() && holds_processes(&entry.path()))
}

/// Removes folders, deepest first; the kernel keeps those that are not empty.
fn remove(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// The content of every settable cpuset file in all folders below `folder`; thread IDs in order.
///
/// # Errors
/// When there are none.
pub fn cpusets(folder: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    const FILES: [&str; 6] = [
        "cpuset.cpus",
        "cpuset.mems",
        "cpuset.sched_load_balance",
        "cpuset.cpu_exclusive",
        "cgroup.clone_children",
        "tasks",
    ];
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for file in FILES {
            let path = folder.join(file);
            let text = fs::read_to_string(&path)?;
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            all.insert(path, lines.join(" "));
        }
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(all)
}
