//! Says what takes long, while it does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Nothing is silent for longer.
pub const SILENCE: Duration = Duration::from_secs(5);

/// Runs `work` and prints `what`, a sign of life every five seconds, and how long it took if that was a second or more.
pub fn step<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (started, done) = (Instant::now(), AtomicBool::new(false));
    println!("{what}...");
    let result = std::thread::scope(|scope| {
        let printer = scope.spawn(|| {
            let mut said = Instant::now();
            while !done.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(200));
                if said.elapsed() >= SILENCE && !done.load(Ordering::Relaxed) {
                    println!("  {what}: {} s so far", started.elapsed().as_secs());
                    said = Instant::now();
                }
            }
        });
        // Also when the work panics, or the scope would wait for ever.
        let end = End { done: &done, printer: printer.thread() };
        let result = work();
        drop(end);
        result
    });
    let took = started.elapsed();
    if took >= Duration::from_secs(1) {
        println!("  {what}: {:.1} s", took.as_secs_f64());
    }
    result
}

struct End<'a> {
    done: &'a AtomicBool,
    printer: &'a std::thread::Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        self.printer.unpark();
    }
}
