//! sendto and recvfrom on a socket that is neither connected nor set up. Only the calls that every
//! LD_PRELOAD network simulator supports are used: fcntl, connect and setsockopt would reach the
//! real kernel with a descriptor that it does not know.
//!
//! It accepts packets from one peer only, and provides no stamps.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use super::address::RawAddress;
use super::same;

pub(super) fn send(fd: &OwnedFd, packet: &[u8], peer: SocketAddr) -> io::Result<()> {
    let peer = RawAddress::from(peer);
    let (address, len) = peer.as_ptr();
    // SAFETY: the buffer and the address are valid for their lengths.
    let sent = unsafe {
        let (data, size) = (packet.as_ptr().cast(), packet.len());
        libc::sendto(fd.as_raw_fd(), data, size, libc::MSG_DONTWAIT, address, len)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The length of the next packet, which may exceed the buffer's; `None` when there is none from
/// `peer` (a packet from any other sender is dropped; poll reports whether there are more).
pub(super) fn receive(
    fd: &OwnedFd,
    buffer: &mut [u8],
    peer: SocketAddr,
) -> io::Result<Option<usize>> {
    let mut from = RawAddress::room();
    let len = loop {
        let (address, address_len) = from.as_mut_ptr();
        // SAFETY: the buffer and the address are valid for their lengths.
        let len = unsafe {
            let (data, size) = (buffer.as_mut_ptr().cast(), buffer.len());
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            libc::recvfrom(fd.as_raw_fd(), data, size, flags, address, address_len)
        };
        if let Ok(len) = usize::try_from(len) {
            break len;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    };
    let theirs = from.to_std().is_some_and(|from| same(from, peer));
    Ok(theirs.then_some(len))
}
