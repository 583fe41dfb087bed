//! What counts as one host where some may lie.
//!
//! Who lies at one port of a host may lie at all of them, so they have one vote together. Whether two addresses are two
//! hosts nobody can tell from outside: a host may have an IPv4 address, several of IPv6, or a whole network. So only
//! hosts that the operator has listed are asked where some may lie ([`crate::node::Settings::liars`]).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Where a node can be asked.
pub trait Address: Copy + Ord {
    /// The same for all ports of one address.
    #[must_use]
    fn host(self) -> Self {
        self
    }

    /// Of IPv6 the /64, which one host may have for itself.
    #[must_use]
    fn network(self) -> Option<Self> {
        None
    }
}

/// Hosts of the simulator.
impl Address for u32 {}

#[cfg(test)]
impl Address for char {}

impl Address for SocketAddr {
    fn host(mut self) -> Self {
        let ip = self.ip().to_canonical();
        if let Self::V6(at) = &mut self
            && at.ip().is_unicast_link_local()
        {
            // Of its link: the interface belongs to it.
            at.set_port(0);
            at.set_flowinfo(0);
            return self;
        }
        Self::new(ip, 0)
    }

    fn network(self) -> Option<Self> {
        const HOST: u128 = u64::MAX as u128;
        let IpAddr::V6(ip) = self.host().ip() else { return None };
        Some(Self::new(IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !HOST)), 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ports_of_an_address_are_one_host() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap().host();
        assert_eq!(at("10.0.0.1:123"), at("10.0.0.1:124"));
        assert_eq!(at("10.0.0.1:123"), at("[::ffff:10.0.0.1]:124"));
        assert_eq!(at("[2001:db8::1]:123"), at("[2001:db8::1]:124"));
        assert_ne!(at("10.0.0.1:123"), at("10.0.0.2:123"));
        assert_eq!(at("[2001:db8::1%7]:123"), at("[2001:db8::1]:124"));
        assert_ne!(at("[fe80::1%2]:123"), at("[fe80::1%3]:123"));
        assert_eq!(at("[fe80::1%2]:123"), at("[fe80::1%2]:124"));
        let network = |text: &str| text.parse::<SocketAddr>().unwrap().network();
        assert_eq!(network("10.0.0.1:123"), None);
        assert_eq!(network("[2001:db8::1]:123"), network("[2001:db8::2:1]:9"));
        assert_ne!(network("[2001:db8::1]:123"), network("[2001:db8:0:1::1]:123"));
    }
}
