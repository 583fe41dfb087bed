//! Parses foreign bytes in a thread that has nothing but memory: no rights, no files, no sockets, no way
//! to start a program (crates/linux, `confine`).
//!
//! The event loop hands over the bytes and what it takes to parse them, and waits for the value, but
//! not for long: bytes that make a parser panic or hang are lost, the thread is replaced, and the
//! daemon goes on. Each owner has a thread of its own, so that guests' bytes do not cost a server's.
//!
//! Limitations: the thread shares the daemon's memory. The boundary is for a parser in safe Rust,
//! which may be talked into a wrong call or a panic, not into foreign machine code. A parser that
//! hangs keeps its thread; after [`MOST_THREADS`] of them nothing of this owner is parsed any more.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration as StdDuration;

use timevisor_linux::clock::monotonic;
use timevisor_linux::confine::{ConfineError, Permitted, confine_thread};

use crate::announce::Budget;
use crate::panics;

/// This many threads of one owner may exist: those that hang, and one that works.
const MOST_THREADS: usize = 4;
/// A thread is there and confined after this time, or never.
const START: StdDuration = StdDuration::from_secs(1);
/// Lines about lost bytes, an hour: a stranger must not fill the log.
const LINES: usize = 20;

/// Why there is no value.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The parser panicked.
    #[error("their parser failed, which is a bug; please report it")]
    Failed,
    /// The parser is not done in time.
    #[error("their parser was not done within {} ms", .0.as_millis())]
    Late(StdDuration),
    /// Too many threads hang.
    #[error(
        "{MOST_THREADS} parsers hang, which is a bug; please report it, and restart timevisord"
    )]
    Hanging,
    /// There is no thread.
    #[error("cannot start the parser's thread")]
    Thread(#[from] io::Error),
    /// Nothing is parsed with the daemon's rights.
    #[error("the parser's thread keeps its rights; use a kernel with seccomp filters")]
    Confine(#[from] ConfineError),
}

type Work = Box<dyn FnOnce() + Send>;

/// A thread that parses for one owner.
pub struct Parser {
    /// The thread's name.
    name: &'static str,
    patience: StdDuration,
    thread: RefCell<Thread>,
}

enum Thread {
    /// Bytes are parsed by whoever asks.
    Caller,
    Own(Own),
}

struct Own {
    /// The way to the thread that works.
    running: Option<Sender<Work>>,
    /// Each thread has a copy.
    threads: Arc<()>,
    lines: Budget,
}

impl Parser {
    /// Parses in a thread of this name, which starts with the first bytes, and waits for it no longer
    /// than `patience`.
    pub fn new(name: &'static str, patience: StdDuration) -> Self {
        let lines = Budget::hourly(LINES);
        let own = Own { running: None, threads: Arc::new(()), lines };
        Self { name, patience, thread: RefCell::new(Thread::Own(own)) }
    }

    /// Parses where it is called, for `--csv`: network simulators support no threads. That program
    /// serves nobody and needs no rights.
    pub fn without_thread() -> Self {
        let thread = RefCell::new(Thread::Caller);
        Self { name: "", patience: StdDuration::MAX, thread }
    }

    /// Parses by `work`, which owns the bytes.
    ///
    /// # Errors
    /// Why the bytes are lost. The log says so.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let mut thread = self.thread.borrow_mut();
        let Thread::Own(own) = &mut *thread else { return Ok(work()) };
        let (answer, answered) = sync_channel(1);
        // Nobody receives the answer of work that was given up.
        let work = move || drop(answer.send(work()));
        let result = own.hand_over(self.name, Box::new(work)).and_then(|()| {
            answered.recv_timeout(self.patience).map_err(|error| match error {
                RecvTimeoutError::Timeout => Lost::Late(self.patience),
                RecvTimeoutError::Disconnected => Lost::Failed,
            })
        });
        if let Err(lost) = &result {
            // What hangs ends when it is done, if ever: nobody sends it anything more.
            own.running = None;
            if own.lines.take(monotonic()) {
                let cause = std::error::Error::source(lost);
                let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
                tracing::warn!("{}: bytes are lost: {lost}{cause}", self.name);
            }
        }
        result
    }
}

impl Own {
    fn hand_over(&mut self, name: &str, work: Work) -> Result<(), Lost> {
        let running = match &self.running {
            Some(running) => running,
            None => self.running.insert(self.start(name)?),
        };
        running.send(work).map_err(|_| Lost::Failed)
    }

    fn start(&self, name: &str) -> Result<Sender<Work>, Lost> {
        if Arc::strong_count(&self.threads) > MOST_THREADS {
            return Err(Lost::Hanging);
        }
        let thread = Arc::clone(&self.threads);
        let (sender, receiver) = channel();
        let (ready, is_ready) = sync_channel(1);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _counted = thread;
            work_without_rights(&receiver, &ready);
        })?;
        match is_ready.recv_timeout(START) {
            Ok(confined) => confined?,
            Err(RecvTimeoutError::Timeout) => return Err(Lost::Late(START)),
            Err(RecvTimeoutError::Disconnected) => return Err(Lost::Failed),
        }
        Ok(sender)
    }
}

/// The thread: gives up everything, and then works until nobody sends any more.
fn work_without_rights(work: &Receiver<Work>, ready: &SyncSender<Result<(), ConfineError>>) {
    panics::contain();
    let confined = confine_thread(Permitted::Memory);
    let is_confined = confined.is_ok();
    let _ = ready.send(confined);
    while is_confined && let Ok(work) = work.recv() {
        work();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::panic::resume_unwind;
    use std::time::Instant;

    const LONG: StdDuration = StdDuration::from_secs(60);

    #[test]
    fn what_is_parsed_is_parsed_without_rights_and_the_caller_keeps_its_own() {
        let parser = Parser::new("parse-test", LONG);
        let bytes = b"12".to_vec();
        let parsed = parser.run(move || std::str::from_utf8(&bytes).unwrap().parse::<u8>());
        assert_eq!(parsed.unwrap(), Ok(12));
        let tried = parser.run(|| {
            let open = [File::open("/proc/self/comm").is_ok(), File::create("/tmp/x").is_ok()];
            (open, std::net::UdpSocket::bind("127.0.0.1:0").is_ok())
        });
        assert_eq!(tried.unwrap(), ([false; 2], false));
        assert!(File::open("/proc/self/comm").is_ok());
    }

    #[test]
    fn a_panic_costs_the_bytes_that_caused_it() {
        let parser = Parser::new("parse-test", LONG);
        for n in 0..3 * MOST_THREADS {
            // Unlike panic!, without a message on the terminal.
            let lost = parser.run(|| resume_unwind(Box::new("bad bytes")));
            assert!(matches!(lost, Err::<(), _>(Lost::Failed)), "{lost:?}");
            assert_eq!(parser.run(move || n).unwrap(), n);
        }
    }

    #[test]
    fn what_hangs_is_not_waited_for_and_only_so_many_hang() {
        let patience = StdDuration::from_millis(20);
        let parser = Parser::new("parse-test", patience);
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        for n in 0..MOST_THREADS {
            assert_eq!(parser.run(move || n).unwrap(), n);
            let held = Arc::clone(&held);
            let hang = move || drop(held.lock().map(|held| held.recv()));
            assert!(matches!(parser.run(hang), Err(Lost::Late(_))));
        }
        let began = Instant::now();
        assert!(matches!(parser.run(|| ()), Err(Lost::Hanging)));
        assert!(began.elapsed() < LONG);
        // What hung has ended: there is room again.
        drop(hold);
        let ended = Instant::now() + LONG;
        while parser.run(|| ()).is_err() {
            assert!(Instant::now() < ended);
            std::thread::sleep(StdDuration::from_millis(1));
        }
    }

    #[test]
    fn a_simulator_sees_no_thread() {
        let caller = std::thread::current().id();
        let parser = Parser::without_thread();
        assert_eq!(parser.run(|| std::thread::current().id()).unwrap(), caller);
    }
}
