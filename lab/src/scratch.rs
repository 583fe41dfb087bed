//! Temporary directories with short paths (sockets must stay below 108 bytes), found again after a
//! killed run.

use std::fs;

use anyhow::Context as _;
use tempfile::TempDir;

const PREFIX: &str = "tvlab-";
/// In a test's process: the PID of the runner that will remove what the test leaves behind.
pub(crate) const OWNER: &str = "TIMEVISOR_LAB_OWNER";

/// True in the process of one test, which has no network and must not build.
pub fn in_test() -> bool {
    std::env::var_os(OWNER).is_some()
}

/// In whose name directories are made. A test's own PID means nothing outside of its namespace.
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

/// Removes the directories of runs that were killed.
pub fn remove_stale() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.filter_map(Result::ok) {
        if is_stale(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// True for a name `tvlab-PID-...` whose process does not exist any more.
pub(crate) fn is_stale(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok())
        .is_some_and(|pid| !is_running(pid))
}

/// False also for a zombie, which stays for ever where no init reaps it (many containers).
fn is_running(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name in parentheses may hold anything; the state follows it.
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

/// Where a test finds the machine's own /proc; its own one shows the processes of its namespace.
const HOST_PROC: &str = "/run/host-proc";

/// The machine's number of thread `tid` of this PID namespace: tracepoints tell no other.
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

/// The outermost number of the thread with this status, if its innermost one is `tid`.
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
