//! Tells when routes or addresses of this machine change: a netlink socket (rtnetlink(7)) that is
//! only listened to.
//!
//! What it does not do: read the messages. Whoever cares asks the kernel for its route again.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::udp::{address::socklen, set_flags};

/// linux/rtnetlink.h: links, addresses and routes of both families.
const GROUPS: libc::c_int = libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE;

/// The socket; wait for it to be readable, then call [`Self::take`].
#[derive(Debug)]
pub struct RouteWatch(File);

impl RouteWatch {
    /// Listens in the network namespace of this process.
    ///
    /// # Errors
    /// Where netlink is not available (a sandbox, for instance).
    #[expect(clippy::cast_possible_truncation, reason = "a set of bits and a small number")]
    pub fn open() -> io::Result<Self> {
        // SAFETY: socket touches no memory.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that socket has just returned, and that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set_flags(&fd)?;
        // SAFETY: sockaddr_nl is plain data; zero is "the kernel chooses" for the port.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = GROUPS as u32;
        // SAFETY: the address is complete and lives through the call.
        let bound = unsafe {
            let address = (&raw const address).cast();
            libc::bind(fd.as_raw_fd(), address, socklen::<libc::sockaddr_nl>())
        };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(File::from(fd)))
    }

    /// Returns true if anything changed since the last call. A flood of messages that the kernel had
    /// to drop (ENOBUFS) is a change, too.
    pub fn take(&mut self) -> bool {
        let mut changed = false;
        let mut buffer = [0; 4096];
        // A flood must not hold up the caller; the rest is read the next time.
        for _ in 0..64 {
            match self.0.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => changed = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(_) => break,
            }
        }
        changed
    }
}

impl AsFd for RouteWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That changes are seen is tested in the lab (`references-move`), as it takes a network
    /// namespace.
    #[test]
    fn nothing_changes_by_itself() {
        let mut watch = RouteWatch::open().unwrap();
        assert!(!watch.take());
    }
}
