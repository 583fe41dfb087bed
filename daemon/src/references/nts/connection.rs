//! One key establishment: name resolution, TCP, and the bytes of crates/protocols' `Exchange` in
//! between.
//!
//! | thread | has | touches |
//! | --- | --- | --- |
//! | `nts-ke` | the daemon's rights | the trusted certificates on disk, and new connections |
//! | `resolver` | what getaddrinfo(3) needs | what name servers say |
//! | `nts-ke-tls` | one connected socket | what the server says: TLS, its certificate, its answer |
//!
//! Blocking, with one deadline for everything except the resolver, which has its own. The trusted
//! certificates are read each time, so that a renewed file needs no restart.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration as StdDuration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use timevisor_linux::confine::{Permitted, confine_thread};
use timevisor_linux::poll::{PollFd, wait};
use timevisor_protocols::nts::negotiation::Answer;
use timevisor_protocols::nts::{CertificateTime, Established, Exchange, TrustAnchors};
use timevisor_time::Duration;

use super::super::resolver::look_up_host;
use crate::config::NtsServer;
use crate::panics;

/// Maximum number of a name's addresses that are tried.
const ADDRESSES: usize = 4;

/// Keys, and the server at which to use them.
pub struct Keys {
    pub established: Established,
    pub peer: SocketAddr,
    /// The certificate of the key establishment server, DER.
    pub certificate: Vec<u8>,
}

/// Requests keys from `server`, whose certificate must be valid at `time`.
pub fn establish(server: &NtsServer, timeout: Duration, time: CertificateTime) -> Result<Keys> {
    let timeout = u64::try_from(timeout.ceil_nanos()).unwrap_or(0);
    let deadline = Instant::now() + StdDuration::from_nanos(timeout);
    let trust = authorities(server.ca_file.as_deref())?;
    let mut last = None;
    for address in look_up_host(&server.host, server.port)?.into_iter().take(ADDRESSES) {
        match ask(server, address, &trust, time, deadline) {
            Ok((established, certificate)) => {
                let peer = ntp_peer(server, address.ip(), &established.answer)?;
                return Ok(Keys { established, peer, certificate });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("{} has no address", server.host)))
}

/// Connects, and leaves the rest to a thread that has nothing but the connection.
fn ask(
    server: &NtsServer,
    address: SocketAddr,
    trust: &TrustAnchors,
    time: CertificateTime,
    deadline: Instant,
) -> Result<(Established, Vec<u8>)> {
    let stream =
        TcpStream::connect_timeout(&address, left(deadline, address)?).with_context(|| {
            format!(
                "cannot connect to {address}; check the address and that TCP port {} is open",
                address.port()
            )
        })?;
    stream.set_nonblocking(true)?;
    let talk = move || {
        panics::contain();
        confine_thread(Permitted::ItsSockets).context("the server is not asked for keys")?;
        let exchange = Exchange::start(&server.host, trust, time)?;
        Connection { stream, address, deadline }.run(exchange)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("nts-ke-tls".to_owned());
        let running = thread.spawn_scoped(scope, talk);
        let running = running.context("cannot start the key establishment's thread")?;
        running.join().unwrap_or_else(|_| Err(anyhow!("the answer of {address} ended its thread")))
    })
}

/// A connection that does not block, because a thread without rights cannot change its time limits.
struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    deadline: Instant,
}

impl Connection {
    /// Exchanges messages until there are keys. Returns them with the server's certificate.
    fn run(mut self, mut exchange: Exchange) -> Result<(Established, Vec<u8>)> {
        let mut buffer = [0; 4096];
        loop {
            self.send(&exchange.output())?;
            let len = self.receive(&mut buffer)?;
            if len == 0 {
                return Err(exchange.on_end().into());
            }
            let result = exchange.on_bytes(&buffer[..len]);
            if !matches!(result, Ok(None)) {
                // A farewell, or the reason for giving up; whether it arrives no longer matters.
                let _ = self.stream.write(&exchange.output());
            }
            if let Some(established) = result? {
                let certificate = exchange.certificate().unwrap_or_default().to_vec();
                return Ok((established, certificate));
            }
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if is_temporary(&error) => {
                    self.wait(PollFd::writable(self.stream.as_fd()))?;
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot send to {}", self.address));
                }
            }
        }
        Ok(())
    }

    /// Returns 0 at the end.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Ok(len) => return Ok(len),
                Err(error) if is_temporary(&error) => {
                    self.wait(PollFd::readable(self.stream.as_fd()))?;
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("{} hung up", self.address));
                }
            }
        }
    }

    fn wait(&self, fd: PollFd<'_>) -> Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        ensure!(
            !left.is_zero(),
            "{} does not answer in time; check that an NTS server listens there",
            self.address
        );
        wait(&mut [fd], Some(left))?;
        Ok(())
    }
}

fn is_temporary(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The remaining time; never zero, which would mean no timeout.
fn left(deadline: Instant, address: SocketAddr) -> Result<StdDuration> {
    let left = deadline.saturating_duration_since(Instant::now());
    ensure!(!left.is_zero(), "{address} did not finish in time; check the network or use another");
    Ok(left)
}

/// RFC 8915 sections 4.1.7 and 4.1.8: the same host and the NTP port, unless the server says
/// otherwise.
fn ntp_peer(server: &NtsServer, ip: IpAddr, answer: &Answer) -> Result<SocketAddr> {
    let port = answer.ntp_port.unwrap_or(server.ntp_port);
    match &answer.ntp_server {
        None => Ok(SocketAddr::new(ip, port)),
        Some(name) => {
            let first = look_up_host(name, port)?.into_iter().next();
            first.with_context(|| format!("{name}, where {server} sends us, has no address"))
        }
    }
}

/// The certificate authorities that the operator names, or else the system's.
fn authorities(file: Option<&Path>) -> Result<TrustAnchors> {
    let Some(file) = file else {
        return Ok(TrustAnchors::from_der(rustls_native_certs::load_native_certs().certs));
    };
    let pem =
        std::fs::read(file).with_context(|| format!("cannot read ca_file {}", file.display()))?;
    TrustAnchors::from_pem(&pem).with_context(|| format!("ca_file {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_may_send_us_elsewhere() {
        let answer = |name: Option<&str>, port| Answer {
            cookies: vec![],
            ntp_server: name.map(str::to_owned),
            ntp_port: port,
        };
        let server = NtsServer::new("192.0.2.1:124", 4460, None);
        let ip = IpAddr::from([192, 0, 2, 1]);
        for (name, port, peer) in [
            (None, None, "192.0.2.1:124"),
            (None, Some(125), "192.0.2.1:125"),
            (Some("192.0.2.9"), None, "192.0.2.9:124"),
            (Some("192.0.2.9"), Some(125), "192.0.2.9:125"),
        ] {
            let found = ntp_peer(&server, ip, &answer(name, port)).unwrap();
            assert_eq!(found.to_string(), peer);
        }
    }

    /// A server that accepts the connection and stays silent must not block the thread forever.
    #[test]
    fn a_silent_server_is_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = |server: &NtsServer| {
            let timeout = Duration::from_millis(100);
            let time = CertificateTime::of_machine(timevisor_linux::clock::realtime());
            format!("{:#}", establish(server, timeout, time).map(|_| ()).unwrap_err())
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |path: &Path| NtsServer::new("127.0.0.1", port, Some(path.to_owned()));
        assert!(
            text(&with(Path::new("/nowhere.pem"))).contains("cannot read ca_file /nowhere.pem")
        );
        assert!(text(&with(file.path())).contains("holds no certificate"));
        std::fs::write(file.path(), AUTHORITY).unwrap();
        let said = text(&with(file.path()));
        assert!(said.contains("does not answer") || said.contains("in time"), "{said}");
        drop(listener);
        assert!(text(&with(file.path())).contains("check the address"), "connection refused");
    }

    /// The certificate of some authority; only its format matters here.
    const AUTHORITY: &str = include_str!("test_authority.pem");
}
