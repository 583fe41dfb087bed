//! A second process that waits for the end of the agent and then thaws what it has frozen: an agent
//! that crashes or is killed leaves nothing frozen.
//!
//! The agent tells it on a pipe, a line each, which groups are frozen: `freeze PATH`, `thaw PATH`.
//! The end of the pipe is the end of the agent. SIGTERM, with which systemd ends the whole service,
//! thaws at once: the agent, which gets it too, thaws the same.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use timevisor_linux::freezer::Group;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::signals::{Signal, Signals};

/// The hidden subcommand.
pub const COMMAND: &str = "hold-guard";

/// The agent's end.
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Starts the process, from this program's own file.
    pub fn start() -> Result<Self> {
        let child = Command::new("/proc/self/exe")
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start the process that thaws if this one is killed")?;
        Ok(Self { child })
    }

    /// Tells it that a group is about to be frozen; false if nobody listens any more.
    pub fn frozen(&mut self, path: &Path) -> bool {
        self.say(b"freeze ", path)
    }

    /// Tells it that a group goes on.
    pub fn thawed(&mut self, path: &Path) -> bool {
        self.say(b"thaw ", path)
    }

    fn say(&mut self, word: &[u8], path: &Path) -> bool {
        let line = [word, path.as_os_str().as_bytes(), b"\n"].concat();
        self.child.stdin.as_mut().is_some_and(|pipe| pipe.write_all(&line).is_ok())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// What the guard has been told.
#[derive(Default)]
struct Told {
    rest: Vec<u8>,
    frozen: BTreeSet<PathBuf>,
}

impl Told {
    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let path = |word: &[u8]| {
                let path = line.strip_prefix(word)?.strip_suffix(b"\n")?;
                Some(PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())))
            };
            if let Some(path) = path(b"freeze ") {
                self.frozen.insert(path);
            } else if let Some(path) = path(b"thaw ") {
                self.frozen.remove(&path);
            }
        }
    }
}

/// The guard's own life.
pub fn run() -> Result<()> {
    let mut signals = Signals::install().context("cannot install signal handlers")?;
    let mut stdin = std::io::stdin().lock();
    let mut told = Told::default();
    // As large as the standard library's own buffer: nothing stays in that one.
    let mut buffer = [0; 16 << 10];
    loop {
        let pipe = std::io::stdin();
        let mut fds = [PollFd::readable(signals.as_fd()), PollFd::readable(pipe.as_fd())];
        wait(&mut fds, None).context("poll failed")?;
        let heard = fds[1].ready();
        if signals.take() == Some(Signal::Terminate) {
            break;
        }
        if heard.readable || heard.hangup || heard.error {
            match stdin.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => told.take(&buffer[..count]),
            }
        }
    }
    for path in told.frozen {
        if let Some(Err(error)) = Group::at(&path).map(|group| group.thaw()) {
            tracing::error!("{} stays frozen: {error}", path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_as_they_come() {
        let mut told = Told::default();
        told.take(b"freeze /a\nfreeze /b c\nth");
        told.take(b"aw /a\nfreeze /d");
        assert_eq!(told.frozen.iter().map(|p| p.to_str().unwrap()).collect::<Vec<_>>(), ["/b c"]);
        told.take(b"\n\nnonsense\nthaw /never\n");
        assert_eq!(told.frozen.len(), 2);
    }
}
