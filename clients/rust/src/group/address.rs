//! [`BusAddress`]: where a bus listens.

use std::fmt;
use std::path::{Path, PathBuf};

use timevisor_protocols::bus::SOCKET;

use super::error::JoinError;
use super::manual_bus::Bus;

/// What addresses of buses elsewhere begin with.
const TLS: &str = "tls://";

/// Where a bus listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BusAddress {
    /// A Unix socket of this machine.
    Socket(PathBuf),
    /// On the network, by TLS. Groups with a key only.
    Tls {
        /// Its host and port, such as `bus.example:7470`. The certificate must be that host's.
        at: String,
        /// A PEM file with the authority that signed its certificate; its own, if nobody did.
        authority: PathBuf,
    },
    /// In this process, for tests.
    Manual(Bus),
}

impl BusAddress {
    /// Reads `tls://HOST:PORT`, which takes a file with the certificate's authority, or a path.
    ///
    /// # Errors
    /// When the port or the authority is missing.
    pub fn parse(text: &str, authority: Option<&Path>) -> Result<Self, JoinError> {
        let Some(at) = text.strip_prefix(TLS) else { return Ok(Self::Socket(text.into())) };
        let wrong = |what: &str| JoinError::Address(text.to_owned(), what.to_owned());
        let port = at.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() {
            return Err(wrong("the port is missing; write tls://HOST:PORT"));
        }
        let authority = authority.ok_or_else(|| {
            wrong(
                "who signed its certificate is not known; give a PEM file with the authority or the certificate \
                 itself (TIMEVISOR_BUS_AUTHORITY, --authority)",
            )
        })?;
        Ok(Self::Tls { at: at.to_owned(), authority: authority.to_owned() })
    }

    /// Where a bus may listen: where it is stated to, else by the environment, else the usual places.
    pub(super) fn candidates(stated: Option<&Self>) -> Result<Vec<Self>, JoinError> {
        if let Some(address) = stated {
            return Ok(vec![address.clone()]);
        }
        if let Some(text) = std::env::var_os("TIMEVISOR_BUS") {
            let authority = std::env::var_os("TIMEVISOR_BUS_AUTHORITY").map(PathBuf::from);
            let Some(text) = text.to_str() else { return Ok(vec![Self::Socket(text.into())]) };
            return Ok(vec![Self::parse(text, authority.as_deref())?]);
        }
        let own = std::env::var_os("XDG_RUNTIME_DIR");
        let own = own.map(|folder| Path::new(&folder).join("timevisor-bus.socket"));
        Ok(own.into_iter().chain([PathBuf::from(SOCKET)]).map(Self::Socket).collect())
    }
}

impl fmt::Display for BusAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Tls { at, .. } => write!(f, "{TLS}{at}"),
            Self::Manual(_) => write!(f, "a bus in this process"),
        }
    }
}

impl From<Bus> for BusAddress {
    fn from(bus: Bus) -> Self {
        Self::Manual(bus)
    }
}

impl From<PathBuf> for BusAddress {
    fn from(path: PathBuf) -> Self {
        Self::Socket(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_addresses_are_told_apart() {
        let parse = |text: &str| BusAddress::parse(text, Some(Path::new("/ca.pem")));
        assert_eq!(parse("/run/bus").unwrap(), BusAddress::Socket("/run/bus".into()));
        for at in ["bus.example:7470", "192.0.2.1:7470", "[2001:db8::1]:7470"] {
            let text = format!("tls://{at}");
            let address = parse(&text).unwrap();
            assert_eq!(address, BusAddress::Tls { at: at.into(), authority: "/ca.pem".into() });
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let said = |text, authority| BusAddress::parse(text, authority).unwrap_err().to_string();
        assert!(said("tls://bus.example", Some(Path::new("/ca"))).contains("tls://HOST:PORT"));
        assert!(said("tls://bus.example:7470", None).contains("TIMEVISOR_BUS_AUTHORITY"));
    }
}
