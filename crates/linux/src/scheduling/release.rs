//! What the release of changed threads needs in addition to the [`Change`](super::Change)s: whether
//! their process is still the same, and which threads it has started since.

use super::{schedstat, started, threads};
use crate::affinity::{allow, allowed_of};
use crate::process::{Process, ProcessError, has_thread};

/// Whether the process that started at `start_time` still runs, or at least its thread `tid`. A
/// thread without budget ends only after its next replenishment, and a zombie keeps its pid as long
/// as it has threads.
#[must_use]
pub fn is_alive(pid: u32, start_time: u64, tid: u32) -> bool {
    match Process::new(pid).patiently(|process| process.start_time()) {
        Ok(now) => now == start_time,
        // It is there.
        Err(ProcessError::Waits(_)) => true,
        Err(_) => tid != pid && schedstat(pid, tid).is_ok(),
    }
}

/// Whether process `pid` has this thread, and it started at `since` ([`started`]); with `None`, whether
/// it has one with this id. A process that keeps its threads from being looked at has those that it has.
#[must_use]
pub fn is_thread(pid: u32, tid: u32, since: Option<u64>) -> bool {
    let Some(since) = since else { return has_thread(pid, tid) };
    match Process::new(pid).patiently(move |_| Ok(started(pid, tid).ok())) {
        Ok(now) => now == Some(since),
        Err(_) => has_thread(pid, tid),
    }
}

/// Lets the threads of a process that may use exactly `narrow` use `wide`: threads that were
/// started in the meantime have inherited `narrow`.
pub fn widen_new_threads(pid: u32, narrow: &[usize], wide: &[usize]) {
    for thread in threads(pid).unwrap_or_default() {
        if allowed_of(thread.tid).is_ok_and(|allowed| allowed == narrow) {
            // A thread that has ended in the meantime needs nothing.
            let _ = allow(thread.tid, wide);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process than this one: QEMU's user emulation, under which the lab runs this for Arm,
    /// makes up a start time of its own process in each thread.
    #[test]
    fn a_process_is_told_from_a_later_one_with_its_pid() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let start_time = Process::new(pid).start_time().unwrap();
        assert!(is_alive(pid, start_time, pid));
        assert!(!is_alive(pid, start_time + 1, pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(pid, start_time, pid));
    }

    #[test]
    fn a_thread_is_told_from_a_later_one_with_its_id() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let since = started(pid, pid).unwrap();
        assert!(is_thread(pid, pid, Some(since)) && is_thread(pid, pid, None));
        assert!(!is_thread(pid, pid, Some(since + 1)));
        let other = std::process::id();
        assert!(!is_thread(other, pid, None) && !is_thread(other, pid, Some(since)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_thread(pid, pid, Some(since)) && !is_thread(pid, pid, None));
    }

    #[test]
    fn only_threads_with_the_narrow_set_are_widened() {
        let online = crate::affinity::online().unwrap();
        if online.len() < 2 {
            return;
        }
        let (first, second) = (online[..1].to_vec(), online[1..2].to_vec());
        let after = |set: Vec<usize>| {
            let (narrow, wide) = (first.clone(), online.clone());
            let thread = move || {
                allow(0, &set).unwrap();
                let link = std::fs::read_link("/proc/thread-self").unwrap();
                let tid = link.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap();
                widen_new_threads(std::process::id(), &narrow, &wide);
                allowed_of(tid).unwrap()
            };
            std::thread::spawn(thread).join().unwrap()
        };
        assert_eq!(after(first.clone()), online);
        assert_eq!(after(second.clone()), second);
    }
}
