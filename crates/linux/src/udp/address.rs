//! Converts socket addresses between std and the kernel.

use core::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address in the kernel's format.
pub(crate) struct RawAddress {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddress {
    /// Room for any address, for a call that fills it.
    pub(crate) fn room() -> Self {
        // SAFETY: sockaddr_storage is plain data; zero is AF_UNSPEC.
        let storage = unsafe { mem::zeroed() };
        Self { storage, len: socklen::<libc::sockaddr_storage>() }
    }

    /// The address and its length, for a call that reads them.
    pub(crate) const fn as_ptr(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.storage).cast(), self.len)
    }

    /// The address and its length, for a call that fills them.
    pub(crate) const fn as_mut_ptr(&mut self) -> (*mut libc::sockaddr, *mut libc::socklen_t) {
        ((&raw mut self.storage).cast(), &raw mut self.len)
    }

    /// Sets the length, for calls that return it elsewhere (recvmmsg).
    pub(crate) fn set_len(&mut self, len: libc::socklen_t) {
        self.len = len.min(socklen::<libc::sockaddr_storage>());
    }

    /// The address for std; `None` if it is not an internet address, or is incomplete.
    pub(crate) fn to_std(&self) -> Option<SocketAddr> {
        let holds = |size: usize| usize::try_from(self.len).is_ok_and(|len| len >= size);
        match libc::c_int::from(self.storage.ss_family) {
            libc::AF_INET if holds(size_of::<libc::sockaddr_in>()) => {
                // SAFETY: the family and the length show that this is a sockaddr_in; the storage is
                // aligned for any.
                let found = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(found.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(found.sin_port)).into())
            }
            libc::AF_INET6 if holds(size_of::<libc::sockaddr_in6>()) => {
                // SAFETY: as above, for a sockaddr_in6.
                let found = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
                let port = u16::from_be(found.sin6_port);
                Some(SocketAddrV6::new(ip, port, found.sin6_flowinfo, found.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let mut raw = Self::room();
        match address {
            SocketAddr::V4(address) => {
                let found = libc::sockaddr_in {
                    sin_family: family(libc::AF_INET),
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: a sockaddr_storage is large and aligned enough for every address.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in>().write(found) };
                raw.len = socklen::<libc::sockaddr_in>();
            }
            SocketAddr::V6(address) => {
                let found = libc::sockaddr_in6 {
                    sin6_family: family(libc::AF_INET6),
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                // SAFETY: as above.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in6>().write(found) };
                raw.len = socklen::<libc::sockaddr_in6>();
            }
        }
        raw
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "AF_INET and AF_INET6 are small"
)]
const fn family(family: libc::c_int) -> libc::sa_family_t {
    family as libc::sa_family_t
}

#[expect(clippy::cast_possible_truncation, reason = "the size of a kernel struct fits a socklen_t")]
pub(crate) const fn socklen<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_the_kernel_and_back() {
        for text in ["192.0.2.7:123", "[2001:db8::7]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::from(address).to_std(), Some(address));
        }
        let link_local: SocketAddr = SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 1, 3).into();
        assert_eq!(RawAddress::from(link_local).to_std(), Some(link_local));
    }

    #[test]
    fn what_is_no_internet_address_is_none() {
        assert_eq!(RawAddress::room().to_std(), None);
        let mut cut = RawAddress::from("192.0.2.7:123".parse::<SocketAddr>().unwrap());
        cut.len = 8;
        assert_eq!(cut.to_std(), None);
    }
}
