//! The socket that applications connect to, and their connections.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use timevisor_linux::peer;
use timevisor_linux::poll::PollFd;
use timevisor_protocols::channel::{Relay, RelayAction};
use timevisor_time::Duration;

const READ_SIZE: usize = 16 << 10;
/// A timevisord's socket for root, beside its socket for programs.
const CONTROL: &str = "control";

/// The connected applications.
pub struct Apps {
    /// None beside a timevisord: programs of this machine ask that one.
    listener: Option<UnixListener>,
    path: PathBuf,
    /// The socket's inode: a timevisord that starts later replaces the file, which is then not ours.
    inode: u64,
    streams: BTreeMap<u64, UnixStream>,
    next: u64,
}

impl Apps {
    /// Listens for all programs in this guest. A socket on which nobody answers is stale.
    ///
    /// On a guest that is itself a host, its timevisord serves the socket, and this agent shares
    /// nothing. Any other program that answers is an agent, and a second one is refused.
    pub fn listen(path: &Path) -> Result<Self> {
        let (path_kept, streams) = (path.to_owned(), BTreeMap::new());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}; run as root", folder.display()))?;
        }
        if path.exists() {
            let answers = |path: &Path| UnixStream::connect(path).is_ok();
            if answers(path) && answers(&path.with_file_name(CONTROL)) {
                tracing::info!(
                    "timevisord serves {}: this agent shares no channel",
                    path.display()
                );
                return Ok(Self { listener: None, path: path_kept, inode: 0, streams, next: 1 });
            }
            anyhow::ensure!(
                !answers(path),
                "another timevisor-guest serves {}; stop that one, or set --socket",
                path.display()
            );
            fs::remove_file(path)
                .with_context(|| format!("cannot remove the stale socket {}", path.display()))?;
        }
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        let inode = fs::metadata(path)?.ino();
        Ok(Self { listener: Some(listener), path: path_kept, inode, streams, next: 1 })
    }

    /// Whether programs can connect to this agent.
    pub fn is_listening(&self) -> bool {
        self.listener.is_some()
    }

    pub fn fds<'a>(&'a self, relay: &'a Relay) -> impl Iterator<Item = PollFd<'a>> {
        let apps = self.streams.iter().map(|(app, stream)| {
            if relay.app_output(*app).is_empty() {
                PollFd::readable(stream.as_fd())
            } else {
                PollFd::readable_or_writable(stream.as_fd())
            }
        });
        self.listener.iter().map(|listener| PollFd::readable(listener.as_fd())).chain(apps)
    }

    /// Accepts waiting connections.
    pub fn accept(&mut self, relay: &mut Relay) {
        let Some(listener) = &self.listener else { return };
        while let Ok((stream, _)) = listener.accept() {
            let app = self.next;
            self.next += 1;
            let Ok(uid) = peer::peer_uid(&stream) else { continue };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            match relay.app_connected(app, &format!("guest uid:{uid}")) {
                Ok(()) => drop(self.streams.insert(app, stream)),
                Err(error) => {
                    tracing::warn!("an application of uid {uid} was turned away: {error}");
                }
            }
        }
    }

    /// Reads what has arrived.
    pub fn serve(&mut self, relay: &mut Relay, now: Duration) -> Vec<RelayAction> {
        let mut actions = Vec::new();
        let mut gone = Vec::new();
        for (app, stream) in &mut self.streams {
            let mut buffer = [0u8; READ_SIZE];
            match stream.read(&mut buffer) {
                Ok(0) => gone.push(*app),
                Ok(count) => actions.extend(relay.app_bytes(now, *app, &buffer[..count])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => gone.push(*app),
            }
        }
        for app in gone {
            self.close(app);
            actions.extend(relay.app_closed(now, app));
        }
        actions
    }

    /// Writes pending output; returns the applications that have disconnected.
    pub fn flush(&mut self, relay: &mut Relay) -> Vec<u64> {
        let mut gone = Vec::new();
        for (app, stream) in &mut self.streams {
            while !relay.app_output(*app).is_empty() {
                match stream.write(relay.app_output(*app)) {
                    Ok(count) if count > 0 => relay.app_sent(*app, count),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    _ => {
                        gone.push(*app);
                        break;
                    }
                }
            }
        }
        gone.iter().for_each(|app| self.close(*app));
        gone
    }

    pub fn close(&mut self, app: u64) {
        self.streams.remove(&app);
    }
}

impl Drop for Apps {
    fn drop(&mut self) {
        let is_ours = fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        if self.listener.is_some() && is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_a_timevisord_nothing_is_shared_and_a_second_agent_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("timelines");
        let agent = Apps::listen(&path).unwrap();
        assert!(agent.is_listening());
        let error = Apps::listen(&path).err().unwrap().to_string();
        assert!(error.contains("another timevisor-guest") && error.contains("--socket"), "{error}");
        // A timevisord that starts now takes the path over; the agent's end leaves it alone.
        fs::remove_file(&path).unwrap();
        let _served = UnixListener::bind(&path).unwrap();
        let _control = UnixListener::bind(folder.path().join(CONTROL)).unwrap();
        drop(agent);
        assert!(UnixStream::connect(&path).is_ok());
        let beside = Apps::listen(&path).unwrap();
        assert!(!beside.is_listening());
        drop(beside);
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("timelines");
        drop(UnixListener::bind(&path).unwrap());
        let agent = Apps::listen(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        drop(agent);
        assert!(!path.exists());
    }
}
