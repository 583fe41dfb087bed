//! Stops all threads of a process temporarily.
//!
//! It uses ptrace (PTRACE_SEIZE, PTRACE_INTERRUPT: ptrace(2)), because the kernel resumes the
//! threads when the tracing thread ends, however it ends. SIGSTOP would leave the process stopped
//! if its sender died. A stopped vCPU thread does not execute guest code: KVM_RUN is interrupted,
//! and QEMU calls it again.

use std::io;
use std::time::{Duration, Instant};

use super::{Process, ProcessError};

/// How long to wait for threads to stop. They stop within milliseconds unless they hang in the
/// kernel.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of scans for threads that started while others were being stopped.
const ROUNDS: u32 = 8;

/// Runs `work` while no thread of the process runs, and then resumes all of them, whatever the
/// result.
///
/// # Errors
/// When they cannot be stopped: the process has ended, is traced by somebody else (a debugger), or
/// ptrace is not allowed.
pub fn while_stopped<T: Send>(
    process: Process,
    work: impl FnOnce() -> T + Send,
) -> Result<T, ProcessError> {
    // In a new thread, because ptrace belongs to a thread and ends with it.
    let done = std::thread::scope(|scope| {
        let stopping = scope.spawn(move || {
            let mut stopped = Stopped { process, threads: Vec::new() };
            stopped.all().map(|()| work())
        });
        stopping.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    done.map_err(|source| process.error("threads, to stop them for a moment", source))
}

struct Stopped {
    process: Process,
    /// The stopped threads, each with the signal that it was about to receive.
    threads: Vec<(libc::pid_t, libc::c_int)>,
}

impl Stopped {
    /// Stops every thread, including those that the others start in the meantime.
    fn all(&mut self) -> io::Result<()> {
        let late = Instant::now() + PATIENCE;
        for _ in 0..ROUNDS {
            let new = self.new_threads()?;
            if new.is_empty() {
                return Ok(());
            }
            for thread in new {
                self.stop(thread, late)?;
            }
        }
        Err(io::Error::other("it keeps starting threads"))
    }

    fn new_threads(&self) -> io::Result<Vec<libc::pid_t>> {
        let mut new = Vec::new();
        for entry in std::fs::read_dir(self.process.path("task"))? {
            let thread: Option<libc::pid_t> =
                entry?.file_name().to_str().and_then(|name| name.parse().ok());
            new.extend(thread.filter(|new| self.threads.iter().all(|(old, _)| old != new)));
        }
        Ok(new)
    }

    fn stop(&mut self, thread: libc::pid_t, late: Instant) -> io::Result<()> {
        match ptrace(libc::PTRACE_SEIZE, thread, 0) {
            Ok(()) => {}
            // The thread has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            Err(error) => return Err(error),
        }
        if ptrace(libc::PTRACE_INTERRUPT, thread, 0).is_err() {
            return Ok(());
        }
        loop {
            let mut status = 0;
            // SAFETY: `status` is a c_int of ours; the thread is one that this thread traces.
            let found =
                unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if found == thread {
                if libc::WIFSTOPPED(status) {
                    // The thread stopped before a signal was delivered; the signal is delivered
                    // when it resumes.
                    let event = status >> 16;
                    let signal = if event == 0 { libc::WSTOPSIG(status) } else { 0 };
                    self.threads.push((thread, signal));
                }
                return Ok(());
            }
            if found < 0 {
                return Err(io::Error::last_os_error());
            }
            if Instant::now() > late {
                return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for (thread, signal) in self.threads.drain(..) {
            // A thread that was killed in the meantime needs nothing.
            let _ = ptrace(libc::PTRACE_DETACH, thread, signal);
        }
    }
}

/// A request of ptrace(2) without addresses: PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH.
pub(crate) fn ptrace(
    request: libc::c_uint,
    thread: libc::pid_t,
    data: libc::c_int,
) -> io::Result<()> {
    let none = core::ptr::null_mut::<libc::c_void>();
    let data = core::ptr::without_provenance_mut::<libc::c_void>(data.unsigned_abs() as usize);
    // SAFETY: these three requests take no addresses; they change how another process is scheduled,
    // and no memory of this one.
    let result = unsafe { libc::ptrace(request, thread, none, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

// User-mode emulators do not support ptrace.
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn ticks(child: &Child) -> (char, u64) {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split_whitespace().collect();
        (fields[0].chars().next().unwrap(), fields[11].parse().unwrap())
    }

    fn busy() -> Child {
        Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn nothing_runs_meanwhile_and_everything_does_afterwards() {
        let mut child = busy();
        let process = Process::open(child.id()).unwrap();
        let (first, later) = while_stopped(process, || {
            let first = ticks(&child);
            std::thread::sleep(Duration::from_millis(50));
            (first, ticks(&child))
        })
        .unwrap();
        assert_eq!(first, later);
        assert_eq!(first.0, 't');
        let before = ticks(&child).1;
        while ticks(&child).1 <= before + 1 {
            assert!(process.is_running());
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let gone = while_stopped(process, || ());
        assert!(matches!(gone, Err(ProcessError::Gone(_))), "{gone:?}");
    }

    #[test]
    fn a_failure_inside_lets_it_go() {
        let mut child = busy();
        let process = Process::open(child.id()).unwrap();
        let failed = std::panic::catch_unwind(|| {
            while_stopped(process, || panic!("inside")).unwrap();
        });
        assert!(failed.is_err());
        assert_ne!(ticks(&child).0, 't');
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
