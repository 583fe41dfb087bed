//! Reading what another process can keep from being read, without waiting for it for long.
//!
//! Most of /proc/PID is read under a lock that an exec of that process holds (`exec_update_lock`,
//! kernel/exec.c), and an exec can be kept waiting: by a program that shares the memory of the one
//! that executes, and waits for a file system of its user's (FUSE). So stat, auxv, maps, cmdline, exe
//! and ns may take for ever, and so may pidfd_getfd. Without that lock are comm, status, uid_map,
//! schedstat, and poll of a pidfd.
//!
//! A read that takes long goes on in a thread of its own. Until it has ended, nothing more is read of
//! its process; a user with several such processes is not read at all for a while. Thus a user costs
//! the caller a few tenths of a second in a minute at most, and hinders nobody but himself.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Process, ProcessError};

/// An undisturbed read takes some ten microseconds; on a crowded machine a thread has to wait for a
/// processor.
const PATIENCE: Duration = Duration::from_millis(100);
/// How many processes of a user may keep us waiting.
const MOST_OF_A_USER: usize = 2;
/// A read that took longer than this was not late by chance.
const DELIBERATE: Duration = Duration::from_secs(1);
/// For how long such a user still counts as one who keeps us waiting.
const MEMORY: Duration = Duration::from_secs(60);

/// A read that took longer than [`PATIENCE`].
struct Late {
    pid: u32,
    user: u32,
    read: Arc<Mutex<Progress>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Since then.
    Runs(Instant),
    /// Nobody waited long for it.
    Done,
    /// It has ended, and counts until then.
    Remembered(Instant),
}

static LATE: Mutex<Vec<Late>> = Mutex::new(Vec::new());

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Late {
    fn still_counts(&self, now: Instant) -> bool {
        match *lock(&self.read) {
            Progress::Runs(_) => true,
            Progress::Done => false,
            Progress::Remembered(until) => now < until,
        }
    }
}

/// Whether a process, or its user, keeps us waiting already.
fn keeps_waiting(process: Process) -> bool {
    let mut late = lock(&LATE);
    let now = Instant::now();
    late.retain(|entry| entry.still_counts(now));
    if late.is_empty() {
        return false;
    }
    let user = user_of(process);
    let of_user = late.iter().filter(|entry| entry.user == user).count();
    of_user >= MOST_OF_A_USER || late.iter().any(|entry| entry.pid == process.pid())
}

/// Its status is read without that lock.
fn user_of(process: Process) -> u32 {
    process.users().map_or(u32::MAX, |users| users.real)
}

impl Process {
    /// What `read` says of this process; it may be kept waiting by it, and then goes on in a thread
    /// of its own.
    ///
    /// # Errors
    /// [`ProcessError::Waits`] when there is no answer within a tenth of a second, or the process or
    /// its user has kept us waiting just now. What `read` says, otherwise.
    pub fn patiently<T: Send + 'static>(
        self,
        read: impl FnOnce(Self) -> Result<T, ProcessError> + Send + 'static,
    ) -> Result<T, ProcessError> {
        if keeps_waiting(self) {
            return Err(ProcessError::Waits(self.pid));
        }
        let (answer, answered) = sync_channel(1);
        let began = Instant::now();
        let progress = Arc::new(Mutex::new(Progress::Runs(began)));
        let its = Arc::clone(&progress);
        let run = move || {
            let said = read(self);
            let took = began.elapsed();
            *lock(&its) = match took > DELIBERATE {
                true => Progress::Remembered(Instant::now() + MEMORY),
                false => Progress::Done,
            };
            // If nobody waits any more, it is dropped here.
            let _ = answer.send(said);
        };
        std::thread::Builder::new()
            .name("look".to_owned())
            .spawn(run)
            .map_err(|source| ProcessError::Read { pid: self.pid, what: "anything", source })?;
        match answered.recv_timeout(PATIENCE) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout) => {
                lock(&LATE).push(Late { pid: self.pid, user: user_of(self), read: progress });
                Err(ProcessError::Waits(self.pid))
            }
            // It panicked.
            Err(RecvTimeoutError::Disconnected) => Err(ProcessError::Gone(self.pid)),
        }
    }

    /// As [`Self::open`], [`Self::patiently`].
    ///
    /// # Errors
    /// As both.
    pub fn open_patiently(pid: u32) -> Result<Self, ProcessError> {
        Self::new(pid).patiently(|process| Self::open(process.pid()))
    }

    /// As [`Self::is_running`]; a process that keeps us waiting is there.
    #[must_use]
    pub fn is_running_patiently(self) -> bool {
        match self.patiently(|process| Ok(process.is_running())) {
            Ok(running) => running,
            Err(error) => matches!(error, ProcessError::Waits(_)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests of this program look at processes, too, so this one has its own.
    #[test]
    fn who_keeps_us_waiting_is_not_asked_again_and_others_are() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open_patiently(child.id()).unwrap();
        let (free, wait) = std::sync::mpsc::channel::<()>();
        let began = Instant::now();
        let said = process.patiently(move |_| {
            let _ = wait.recv();
            Ok(())
        });
        assert!(matches!(said, Err(ProcessError::Waits(pid)) if pid == child.id()));
        assert!(began.elapsed() >= PATIENCE);
        let again = process.patiently(|_| Ok(()));
        assert!(matches!(again, Err(ProcessError::Waits(_))), "its read still runs");
        assert!(process.is_running_patiently(), "who keeps us waiting is there");
        assert!(Process::open_patiently(std::process::id()).is_ok(), "one process is no user");
        free.send(()).unwrap();
        // The thread notes its end before it ends.
        while process.patiently(|_| Ok(())).is_err() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(Process::open_patiently(child.id()), Err(ProcessError::Gone(_))));
    }

    #[test]
    fn a_long_wait_is_remembered_for_a_while() {
        let now = Instant::now();
        let counts = |progress| {
            let read = Arc::new(Mutex::new(progress));
            Late { pid: 1, user: 1, read }.still_counts(now)
        };
        assert!(counts(Progress::Runs(now)) && !counts(Progress::Done));
        assert!(counts(Progress::Remembered(now + MEMORY)) && !counts(Progress::Remembered(now)));
    }
}
