//! A thread of another process by the id by which it knows itself.

use std::io;

/// How many threads of a process are looked at. It costs a system call or two for each.
pub const MOST_THREADS: usize = 4096;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundThread {
    /// The thread's id here, and its effective user.
    Thread {
        /// Its id as this process sees it.
        tid: u32,
        /// Its effective user id.
        uid: u32,
    },
    /// The process has no such thread.
    None,
    /// It has more than [`MOST_THREADS`], and none of the first ones is it.
    Cut,
}

/// Finds the thread of process `pid` whose id in its own pid namespace is `own`.
///
/// Reads what the kernel answers at once whatever that process does (`task` and `status`: decision
/// 56).
///
/// # Errors
/// When the process has ended.
pub fn find_thread(pid: u32, own: u32) -> io::Result<FoundThread> {
    // Most processes are in our namespace.
    if let Some(found) = thread(pid, own, own) {
        return Ok(found);
    }
    let mut left = MOST_THREADS;
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let Some(tid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Some(rest) = left.checked_sub(1) else { return Ok(FoundThread::Cut) };
        left = rest;
        if let Some(found) = thread(pid, tid, own) {
            return Ok(found);
        }
    }
    Ok(FoundThread::None)
}

/// The calling thread's id in this process's pid namespace.
#[must_use]
pub fn own_thread_id() -> u32 {
    // SAFETY: the call has no arguments and touches no memory of ours.
    u32::try_from(unsafe { libc::gettid() }).unwrap_or(0)
}

/// Whether process `pid` still has the thread `tid`.
#[must_use]
pub fn has_thread(pid: u32, tid: u32) -> bool {
    std::fs::metadata(format!("/proc/{pid}/task/{tid}")).is_ok()
}

fn thread(pid: u32, tid: u32, own: u32) -> Option<FoundThread> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let (inner, uid) = identity(&status)?;
    (inner == own).then_some(FoundThread::Thread { tid, uid })
}

/// The innermost id and the effective user of a thread's `status`.
fn identity(status: &str) -> Option<(u32, u32)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let inner = field("NSpid:")?.split_whitespace().next_back()?.parse().ok()?;
    let uid = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
    Some((inner, uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_id_is_a_threads_own() {
        let status = "Name:\tx\nUid:\t0\t7\t0\t0\nNSpid:\t4711\t20\t3\nNSsid:\t1\n";
        assert_eq!(identity(status), Some((3, 7)));
        assert_eq!(identity("Uid:\t0\t7\t0\t0\nNSpid:\t12\n"), Some((12, 7)));
        assert_eq!(identity("Name:\tx\n"), None);
    }

    #[test]
    fn own_threads_are_found_and_others_are_not() {
        let process = std::process::id();
        std::thread::spawn(move || {
            let tid = own_thread_id();
            let found = find_thread(process, tid).unwrap();
            assert!(matches!(found, FoundThread::Thread { tid: here, .. } if here == tid));
            assert!(has_thread(process, tid));
        })
        .join()
        .unwrap();
        // Process 1 is not ours.
        if process != 1 {
            assert_eq!(find_thread(process, 1).unwrap(), FoundThread::None);
            assert!(!has_thread(process, 1));
        }
        assert!(find_thread(u32::MAX, 1).is_err());
    }
}
