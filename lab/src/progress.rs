//! Says what is going on while somebody waits: a line when a step begins, one every 5 s (into a
//! file: more and more seldom), and one with the time it took.
//!
//! It prints to standard output only, and knows nothing of the work.

use std::io::{IsTerminal as _, stdout};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The longest silence for somebody who watches.
pub const SILENCE: Duration = Duration::from_secs(5);
/// The same for a file, which nobody watches line by line.
const LONGEST: Duration = Duration::from_secs(30);

/// How long to say nothing after a silence of `last`.
#[must_use]
pub fn next_silence(last: Duration) -> Duration {
    if stdout().is_terminal() { SILENCE } else { (last * 2).min(LONGEST) }
}

/// Steps that take less are not worth a second line.
const SHORT: Duration = Duration::from_secs(1);

/// Does `work`, and tells how long it takes.
///
/// # Errors
/// Those of `work`.
pub fn step<T>(what: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    println!("- {what}");
    let started = Instant::now();
    let (done, waiting) = channel::<()>();
    let result = thread::scope(|scope| {
        scope.spawn(move || {
            let mut silence = SILENCE;
            while waiting.recv_timeout(silence) == Err(RecvTimeoutError::Timeout) {
                println!("    still: {what} ({} s)", started.elapsed().as_secs());
                silence = next_silence(silence);
            }
        });
        // Dropped at the end of the work, also when it panics: the thread above then ends.
        let _done = done;
        work()
    });
    let took = started.elapsed();
    if result.is_ok() && took >= SHORT {
        println!("    done in {:.1} s", took.as_secs_f64());
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_returns_what_the_work_returns_and_does_not_wait_longer() {
        let started = Instant::now();
        assert_eq!(step("three", || Ok(3)).unwrap(), 3);
        let error = step("nothing", || anyhow::bail!("no") as anyhow::Result<()>).unwrap_err();
        assert_eq!(error.to_string(), "no");
        assert!(started.elapsed() < SILENCE, "the thread was not told");
    }
}
