//! Unix datagram sockets to daemons that reply to the sender's path: chronyd and ptp4l.
//!
//! Both need a named sender. The name is created next to the daemon's socket, where the daemon may
//! write even if its distribution confines it. If we cannot write to that directory, the name is
//! created in one of ours. It is removed on drop.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A connected, non-blocking socket.
#[derive(Debug)]
pub struct UnixClient {
    socket: UnixDatagram,
    own: PathBuf,
}

impl UnixClient {
    /// Connects to the daemon's socket at `peer`; `fallback` is a directory that is ours.
    ///
    /// # Errors
    /// When there is no such socket, nobody listens, or neither directory is writable.
    pub fn connect(peer: &Path, fallback: &Path) -> io::Result<Self> {
        match Self::named(peer, peer.parent().unwrap_or(fallback)) {
            Err(error) if refuses_names(&error) => Self::named(peer, fallback),
            outcome => outcome,
        }
    }

    fn named(peer: &Path, directory: &Path) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("timevisord.{}.{number}.sock", std::process::id());
        let own = directory.join(name);
        // A leftover of a killed process that had our pid.
        match fs::remove_file(&own) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let client = Self { socket: UnixDatagram::bind(&own)?, own };
        // The daemon may run as another user and must be able to answer.
        fs::set_permissions(&client.own, Permissions::from_mode(0o666))?;
        client.socket.connect(peer)?;
        client.socket.set_nonblocking(true)?;
        Ok(client)
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// When the daemon has ended, or does not read.
    pub fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.socket.send(datagram).map(drop)
    }

    /// Receives one datagram, if there is one.
    ///
    /// # Errors
    /// Any failure except that no datagram is available.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.socket.recv(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether the directory is on a read-only mount (a unit with ProtectSystem=strict), or we lack
/// write permission.
fn refuses_names(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

impl AsFd for UnixClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for UnixClient {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_can_answer_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon");
        assert!(UnixClient::connect(&path, dir.path()).is_err());
        let daemon = UnixDatagram::bind(&path).unwrap();
        let client = UnixClient::connect(&path, dir.path()).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(client.recv(&mut buffer).unwrap(), None);
        client.send(b"hello").unwrap();
        let (length, from) = daemon.recv_from(&mut buffer).unwrap();
        daemon.send_to(&buffer[..length], from.as_pathname().unwrap()).unwrap();
        assert_eq!(client.recv(&mut buffer).unwrap(), Some(5));
        drop(client);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn a_read_only_directory_is_made_up_for() {
        let ours = tempfile::tempdir().unwrap();
        // /proc always refuses new files; the requested path does not exist there.
        let refused = UnixClient::named(Path::new("/proc/x"), Path::new("/proc")).unwrap_err();
        assert!(!matches!(refused.kind(), io::ErrorKind::AlreadyExists), "{refused}");
        let path = ours.path().join("daemon");
        let _daemon = UnixDatagram::bind(&path).unwrap();
        let error = |kind| io::Error::from(kind);
        assert!(refuses_names(&error(io::ErrorKind::ReadOnlyFilesystem)));
        assert!(!refuses_names(&error(io::ErrorKind::ConnectionRefused)));
        assert!(UnixClient::named(&path, ours.path()).is_ok());
    }
}
