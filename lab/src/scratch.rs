//! Temporary directories with short paths (socket paths must be shorter than 108 bytes) that can be
//! found again after a killed run.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use tempfile::TempDir;
use timevisor_linux::file_system::is_in_memory;

const PREFIX: &str = "tvlab-";
/// A tmpfs that every Linux has.
const MEMORY: &str = "/dev/shm";
/// Environment variable in a test's process: the PID of the runner that will remove what the test
/// leaves behind.
pub(crate) const OWNER: &str = "TIMEVISOR_LAB_OWNER";

/// Whether this is the process of a single test, which has no network and must not build.
pub fn in_test() -> bool {
    std::env::var_os(OWNER).is_some()
}

/// The PID that owns the directories. A test's own PID is meaningless outside its namespace.
fn owner() -> u32 {
    let given = std::env::var(OWNER).ok().and_then(|pid| pid.parse().ok());
    given.unwrap_or_else(std::process::id)
}

/// A new directory that is removed on drop.
///
/// # Errors
/// When the system's temporary directory is not writable.
pub fn directory() -> anyhow::Result<TempDir> {
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", owner()))
        .tempdir()
        .context("cannot create a temporary directory")
}

/// The same in memory, as /run is: what a daemon writes there must not wait for a disk. On the disk where
/// there is no /dev/shm.
///
/// # Errors
/// As [`directory`].
pub fn in_memory() -> anyhow::Result<TempDir> {
    if !is_in_memory(Path::new(MEMORY)).unwrap_or(false) {
        return directory();
    }
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", owner()))
        .tempdir_in(MEMORY)
        .context("cannot create a directory in memory")
}

/// Removes the directories of killed runs.
pub fn remove_stale() {
    for folder in [std::env::temp_dir(), MEMORY.into()] {
        remove_stale_in(&folder);
    }
}

fn remove_stale_in(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        if is_stale(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether `name` is `tvlab-PID-...` and that process no longer exists.
pub(crate) fn is_stale(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok())
        .is_some_and(|pid| !is_running(pid))
}

/// Returns false for a zombie as well, which stays forever where no init reaps it (many
/// containers).
fn is_running(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name in parentheses may contain anything; the state follows it.
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

/// Where a test finds the machine's own /proc; its own /proc shows the processes of its namespace.
const HOST_PROC: &str = "/run/host-proc";

/// The machine's ID of thread `tid` of this PID namespace: tracepoints report only that one.
///
/// # Errors
/// When there is no such thread.
pub(crate) fn host_tid(tid: u32) -> anyhow::Result<u32> {
    if !in_test() {
        return Ok(tid);
    }
    let here = fs::read_link("/proc/self/ns/pid")?;
    let processes = fs::read_dir(HOST_PROC).context("the machine's /proc is not there")?;
    for process in processes.filter_map(Result::ok).map(|entry| entry.path()) {
        if fs::read_link(process.join("ns/pid")).is_ok_and(|ns| ns == here)
            && let Ok(threads) = fs::read_dir(process.join("task"))
        {
            for thread in threads.filter_map(Result::ok).map(|entry| entry.path()) {
                let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
                if let Some(outer) = outer_of(&status, tid) {
                    return Ok(outer);
                }
            }
        }
    }
    anyhow::bail!("no thread {tid} among the machine's")
}

/// The outermost ID of the thread with this status, if its innermost ID is `tid`.
fn outer_of(status: &str, tid: u32) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut numbers = numbers.split_whitespace().map_while(|n| n.parse::<u32>().ok());
    let outer = numbers.next()?;
    (numbers.last().unwrap_or(outer) == tid).then_some(outer)
}

/// A name that [`is_stale`] recognizes.
pub(crate) fn name(suffix: &str) -> String {
    format!("{PREFIX}{}-{suffix}", owner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_by_its_innermost_number() {
        let status = "Name:\tx\nNSpid:\t4711\t20\t3\nNSsid:\t1\n";
        assert_eq!(outer_of(status, 3), Some(4711));
        assert_eq!(outer_of(status, 20), None);
        assert_eq!(outer_of("NSpid:\t12\n", 12), Some(12));
        assert_eq!(outer_of("Name:\tx\n", 12), None);
    }

    #[test]
    fn only_names_of_dead_processes_are_stale() {
        assert!(!is_stale(&name("1")));
        assert!(!is_stale("tvlab-1-x"), "PID 1 always runs");
        assert!(!is_stale("other-4000000-1"));
        assert!(is_stale("tvlab-4194304-1"), "one above the largest PID that Linux gives");
    }
}
