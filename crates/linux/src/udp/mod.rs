//! A UDP client with kernel time stamps, or without them on [`Sockets::Plain`].
//!
//! | file | owns |
//! | --- | --- |
//! | `message.rs` | recvmsg: packets and send stamps with their control messages |
//! | `control.rs` | the content of control messages |
//! | `plain.rs` | sendto and recvfrom alone |
//! | `address.rs` | converts addresses between std and the kernel |
//! | `stamped.rs` | the counter around questions and answers |
//!
//! One socket, connected to one peer, so that the kernel drops everyone else's packets; or, to find
//! out what arrives instead of answers, one that is not connected and marks strangers. Stamps are
//! optional: on kernels, drivers and simulators without them, everything works and the stamps are
//! `None`. It knows no protocol and keeps no timers. Only libc functions are used (no flags in
//! `socket`, no epoll), so that an LD_PRELOAD simulator can replace the network.

pub(crate) mod address;
pub(crate) mod control;
pub(crate) mod message;
mod plain;
pub mod stamped;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use timevisor_time::{Instant, Utc};

use self::address::{RawAddress, socklen};
use self::message::receive;

/// Stray stamps that are dropped at a time; a simulator may have no end of them.
const MOST_STRAY_STAMPS: usize = 16;

/// How a [`UdpClient`] talks to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sockets {
    /// Connected, with kernel stamps if available.
    #[default]
    Stamped,
    /// Only socket, sendto, recvfrom and poll: the calls that an LD_PRELOAD simulator replaces.
    Plain,
}

/// Why the socket failed.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// The socket could not be opened or set up.
    #[error("cannot open a UDP socket")]
    Socket(#[source] io::Error),
    /// No route to the peer, or its address family is not available.
    #[error("cannot reach {peer}: check the network and the address")]
    Connect {
        /// The peer.
        peer: SocketAddr,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The packet was not sent.
    #[error("cannot send to {peer}")]
    Send {
        /// The peer.
        peer: SocketAddr,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Receiving failed; `ConnectionRefused` means that the peer's host answered that nobody
    /// listens.
    #[error("cannot receive from {peer}")]
    Receive {
        /// The peer.
        peer: SocketAddr,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl UdpError {
    /// Whether the peer's host has answered that nobody listens.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        let (Self::Send { source, .. } | Self::Receive { source, .. }) = self else { return false };
        source.kind() == io::ErrorKind::ConnectionRefused
    }
}

/// One packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Bytes written to the buffer.
    pub len: usize,
    /// The packet was longer than the buffer.
    pub truncated: bool,
    /// CLOCK_REALTIME when the kernel took the packet from the driver.
    pub stamp: Option<Instant<Utc>>,
    /// The packet came from another address or port than the peer's; only on a socket that is not
    /// connected.
    pub stranger: bool,
}

/// A non-blocking UDP socket connected to one peer.
#[derive(Debug)]
pub struct UdpClient {
    fd: OwnedFd,
    peer: SocketAddr,
    sockets: Sockets,
    connected: bool,
    stamping: bool,
    /// The kernel numbers stamped packets from 0 (SOF_TIMESTAMPING_OPT_ID).
    next_id: u32,
    /// The last packet's number while its stamp is still pending.
    awaited: Option<u32>,
}

impl UdpClient {
    /// Opens a socket to `peer`, with stamps.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn connect(peer: SocketAddr) -> Result<Self, UdpError> {
        Self::open(peer, Sockets::Stamped)
    }

    /// Opens a socket to `peer`.
    ///
    /// # Errors
    /// When there is no network, address family or route. A kernel without stamps is not an error.
    pub fn open(peer: SocketAddr, sockets: Sockets) -> Result<Self, UdpError> {
        Self::opened(peer, sockets, sockets == Sockets::Stamped)
    }

    /// Opens a socket that is not connected: it uses the route and the source address of the moment
    /// for each packet, and receives packets of strangers, too, which are marked. No ICMP error
    /// reaches it.
    ///
    /// # Errors
    /// As [`Self::open`], except that a missing route shows only when a packet is sent.
    pub fn open_unconnected(peer: SocketAddr, sockets: Sockets) -> Result<Self, UdpError> {
        Self::opened(peer, sockets, false)
    }

    fn opened(peer: SocketAddr, sockets: Sockets, connected: bool) -> Result<Self, UdpError> {
        let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: socket touches no memory.
        let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM, 0) };
        if fd < 0 {
            return Err(UdpError::Socket(io::Error::last_os_error()));
        }
        // SAFETY: a descriptor that socket has just returned, and that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let stamping = match sockets {
            Sockets::Plain => false,
            Sockets::Stamped => {
                set_flags(&fd).map_err(UdpError::Socket)?;
                let stamping = enable_stamps(&fd);
                if connected {
                    connect_to(&fd, peer).map_err(|source| UdpError::Connect { peer, source })?;
                }
                stamping
            }
        };
        Ok(Self { fd, peer, sockets, connected, stamping, next_id: 0, awaited: None })
    }

    /// The peer.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the kernel enabled stamps. A driver may still provide none for sent packets.
    #[must_use]
    pub const fn stamping(&self) -> bool {
        self.stamping
    }

    /// Sends one packet.
    ///
    /// # Errors
    /// The kernel's refusal. An error left over from an earlier packet (the peer's ICMP answer) is
    /// not this packet's and is retried once.
    pub fn send(&mut self, packet: &[u8]) -> Result<(), UdpError> {
        let mut attempt = self.send_once(packet);
        if matches!(&attempt, Err(e) if e.kind() == io::ErrorKind::ConnectionRefused) {
            attempt = self.send_once(packet);
        }
        attempt.map_err(|source| UdpError::Send { peer: self.peer, source })?;
        if self.stamping {
            self.awaited = Some(self.next_id);
            self.next_id = self.next_id.wrapping_add(1);
        }
        Ok(())
    }

    fn send_once(&self, packet: &[u8]) -> io::Result<()> {
        if !self.connected {
            return plain::send(&self.fd, packet, self.peer);
        }
        // SAFETY: the buffer is valid for its length; the socket is connected, so that no address
        // is needed.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                core::ptr::null(),
                0,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives one packet, if there is one.
    ///
    /// # Errors
    /// Any failure except that nothing is available.
    pub fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, UdpError> {
        if self.sockets == Sockets::Plain {
            return self.recv_plain(buffer);
        }
        match receive(&self.fd, buffer, 0) {
            Ok(Some(message)) => Ok(Some(Received {
                len: message.len,
                truncated: message.flags & libc::MSG_TRUNC != 0,
                stamp: message.stamp,
                stranger: !self.connected && message.from.is_none_or(|from| !same(from, self.peer)),
            })),
            Ok(None) => Ok(None),
            Err(source) => Err(UdpError::Receive { peer: self.peer, source }),
        }
    }

    fn recv_plain(&self, buffer: &mut [u8]) -> Result<Option<Received>, UdpError> {
        let room = buffer.len();
        let found = plain::receive(&self.fd, buffer, self.peer)
            .map_err(|source| UdpError::Receive { peer: self.peer, source })?;
        Ok(found.map(|len| Received {
            len: len.min(room),
            truncated: len > room,
            stamp: None,
            stranger: false,
        }))
    }

    /// CLOCK_REALTIME when the kernel passed the last sent packet to the driver. Returned only once
    /// per packet.
    ///
    /// Call this right after [`send`](Self::send), when the stamp is normally available already
    /// (clknetsim stamps on request), and [`take_stamps`](Self::take_stamps) when poll reports
    /// [`Ready::error`](crate::poll::Ready::error). `None` while it is not available; no system
    /// call is made when none is pending. Stamps of earlier packets are dropped.
    ///
    /// # Errors
    /// Any failure except that nothing is available.
    pub fn recv_tx_stamp(&mut self) -> Result<Option<Instant<Utc>>, UdpError> {
        while let Some(awaited) = self.awaited {
            let message = receive(&self.fd, &mut [0; 64], libc::MSG_ERRQUEUE)
                .map_err(|source| UdpError::Receive { peer: self.peer, source })?;
            let Some(message) = message else { return Ok(None) };
            // A kernel before 6.8 counts refused packets too, so its number can be ahead of ours;
            // behind ours is an earlier packet's late stamp.
            let id = message.id.unwrap_or(awaited);
            if id.wrapping_sub(awaited) < 1 << 31 {
                self.next_id = id.wrapping_add(1);
                self.awaited = None;
                return Ok(message.stamp);
            }
        }
        Ok(None)
    }

    /// As [`recv_tx_stamp`](Self::recv_tx_stamp), and drops the stamps that nobody awaits: each
    /// device that a packet passes may stamp it, and poll reports a stamp until it is taken.
    ///
    /// # Errors
    /// As [`recv_tx_stamp`](Self::recv_tx_stamp).
    pub fn take_stamps(&mut self) -> Result<Option<Instant<Utc>>, UdpError> {
        let stamp = self.recv_tx_stamp()?;
        for _ in 0..MOST_STRAY_STAMPS {
            if !self.stamping || self.awaited.is_some() {
                break;
            }
            let stray = receive(&self.fd, &mut [0; 64], libc::MSG_ERRQUEUE)
                .map_err(|source| UdpError::Receive { peer: self.peer, source })?;
            if stray.is_none() {
                break;
            }
        }
        Ok(stamp)
    }
}

/// Flow information and, for what is not link-local, the scope do not tell two peers apart.
pub(crate) fn same(a: SocketAddr, b: SocketAddr) -> bool {
    a.ip() == b.ip() && a.port() == b.port()
}

impl AsFd for UdpClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(crate) fn set_flags(fd: &OwnedFd) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    // SAFETY: fcntl with these commands touches no memory.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0
            && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
            && libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) >= 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Documentation/networking/timestamping.rst.
fn enable_stamps(fd: &OwnedFd) -> bool {
    let flags: libc::c_uint = libc::SOF_TIMESTAMPING_TX_SOFTWARE
        | libc::SOF_TIMESTAMPING_RX_SOFTWARE
        | libc::SOF_TIMESTAMPING_SOFTWARE
        | libc::SOF_TIMESTAMPING_OPT_ID
        | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    // SAFETY: the option's value is one unsigned int that lives through the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const flags).cast(),
            socklen::<libc::c_uint>(),
        )
    };
    result == 0
}

fn connect_to(fd: &OwnedFd, peer: SocketAddr) -> io::Result<()> {
    let peer = RawAddress::from(peer);
    let (address, len) = peer.as_ptr();
    // SAFETY: the address is complete and lives through the call.
    let result = unsafe { libc::connect(fd.as_raw_fd(), address, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
