//! The control socket: accepts and decodes requests, passes them on, and never lets a client block
//! the daemon.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::Result;
use timevisor_protocols::control::{Request, Response, ServerCodec};
use timevisor_time::Duration;

use crate::announce::Budget;
use crate::listening::Listening;

/// Further clients are turned away; a host normally has a handful.
const MAX_CLIENTS: usize = 64;

struct Client {
    stream: UnixStream,
    codec: ServerCodec,
}

/// The socket and its clients. Mode 0600, because a client can change other people's VMs.
pub struct Control {
    listening: Listening,
    clients: Vec<Option<Client>>,
    told: Budget,
}

impl Control {
    /// Listens at `path`.
    pub fn listen(path: &Path) -> Result<Self> {
        let listening = Listening::at(path, 0o600)?;
        Ok(Self { listening, clients: Vec::new(), told: Budget::default() })
    }

    /// The descriptors to wait for: the listener, then the clients by slot.
    pub fn fds(&self) -> impl Iterator<Item = (Option<usize>, BorrowedFd<'_>)> {
        let clients = self.clients.iter().enumerate();
        let clients =
            clients.filter_map(|(slot, c)| c.as_ref().map(|c| (Some(slot), c.stream.as_fd())));
        self.listening.fd().map(|fd| (None, fd)).into_iter().chain(clients)
    }

    /// When the listener's pause ends.
    pub fn poll_at(&self) -> Duration {
        self.listening.pause.ends_at()
    }

    pub fn on_timer(&mut self, now: Duration) {
        self.listening.pause.is_over(now);
    }

    /// Accepts a new connection, and returns its slot: its request is often there already.
    pub fn accept(&mut self, now: Duration) -> Option<usize> {
        let stream = self.listening.accept(now)?;
        let used = self.clients.iter().flatten().count();
        if used >= MAX_CLIENTS {
            if self.told.take(now) {
                tracing::warn!("a control client was turned away: {used} are connected");
            }
            return None;
        }
        let slot = self.clients.iter().position(Option::is_none).unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        self.clients[slot] = Some(Client { stream, codec: ServerCodec::default() });
        Some(slot)
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
