//! The control socket: accepts and decodes requests, passes them on, and never lets a client block
//! the daemon.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use timevisor_protocols::control::{Request, Response, ServerCodec};

/// Further clients are turned away; a host normally has a handful.
const MAX_CLIENTS: usize = 64;

struct Client {
    stream: UnixStream,
    codec: ServerCodec,
}

/// The socket and its clients. Mode 0600, because a client can change other people's VMs.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<Option<Client>>,
}

impl Control {
    /// Listens at `path`. The caller holds the run directory's lock, so an existing socket is
    /// stale.
    pub fn listen(path: &Path) -> Result<Self> {
        if path.exists() {
            fs::remove_file(path)
                .with_context(|| format!("cannot remove the stale socket {}", path.display()))?;
        }
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.to_owned(), clients: Vec::new() })
    }

    /// The descriptors to wait for: the listener, then the clients by slot.
    pub fn fds(&self) -> impl Iterator<Item = (Option<usize>, BorrowedFd<'_>)> {
        let clients = self.clients.iter().enumerate();
        let clients =
            clients.filter_map(|(slot, c)| c.as_ref().map(|c| (Some(slot), c.stream.as_fd())));
        std::iter::once((None, self.listener.as_fd())).chain(clients)
    }

    /// Accepts a new connection.
    pub fn accept(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        let used = self.clients.iter().flatten().count();
        if used >= MAX_CLIENTS || stream.set_nonblocking(true).is_err() {
            tracing::warn!("a control client was turned away: {used} are connected");
            return;
        }
        let client = Some(Client { stream, codec: ServerCodec::default() });
        match self.clients.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = client,
            None => self.clients.push(client),
        }
    }

    /// The requests that have arrived from client `slot`; malformed ones are answered here.
    pub fn read(&mut self, slot: usize) -> Vec<Request> {
        let Some(client) = self.clients.get_mut(slot).and_then(Option::as_mut) else {
            return Vec::new();
        };
        let mut buffer = [0u8; 8192];
        let count = match client.stream.read(&mut buffer) {
            Ok(0) => {
                self.clients[slot] = None;
                return Vec::new();
            }
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Vec::new(),
            Err(_) => {
                self.clients[slot] = None;
                return Vec::new();
            }
        };
        let mut requests = Vec::new();
        for decoded in client.codec.on_bytes(&buffer[..count]) {
            match decoded {
                Ok(request) => requests.push(request),
                Err(error) => {
                    self.answer(slot, &error.to_response());
                    if self.clients[slot].is_none() {
                        break;
                    }
                }
            }
        }
        requests
    }

    /// Answers client `slot`. A client that does not read its answer is dropped: the daemon never
    /// waits for a client.
    pub fn answer(&mut self, slot: usize, response: &Response) {
        let Some(client) = self.clients.get_mut(slot).and_then(Option::as_mut) else { return };
        let sent = match ServerCodec::encode(response) {
            Ok(bytes) => client.stream.write_all(&bytes).is_ok(),
            Err(error) => {
                tracing::warn!("an answer could not be sent: {error}");
                false
            }
        };
        if !sent {
            self.clients[slot] = None;
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
