//! The socket that applications connect to, and their connections.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use timevisor_linux::peer;
use timevisor_linux::poll::PollFd;
use timevisor_protocols::channel::{Relay, RelayAction};
use timevisor_time::Duration;

const READ_SIZE: usize = 16 << 10;

/// The connected applications.
pub struct Apps {
    listener: UnixListener,
    path: PathBuf,
    streams: BTreeMap<u64, UnixStream>,
    next: u64,
}

impl Apps {
    /// Listens for all programs in this guest. A socket on which nobody answers is stale; if
    /// somebody answers, an agent is already running (or this machine is a host).
    pub fn listen(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}; run as root", folder.display()))?;
        }
        if path.exists() {
            anyhow::ensure!(
                UnixStream::connect(path).is_err(),
                "somebody serves {} already; stop that one, or set --socket",
                path.display()
            );
            fs::remove_file(path)
                .with_context(|| format!("cannot remove the stale socket {}", path.display()))?;
        }
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.to_owned(), streams: BTreeMap::new(), next: 1 })
    }

    pub fn fds<'a>(&'a self, relay: &'a Relay) -> impl Iterator<Item = PollFd<'a>> {
        let apps = self.streams.iter().map(|(app, stream)| {
            if relay.app_output(*app).is_empty() {
                PollFd::readable(stream.as_fd())
            } else {
                PollFd::readable_or_writable(stream.as_fd())
            }
        });
        std::iter::once(PollFd::readable(self.listener.as_fd())).chain(apps)
    }

    /// Accepts waiting connections.
    pub fn accept(&mut self, relay: &mut Relay) {
        while let Ok((stream, _)) = self.listener.accept() {
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
        let _ = fs::remove_file(&self.path);
    }
}
