//! NTS of the NTP server: clients establish keys here (NTS-KE, RFC 8915 section 4), and the NTP
//! thread answers with them.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the thread that talks with clients, within limits |
//! | `connection.rs` | one client |
//! | `files.rs` | another thread, which never hears a client: looks after the files of certificate and keys |
//! | `certificate.rs` | the certificate's files, read again when they change |
//! | `keys.rs` | the keys of cookies: kept over a restart, replaced once a day, shared |
//!
//! The thread owns its sockets, which never block, and has nothing else: no capabilities, no files
//! (crates/linux, `confine`). It does TLS with the certificate's key in memory. The NTP thread does not
//! wait for it: it takes new keys when there are some, and needs nothing else. A TLS handshake costs a
//! millisecond with an RSA key and a tenth of it with ECDSA.
//!
//! Limitations: the number of connections is limited, not their rate; many handshakes take the
//! processor from other threads as any load does.

mod certificate;
mod connection;
mod files;
mod keys;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration as StdDuration, Instant};

use anyhow::{Context, Result};
use timevisor_linux::clock::monotonic;
use timevisor_linux::confine::{Permitted, confine_thread};
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::tcp_listener;
use timevisor_protocols::control::NtsSummary;
use timevisor_protocols::ntp::server::AccessList;
use timevisor_protocols::nts::negotiation::DEFAULT_NTP_PORT;
use timevisor_protocols::nts::server::{
    CookieKeys, Exchange, Identity, Protector, SessionKeys, answer,
};

use self::certificate::Certificate;
use self::connection::Connection;
use self::files::Files;
use self::keys::{CookieMaker, KeyStore, SharedKeys};
use crate::config::ServerConfig;

/// Connections at a time; about 50 kB each.
const MAX_CONNECTIONS: usize = 128;
/// Connections at a time from one address, behind which there may be several clients.
const MAX_FROM_ADDRESS: usize = 16;
/// Interval between looks at the certificate's files and the age of the keys. After a failure to accept
/// a client, the next attempt waits as long.
const LOOK: StdDuration = StdDuration::from_secs(1);

/// What became of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
enum Outcome {
    /// The client has keys and cookies.
    Established,
    /// The client broke a rule, or has nothing in common with us.
    Refused,
    /// TLS failed, or the connection broke.
    Failed,
    /// The deadline passed.
    Late,
    /// Too many connections at a time from its address.
    Limited,
    /// From an address that is not served.
    Denied,
}

impl Outcome {
    const NAMES: [&'static str; 6] =
        ["established", "refused", "failed", "late", "limited", "denied"];
}

/// What the threads tell the daemon.
#[derive(Default)]
struct Shown {
    sessions: [AtomicU64; Outcome::NAMES.len()],
    problem: Mutex<Option<String>>,
}

impl Shown {
    fn count(&self, outcome: Outcome) {
        self.sessions[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The running key establishment; it ends when this is dropped.
pub(super) struct Nts {
    listen: Vec<String>,
    shown: Arc<Shown>,
    keys: Arc<SharedKeys>,
    /// Each thread ends when its one is dropped.
    _alive: [SyncSender<()>; 2],
}

/// The NTP thread's view of the keys.
pub(super) struct Keys {
    shared: Arc<SharedKeys>,
    seen: u64,
}

impl Keys {
    /// Returns the keys if they have changed since the last call. Never waits.
    pub(super) fn changed(&mut self) -> Option<CookieKeys> {
        self.shared.newer_than(&mut self.seen)
    }
}

/// The NTP thread's part before it has keys.
pub(super) fn without_keys() -> Protector {
    Protector::without_keys(Box::new(|bytes| getrandom::fill(bytes).is_ok()))
}

impl Nts {
    /// Starts the threads; returns `None` when no certificate is configured. Keys are kept in
    /// `directory`.
    ///
    /// # Errors
    /// When an address cannot be bound, or the certificate cannot be used.
    pub(super) fn start(config: &ServerConfig, directory: &Path) -> Result<Option<Self>> {
        let (Some(certificate), Some(key)) = (&config.nts_certificate, &config.nts_key) else {
            return Ok(None);
        };
        let certificate = Certificate::read(certificate, key)?;
        let addresses = config.key_addresses();
        let listeners = addresses.iter().map(|address| tcp_listener::listen(*address));
        let listeners = listeners.collect::<Result<Vec<_>, _>>().context("[server] with NTS")?;
        let store = KeyStore::open(directory, monotonic())?;
        let keys = store.shared();
        let shown = Arc::new(Shown::default());
        let identity = Arc::new(Mutex::new(certificate.identity().clone()));
        let protocol = config.protocol()?;
        let thread = Thread {
            listeners,
            access: AccessList::new(&protocol.allow, &protocol.deny),
            config: config.clone(),
            identity: Arc::clone(&identity),
            cookies: CookieMaker::new(Arc::clone(&keys))?,
            connections: Vec::new(),
            accept_at: Instant::now(),
            shown: Arc::clone(&shown),
        };
        let (alive, ended) = sync_channel(0);
        std::thread::Builder::new()
            .name("nts-ke-server".to_owned())
            .spawn(move || match confine_thread(Permitted::ItsListeners) {
                Ok(()) => thread.run(&ended),
                Err(error) => {
                    let error = anyhow::Error::new(error);
                    tracing::error!("NTS clients get no keys: {error:#}");
                }
            })
            .context("cannot start the thread for NTS key establishment")?;
        let files = Files { certificate, store, identity, shown: Arc::clone(&shown) };
        let (files_alive, files_ended) = sync_channel(0);
        std::thread::Builder::new()
            .name("nts-files".to_owned())
            .spawn(move || files.run(&files_ended))
            .context("cannot start the thread for NTS's files")?;
        let listen: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        tracing::info!("NTS clients get keys at TCP {}", listen.join(", "));
        Ok(Some(Self { listen, shown, keys, _alive: [alive, files_alive] }))
    }

    /// The NTP thread's part, and its view of the keys.
    pub(super) fn protector(&self) -> Result<(Protector, Keys)> {
        let mut keys = Keys { shared: Arc::clone(&self.keys), seen: 0 };
        let first = keys.changed().context("the keys of NTS cookies are not there")?;
        let mut protector = without_keys();
        protector.set_keys(&first);
        Ok((protector, keys))
    }

    /// Returns the state for `timevisor status`.
    pub(super) fn report(&self) -> NtsSummary {
        let counts = self.shown.sessions.iter().map(|count| count.load(Ordering::Relaxed));
        let names = Outcome::NAMES.iter().map(|name| (*name).to_owned());
        NtsSummary {
            listen: self.listen.clone(),
            sessions: names.zip(counts).collect(),
            problem: self.shown.problem.lock().ok().and_then(|problem| problem.clone()),
        }
    }
}

struct Thread {
    listeners: Vec<TcpListener>,
    access: AccessList,
    config: ServerConfig,
    /// The certificate in use, and its key.
    identity: Arc<Mutex<Identity>>,
    cookies: CookieMaker,
    connections: Vec<Connection>,
    /// Not before this, because the last attempt failed.
    accept_at: Instant,
    shown: Arc<Shown>,
}

impl Thread {
    /// Serves until the daemon ends.
    fn run(mut self, ended: &Receiver<()>) {
        while ended.try_recv() != Err(TryRecvError::Disconnected) {
            if let Err(error) = self.turn(Instant::now() + LOOK) {
                tracing::error!("NTS key establishment cannot wait for clients and ends: {error}");
                return;
            }
        }
    }

    /// Waits for clients, and serves those that are ready. Returns at `end`, or earlier.
    fn turn(&mut self, end: Instant) -> std::io::Result<()> {
        let now = Instant::now();
        // When there is no room, clients wait in the kernel.
        let accepts = self.connections.len() < MAX_CONNECTIONS && now >= self.accept_at;
        let listeners = if accepts { &self.listeners[..] } else { &[] };
        let mut fds: Vec<_> =
            listeners.iter().map(|listener| PollFd::readable(listener.as_fd())).collect();
        fds.extend(self.connections.iter().map(Connection::poll_fd));
        let deadlines = self.connections.iter().map(Connection::deadline);
        let until = deadlines.chain([end]).min().unwrap_or(end);
        wait(&mut fds, Some(until.saturating_duration_since(now)))?;
        let ready: Vec<_> = fds.iter().map(PollFd::ready).collect();
        let (arrivals, ready) = ready.split_at(listeners.len());
        let arrivals: Vec<_> = arrivals.iter().map(|ready| ready.readable).collect();
        let ready: Vec<_> = ready
            .iter()
            .map(|ready| ready.readable || ready.writable || ready.error || ready.hangup)
            .collect();
        self.serve(&ready);
        for (index, _) in arrivals.iter().enumerate().filter(|(_, arrived)| **arrived) {
            self.accept(index);
        }
        Ok(())
    }

    /// Serves connections in order of `ready`, and drops those that have ended.
    fn serve(&mut self, ready: &[bool]) {
        let Self { connections, cookies, config, shown, .. } = self;
        let now = Instant::now();
        let mut ready = ready.iter();
        connections.retain_mut(|connection| {
            let is_ready = ready.next().copied().unwrap_or(false);
            if is_ready {
                let grant = |session: &SessionKeys, local| grant(config, cookies, session, local);
                let (open, outcome) = connection.turn(now, grant);
                if let Some(outcome) = outcome {
                    shown.count(outcome);
                }
                if !open {
                    return false;
                }
            }
            if now >= connection.deadline() {
                if let Some(outcome) = connection.expire() {
                    shown.count(outcome);
                }
                return false;
            }
            true
        });
    }

    fn accept(&mut self, index: usize) {
        while self.connections.len() < MAX_CONNECTIONS {
            match self.listeners[index].accept() {
                Ok((stream, from)) => {
                    let outcome = self.admit(stream, from);
                    if let Some(outcome) = outcome {
                        self.shown.count(outcome);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Such as too many open files, which would otherwise come back at once.
                    tracing::debug!("NTS key establishment cannot accept a client: {error}");
                    self.accept_at = Instant::now() + LOOK;
                    return;
                }
            }
        }
    }

    /// Takes a client in, or says why not.
    fn admit(&mut self, stream: std::net::TcpStream, from: SocketAddr) -> Option<Outcome> {
        let from = from.ip().to_canonical();
        if !self.access.admits(from) {
            return Some(Outcome::Denied);
        }
        if self.connections.iter().filter(|c| c.from() == from).count() >= MAX_FROM_ADDRESS {
            return Some(Outcome::Limited);
        }
        let Ok(identity) = self.identity.lock().map(|identity| identity.clone()) else {
            return Some(Outcome::Failed);
        };
        let exchange = match Exchange::start(&identity) {
            Ok(exchange) if stream.set_nonblocking(true).is_ok() => exchange,
            _ => return Some(Outcome::Failed),
        };
        self.connections.push(Connection::new(stream, from, exchange, Instant::now()));
        None
    }
}

/// The answer to a client that gets keys.
fn grant(
    config: &ServerConfig,
    cookies: &mut CookieMaker,
    session: &SessionKeys,
    local: Option<IpAddr>,
) -> Option<Vec<u8>> {
    let cookies = cookies.make(session).inspect_err(|error| {
        tracing::debug!("NTS key establishment makes no cookies: {error:#}");
    });
    let port = local.map_or(DEFAULT_NTP_PORT, |local| config.ntp_port(local));
    let port = (port != DEFAULT_NTP_PORT).then_some(port);
    Some(answer(&cookies.ok()?, config.nts_ntp_server.as_deref(), port))
}

#[cfg(test)]
mod tests;
