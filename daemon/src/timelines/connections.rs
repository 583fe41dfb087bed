//! The channel's connections: the host's socket, VMs' ports, vsock. This file moves bytes between
//! them and their state machines, and identifies the peer by the socket alone.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use timevisor_linux::peer;
use timevisor_linux::vsock::{VsockListener, VsockStream};
use timevisor_protocols::channel::{
    Event, Over, Request, Response, ServerAction, ServerConfig, ServerSession, VSOCK_PORT,
};
use timevisor_time::Duration;
use timevisor_timelines::{Owner, Tenant};

/// Maximum number of simultaneous connections from the host; each user may have half of them.
const MAX_HOST_CONNECTIONS: usize = 2048;
/// Maximum number of vsock connections per VM.
const MAX_PER_VM: usize = 16;
/// Maximum number of bytes read at once; a peer that sends more has to wait its turn.
const READ_SIZE: usize = 16 << 10;

/// Identifies a connection; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ConnectionId(u64);

/// The owner of a descriptor that became ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Token {
    Listener,
    Vsock,
    Connection(ConnectionId),
}

enum Stream {
    Unix(UnixStream),
    Vsock(VsockStream),
}

/// One connection.
pub struct Connection {
    pub id: ConnectionId,
    pub tenant: Tenant,
    pub owner: Owner,
    /// QEMU's process id, if this is a VM's port.
    pub pid: Option<u32>,
    stream: Stream,
    session: ServerSession,
    /// The limits for the next session, if the stream cannot be closed.
    config: ServerConfig,
    /// The owner of the leases that end with this connection.
    leased: Option<u64>,
    allowance: Allowance,
}

/// What a connection requests.
pub enum Demand {
    Began { session: u64 },
    Gone { session: u64 },
    Request { session: u64, id: u64, request: Request },
}

/// All connections.
pub struct Connections {
    listener: UnixListener,
    path: PathBuf,
    vsock: Option<VsockListener>,
    open: Vec<Connection>,
    next: u64,
    next_session: u64,
}

impl Connections {
    /// Listens at `path` for the host's programs, and on vsock if available. The caller holds the
    /// run directory's lock, so an existing socket is stale.
    pub fn listen(path: &Path) -> Result<Self> {
        if path.exists() {
            fs::remove_file(path)
                .with_context(|| format!("cannot remove the stale socket {}", path.display()))?;
        }
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        let vsock = match VsockListener::bind(VSOCK_PORT) {
            Ok(vsock) => Some(vsock),
            Err(error) => {
                tracing::debug!("no requests over vsock: {error}");
                None
            }
        };
        // Session numbers start from the current time, so that no later daemon reuses one.
        let next_session = crate::clock::epoch().max(1);
        let path = path.to_owned();
        Ok(Self { listener, path, vsock, open: Vec::new(), next: 1, next_session })
    }

    pub fn fds(&self) -> impl Iterator<Item = (Token, BorrowedFd<'_>, bool)> {
        let listeners = std::iter::once((Token::Listener, self.listener.as_fd(), false))
            .chain(self.vsock.as_ref().map(|v| (Token::Vsock, v.as_fd(), false)));
        // We stop reading from a peer that floods us, so that the peer has to wait and not the
        // host.
        let readable = |c: &&Connection| c.allowance.paused_until.is_none();
        let open = self.open.iter().filter(readable).map(|c| {
            let fd = match &c.stream {
                Stream::Unix(stream) => stream.as_fd(),
                Stream::Vsock(stream) => stream.as_fd(),
            };
            (Token::Connection(c.id), fd, !c.session.output().is_empty())
        });
        listeners.chain(open)
    }

    pub fn poll_at(&self) -> Duration {
        let due =
            |c: &Connection| c.session.poll_at().into_iter().chain(c.allowance.paused_until).min();
        self.open.iter().filter_map(due).min().unwrap_or(Duration::MAX)
    }

    /// Accepts a connection from the host: identifies its user, and checks that there is room.
    pub fn accept(&mut self) -> Option<(UnixStream, Tenant)> {
        let (stream, _) = self.listener.accept().ok()?;
        let uid = peer::peer_uid(&stream).ok()?;
        stream.set_nonblocking(true).ok()?;
        let tenant = Tenant::User(uid);
        let of_host = |c: &&Connection| c.owner == Owner::Host;
        let all = self.open.iter().filter(of_host).count();
        let own = self.open.iter().filter(|c| c.tenant == tenant).count();
        if all >= MAX_HOST_CONNECTIONS || own >= MAX_HOST_CONNECTIONS / 2 {
            tracing::warn!("refused a client of {tenant}: {all} are connected");
            return None;
        }
        Some((stream, tenant))
    }

    /// Accepts a guest's connection over vsock; `vm` finds VMs by their context ids.
    pub fn accept_vsock(
        &mut self,
        vm: impl Fn(u32) -> Option<String>,
    ) -> Option<(VsockStream, String)> {
        let (stream, cid) = self.vsock.as_ref()?.accept().ok()?;
        let Some(name) = vm(cid) else {
            tracing::warn!("refused a connection from vsock context {cid}: no VM here has it");
            return None;
        };
        let tenant = Tenant::vm(&name);
        if self.open.iter().filter(|c| c.tenant == tenant).count() >= MAX_PER_VM {
            tracing::warn!("refused a connection of {tenant}: it has {MAX_PER_VM} already");
            return None;
        }
        Some((stream, name))
    }

    pub fn add_host(&mut self, stream: UnixStream, tenant: Tenant, config: ServerConfig) {
        self.add(Stream::Unix(stream), tenant, Owner::Host, None, config);
    }

    pub fn add_vsock(&mut self, stream: VsockStream, name: &str, config: ServerConfig) {
        self.add(Stream::Vsock(stream), Tenant::vm(name), Owner::vm(name), None, config);
    }

    /// Connects to a VM's port, whose other end is its QEMU.
    pub fn add_port(&mut self, stream: UnixStream, name: &str, pid: u32, config: ServerConfig) {
        self.add(Stream::Unix(stream), Tenant::vm(name), Owner::vm(name), Some(pid), config);
    }

    fn add(
        &mut self,
        stream: Stream,
        tenant: Tenant,
        owner: Owner,
        pid: Option<u32>,
        config: ServerConfig,
    ) {
        let id = ConnectionId(self.next);
        self.next += 1;
        let session = ServerSession::new(config.clone());
        let allowance = Allowance::new(u64::from(config.limits.requests_per_second));
        self.open.push(Connection {
            id,
            tenant,
            owner,
            pid,
            stream,
            session,
            config,
            leased: None,
            allowance,
        });
    }

    pub fn has_port_of(&self, pid: u32) -> bool {
        self.open.iter().any(|c| c.pid == Some(pid))
    }

    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.open.iter().find(|c| c.id == id)
    }

    /// Reads what has arrived and writes pending output. Returns the peer's requests, and whether
    /// the peer is still connected.
    pub fn serve(&mut self, id: ConnectionId, now: Duration) -> Vec<Demand> {
        let Some(index) = self.open.iter().position(|c| c.id == id) else { return Vec::new() };
        let connection = &mut self.open[index];
        let next_session = &mut self.next_session;
        let mut buffer = [0u8; READ_SIZE];
        let mut gone = false;
        let mut demands = Vec::new();
        match connection.stream.read(&mut buffer) {
            Ok(0) => gone = true,
            Ok(count) => {
                connection.allowance.spend(now, count);
                let mut fresh = || {
                    *next_session += 1;
                    std::num::NonZeroU64::MIN.saturating_add(*next_session)
                };
                for action in connection.session.on_bytes(now, &buffer[..count], &mut fresh) {
                    match action {
                        ServerAction::Began { session, client } => {
                            tracing::debug!("{}: session {session} of {client}", connection.tenant);
                            connection.leased = Some(session);
                            demands.push(Demand::Began { session });
                        }
                        ServerAction::Ended { session } | ServerAction::Expired { session } => {
                            connection.leased = None;
                            demands.push(Demand::Gone { session });
                        }
                        ServerAction::Request { session, id, request } => {
                            demands.push(Demand::Request { session, id, request });
                        }
                        ServerAction::Close(over) => {
                            tracing::warn!("{}: {over}", connection.tenant);
                            gone = connection.pid.is_none();
                            demands
                                .extend(connection.renew().map(|session| Demand::Gone { session }));
                        }
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => gone = true,
        }
        if gone {
            demands.extend(self.close(id).map(|session| Demand::Gone { session }));
        }
        demands
    }

    /// Closes a connection and returns its session.
    pub fn close(&mut self, id: ConnectionId) -> Option<u64> {
        let index = self.open.iter().position(|c| c.id == id)?;
        self.open.swap_remove(index).leased
    }

    /// Closes the connections for which `gone` holds and returns their sessions.
    pub fn close_all(&mut self, gone: impl Fn(&Connection) -> bool) -> Vec<u64> {
        let ids: Vec<_> = self.open.iter().filter(|c| gone(c)).map(|c| c.id).collect();
        ids.into_iter().filter_map(|id| self.close(id)).collect()
    }

    /// Answers a request.
    pub fn respond(&mut self, id: ConnectionId, session: u64, request: u64, response: &Response) {
        if let Some(connection) = self.open.iter_mut().find(|c| c.id == id) {
            let sent = connection.session.respond(session, request, response);
            connection.note(sent);
        }
    }

    /// Sends an unsolicited message to a session.
    pub fn tell(&mut self, session: u64, event: &Event) {
        if let Some(connection) =
            self.open.iter_mut().find(|c| c.session.session() == Some(session))
        {
            let sent = connection.session.send_event(session, event);
            connection.note(sent);
        }
    }

    /// Ends the sessions of expired connections and writes pending output. Returns the sessions
    /// that have ended.
    pub fn on_timer(&mut self, now: Duration) -> Vec<u64> {
        let mut gone = Vec::new();
        for connection in &mut self.open {
            connection.allowance.resume(now);
            if let Some(ServerAction::Expired { session }) = connection.session.on_timer(now) {
                tracing::info!(
                    "{}: leases of session {session} have ended: nothing was heard",
                    connection.tenant
                );
                connection.leased = None;
                gone.push(session);
            }
        }
        gone
    }

    /// Writes pending output. Closes connections that fail and returns their sessions.
    pub fn flush(&mut self) -> Vec<u64> {
        let (mut dead, mut ended) = (Vec::new(), Vec::new());
        for connection in &mut self.open {
            let over = connection.session.over().is_some();
            if over && connection.pid.is_some() {
                ended.extend(connection.renew());
            } else if over || !connection.flush() {
                dead.push(connection.id);
            }
        }
        ended.extend(dead.into_iter().filter_map(|id| self.close(id)));
        ended
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Connection {
    /// Restarts the session of a VM's port and returns the old session if it had leases. The port
    /// itself stays connected: when the port closes, QEMU (10.0, hw/char/virtio-serial-bus.c) loses
    /// a guest buffer that it holds, and the guest's port then hangs permanently.
    fn renew(&mut self) -> Option<u64> {
        self.session = ServerSession::new(self.config.clone());
        self.leased.take()
    }

    fn note(&self, sent: Result<(), Over>) {
        if let Err(over) = sent {
            tracing::warn!("{}: {over}", self.tenant);
        }
    }

    /// Returns false if the peer is gone.
    fn flush(&mut self) -> bool {
        while !self.session.output().is_empty() {
            match self.stream.write(self.session.output()) {
                Ok(0) => return false,
                Ok(count) => self.session.sent(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

/// A limit on how much a peer may send: bytes per second in the long run, and bytes at once.
struct Allowance {
    per_second: u64,
    left: i64,
    at: Duration,
    paused_until: Option<Duration>,
}

impl Allowance {
    /// A request is a few hundred bytes long.
    const BYTES_PER_REQUEST: u64 = 1024;
    /// A starting program binds everything it needs at once.
    const BURST: i64 = 256 << 10;

    fn new(requests_per_second: u64) -> Self {
        let per_second = requests_per_second.max(1) * Self::BYTES_PER_REQUEST;
        Self { per_second, left: Self::BURST, at: Duration::ZERO, paused_until: None }
    }

    fn refill(&mut self, now: Duration) {
        let elapsed = (now - self.at).max(Duration::ZERO).floor_nanos().unsigned_abs();
        let earned = u128::from(elapsed) * u128::from(self.per_second) / 1_000_000_000;
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        self.left = self.left.saturating_add(earned).min(Self::BURST);
        self.at = now;
    }

    /// Accounts for bytes that were read.
    fn spend(&mut self, now: Duration, bytes: usize) {
        self.refill(now);
        self.left = self.left.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        if self.left < 0 {
            let owed = u128::from(self.left.unsigned_abs()) * 1_000_000_000;
            let nanos = owed / u128::from(self.per_second) + 1;
            let wait = Duration::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX));
            self.paused_until = Some(now + wait);
        }
    }

    fn resume(&mut self, now: Duration) {
        if self.paused_until.is_some_and(|at| now >= at) {
            self.paused_until = None;
        }
    }
}

impl Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Vsock(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Vsock(stream) => stream.write(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_too_much_waits_as_long_as_it_owes() {
        let at = Duration::from_millis;
        let mut allowance = Allowance::new(100);
        allowance.spend(at(1000), 256 << 10);
        assert_eq!(allowance.paused_until, None, "a burst is fine");
        allowance.spend(at(1000), 102_400);
        let until = allowance.paused_until.unwrap();
        assert!(until > at(1999) && until < at(2001), "a second's worth: {until}");
        allowance.resume(at(1500));
        assert!(allowance.paused_until.is_some());
        allowance.resume(at(2001));
        assert_eq!(allowance.paused_until, None);
        // In the long run, only the rate matters.
        let (mut read, mut now) = (0u64, at(10_000));
        while now < at(20_000) {
            if allowance.paused_until.is_none() {
                allowance.spend(now, READ_SIZE);
                read += READ_SIZE as u64;
            }
            now += at(1);
            allowance.resume(now);
        }
        assert!(read < (256 << 10) + 1_100_000 && read > 1_000_000, "{read} bytes in 10 s");
    }
}
