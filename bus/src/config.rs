//! The configuration: one TOML file, unknown keys refused.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use timevisor_coordination::Name;
use timevisor_protocols::bus::SOCKET;
use timevisor_protocols::nts::shared::Secret;

/// The keys of groups.
pub type Keys = BTreeMap<Name, Secret>;

/// The file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where programs of this host connect. By default /run/timevisor-bus/socket for root and for a
    /// service with that runtime directory, else timevisor-bus.socket in `XDG_RUNTIME_DIR`.
    pub socket: Option<PathBuf>,
    /// Where programs in guests and on other hosts connect.
    pub tcp: Option<Tcp>,
    /// Buses of other hosts.
    pub hosts: Option<Hosts>,
    /// Groups with a key.
    #[serde(default, rename = "group")]
    pub groups: Vec<Group>,
}

/// TLS.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tcp {
    /// Addresses and ports.
    pub listen: Vec<SocketAddr>,
    /// The certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
}

/// Buses of other hosts, which are reached by Zenoh. They share the groups with a key; what they say is
/// sealed with that key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// Addresses and ports at which buses of other hosts connect.
    #[serde(default)]
    pub listen: Vec<SocketAddr>,
    /// Buses of other hosts to connect to. Each two hosts have to be connected directly or by others.
    #[serde(default)]
    pub connect: Vec<SocketAddr>,
}

/// A group with a key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// A file with the key, as `timevisor cluster key` makes one.
    pub key: PathBuf,
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} has a mistake", path.display()))
    }

    /// The keys, from their files.
    pub fn keys(&self) -> Result<Keys> {
        let mut keys = Keys::new();
        for Group { name, key } in &self.groups {
            let name: Name = name.parse().with_context(|| format!("group {name:?}"))?;
            let text = std::fs::read(key).with_context(|| {
                format!("cannot read the key of group {name}, {}", key.display())
            })?;
            let secret = Secret::parse(&text)
                .with_context(|| format!("{} is no key for group {name}", key.display()))?;
            if keys.insert(name, secret).is_some() {
                bail!("group {name} is listed twice");
            }
        }
        Ok(keys)
    }

    /// Where programs of this host connect.
    pub fn socket(&self) -> PathBuf {
        if let Some(socket) = &self.socket {
            return socket.clone();
        }
        if let Some(folder) = std::env::var_os("RUNTIME_DIRECTORY") {
            return Path::new(&folder).join("socket");
        }
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(folder) => Path::new(&folder).join("timevisor-bus.socket"),
            None => PathBuf::from(SOCKET),
        }
    }
}
