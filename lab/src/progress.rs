//! Reports progress to a waiting user: a line when a step begins, one every 5 s (less and less
//! often if the output is a file), and one with the time that the step took.
//!
//! It only prints to standard output, and knows nothing about the work.

use std::io::{IsTerminal as _, stdout};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The longest silence on a terminal.
pub const SILENCE: Duration = Duration::from_secs(5);
/// The longest silence in a file, which nobody watches line by line.
const LONGEST: Duration = Duration::from_secs(30);

/// How long to stay silent after a silence of `last`.
#[must_use]
pub fn next_silence(last: Duration) -> Duration {
    if stdout().is_terminal() { SILENCE } else { (last * 2).min(LONGEST) }
}

/// Shorter steps do not get a second line.
const SHORT: Duration = Duration::from_secs(1);

/// Does `work`, and reports how long it takes.
///
/// # Errors
/// Any error of `work`.
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
        // Dropped at the end of the work, even if it panics; the thread above then ends.
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
