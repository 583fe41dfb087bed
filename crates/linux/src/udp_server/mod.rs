//! A UDP server's socket: requests and replies in batches, with kernel time stamps.
//!
//! | module | owns |
//! | --- | --- |
//! | [`batch`] | [`Batch`]: buffers, addresses and control messages of up to [`BATCH`] requests and their replies |
//!
//! A reply is sent from the address that the request was sent to (IP_PKTINFO, IPV6_PKTINFO), even
//! on a socket that is bound to all addresses. The kernel stamps every request on arrival, which
//! costs almost nothing. A departure is stamped only on request, because every such stamp costs a
//! separate system call.
//!
//! What it does not do: know a protocol, rate-limit clients, or serve IPv4 over an IPv6 socket
//! (bind one of each).

pub mod batch;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use timevisor_time::{Instant, Utc};

use crate::udp::address::{RawAddress, socklen};
use crate::udp::message::receive;
use crate::udp::set_flags;

pub use batch::{BATCH, Batch, REQUEST_BYTES};

/// Bytes of requests that may wait in the kernel; it grants less if net.core.rmem_max is lower.
/// About a thousand small packets, or 10 ms at 100,000 per second.
const RECEIVE_BUFFER: libc::c_int = 1 << 20;

/// A pending stamp is given up after this many later ones.
const MAX_AWAITED: usize = 1024;

/// Why there is no server socket.
#[derive(Debug, thiserror::Error)]
pub enum UdpServerError {
    /// The socket could not be opened or set up.
    #[error("cannot open a UDP socket")]
    Socket(#[source] io::Error),
    /// The address is in use, is not this machine's, or needs a privilege.
    #[error(
        "cannot listen at {address}: check that no other server has the port, that the address is this machine's, and that ports below 1024 are allowed (root or CAP_NET_BIND_SERVICE)"
    )]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// A non-blocking UDP socket that answers many clients.
#[derive(Debug)]
pub struct UdpServer {
    fd: OwnedFd,
    address: SocketAddr,
    stamping: bool,
    /// The kernel numbers the departures that it stamps (SOF_TIMESTAMPING_OPT_ID).
    next_id: u32,
    /// Number and token of the departures whose stamps are pending.
    awaited: VecDeque<(u32, u64)>,
    /// The kernel (or its simulator) accepts only one message at a time.
    single: bool,
}

impl UdpServer {
    /// Listens at `address`; port 0 chooses one.
    ///
    /// # Errors
    /// When the address cannot be bound. A kernel without stamps is not an error.
    pub fn bind(address: SocketAddr) -> Result<Self, UdpServerError> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: socket touches no memory.
        let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM, 0) };
        if fd < 0 {
            return Err(UdpServerError::Socket(io::Error::last_os_error()));
        }
        // SAFETY: a descriptor that socket has just returned, and that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set_flags(&fd).map_err(UdpServerError::Socket)?;
        set_up(&fd, address).map_err(UdpServerError::Socket)?;
        let stamping = set_option(&fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, STAMPS).is_ok();
        let bound = bind(&fd, address);
        let address = bound.map_err(|source| UdpServerError::Bind { address, source })?;
        let awaited = VecDeque::new();
        Ok(Self { fd, address, stamping, next_id: 0, awaited, single: false })
    }

    /// The address at which it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Receives the requests that have arrived, up to a batch; the batch's previous content is
    /// discarded.
    ///
    /// # Errors
    /// Any failure except that nothing is available.
    pub fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        loop {
            let limit = if self.single { 1 } else { BATCH };
            let received = match batch.receive(&self.fd, limit, self.single) {
                Err(error) if error.raw_os_error() == Some(libc::ENOSYS) && !self.single => {
                    self.single = true;
                    continue;
                }
                received => received,
            };
            return match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
                other => other,
            };
        }
    }

    /// Sends the batch's replies. Returns how many the kernel did not accept; clients without a
    /// reply will retry.
    pub fn send(&mut self, batch: &mut Batch) -> usize {
        let sent = batch.send(&self.fd, self.stamping, self.single);
        for token in sent.stamped {
            self.awaited.push_back((self.next_id, token));
            self.next_id = self.next_id.wrapping_add(1);
        }
        if sent.failed > 0 && self.stamping {
            // Whether a refused packet consumed a number depends on the kernel version.
            self.renumber();
        }
        while self.awaited.len() > MAX_AWAITED {
            self.awaited.pop_front();
        }
        sent.failed
    }

    /// CLOCK_REALTIME at the departures that have been stamped since, with the tokens that they
    /// were sent with.
    ///
    /// No system call is made when none is pending. Call this after [`Self::send`], and when poll
    /// reports an error, which indicates that a stamp is available.
    pub fn departures(&mut self) -> Vec<(u64, Instant<Utc>)> {
        let mut found = Vec::new();
        while !self.awaited.is_empty() {
            let Ok(Some(message)) = receive(&self.fd, &mut [0; 64], libc::MSG_ERRQUEUE) else {
                break;
            };
            let (Some(id), Some(stamp)) = (message.id, message.stamp) else { continue };
            // Only an exact match counts: a stamp must never be attributed to another departure.
            if let Some(index) = self.awaited.iter().position(|(awaited, _)| *awaited == id) {
                // Stamps arrive in the order of departure, so earlier pending ones are lost.
                let last = self.awaited.drain(..=index).next_back();
                found.extend(last.map(|(_, token)| (token, stamp)));
            }
        }
        found
    }

    /// Drains the error queue, which would keep poll from waiting, and drops the pending stamps.
    pub fn forget_departures(&mut self) {
        self.awaited.clear();
        while let Ok(Some(_)) = receive(&self.fd, &mut [0; 64], libc::MSG_ERRQUEUE) {}
    }

    /// Resets the kernel's numbers and ours to 0 (net/core/sock.c: enabling OPT_ID resets them).
    fn renumber(&mut self) {
        self.forget_departures();
        self.next_id = 0;
        let without = STAMPS & !SOF_OPT_ID;
        let reset = set_option(&self.fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, without)
            .and_then(|()| set_option(&self.fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, STAMPS));
        self.stamping = reset.is_ok();
    }
}

impl AsFd for UdpServer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[expect(clippy::cast_possible_wrap, reason = "a small flag word")]
const SOF_OPT_ID: libc::c_int = libc::SOF_TIMESTAMPING_OPT_ID as libc::c_int;

/// Arrivals are always stamped; each departure requests its own stamp
/// (Documentation/networking/timestamping.rst, 1.3.4).
#[expect(clippy::cast_possible_wrap, reason = "a small flag word")]
const STAMPS: libc::c_int = (libc::SOF_TIMESTAMPING_RX_SOFTWARE
    | libc::SOF_TIMESTAMPING_SOFTWARE
    | libc::SOF_TIMESTAMPING_OPT_ID
    | libc::SOF_TIMESTAMPING_OPT_TSONLY) as libc::c_int;

fn set_up(fd: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv4() {
        set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    } else {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
    }
    // An answer is never longer than its request, which came here whole. A fragment could be replaced
    // by somebody on the way, and the kernel numbers packets that may be fragmented (2 % of an
    // answer's time).
    let (level, name, whole) = if address.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
    };
    let _ = set_option(fd, level, name, whole);
    // A privilege lifts the limit; without it, the kernel grants what it allows. Either is
    // sufficient.
    let forced = set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER);
    if forced.is_err() {
        let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER);
    }
    Ok(())
}

fn bind(fd: &OwnedFd, address: SocketAddr) -> io::Result<SocketAddr> {
    let raw = RawAddress::from(address);
    let (pointer, len) = raw.as_ptr();
    // SAFETY: the address is complete and lives through the call.
    let result = unsafe { libc::bind(fd.as_raw_fd(), pointer, len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut raw = RawAddress::room();
    let (pointer, len) = raw.as_mut_ptr();
    // SAFETY: both point to the live room, whose length `len` holds.
    let result = unsafe { libc::getsockname(fd.as_raw_fd(), pointer, len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    raw.to_std().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Sets an option whose value is one int.
pub(crate) fn set_option(
    fd: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let (value, len) = (&raw const value, socklen::<libc::c_int>());
    // SAFETY: the value is one int that lives through the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
