//! The read-only socket: `timevisor status` and `timevisor-observe` without root.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the socket, the thread, and what the event loop exchanges with it |
//! | `serving.rs` | the thread: who is connected, which answers are fresh |
//! | `client.rs` | one connection: bytes in and out, and its end |
//! | `allowance.rs` | how many requests each user has left |
//!
//! The thread accepts, parses and answers. It asks the event loop one [`Question`] at a time, the
//! same one again only when the last answer is no longer fresh. So the event loop makes a few reports
//! a second, however many clients ask how often, and it never touches their sockets. Clients of one
//! user share that user's places and requests: who floods the socket waits for himself.
//!
//! Who may connect is up to the file's mode: root, and the group `timevisor` where this host has one.
//!
//! The thread hears strangers, so it has nothing but its sockets: another user, no capabilities, a
//! filter of system calls.

mod allowance;
mod client;
mod serving;
#[cfg(test)]
mod tests;

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result};
use timevisor_linux::confine::{Permitted, confine_thread};
use timevisor_linux::event_fd::EventFd;
use timevisor_linux::users::gid_of;
use timevisor_protocols::control::{OBSERVERS, Question, Response};

use self::serving::Serving;
use crate::panics;

/// What the event loop and the thread share: two flags, and the questions that are open.
struct Shared {
    /// Bit `question as u32`: the thread wants an answer.
    open: AtomicU32,
    /// Wakes the event loop.
    asked: EventFd,
    /// Wakes the thread.
    answered: EventFd,
}

/// The event loop's end of the read-only socket.
pub struct Observers {
    path: PathBuf,
    shared: Arc<Shared>,
    answers: Sender<(Question, Response)>,
}

impl Observers {
    /// Listens at `path` and starts the thread. The caller holds the run directory's lock, so an
    /// existing socket is stale.
    ///
    /// # Errors
    /// When the socket cannot be made or no thread can be started.
    pub fn listen(path: &Path) -> Result<Self> {
        let listener = bind(path)?;
        let shared = Arc::new(Shared {
            open: AtomicU32::new(0),
            asked: EventFd::new()?,
            answered: EventFd::new()?,
        });
        let (answers, told) = channel();
        let serving = Serving::new(listener, Arc::clone(&shared), told);
        std::thread::Builder::new()
            .name("observers".to_owned())
            .spawn(move || {
                // What a client sends may cost the clients, and not the clock.
                panics::contain();
                match confine_thread(Permitted::ItsListeners) {
                    Ok(()) => serving.run(),
                    Err(error) => {
                        let error = anyhow::Error::new(error);
                        tracing::error!("the read-only socket answers nobody: {error:#}");
                    }
                }
            })
            .context("cannot start the thread of the read-only socket")?;
        Ok(Self { path: path.to_owned(), shared, answers })
    }

    /// Readable while the thread has a question.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.asked.as_fd()
    }

    /// Takes one question of the thread. While there are more, [`Self::fd`] stays readable.
    pub fn asked(&self) -> Option<Question> {
        let _ = self.shared.asked.clear();
        let open = self.shared.open.load(Ordering::Acquire);
        let question = Question::ALL.into_iter().find(|question| open & bit(*question) != 0)?;
        let before = self.shared.open.fetch_and(!bit(question), Ordering::AcqRel);
        if before & !bit(question) != 0 {
            let _ = self.shared.asked.set();
        }
        Some(question)
    }

    /// Hands an answer to the thread, which writes it. Never waits.
    pub fn tell(&self, question: Question, response: Response) {
        if self.answers.send((question, response)).is_ok() {
            let _ = self.shared.answered.set();
        }
    }
}

impl Drop for Observers {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Shared {
    /// Asks the event loop.
    fn ask(&self, question: Question) {
        self.open.fetch_or(bit(question), Ordering::AcqRel);
        let _ = self.asked.set();
    }
}

const fn bit(question: Question) -> u32 {
    1 << question as u32
}

/// Binds the socket: mode 0660 and the group of observers where there is one, else root's alone.
fn bind(path: &Path) -> Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error)
                .with_context(|| format!("cannot remove the stale socket {}", path.display()));
        }
        _ => {}
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    listener.set_nonblocking(true)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    match gid_of(OBSERVERS) {
        None => tracing::info!(
            "{} is root's alone: there is no group {OBSERVERS}; make one with `groupadd --system {OBSERVERS}` and restart",
            path.display()
        ),
        Some(group) => match chown(path, None, Some(group)) {
            Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o660))?,
            Err(error) => tracing::warn!(
                "{} is root's alone: it cannot be given to the group {OBSERVERS}: {error}; let the unit have CAP_CHOWN",
                path.display()
            ),
        },
    }
    Ok(listener)
}
