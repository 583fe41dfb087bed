//! Why the first move of a thread into a cgroup takes long, and how to wait for it beside other work.
//!
//! The kernel keeps all processes from forking while a thread changes its cgroup
//! (`cgroup_threadgroup_rwsem`, kernel/cgroup/cgroup.c). The first to take that lock waits for a grace
//! period of RCU: two to four ticks of the host, which is 8 ms at the median and 16 ms at most on an idle
//! host at 250 Hz. The next one, within a grace period after that, does not wait (kernel/rcu/sync.c). On
//! hosts that mount their cgroups with `favordynmods`, nobody waits.

use std::path::Path;

use super::{Cpusets, folder_of};
use crate::process::own_thread_id;

/// Starts to wait for the kernel's lock, in a thread of its own that moves itself to the cgroup where it
/// is already. A thread that is moved next waits only for what is left of the grace period.
///
/// Nothing depends on it: if it fails, the next move takes as long as it takes.
pub fn expect_move() {
    let _ = std::thread::Builder::new().name("cgroup".to_owned()).spawn(stay);
}

fn stay() {
    let Ok(cpusets) = Cpusets::find() else { return };
    let (controller, file) =
        if cpusets.unified { ("", "cgroup.threads") } else { ("cpuset", "tasks") };
    let tid = own_thread_id();
    let Ok(own) = folder_of(&cpusets.root, std::process::id(), tid, controller) else { return };
    // By its number: a thread that moves "0", itself, does so without the lock.
    let _ = write(&own.join(file), &tid.to_string());
}

/// Without truncation, and nothing is made if it is not there.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It stays where it is; whether it may move itself depends on the machine.
    #[test]
    fn the_thread_stays_in_its_cgroup() {
        let of_this = || std::fs::read_to_string("/proc/thread-self/cgroup").unwrap();
        let before = of_this();
        stay();
        assert_eq!(of_this(), before);
    }
}
