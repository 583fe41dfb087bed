//! The key establishment server of an authenticated NTP server (Network Time Security, RFC 8915).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use timevisor_protocols::nts::negotiation::DEFAULT_NTP_PORT;

/// A key establishment server.
#[derive(Clone, Debug)]
pub struct NtsServer {
    /// Name or address, as in the certificate.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// UDP port of the NTP server, unless the key establishment server names one.
    pub ntp_port: u16,
    /// PEM file with authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
}

/// `host:port` with the TCP port.
impl fmt::Display for NtsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<IpAddr>() {
            Ok(ip) => write!(f, "{}", SocketAddr::new(ip, self.port)),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl NtsServer {
    /// Derives it from a reference's address, whose port (if any) is the NTP port.
    pub fn new(address: &str, port: u16, ca_file: Option<PathBuf>) -> Self {
        let (host, ntp_port) = split(address);
        Self { host, port, ntp_port: ntp_port.unwrap_or(DEFAULT_NTP_PORT), ca_file }
    }
}

/// Splits `host`, `host:port`, an address, `address:port` or `[address]:port`.
fn split(address: &str) -> (String, Option<u16>) {
    if let Ok(socket) = address.parse::<SocketAddr>() {
        return (socket.ip().to_string(), Some(socket.port()));
    }
    let is_ip = address.parse::<IpAddr>().is_ok();
    match address.rsplit_once(':').filter(|_| !is_ip) {
        Some((host, port)) => match port.parse() {
            Ok(port) => (host.to_owned(), Some(port)),
            Err(_) => (address.to_owned(), None),
        },
        None => (address.to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_form() {
        for (address, host, port) in [
            ("ntp.example.net", "ntp.example.net", None),
            ("ntp.example.net:11123", "ntp.example.net", Some(11_123)),
            ("192.0.2.1", "192.0.2.1", None),
            ("192.0.2.1:124", "192.0.2.1", Some(124)),
            ("2001:db8::1", "2001:db8::1", None),
            ("[2001:db8::1]:124", "2001:db8::1", Some(124)),
        ] {
            assert_eq!(split(address), (host.to_owned(), port), "{address}");
        }
        assert_eq!(NtsServer::new("::1", 4460, None).to_string(), "[::1]:4460");
        assert_eq!(NtsServer::new("a:124", 4460, None).to_string(), "a:4460");
    }
}
