//! [`Link`]: the bytes to and from a bus, over a Unix socket or TLS.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use timevisor_linux::peer;
use timevisor_linux::poll::{self, PollFd};
use timevisor_protocols::nts::trust::TrustAnchors;

use super::address::BusAddress;

/// How long each address of a bus is tried, and a handshake may take.
const CONNECT: Duration = Duration::from_secs(3);
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A bus whose machine acknowledges nothing for so long is gone.
const GONE: Duration = Duration::from_secs(10);

/// A connection to a bus. After [`Self::open`] nothing blocks.
pub enum Link {
    Unix(UnixStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Link {
    /// Connects; over the network this may take seconds.
    pub fn open(address: &BusAddress) -> io::Result<Self> {
        match address {
            BusAddress::Socket(path) => peer::connect(path).map(Self::Unix),
            BusAddress::Tls { at, authority } => tls(at, authority),
            BusAddress::Manual(bus) => bus.connect().map(Self::Unix),
        }
    }

    /// Whether bytes that were taken wait for the socket.
    pub fn holds_back(&self) -> bool {
        match self {
            Self::Unix(_) => false,
            Self::Tls(stream) => stream.conn.wants_write(),
        }
    }

    /// Whether there is something to be read that the socket does not tell of: writing may take records in, too.
    ///
    /// # Errors
    /// When what was read is not TLS.
    pub fn has_read_ahead(&mut self) -> io::Result<bool> {
        match self {
            Self::Unix(_) => Ok(false),
            Self::Tls(stream) => {
                let found = stream.conn.process_new_packets().map_err(io::Error::other)?;
                Ok(found.plaintext_bytes_to_read() > 0)
            }
        }
    }
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            // What it has taken before goes first, so that it never holds more than one piece.
            Self::Tls(stream) if stream.conn.wants_write() => {
                stream.flush()?;
                stream.write(bytes)
            }
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.sock.as_fd(),
        }
    }
}

fn tls(at: &str, authority: &Path) -> io::Result<Link> {
    let config = config(authority)?;
    let host = at.rsplit_once(':').map_or(at, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let mut session = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let mut socket = connect(at)?;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    peer::give_up_after(&socket, GONE)?;
    shake_hands(&mut session, &mut socket)?;
    Ok(Link::Tls(Box::new(StreamOwned::new(session, socket))))
}

/// The end is that of the whole handshake: a server that sends a byte now and then does not put it off.
fn shake_hands(session: &mut ClientConnection, socket: &mut TcpStream) -> io::Result<()> {
    let end = Instant::now() + HANDSHAKE;
    while session.is_handshaking() {
        match session.complete_io(socket) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(_) => continue,
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = "it does not finish the TLS handshake";
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        let fd = socket.as_fd();
        let news = if session.wants_write() {
            PollFd::readable_or_writable(fd)
        } else {
            PollFd::readable(fd)
        };
        poll::wait(&mut [news], Some(left))?;
    }
    Ok(())
}

fn config(authority: &Path) -> io::Result<Arc<ClientConfig>> {
    let of = |why: String| io::Error::other(format!("{}: {why}", authority.display()));
    let pem = fs::read(authority).map_err(|error| of(error.to_string()))?;
    let trust = TrustAnchors::from_pem(&pem).map_err(|error| of(error.to_string()))?;
    let roots = trust.roots().map_err(|error| of(error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn connect(at: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in at.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
