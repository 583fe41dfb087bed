//! What sysfs says of this machine's processors: who shares a core, whose memory is near, and where the kernel
//! puts nothing by itself.
//!
//! What is not there (an old kernel, a container's sysfs) counts as unknown, and unknown as nothing special.

use std::path::Path;

use crate::affinity::list;

/// The processors there are, online or not (/sys/devices/system/cpu/present).
#[must_use]
pub fn present() -> Vec<usize> {
    listed(&Path::new(CPU).join("present"))
}

/// The processors that the kernel puts nothing on (isolcpus; /sys/devices/system/cpu/isolated).
#[must_use]
pub fn isolated() -> Vec<usize> {
    listed(&Path::new(CPU).join("isolated"))
}

/// The processors without a tick (nohz_full). The kernel uses them as any other.
#[must_use]
pub fn without_tick() -> Vec<usize> {
    listed(&Path::new(CPU).join("nohz_full"))
}

/// The other hardware threads of a processor's core.
#[must_use]
pub fn siblings(processor: usize) -> Vec<usize> {
    let path = format!("{CPU}/cpu{processor}/topology/thread_siblings_list");
    let mut all = listed(path.as_ref());
    all.retain(|other| *other != processor);
    all
}

/// The processors whose memory is as near as that of this one, by NUMA node; empty if there is one node.
#[must_use]
pub fn neighbours(processor: usize) -> Vec<usize> {
    let nodes = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    nodes
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("node"))
        .map(|entry| listed(&entry.path().join("cpulist")))
        .find(|all| all.contains(&processor))
        .unwrap_or_default()
}

const CPU: &str = "/sys/devices/system/cpu";

/// A file's list of processors. `nohz_full` says `(null)` where there are none.
fn listed(path: &Path) -> Vec<usize> {
    std::fs::read_to_string(path).ok().and_then(|text| list(text.trim())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_processors() {
        let online = crate::affinity::online().unwrap();
        for processor in &online {
            assert!(!siblings(*processor).contains(processor));
            let near = neighbours(*processor);
            assert!(near.is_empty() || near.contains(processor), "{near:?}");
        }
        assert!(online.iter().all(|processor| present().contains(processor)));
        let all = [isolated(), without_tick()].concat();
        assert!(all.iter().all(|processor| *processor < 4096), "{all:?}");
        assert!(siblings(100_000).is_empty() && neighbours(100_000).is_empty());
    }
}
