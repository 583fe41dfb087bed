//! What a process is doing while it does not answer: every thread's state, system call and kernel stack,
//! and whoever else waits in the kernel.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An answer that takes longer is looked into.
const LATE: Duration = Duration::from_millis(500);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);

/// Watches a process from a thread of its own.
pub(crate) struct Watchdog {
    begin: Instant,
    /// Since when an answer is awaited, ms after `begin`; 0: none is.
    asked: Arc<AtomicU64>,
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Writes what it sees to `path`.
    pub(crate) fn start(pid: u32, path: PathBuf) -> Self {
        let (end, ended) = mpsc::channel();
        let asked = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&asked);
        let begin = Instant::now();
        let thread = std::thread::spawn(move || {
            while ended.recv_timeout(PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let since = shared.load(Ordering::Relaxed);
                let waited = begin.elapsed().saturating_sub(Duration::from_millis(since));
                if since == 0 || waited < LATE {
                    continue;
                }
                let file = File::options().create(true).append(true).open(&path);
                if let Ok(mut file) = file {
                    let _ = write!(file, "unanswered for {waited:?}\n{}\n", look(pid));
                }
            }
        });
        Self { begin, asked, end: Some(end), thread: Some(thread) }
    }

    /// Asks by `ask`, and looks if that takes long.
    pub(crate) fn during<T>(&self, ask: impl FnOnce() -> T) -> T {
        let now = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(0).max(1);
        self.asked.store(now, Ordering::Relaxed);
        let answer = ask();
        self.asked.store(0, Ordering::Relaxed);
        answer
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn look(pid: u32) -> String {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let mut out = String::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let task = entry.path().display().to_string();
        let [comm, stat, syscall, wchan, stack] = ["comm", "stat", "syscall", "wchan", "stack"]
            .map(|file| read(format!("{task}/{file}")));
        let state = stat.rsplit(") ").next().unwrap_or_default();
        let _ = writeln!(
            out,
            "thread {} state {:.1} wchan {wchan} syscall {}\n{stack}",
            comm.trim(),
            state,
            syscall.trim()
        );
    }
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = entry.path().display().to_string();
        let stat = read(format!("{path}/stat"));
        let waits = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('D'));
        if waits {
            let _ = writeln!(
                out,
                "waits in the kernel: {:.60}\n{}",
                stat,
                read(format!("{path}/stack"))
            );
        }
    }
    let _ = writeln!(
        out,
        "{}{}",
        read("/proc/loadavg".to_owned()),
        read("/proc/pressure/io".to_owned())
    );
    out
}
