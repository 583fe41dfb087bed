//! Which clients are answered: address prefixes, of which the longest match decides.
//!
//! What it does not do: consider names, ports or interfaces.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// IPv4 addresses are compared in their IPv6 form, ::ffff:a.b.c.d, whose prefix has this length.
const MAPPED: u8 = 96;

/// An address prefix, such as `10.0.0.0/8` or `fd00::/8`; a bare address means one host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix {
    bits: u128,
    /// Length of the IPv6 form.
    len: u8,
}

/// A text that is not a prefix.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrefixError {
    /// Neither an address nor an address with a length.
    #[error("{text:?} is no address prefix; write it like 10.0.0.0/8, fd00::/8 or 192.0.2.7")]
    Syntax {
        /// What it was.
        text: String,
    },
    /// The prefix is longer than the address.
    #[error("{text:?} has a length beyond the address's {max} bits; make it shorter")]
    Length {
        /// What it was.
        text: String,
        /// The address's length.
        max: u8,
    },
    /// The address has one bits beyond the prefix: it may be a host where a network was meant.
    #[error("{text:?} has bits set beyond its length; write {prefix}, or the address alone")]
    HostBits {
        /// What it was.
        text: String,
        /// The prefix with these bits cleared.
        prefix: Prefix,
    },
}

impl Prefix {
    fn covers(&self, address: u128) -> bool {
        (self.bits ^ address) & mask(self.len) == 0
    }
}

const fn mask(len: u8) -> u128 {
    match len {
        0 => 0,
        len => u128::MAX << (128 - len as u32),
    }
}

const fn as_v6(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let syntax = || PrefixError::Syntax { text: text.to_owned() };
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len.parse::<u8>().map_err(|_| syntax())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| syntax())?;
        let (shorter, max) = if address.is_ipv4() { (MAPPED, 32) } else { (0, 128) };
        let len = len.unwrap_or(max);
        if len > max {
            return Err(PrefixError::Length { text: text.to_owned(), max });
        }
        let (bits, len) = (as_v6(address), shorter + len);
        let prefix = Self { bits: bits & mask(len), len };
        if prefix.bits == bits {
            Ok(prefix)
        } else {
            Err(PrefixError::HostBits { text: text.to_owned(), prefix })
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.bits);
        match address.to_ipv4_mapped().filter(|_| self.len >= MAPPED) {
            Some(address) => write!(f, "{address}/{}", self.len - MAPPED),
            None => write!(f, "{address}/{}", self.len),
        }
    }
}

/// The allowed and the denied prefixes.
#[derive(Clone, Debug)]
pub struct AccessList {
    /// Longest first; of equal ones, the denied one first.
    rules: Vec<(Prefix, bool)>,
}

impl AccessList {
    /// The longest prefix that covers an address decides. A prefix in both lists is denied, and so
    /// is an address that no prefix covers.
    #[must_use]
    pub fn new(allow: &[Prefix], deny: &[Prefix]) -> Self {
        let denied = deny.iter().map(|prefix| (*prefix, false));
        let mut rules: Vec<_> = denied.chain(allow.iter().map(|prefix| (*prefix, true))).collect();
        rules.sort_by_key(|(prefix, allowed)| (128 - prefix.len, *allowed));
        Self { rules }
    }

    /// Returns whether `address` is answered.
    #[must_use]
    pub fn admits(&self, address: IpAddr) -> bool {
        let address = as_v6(address);
        let rule = self.rules.iter().find(|(prefix, _)| prefix.covers(address));
        rule.is_some_and(|(_, allowed)| *allowed)
    }
}

/// This machine, its links and private networks: clients that a host can serve by default.
#[must_use]
pub fn local_networks() -> Vec<Prefix> {
    let v4 = |a, b, c, d, len: u8| Prefix {
        bits: Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().to_bits(),
        len: MAPPED + len,
    };
    let v6 = |first: u16, last: u16, len| Prefix {
        bits: Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last).to_bits(),
        len,
    };
    vec![
        v4(127, 0, 0, 0, 8),
        v4(10, 0, 0, 0, 8),
        v4(172, 16, 0, 0, 12),
        v4(192, 168, 0, 0, 16),
        v4(169, 254, 0, 0, 16),
        v6(0, 1, 128),
        v6(0xfc00, 0, 7),
        v6(0xfe80, 0, 10),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn list(allow: &[&str], deny: &[&str]) -> AccessList {
        let all = |texts: &[&str]| texts.iter().map(|t| prefix(t)).collect::<Vec<_>>();
        AccessList::new(&all(allow), &all(deny))
    }

    #[test]
    fn the_longest_prefix_decides() {
        let list = list(&["10.0.0.0/8", "10.1.2.3"], &["10.1.0.0/16", "fd00::/8"]);
        let admits = |text: &str| list.admits(text.parse().unwrap());
        assert!(admits("10.200.0.1") && admits("10.1.2.3"));
        assert!(!admits("10.1.2.4") && !admits("fd00::1"));
        assert!(!admits("192.0.2.1") && !admits("::1"), "what nobody allowed is denied");
    }

    #[test]
    fn in_both_lists_is_denied_and_everything_can_be_allowed() {
        assert!(!list(&["::1"], &["::1"]).admits("::1".parse().unwrap()));
        let open = list(&["0.0.0.0/0", "::/0"], &[]);
        assert!(open.admits("192.0.2.1".parse().unwrap()));
        assert!(open.admits("2001:db8::1".parse().unwrap()));
        let v4 = list(&["0.0.0.0/0"], &[]);
        assert!(!v4.admits("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn mistakes_are_named_with_what_would_be_right() {
        let error = |text: &str| text.parse::<Prefix>().unwrap_err().to_string();
        assert!(error("10.0.0.1/8").contains("write 10.0.0.0/8"));
        assert!(error("10.0.0.0/33").contains("32 bits"));
        assert!(error("fd00::/129").contains("128 bits"));
        for text in ["", "/", "example.net", "10.0.0.0/", "10.0.0.0/x", "10.0.0.0/-1", "10.0/8"] {
            assert!(error(text).contains("like 10.0.0.0/8"), "{text}");
        }
    }

    #[test]
    fn local_networks_as_one_writes_them() {
        let texts: Vec<_> = local_networks().iter().map(ToString::to_string).collect();
        let expected = [
            "127.0.0.0/8",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "169.254.0.0/16",
            "::1/128",
            "fc00::/7",
            "fe80::/10",
        ];
        assert_eq!(texts, expected);
    }

    proptest! {
        #[test]
        fn texts_round_trip(bits in any::<u128>(), len in 0u8..=128, v4 in any::<bool>()) {
            let bits = if v4 { (bits & 0xffff_ffff) | 0xffff_0000_0000 } else { bits };
            let len = if v4 { MAPPED + len / 4 } else { len };
            let prefix = Prefix { bits: bits & mask(len), len };
            prop_assert_eq!(prefix.to_string().parse::<Prefix>(), Ok(prefix));
            prop_assert!(prefix.covers(bits));
        }

        #[test]
        fn any_text_is_taken_or_refused(text in ".{0,40}") {
            let _ = text.parse::<Prefix>();
        }
    }
}
