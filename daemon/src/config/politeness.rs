//! Default poll rates of NTP servers: your own servers often, other people's rarely.
//!
//! | server | poll | packets per hour | asked for precise bounds |
//! | --- | --- | --- | --- |
//! | loopback, private, shared or link-local address | 4 s | 3600 | yes |
//! | public address, or a member of a pool | 64 s | 450 | no |

use std::net::{IpAddr, Ipv4Addr};

use timevisor_estimate::polling::Limits;
use timevisor_time::Duration;

/// Who operates a server, judged by its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operator {
    /// You: it is on this machine, its links or a private network.
    Own,
    /// Somebody else.
    Public,
}

impl Operator {
    /// Returns the operator of the server at this address.
    pub fn of(address: IpAddr) -> Self {
        let own = match address.to_canonical() {
            IpAddr::V4(ip) => {
                ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_shared(ip)
            }
            IpAddr::V6(ip) => {
                ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()
            }
        };
        if own { Self::Own } else { Self::Public }
    }

    /// The default interval. The bound grows between polls, so a short interval pays off; the
    /// operators of public servers ask for 64 s or more.
    pub const fn poll(self) -> Duration {
        match self {
            Self::Own => Duration::from_secs(4),
            Self::Public => Duration::from_secs(64),
        }
    }

    /// The default of `max_packets_per_hour`.
    pub const fn packets_per_hour(self) -> u32 {
        match self {
            Self::Own => 3600,
            Self::Public => 450,
        }
    }

    /// Whether the server is asked for precise bounds by default. Somebody else's is hardly a
    /// timevisord, and filters on the way there drop NTP packets of unusual length.
    pub const fn asks_precise(self) -> bool {
        matches!(self, Self::Own)
    }
}

/// 100.64.0.0/10, RFC 6598: carrier-grade NAT.
fn is_shared(ip: Ipv4Addr) -> bool {
    let [first, second, ..] = ip.octets();
    first == 100 && second & 0xc0 == 64
}

/// How an NTP server is polled without a requirement, and the limits that apply with one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PollPolicy {
    /// A keyword for `timevisor status`.
    pub reason: &'static str,
    /// Time between two requests.
    pub interval: Duration,
    /// The limits of the poll controller.
    pub limits: Limits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_tell_whose_server_it_is() {
        let own = [
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.123.1",
            "169.254.169.123",
            "100.64.0.1",
            "100.127.255.255",
            "::1",
            "fd00::1",
            "fe80::1",
            "::ffff:10.0.0.1",
        ];
        let public = [
            "8.8.8.8",
            "172.15.255.255",
            "172.32.0.1",
            "100.63.255.255",
            "100.128.0.0",
            "192.169.0.1",
            "2001:db8::1",
            "::ffff:8.8.8.8",
        ];
        for (addresses, operator) in [(&own[..], Operator::Own), (&public[..], Operator::Public)] {
            for address in addresses {
                assert_eq!(Operator::of(address.parse().unwrap()), operator, "{address}");
            }
        }
    }
}
