//! The channel's connections: the host's socket, VMs' ports, vsock. This file moves bytes between
//! them and their state machines, and identifies the peer by the socket alone. What peers send is
//! parsed in a thread without rights (`parser.rs` of the daemon).

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::Result;
use timevisor_linux::clock::monotonic;
use timevisor_linux::vsock::{VsockListener, VsockStream};
use timevisor_linux::{descriptors, peer};
use timevisor_protocols::channel::{
    Arrived, Event, Over, Request, Response, ServerAction, ServerConfig, ServerSession, VSOCK_PORT,
};
use timevisor_time::Duration;
use timevisor_timelines::{Owner, Tenant};

use crate::announce::{Budget, PerUser};
use crate::listening::{Listening, Pause};
use crate::parser::Parser;

/// Maximum number of simultaneous connections from the host.
const MAX_HOST_CONNECTIONS: usize = 2048;
/// Of these, one user may have so many.
const MAX_PER_USER: usize = 512;
/// Of these, so many are for root, whatever all others do.
const KEPT_FOR_ROOT: usize = 128;
/// Descriptors that connections must leave free, for the daemon's own files and for its
/// administrator.
const RESERVED_DESCRIPTORS: usize = 16;
/// Maximum number of vsock connections per VM.
const MAX_PER_VM: usize = 16;
/// Maximum number of bytes read at once, some 30 requests; a peer that sends more has to wait its
/// turn.
const READ_SIZE: usize = 4 << 10;

/// After this time a parser hangs. Less would take a busy machine for that, and end sessions.
const PARSER_PATIENCE: std::time::Duration = std::time::Duration::from_millis(500);

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
}

/// What a connection requests.
pub enum Demand {
    Began { session: u64 },
    Gone { session: u64 },
    Request { session: u64, id: u64, request: Request },
}

/// All connections.
pub struct Connections {
    listening: Listening,
    vsock: Option<VsockListener>,
    vsock_pause: Pause,
    told: Told,
    /// How much each tenant may send over all its connections: more connections are not more.
    allowances: BTreeMap<Tenant, Allowance>,
    open: Vec<Connection>,
    next: u64,
    next_session: u64,
    parser: Parser,
}

impl Connections {
    /// Listens at `path` for the host's programs, and on vsock if available.
    pub fn listen(path: &Path) -> Result<Self> {
        let listening = Listening::at(path, 0o666)?;
        let vsock = match VsockListener::bind(VSOCK_PORT) {
            Ok(vsock) => Some(vsock),
            Err(error) => {
                tracing::debug!("no requests over vsock: {error}");
                None
            }
        };
        // Session numbers start from the current time, so that no later daemon reuses one.
        let next_session = crate::clock::epoch().max(1);
        Ok(Self {
            listening,
            vsock,
            vsock_pause: Pause::default(),
            told: Told::default(),
            allowances: BTreeMap::new(),
            open: Vec::new(),
            next: 1,
            next_session,
            parser: Parser::new("parse-channel", PARSER_PATIENCE),
        })
    }

    pub fn fds(&self) -> impl Iterator<Item = (Token, BorrowedFd<'_>, bool)> {
        let vsock = self.vsock.as_ref().filter(|_| !self.vsock_pause.is_on());
        let host = self.listening.fd().map(|fd| (Token::Listener, fd, false));
        let listeners = host.into_iter().chain(vsock.map(|v| (Token::Vsock, v.as_fd(), false)));
        // We stop reading from a peer that floods us, so that the peer has to wait and not the
        // host.
        let readable = |c: &&Connection| {
            self.allowances.get(&c.tenant).is_none_or(|a| a.paused_until.is_none())
        };
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
        let due = |c: &Connection| c.session.poll_at();
        let paused = self.allowances.values().filter_map(|a| a.paused_until).min();
        let pauses = paused
            .unwrap_or(Duration::MAX)
            .min(self.listening.pause.ends_at())
            .min(self.vsock_pause.ends_at());
        self.open.iter().filter_map(due).min().unwrap_or(Duration::MAX).min(pauses)
    }

    /// Accepts a connection from the host: identifies its user, and checks that there is room.
    pub fn accept(&mut self) -> Option<(UnixStream, Tenant)> {
        let now = monotonic();
        if !descriptors::are_free(RESERVED_DESCRIPTORS) {
            self.listening.pause.begin(now);
            return None;
        }
        let stream = self.listening.accept(now)?;
        let uid = peer::peer_uid(&stream).ok()?;
        let tenant = Tenant::User(uid);
        let all = self.open.iter().filter(|c| c.owner == Owner::Host).count();
        let own = self.open.iter().filter(|c| c.tenant == tenant).count();
        if !has_room(uid, all, own) {
            if self.told.take(&tenant, now) {
                tracing::warn!("refused a client of {tenant}: it has {own} connections of {all}");
            }
            return None;
        }
        Some((stream, tenant))
    }

    /// Accepts a guest's connection over vsock; `vm` finds VMs by their context ids.
    pub fn accept_vsock(
        &mut self,
        vm: impl Fn(u32) -> Option<String>,
    ) -> Option<(VsockStream, String)> {
        let now = monotonic();
        if !descriptors::are_free(RESERVED_DESCRIPTORS) {
            self.vsock_pause.begin(now);
            return None;
        }
        let accepted = self.vsock.as_ref()?.accept();
        let (stream, cid) = self.vsock_pause.heed(now, accepted)?;
        let Some(name) = vm(cid) else {
            if self.told.vms.take(now) {
                tracing::warn!("refused a connection from vsock context {cid}: no VM here has it");
            }
            return None;
        };
        let tenant = Tenant::vm(&name);
        if self.open.iter().filter(|c| c.tenant == tenant).count() >= MAX_PER_VM {
            if self.told.take(&tenant, now) {
                tracing::warn!("refused a connection of {tenant}: it has {MAX_PER_VM} already");
            }
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
        let rate = u64::from(config.limits.requests_per_second);
        self.allowances.entry(tenant.clone()).or_insert_with(|| Allowance::new(rate));
        self.open.push(Connection {
            id,
            tenant,
            owner,
            pid,
            stream,
            session,
            config,
            leased: None,
        });
    }

    /// Whether a line that this peer has caused may still be logged; counts it.
    pub fn may_log(&mut self, tenant: &Tenant) -> bool {
        self.told.take(tenant, monotonic())
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
        let (next_session, told) = (&mut self.next_session, &mut self.told);
        let mut buffer = [0u8; READ_SIZE];
        let mut gone = false;
        let mut demands = Vec::new();
        match connection.stream.read(&mut buffer) {
            Ok(0) => gone = true,
            Ok(count) => {
                if let Some(allowance) = self.allowances.get_mut(&connection.tenant) {
                    allowance.spend(now, count);
                }
                let mut fresh = || {
                    *next_session += 1;
                    std::num::NonZeroU64::MIN.saturating_add(*next_session)
                };
                let session = &mut connection.session;
                let actions = match parse(&self.parser, session, &buffer[..count]) {
                    Some(arrived) => session.on_arrived(now, arrived, &mut fresh),
                    None => vec![ServerAction::Close(Over::Unparsed)],
                };
                for action in actions {
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
                            if told.take(&connection.tenant, now) {
                                tracing::warn!("{}: {over}", connection.tenant);
                            }
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
            connection.note(sent, &mut self.told);
        }
    }

    /// Sends an unsolicited message to a session.
    pub fn tell(&mut self, session: u64, event: &Event) {
        if let Some(connection) =
            self.open.iter_mut().find(|c| c.session.session() == Some(session))
        {
            let sent = connection.session.send_event(session, event);
            connection.note(sent, &mut self.told);
        }
    }

    /// Ends the sessions of expired connections and writes pending output. Returns the sessions
    /// that have ended.
    pub fn on_timer(&mut self, now: Duration) -> Vec<u64> {
        let mut gone = Vec::new();
        self.listening.pause.is_over(now);
        self.vsock_pause.is_over(now);
        self.allowances.values_mut().for_each(|allowance| allowance.resume(now));
        // A tenant that comes back must not find a new allowance.
        let open = &self.open;
        self.allowances
            .retain(|tenant, a| !a.is_full(now) || open.iter().any(|c| c.tenant == *tenant));
        for connection in &mut self.open {
            if let Some(ServerAction::Expired { session }) = connection.session.on_timer(now) {
                if self.told.take(&connection.tenant, now) {
                    tracing::info!(
                        "{}: leases of session {session} have ended: nothing was heard",
                        connection.tenant
                    );
                }
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

/// What a connection's next bytes say. `None` if they, and so the place in the stream, are lost.
fn parse(parser: &Parser, session: &mut ServerSession, bytes: &[u8]) -> Option<Arrived> {
    let (mut reader, bytes) = (session.take_reader(), bytes.to_vec());
    let (arrived, reader) = parser.run(move || (reader.read(&bytes), reader)).ok()?;
    session.put_reader(reader);
    Some(arrived)
}

/// Whether user `uid`, with `own` of `all` connections from the host, may have one more.
fn has_room(uid: u32, all: usize, own: usize) -> bool {
    if uid == 0 {
        return all < MAX_HOST_CONNECTIONS;
    }
    all < MAX_HOST_CONNECTIONS - KEPT_FOR_ROOT && own < MAX_PER_USER
}

/// How many log lines peers may still cause.
struct Told {
    users: PerUser,
    /// For all VMs together.
    vms: Budget,
}

impl Default for Told {
    fn default() -> Self {
        Self { users: PerUser::default(), vms: Budget::hourly(100) }
    }
}

impl Told {
    fn take(&mut self, tenant: &Tenant, now: Duration) -> bool {
        match tenant {
            Tenant::User(uid) => self.users.take(*uid, now),
            Tenant::Vm(_) => self.vms.take(now),
        }
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

    fn note(&self, sent: Result<(), Over>, told: &mut Told) {
        if let Err(over) = sent
            && told.take(&self.tenant, monotonic())
        {
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

/// A limit on how much a tenant may send: bytes per second in the long run, and bytes at once.
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

    /// Whether nothing is owed any more: a new allowance would be the same.
    fn is_full(&mut self, now: Duration) -> bool {
        self.refill(now);
        self.left == Self::BURST
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
    fn users_together_leave_places_for_root() {
        let (mut all, mut users) = (0, Vec::new());
        for uid in 4001..4010 {
            let own = (0..MAX_HOST_CONNECTIONS).take_while(|own| has_room(uid, all + own, *own));
            let own = own.count();
            all += own;
            users.push(own);
        }
        assert_eq!(users[..2], [MAX_PER_USER, MAX_PER_USER], "two leave room for a third");
        assert_eq!(all, MAX_HOST_CONNECTIONS - KEPT_FOR_ROOT);
        let roots = (0..MAX_HOST_CONNECTIONS).take_while(|own| has_room(0, all + own, *own));
        assert_eq!(roots.count(), KEPT_FOR_ROOT);
    }

    #[test]
    fn refused_clients_do_not_fill_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("timelines");
        let mut connections = Connections::listen(&path).unwrap();
        let us = Tenant::User(peer::peer_uid(&UnixStream::pair().unwrap().0).unwrap());
        let mut lines = 0;
        for _ in 0..10_000 {
            lines += u32::from(connections.told.take(&us, monotonic()));
        }
        assert!(lines <= 200, "{lines}");
        let _client = UnixStream::connect(&path).unwrap();
        assert_eq!(connections.accept().map(|(_, tenant)| tenant), Some(us));
    }

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
