//! Sleeps for a source without the GIL. Python's signal handlers run in the main thread only, when
//! it lets them: after a signal has interrupted the sleep, and every [`SLICE`], in case another
//! thread got the signal.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use timevisor::WaitError;
use timevisor_linux::poll::{self, PollFd, Woken};

use super::cancel::Cancel;
use super::source::Source;
use crate::arguments::Span;
use crate::errors::{OrRaise, Raise};

/// The longest that the main thread sleeps without looking for signals.
const SLICE: Duration = Duration::from_millis(100);

/// How long, and how.
#[derive(Clone)]
pub struct Patience {
    pub spin: Duration,
    timeout: Option<Duration>,
    cancel: Option<Cancel>,
}

impl Patience {
    pub fn new(spin: Option<Span>, timeout: Option<Span>, cancel: Option<Cancel>) -> Self {
        let spin = spin.map_or(Duration::ZERO, |span| span.0);
        Self { spin, timeout: timeout.map(|span| span.0), cancel }
    }
}

/// Why a wait failed.
enum Failure<E> {
    Own(WaitError),
    Source(E),
}

impl<E> From<std::io::Error> for Failure<E> {
    fn from(error: std::io::Error) -> Self {
        Self::Own(error.into())
    }
}

impl<E: Raise> Raise for Failure<E> {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Own(error) => error.raise(py),
            Self::Source(error) => error.raise(py),
        }
    }
}

/// Why the GIL is needed again.
enum Pause<T> {
    Over(T),
    Signals,
}

/// Waits for the only outcome of a source that no other thread uses.
pub fn once<S: Source>(py: Python<'_>, mut source: S, patience: &Patience) -> PyResult<S::Outcome> {
    until_outcome(py, &mut source, patience)
}

/// Waits for the next outcome.
pub fn until_outcome<S: Source>(
    py: Python<'_>,
    source: &mut S,
    patience: &Patience,
) -> PyResult<S::Outcome> {
    // Time-outs use this machine's own clock: they limit the wait, and are no instants of the
    // timeline.
    let deadline = patience.timeout.and_then(|span| Instant::now().checked_add(span));
    let slice = is_main_thread(py)?.then_some(SLICE);
    loop {
        match py.detach(|| sleep(source, patience, deadline, slice)).or_raise(py)? {
            Pause::Over(outcome) => return Ok(outcome),
            Pause::Signals => py.check_signals()?,
        }
    }
}

fn sleep<S: Source>(
    source: &mut S,
    patience: &Patience,
    deadline: Option<Instant>,
    slice: Option<Duration>,
) -> Result<Pause<S::Outcome>, Failure<S::Error>> {
    let end_of_slice = slice.map(|slice| Instant::now() + slice);
    loop {
        if let Some(outcome) = source.look(patience.spin).map_err(Failure::Source)? {
            return Ok(Pause::Over(outcome));
        }
        let now = Instant::now();
        if deadline.is_some_and(|end| end <= now) {
            return Err(Failure::Own(WaitError::TimedOut));
        }
        if end_of_slice.is_some_and(|end| end <= now) {
            return Ok(Pause::Signals);
        }
        let end = deadline.into_iter().chain(end_of_slice).min();
        let left = end.map(|end| end.saturating_duration_since(now));
        let alarm = PollFd::readable(source.as_fd());
        let (woken, cancelled) = match &patience.cancel {
            None => (poll::wait(&mut [alarm], left)?, false),
            Some(Cancel(cancel)) => {
                let mut fds = [alarm, PollFd::readable(cancel.as_fd())];
                let woken = poll::wait(&mut fds, left)?;
                (woken, fds[1].ready().readable)
            }
        };
        if cancelled {
            return Err(Failure::Own(WaitError::Cancelled));
        }
        if woken == Woken::Signal && slice.is_some() {
            return Ok(Pause::Signals);
        }
    }
}

/// Whether Python's signal handlers run in this thread.
fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    main.eq(threading.call_method0("get_ident")?)
}
