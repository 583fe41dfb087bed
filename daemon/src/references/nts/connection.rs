//! One key establishment: names to addresses, TCP, and the bytes of crates/protocols' `Exchange` in between.
//!
//! Blocking, with one deadline for all of it (but for the resolver, which has its own). The authorities are read anew
//! each time, so that a renewed file needs no restart.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration as StdDuration, Instant};

use anyhow::{Context, Result, bail, ensure};
use timevisor_linux::clock::realtime;
use timevisor_protocols::nts::negotiation::{Answer, DEFAULT_NTP_PORT};
use timevisor_protocols::nts::{Established, Exchange, TrustAnchors};
use timevisor_time::Duration;

/// Of a name's addresses, this many are tried.
const ADDRESSES: usize = 4;

/// Where keys come from.
#[derive(Clone, Debug)]
pub struct Server {
    /// Name or address, as the certificate must have it.
    host: String,
    /// TCP.
    port: u16,
    /// UDP port of the NTP server, unless the key establishment server names one.
    ntp_port: u16,
    /// Instead of the system's authorities.
    ca_file: Option<PathBuf>,
}

/// `host:port`, the port being TCP's.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<IpAddr>() {
            Ok(ip) => write!(f, "{}", SocketAddr::new(ip, self.port)),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Keys and where to use them.
pub struct Keys {
    pub established: Established,
    pub peer: SocketAddr,
}

impl Server {
    /// From a reference's address, whose port, if there is one, is NTP's.
    pub fn new(address: &str, port: u16, ca_file: Option<PathBuf>) -> Self {
        let (host, ntp_port) = split(address);
        Self { host, port, ntp_port: ntp_port.unwrap_or(DEFAULT_NTP_PORT), ca_file }
    }
}

/// Asks `server` for keys.
pub fn establish(server: &Server, timeout: Duration) -> Result<Keys> {
    let timeout = u64::try_from(timeout.ceil_nanos()).unwrap_or(0);
    let deadline = Instant::now() + StdDuration::from_nanos(timeout);
    let trust = authorities(server.ca_file.as_deref())?;
    let mut last = None;
    for address in addresses(&server.host, server.port)?.into_iter().take(ADDRESSES) {
        match ask(server, address, &trust, deadline) {
            Ok(established) => {
                let peer = ntp_peer(server, address.ip(), &established.answer)?;
                return Ok(Keys { established, peer });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("{} has no address", server.host)))
}

fn ask(
    server: &Server,
    address: SocketAddr,
    trust: &TrustAnchors,
    deadline: Instant,
) -> Result<Established> {
    let mut exchange = Exchange::start(&server.host, trust, realtime())?;
    let mut stream =
        TcpStream::connect_timeout(&address, left(deadline, address)?).with_context(|| {
            format!(
                "cannot connect to {address}; check the address and that TCP port {} is open",
                address.port()
            )
        })?;
    let mut buffer = [0; 4096];
    loop {
        stream.set_write_timeout(Some(left(deadline, address)?))?;
        stream
            .write_all(&exchange.output())
            .with_context(|| format!("cannot send to {address}"))?;
        stream.set_read_timeout(Some(left(deadline, address)?))?;
        let len = match stream.read(&mut buffer) {
            Ok(0) => return Err(exchange.on_end().into()),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!("{address} does not answer; check that an NTS server listens there")
            }
            Err(error) => return Err(error).with_context(|| format!("{address} hung up")),
        };
        let result = exchange.on_bytes(&buffer[..len]);
        if !matches!(result, Ok(None)) {
            // Good bye, or why not; what becomes of it does not matter any more.
            let _ = stream.write_all(&exchange.output());
        }
        if let Some(established) = result? {
            return Ok(established);
        }
    }
}

/// The rest of the time; never zero, which would mean for ever.
fn left(deadline: Instant, address: SocketAddr) -> Result<StdDuration> {
    let left = deadline.saturating_duration_since(Instant::now());
    ensure!(!left.is_zero(), "{address} did not finish in time; check the network or use another");
    Ok(left)
}

/// RFC 8915 sections 4.1.7 and 4.1.8: the same host and NTP's port, unless the server says otherwise.
fn ntp_peer(server: &Server, ip: IpAddr, answer: &Answer) -> Result<SocketAddr> {
    let port = answer.ntp_port.unwrap_or(server.ntp_port);
    match &answer.ntp_server {
        None => Ok(SocketAddr::new(ip, port)),
        Some(name) => {
            let first = addresses(name, port)?.into_iter().next();
            first.with_context(|| format!("{name}, where {server} sends us, has no address"))
        }
    }
}

fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let found = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {host}; check the name and DNS"))?;
    Ok(found.collect())
}

/// The operator's authorities, or the system's.
fn authorities(file: Option<&Path>) -> Result<TrustAnchors> {
    let Some(file) = file else {
        return Ok(TrustAnchors::from_der(rustls_native_certs::load_native_certs().certs));
    };
    let pem =
        std::fs::read(file).with_context(|| format!("cannot read ca_file {}", file.display()))?;
    TrustAnchors::from_pem(&pem).with_context(|| format!("ca_file {}", file.display()))
}

/// `host`, `host:port`, an address, `address:port` or `[address]:port`.
fn split(address: &str) -> (String, Option<u16>) {
    if let Ok(socket) = address.parse::<SocketAddr>() {
        return (socket.ip().to_string(), Some(socket.port()));
    }
    let is_ip = address.parse::<IpAddr>().is_ok();
    match address.rsplit_once(':').filter(|_| !is_ip) {
        Some((host, port)) => match port.parse() {
            Ok(port) => (host.to_owned(), Some(port)),
            Err(_) => (address.to_owned(), None),
        },
        None => (address.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_form() {
        for (address, host, port) in [
            ("ntp.example.net", "ntp.example.net", None),
            ("ntp.example.net:11123", "ntp.example.net", Some(11_123)),
            ("192.0.2.1", "192.0.2.1", None),
            ("192.0.2.1:124", "192.0.2.1", Some(124)),
            ("2001:db8::1", "2001:db8::1", None),
            ("[2001:db8::1]:124", "2001:db8::1", Some(124)),
        ] {
            assert_eq!(split(address), (host.to_owned(), port), "{address}");
        }
        assert_eq!(Server::new("::1", 4460, None).to_string(), "[::1]:4460");
        assert_eq!(Server::new("a:124", 4460, None).to_string(), "a:4460");
    }

    #[test]
    fn the_server_may_send_us_elsewhere() {
        let answer = |name: Option<&str>, port| Answer {
            cookies: vec![],
            ntp_server: name.map(str::to_owned),
            ntp_port: port,
        };
        let server = Server::new("192.0.2.1:124", 4460, None);
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

    /// A server that accepts the connection and says nothing must not hold the thread for ever.
    #[test]
    fn a_silent_server_is_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = |server: &Server| {
            let timeout = Duration::from_millis(100);
            format!("{:#}", establish(server, timeout).map(|_| ()).unwrap_err())
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |path: &Path| Server::new("127.0.0.1", port, Some(path.to_owned()));
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

    /// Some authority's certificate, of which only the form counts here.
    const AUTHORITY: &str = include_str!("test_authority.pem");
}
