//! Ctrl-C: a flag that every waiting loop polls, so that an interrupted test unwinds and its guards
//! clean up.
//!
//! A second Ctrl-C ends the process at once. The parent-death signal then kills the children, and
//! the next run removes stale network namespaces. This module does not forward signals to children.

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Installs the handler for SIGINT, SIGTERM and SIGHUP; call it from `main`.
///
/// # Errors
/// When the kernel refuses the handler.
pub fn install() -> anyhow::Result<()> {
    let interrupted = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The order matters: the first signal finds the flag clear and sets it, the second one ends
        // the process.
        flag::register_conditional_shutdown(signal, 130, Arc::clone(interrupted))
            .and_then(|_| flag::register(signal, Arc::clone(interrupted)))
            .context("cannot install the Ctrl-C handler")?;
    }
    Ok(())
}

/// Whether Ctrl-C was pressed.
pub fn requested() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Returns an error after Ctrl-C, so that `interrupt::check()?` ends a loop.
///
/// # Errors
/// When the user has interrupted the run.
pub fn check() -> anyhow::Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}

/// Marks errors that mean only that something took too long: on a busy machine that does not yet
/// prove a defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late;

impl std::error::Error for Late {}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not in time")
    }
}

/// For conditions that depend on timing alone, and that a machine with busy neighbours may miss:
/// returns an error marked [`Late`] unless `kept`.
///
/// # Errors
/// The error just described.
pub fn in_time(kept: bool, said: impl FnOnce() -> String) -> anyhow::Result<()> {
    if kept { Ok(()) } else { Err(Error::new(Late).context(said())) }
}

/// Replaces `error` by `said`, and keeps the mark [`Late`] if it has one.
pub(crate) fn rephrased(error: &Error, said: Error) -> Error {
    if error.is::<Late>() { said.context(Late) } else { said }
}

/// Calls `poll` every 10 ms until it returns a value; `Ok(None)` when `timeout` has passed.
///
/// # Errors
/// Any error of `poll`, or an interruption.
pub fn poll_until<T>(
    timeout: Duration,
    mut poll: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<Option<T>> {
    let end = Instant::now() + timeout;
    loop {
        check()?;
        if let Some(value) = poll()? {
            return Ok(Some(value));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sleeps without disturbing the guests; Ctrl-C ends the sleep.
///
/// # Errors
/// On Ctrl-C.
pub fn sleep(span: Duration) -> anyhow::Result<()> {
    poll_until(span, || Ok(None::<()>)).map(drop)
}
