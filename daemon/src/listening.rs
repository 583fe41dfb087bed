//! A listening Unix socket of the event loop: accepts without blocking, and pauses when descriptors
//! run out. A connection that cannot be accepted leaves the socket readable, so without the pause
//! the loop would spin.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use timevisor_linux::descriptors;
use timevisor_linux::seqpacket::{PacketListener, PacketStream};
use timevisor_time::Duration;

/// How long a listener pauses.
const PAUSE: Duration = Duration::from_millis(250);

/// The pauses of one listener, of whatever kind.
#[derive(Debug, Default)]
pub struct Pause(Option<Duration>);

impl Pause {
    /// Whether there is none at `now`.
    pub fn is_over(&mut self, now: Duration) -> bool {
        self.0.take_if(|until| now >= *until);
        self.0.is_none()
    }

    pub fn begin(&mut self, now: Duration) {
        self.0 = Some(now + PAUSE);
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// When it ends; [`Duration::MAX`] if there is none.
    pub fn ends_at(&self) -> Duration {
        self.0.unwrap_or(Duration::MAX)
    }

    /// The connection, or a pause if it was not accepted for want of descriptors.
    pub fn heed<T>(&mut self, now: Duration, accepted: io::Result<T>) -> Option<T> {
        match accepted {
            Ok(connection) => Some(connection),
            Err(error) => {
                if descriptors::ran_out(&error) {
                    self.begin(now);
                }
                None
            }
        }
    }
}

/// A socket that listens at a path.
pub trait Listener: AsFd + Sized {
    type Stream;

    fn bind(path: &Path) -> io::Result<Self>;
    /// Neither this nor the connection blocks.
    fn accept(&self) -> io::Result<Self::Stream>;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    fn bind(path: &Path) -> io::Result<Self> {
        let listener = Self::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }
}

impl Listener for PacketListener {
    type Stream = PacketStream;

    fn bind(path: &Path) -> io::Result<Self> {
        Self::bind(path)
    }

    fn accept(&self) -> io::Result<PacketStream> {
        self.accept()
    }
}

/// A listener and its path, which is removed on drop.
pub struct Listening<L = UnixListener> {
    listener: L,
    path: PathBuf,
    pub pause: Pause,
}

impl<L: Listener> Listening<L> {
    /// Listens at `path`. The caller holds the run directory's lock, so an existing socket is
    /// stale.
    pub fn at(path: &Path, mode: u32) -> Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("cannot remove the stale socket {}", path.display()));
            }
            _ => {}
        }
        let listener =
            L::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        Ok(Self { listener, path: path.to_owned(), pause: Pause::default() })
    }

    /// The descriptor to wait for; none during a pause.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.pause.is_on()).then(|| self.listener.as_fd())
    }

    /// Accepts a connection, which does not block either.
    pub fn accept(&mut self, now: Duration) -> Option<L::Stream> {
        let accepted = Listener::accept(&self.listener);
        self.pause.heed(now, accepted)
    }
}

impl<L> Drop for Listening<L> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_pauses_for_want_of_descriptors_and_for_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        std::os::unix::fs::symlink(folder.path().join("nowhere"), &path).unwrap();
        let mut listening: Listening = Listening::at(&path, 0o600).unwrap();
        let at = Duration::from_secs;
        assert!(listening.accept(at(1)).is_none());
        assert!(listening.fd().is_some(), "nobody was there, that is all");
        let _client = UnixStream::connect(&path).unwrap();
        assert!(listening.accept(at(1)).is_some());
        for (code, pauses) in [(libc_code::EMFILE, true), (libc_code::ECONNABORTED, false)] {
            let failed: io::Result<()> = Err(io::Error::from_raw_os_error(code));
            assert!(listening.pause.heed(at(2), failed).is_none());
            assert_eq!(listening.fd().is_none(), pauses);
            assert!(listening.pause.ends_at() == Duration::MAX || pauses);
            assert!(listening.pause.is_over(at(3)));
            assert!(listening.fd().is_some());
        }
        drop(listening);
        assert!(!path.exists());
    }

    /// errno values of Linux.
    mod libc_code {
        pub const EMFILE: i32 = 24;
        pub const ECONNABORTED: i32 = 103;
    }
}
