//! What counts as one host where some may lie.
//!
//! Whoever lies at one port of a host may lie at all of them, so they have one vote together. Many a host may take any
//! address of its IPv6 /64, so a /64 has one vote, too; unless the operator lists addresses in it as seeds: then these
//! have one each, and the others in it none, for each of them may be one of those.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Where a node can be asked.
pub trait Address: Copy + Ord {
    /// The same for all ports of one host.
    #[must_use]
    fn host(self) -> Self {
        self
    }

    /// The same for all addresses that one host may have for itself.
    #[must_use]
    fn network(self) -> Self {
        self.host()
    }
}

/// Hosts of the simulator.
impl Address for u32 {}

#[cfg(test)]
impl Address for char {}

#[cfg(test)]
impl Address for u8 {}

impl Address for SocketAddr {
    fn host(self) -> Self {
        Self::new(self.ip().to_canonical(), 0)
    }

    fn network(self) -> Self {
        const HOST: u128 = u64::MAX as u128;
        match self.ip().to_canonical() {
            IpAddr::V4(ip) => Self::new(ip.into(), 0),
            IpAddr::V6(ip) => Self::new(Ipv6Addr::from_bits(ip.to_bits() & !HOST).into(), 0),
        }
    }
}

/// The hosts that the operator has listed: they are told from each other by their whole addresses.
#[derive(Clone, Debug, Default)]
pub struct Listed<A>(Vec<A>);

impl<A: Address> Listed<A> {
    /// These seeds are.
    #[must_use]
    pub fn new(seeds: &[A]) -> Self {
        Self(seeds.iter().map(|seed| seed.host()).collect())
    }

    /// Whose vote an address has: the same for all that may be one host; `None` if it has none.
    #[must_use]
    pub fn voter(&self, at: A) -> Option<A> {
        let (host, network) = (at.host(), at.network());
        if self.0.contains(&host) {
            return Some(host);
        }
        let is_near = self.0.iter().any(|listed| listed.network() == network);
        (!is_near).then_some(network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ports_of_a_host_have_one_vote_and_so_has_a_network_of_ipv6() {
        let nobody = Listed::new(&[]);
        for (first, second, same) in [
            ("10.0.0.1:123", "10.0.0.1:124", true),
            ("10.0.0.1:123", "[::ffff:10.0.0.1]:124", true),
            ("10.0.0.1:123", "10.0.0.2:123", false),
            ("[2001:db8::1]:123", "[2001:db8::ffff:0:0:2]:123", true),
            ("[2001:db8::1]:123", "[2001:db8:0:1::1]:123", false),
        ] {
            let (first, second) = (nobody.voter(at(first)), nobody.voter(at(second)));
            assert_eq!(first == second, same, "{first:?} {second:?}");
            assert!(first.is_some() && second.is_some());
        }
    }

    #[test]
    fn who_is_listed_has_a_vote_of_its_own_and_its_neighbours_have_none() {
        let listed = Listed::new(&[at("[2001:db8::1]:123"), at("[2001:db8::2]:123")]);
        let voter = |text| listed.voter(at(text));
        assert!(voter("[2001:db8::1]:123").is_some());
        assert_eq!(voter("[2001:db8::1]:123"), voter("[2001:db8::1]:999"));
        assert_ne!(voter("[2001:db8::1]:123"), voter("[2001:db8::2]:123"));
        assert_eq!(voter("[2001:db8::3]:123"), None);
        assert!(voter("[2001:db8:0:1::3]:123").is_some());
    }
}
