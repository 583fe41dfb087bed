//! Wakes a sleeping thread of another process, without it noticing: the kernel moves a thread to a
//! processor of its affinity when it wakes up, and until then SCHED_DEADLINE is refused there.
//!
//! It uses ptrace (PTRACE_SEIZE, PTRACE_INTERRUPT: ptrace(2)) in a thread that ends at once, with
//! which the kernel detaches, however it ends: a daemon that dies meanwhile leaves nothing behind.
//! PTRACE_INTERRUPT moves the thread before it returns (`try_to_wake_up`), so its stop is not waited
//! for. What the thread slept in goes on: futexes, poll and reads are restarted by the kernel (signal(7),
//! "Interruption of system calls"); KVM_RUN and epoll_wait return EINTR, as after a stop and a
//! continuation, and QEMU calls them again.
//!
//! What it does not do: wake a thread that waits for a disk (uninterruptibly), that is stopped, or that a
//! debugger traces.

use std::time::{Duration, Instant};

use super::threads::{is_asleep, started};
use crate::process::{Process, ptrace};

/// The kernel lets a process that executes another program keep us waiting. What comes later than this
/// finds another state than the one for which it was meant.
const LATEST: Duration = Duration::from_millis(100);

/// Wakes thread `tid` of process `pid` if it sleeps, and is the one that started at `since`
/// ([`started`]; `None`: any thread of the process). Returns whether it was woken.
#[must_use]
pub fn wake(pid: u32, tid: u32, since: Option<u64>) -> bool {
    let asked = Instant::now();
    let woken = Process::new(pid).patiently(move |_| {
        let Ok(id) = libc::pid_t::try_from(tid) else { return Ok(false) };
        if ptrace(libc::PTRACE_SEIZE, id, 0).is_err() {
            return Ok(false);
        }
        // Nobody else can get the id any more.
        let is_it = started(pid, tid).is_ok_and(|now| since.is_none_or(|then| then == now));
        let is_asleep = is_it && is_asleep(pid, tid).unwrap_or(false);
        let is_now = asked.elapsed() < LATEST;
        Ok(is_asleep && is_now && ptrace(libc::PTRACE_INTERRUPT, id, 0).is_ok())
    });
    woken.unwrap_or(false)
}

// User-mode emulators do not support ptrace.
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use super::super::{processor_of, threads};
    use super::*;
    use crate::affinity::{allow, online};

    #[test]
    fn a_sleeping_thread_comes_to_its_processor_and_sleeps_on() {
        let online = online().unwrap();
        // It reads: a system call that the kernel restarts.
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        while !is_asleep(pid, pid).unwrap() || threads(pid).unwrap()[0].name != "cat" {
            std::thread::yield_now();
        }
        let since = started(pid, pid).unwrap();
        assert!(!wake(pid, pid, Some(since + 1)), "another thread that has its id");
        for turn in 0..200 {
            let processor = online[turn % online.len()];
            allow(pid, &[processor]).unwrap();
            // It may be on its way back to sleep.
            while !wake(pid, pid, Some(since)) {
                std::thread::yield_now();
            }
            assert_eq!(processor_of(pid, pid).unwrap(), processor, "turn {turn}");
        }
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        input.write_all(b"word").unwrap();
        drop(input);
        let mut word = String::new();
        output.read_to_string(&mut word).unwrap();
        assert_eq!(word, "word");
        assert!(child.wait().unwrap().success(), "no interrupted call was an error");
        assert!(!wake(pid, pid, Some(since)), "it has ended");
    }

    #[test]
    fn who_runs_or_is_ours_is_left_alone() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        assert!(!wake(child.id(), child.id(), None));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            !wake(std::process::id(), std::process::id(), None),
            "a thread of the same process"
        );
    }
}
