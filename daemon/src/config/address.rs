//! The address of a server as people write it: a name or an IP address, with or without a port, and
//! with a scope where an address needs one.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use anyhow::{Result, ensure};

/// UDP port of NTP.
pub const NTP_PORT: u16 = 123;

/// Where a server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerAddress {
    /// An IP address.
    Literal(SocketAddr),
    /// An IPv6 address that is valid on one interface (RFC 4007), which is named or numbered. The
    /// interface may not exist yet.
    Scoped {
        /// A link-local address.
        ip: Ipv6Addr,
        /// The interface's name or number.
        interface: String,
        /// UDP port.
        port: u16,
    },
    /// A name to look up.
    Name {
        /// The name.
        host: String,
        /// UDP port.
        port: u16,
    },
}

impl ServerAddress {
    /// The IP address, if it is known without a look-up.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Literal(address) => Some(address.ip()),
            Self::Scoped { ip, .. } => Some((*ip).into()),
            Self::Name { .. } => None,
        }
    }

    /// The host and port for getaddrinfo(3), which also knows interfaces by name.
    pub fn host_and_port(&self) -> (String, u16) {
        match self {
            Self::Literal(address) => (address.ip().to_string(), address.port()),
            Self::Scoped { ip, interface, port } => (format!("{ip}%{interface}"), *port),
            Self::Name { host, port } => (host.clone(), *port),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(address) => write!(f, "{address}"),
            Self::Scoped { ip, interface, port } => write!(f, "[{ip}%{interface}]:{port}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Reads `name`, `name:port`, `10.0.0.1`, `10.0.0.1:123`, `fd00::1`, `[fd00::1]`, `[fd00::1]:123`,
/// and with a scope `fe80::1%eth0`, `[fe80::1%eth0]`, `[fe80::1%eth0]:123` and `[fe80::1]%eth0`.
impl FromStr for ServerAddress {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        ensure!(!text.is_empty(), "the address of an ntp reference is empty");
        let (host, port) = split_port(text)?;
        if let Ok(ip) = host.parse::<IpAddr>() {
            ensure!(
                !needs_scope(&ip),
                "{host} is a link-local address, which every interface may have: say which one, as {host}%eth0"
            );
            // An IPv4 address in IPv6 notation is the same server.
            return Ok(Self::Literal(SocketAddr::new(ip.to_canonical(), port)));
        }
        let Some((ip, interface)) = host.split_once('%') else {
            let right = !host.contains(['[', ']', ':', '/', ' ']);
            ensure!(
                right,
                "{text} is neither a name nor an address; write host, host:port or [address]:port"
            );
            return Ok(Self::Name { host, port });
        };
        let Ok(ip) = ip.parse::<Ipv6Addr>() else {
            anyhow::bail!("{text}: only an IPv6 address has an interface (after %)")
        };
        ensure!(!interface.is_empty(), "{text}: the interface's name is missing after %");
        Ok(match interface.parse() {
            Ok(number) => Self::Literal(SocketAddrV6::new(ip, port, 0, number).into()),
            Err(_) => Self::Scoped { ip, interface: interface.to_owned(), port },
        })
    }
}

/// Link-local unicast (fe80::/10) and multicast addresses of interface and link scope are ambiguous.
fn needs_scope(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The host without brackets, and the port.
fn split_port(text: &str) -> Result<(String, u16)> {
    let port = |port: &str| {
        let number = port.parse::<u16>().ok().filter(|n| *n != 0);
        number.ok_or_else(|| anyhow::anyhow!("{text}: {port:?} is not a port (1 to 65535)"))
    };
    if let Some(rest) = text.strip_prefix('[') {
        let Some((host, after)) = rest.split_once(']') else {
            anyhow::bail!("{text}: ] is missing")
        };
        // Some write the scope behind the bracket.
        let (scope, port_text) = match after.split_once(':') {
            Some((scope, port)) => (scope, Some(port)),
            None => (after, None),
        };
        ensure!(
            scope.is_empty() || (scope.starts_with('%') && !host.contains('%')),
            "{text}: write [address]:port"
        );
        return Ok((format!("{host}{scope}"), port_text.map_or(Ok(NTP_PORT), port)?));
    }
    match text.split_once(':') {
        // More than one colon without brackets is an IPv6 address, which has no port.
        Some((host, rest)) if !rest.contains(':') => Ok((host.to_owned(), port(rest)?)),
        _ => Ok((text.to_owned(), NTP_PORT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String> {
        text.parse().map(|address: ServerAddress| address.to_string())
    }

    #[test]
    fn every_spelling_is_one_address() {
        for (text, full) in [
            ("10.9.0.1", "10.9.0.1:123"),
            ("10.9.0.1:123", "10.9.0.1:123"),
            ("10.9.0.1:1123", "10.9.0.1:1123"),
            ("fd00::1", "[fd00::1]:123"),
            ("[fd00::1]", "[fd00::1]:123"),
            ("[fd00::1]:11", "[fd00::1]:11"),
            ("fd00:0:0::01", "[fd00::1]:123"),
            ("::ffff:10.9.0.1", "10.9.0.1:123"),
            ("fe80::1%eth0", "[fe80::1%eth0]:123"),
            ("[fe80::1%eth0]", "[fe80::1%eth0]:123"),
            ("[fe80::1%eth0]:9", "[fe80::1%eth0]:9"),
            ("[fe80::1]%eth0", "[fe80::1%eth0]:123"),
            ("[fe80::1]%eth0:9", "[fe80::1%eth0]:9"),
            ("fe80::1%3", "[fe80::1%3]:123"),
            ("[fe80::1%3]:123", "[fe80::1%3]:123"),
            ("time.example", "time.example:123"),
            (" time.example:9 ", "time.example:9"),
        ] {
            assert_eq!(parsed(text).unwrap(), full, "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("", "is empty"),
            ("fe80::1", "link-local"),
            ("[fe80::1]:123", "link-local"),
            ("fe80::1%", "interface's name is missing"),
            ("time.example%eth0", "only an IPv6 address"),
            ("10.0.0.1:0", "is not a port"),
            ("10.0.0.1:ntp", "is not a port"),
            ("[fd00::1", "] is missing"),
            ("[fd00::1]x", "write [address]:port"),
            ("http://time.example", "is not a port"),
            ("time example", "neither a name nor an address"),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
