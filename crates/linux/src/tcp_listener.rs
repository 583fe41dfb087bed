//! A TCP server's socket: non-blocking, and of one family.
//!
//! The standard library's listener for IPv6 also takes the port of IPv4 where the system's default
//! says so; a server that listens at both addresses could then not start.
//!
//! What it does not do: accept connections; the standard library's listener does.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::udp::address::RawAddress;
use crate::udp_server::set_option;

/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 128;

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum TcpListenerError {
    /// The socket could not be opened or set up.
    #[error("cannot open a TCP socket")]
    Socket(#[source] io::Error),
    /// The address is in use, is not this machine's, or needs a privilege.
    #[error(
        "cannot listen at TCP {address}: check that no other server has the port, that the address is this machine's, and that ports below 1024 are allowed (root or CAP_NET_BIND_SERVICE)"
    )]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// Listens at `address`; port 0 chooses one. Connections of an earlier process that are still being
/// closed do not matter.
///
/// # Errors
/// When the address cannot be bound.
pub fn listen(address: SocketAddr) -> Result<TcpListener, TcpListenerError> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket touches no memory.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(TcpListenerError::Socket(io::Error::last_os_error()));
    }
    // SAFETY: a descriptor that socket has just returned, and that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).map_err(TcpListenerError::Socket)?;
    if address.is_ipv6() {
        set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)
            .map_err(TcpListenerError::Socket)?;
    }
    let raw = RawAddress::from(address);
    let (pointer, len) = raw.as_ptr();
    // SAFETY: the address is complete and lives through the call.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), pointer, len) };
    // SAFETY: listen touches no memory.
    if bound != 0 || unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } != 0 {
        return Err(TcpListenerError::Bind { address, source: io::Error::last_os_error() });
    }
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn both_families_share_a_port() {
        let any = listen("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = any.local_addr().unwrap().port();
        // A machine without IPv6 has nothing to share.
        if let Err(TcpListenerError::Bind { source, .. }) =
            listen(SocketAddr::new("::".parse().unwrap(), port))
        {
            assert_ne!(source.kind(), io::ErrorKind::AddrInUse);
        }
        let error = any.accept().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        any.accept().unwrap();
    }

    #[test]
    fn a_taken_port_is_named() {
        let taken = listen("127.0.0.1:0".parse().unwrap()).unwrap().local_addr().unwrap();
        let _holder = listen(taken).unwrap();
        let error = listen(taken).unwrap_err().to_string();
        assert!(error.contains(&format!("TCP {taken}: check that no other")), "{error}");
    }
}
