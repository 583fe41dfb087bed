//! What sysfs says of this machine's processors: who shares a core, whose memory is near, and where the kernel
//! puts nothing by itself.
//!
//! What is not there (an old kernel, a container's sysfs) counts as unknown, and unknown as nothing special.

use std::path::Path;

use crate::affinity::list;

/// The processors that the kernel leaves alone (isolcpus; /sys/devices/system/cpu/isolated), and those without
/// a tick (nohz_full).
#[must_use]
pub fn quiet() -> Vec<usize> {
    let all = ["isolated", "nohz_full"].map(|name| listed(&Path::new(CPU).join(name)));
    all.concat()
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
        assert!(quiet().iter().all(|processor| *processor < 4096));
        assert!(siblings(100_000).is_empty() && neighbours(100_000).is_empty());
    }
}
