//! Work in a thread of its own: look-ups and key establishments wait for other machines, which the
//! daemon must not.
//!
//! One piece of work at a time. A thread cannot be ended from outside, so work that hangs is
//! abandoned, and only a few threads of one owner may hang.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use timevisor_time::Duration;

/// This many threads of one owner may exist: one that hangs, and one that tries again.
const MOST_THREADS: usize = 2;

/// The thread ended without an answer.
#[derive(Debug)]
pub struct Died;

/// Work that answers with a `T`.
#[derive(Debug)]
pub struct Background<T> {
    /// Where the answer arrives, and when the work began.
    running: Option<(Receiver<T>, Duration)>,
    /// Each thread has a copy.
    threads: Arc<()>,
}

impl<T> Default for Background<T> {
    fn default() -> Self {
        Self { running: None, threads: Arc::new(()) }
    }
}

impl<T: Send + 'static> Background<T> {
    /// Starts work in a thread with this name, and waits no more for the answer of earlier work.
    /// Returns false if too many threads hang.
    ///
    /// # Errors
    /// When the kernel refuses a thread.
    pub fn begin(
        &mut self,
        name: &str,
        now: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<bool> {
        self.running = None;
        if self.threads() >= MOST_THREADS {
            return Ok(false);
        }
        let thread = Arc::clone(&self.threads);
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let answer = work();
            // Before the answer arrives, so that who has it may start other work.
            drop(thread);
            // Nobody receives the answer of work that was abandoned.
            let _ = sender.send(answer);
        })?;
        self.running = Some((receiver, now));
        Ok(true)
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Abandons work that began at least `patience` ago. Returns true if there was such work.
    pub fn abandon_after(&mut self, patience: Duration, now: Duration) -> bool {
        self.running.take_if(|(_, began)| now - *began >= patience).is_some()
    }

    /// The answer, once.
    pub fn answer(&mut self) -> Option<Result<T, Died>> {
        let answer = match self.running.as_ref()?.0.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(Died),
            Ok(answer) => Ok(answer),
        };
        self.running = None;
        Some(answer)
    }

    /// The number of threads that have not ended.
    fn threads(&self) -> usize {
        Arc::strong_count(&self.threads) - 1
    }
}

#[cfg(test)]
pub mod testing {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Holds work up until it is dropped.
    pub struct Hold {
        _open: mpsc::Sender<()>,
        calls: Arc<AtomicUsize>,
    }

    impl Hold {
        /// Returns what the work calls first: its first `count` callers wait for the hold to be
        /// dropped, the others do not.
        pub fn first(count: usize) -> (Self, impl Fn() + Send + Sync + 'static) {
            let (open, held) = mpsc::channel::<()>();
            let (held, calls) = (Mutex::new(held), Arc::new(AtomicUsize::new(0)));
            let called = Arc::clone(&calls);
            let pass = move || {
                if called.fetch_add(1, Ordering::SeqCst) < count {
                    let _ = held.lock().unwrap().recv();
                }
            };
            (Self { _open: open, calls }, pass)
        }

        /// Waits until so many have called.
        pub fn wait_for_calls(&self, count: usize) {
            eventually(|| (self.calls.load(Ordering::SeqCst) >= count).then_some(()));
        }
    }

    /// Waits for what another thread does, which takes no time to speak of.
    pub fn eventually<T>(mut done: impl FnMut() -> Option<T>) -> T {
        for _ in 0..60_000 {
            if let Some(found) = done() {
                return found;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("not in a minute");
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Hold, eventually};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn at(seconds: i64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn work_that_hangs_is_abandoned_and_only_so_many_threads_hang() {
        let (hold, pass) = Hold::first(2);
        let pass = Arc::new(pass);
        let mut work = Background::<&str>::default();
        let begin = |work: &mut Background<_>, now| {
            let pass = Arc::clone(&pass);
            work.begin("test", now, move || {
                pass();
                "answer"
            })
        };
        assert!(begin(&mut work, at(0)).unwrap());
        assert!(work.answer().is_none() && work.is_running());
        assert!(!work.abandon_after(PATIENCE, at(59)) && work.is_running());
        assert!(work.abandon_after(PATIENCE, at(60)) && !work.is_running());
        assert!(begin(&mut work, at(60)).unwrap());
        hold.wait_for_calls(2);
        assert!(work.abandon_after(PATIENCE, at(120)));
        for second in [120, 200] {
            assert!(!begin(&mut work, at(second)).unwrap());
            assert_eq!((work.threads(), work.is_running()), (MOST_THREADS, false));
        }
        // What hung has ended: its answer is nobody's, and there is room again.
        drop(hold);
        eventually(|| (work.threads() == 0).then_some(()));
        assert!(work.answer().is_none());
        assert!(begin(&mut work, at(300)).unwrap());
        assert_eq!(eventually(|| work.answer()).unwrap(), "answer");
        assert!(work.answer().is_none(), "once");
    }

    #[test]
    fn a_thread_that_dies_is_told_from_one_that_works() {
        let mut work = Background::<()>::default();
        // Not a panic, which would print: the thread drops the way to answer.
        let (sender, receiver) = mpsc::channel();
        drop(sender);
        work.running = Some((receiver, at(0)));
        assert!(matches!(work.answer(), Some(Err(Died))));
        assert!(!work.is_running());
    }
}
