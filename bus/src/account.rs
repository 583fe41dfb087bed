//! Who pays for a connection: a user of this host, or an address of the network.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use timevisor_coordination::hub::Trust;

/// The most connections of one account.
const MOST_EACH: usize = 256;

/// The most connections from the network: one with many addresses does not take them all from this host's programs.
const MOST_REMOTE: usize = 1024;

/// Whose connections, and whose memory, are counted together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Account {
    /// A user of this host.
    User(u32),
    /// An IPv4 address, or an IPv6 network of 64 bits, which is one customer's.
    Address(IpAddr),
}

impl Account {
    /// Of what connects from `from`.
    pub fn of(from: IpAddr) -> Self {
        Self::Address(match from.to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) & (u128::MAX << 64);
                IpAddr::V6(network.into())
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }

    /// What the hub lets it join.
    pub fn trust(self) -> Trust {
        match self {
            Self::User(user) => Trust::Local(user),
            Self::Address(_) => Trust::Remote,
        }
    }

    /// Whether it comes from the network.
    pub fn is_remote(self) -> bool {
        matches!(self, Self::Address(_))
    }

    /// Whether it may connect beside these.
    pub fn fits(self, others: impl Iterator<Item = Self>) -> Fits {
        let (mut own, mut remote) = (0, 0);
        for other in others {
            own += usize::from(other == self);
            remote += usize::from(other.is_remote());
        }
        if own >= MOST_EACH {
            Fits::OwnAreFull
        } else if self.is_remote() && remote >= MOST_REMOTE {
            Fits::NetworkIsFull
        } else {
            Fits::Yes
        }
    }

    /// Whose connection without a member ends so that one more from the network fits: the account's that has the
    /// most of them. `idle` are the accounts of such connections.
    pub fn with_most(idle: impl Iterator<Item = Self>) -> Option<Self> {
        let mut counts: BTreeMap<Self, usize> = BTreeMap::new();
        idle.for_each(|account| *counts.entry(account).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(account, _)| account)
    }
}

/// Whether there is a place for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fits {
    Yes,
    /// Its account has all of its places.
    OwnAreFull,
    /// The network has all of its places.
    NetworkIsFull,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_takes_no_other_s_places() {
        let of = |text: &str| Account::of(text.parse().unwrap());
        let (a, b) = (of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), a);
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        let many = |account, count| std::iter::repeat_n(account, count);
        assert_eq!(a.fits(many(a, 255)), Fits::Yes);
        assert_eq!(a.fits(many(a, 256)), Fits::OwnAreFull);
        assert_eq!(b.fits(many(a, 256)), Fits::Yes);
        // The network together leaves this host's users theirs.
        let others: Vec<_> = (0..1024_u32).map(|i| Account::of(IpAddr::V4(i.into()))).collect();
        assert_eq!(b.fits(others.iter().copied()), Fits::NetworkIsFull);
        assert_eq!(b.fits(others[1..].iter().copied()), Fits::Yes);
        assert_eq!(Account::User(0).fits(others.iter().copied()), Fits::Yes);
        // Who has many connections without a member gives one of them.
        assert_eq!(Account::with_most([b, a, a, b, a].into_iter()), Some(a));
        assert_eq!(Account::with_most(std::iter::empty()), None);
    }
}
