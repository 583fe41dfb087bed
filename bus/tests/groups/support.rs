//! The bus as a process, and a clock that goes as this machine's does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use timevisor::group::Inbox;
use timevisor::manual::Clock;

/// What happens at all happens within this.
pub const LONG: Duration = Duration::from_secs(20);

/// A timevisor-bus.
pub struct Bus {
    pub process: Child,
    pub socket: PathBuf,
    arguments: Vec<String>,
}

impl Bus {
    pub fn start(socket: &Path, arguments: &[&str]) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let process = Command::new(env!("CARGO_BIN_EXE_timevisor-bus"))
            .arg("--socket")
            .arg(socket)
            .args(&arguments)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + LONG;
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < end, "the bus does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { process, socket: socket.to_owned(), arguments }
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.kill();
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        let socket = self.socket.clone();
        let mut other = Self::start(&socket, &arguments);
        std::mem::swap(self, &mut other);
        std::mem::forget(other);
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A clock that goes as this machine's does, and the thread that moves it.
pub struct Running {
    pub clock: Clock,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    pub fn new() -> Self {
        let clock = Clock::new(1_000_000_000_000);
        clock.set_error(Duration::from_micros(50));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (clock, stop) = (clock.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut last = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(500));
                    let now = Instant::now();
                    clock.advance(now - last);
                    last = now;
                }
            })
        };
        Self { clock, stop, thread: Some(thread) }
    }

    pub fn now_ns(&self) -> i64 {
        self.clock.timeline().now().unwrap().latest_ns()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

pub fn until<T>(inbox: &Inbox<T>, is: impl Fn(&T) -> bool) -> T {
    loop {
        let next = inbox.next_within(LONG).expect("it did not happen in 20 s");
        if is(&next) {
            return next;
        }
    }
}
