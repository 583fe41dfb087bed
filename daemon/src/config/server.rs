//! `[server]`: this host's clock served over NTP.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use timevisor_protocols::ntp::server::{Config, Prefix, access};
use timevisor_protocols::nts::negotiation::{DEFAULT_KE_PORT, DEFAULT_NTP_PORT, server_name};

use super::span;

/// `[server]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Where to listen, such as `0.0.0.0:123` or `[::]:123`; if empty, there is no server.
    pub listen: Vec<SocketAddr>,
    /// Address prefixes that are served.
    pub allow: Vec<String>,
    /// Address prefixes that are not served; the longest matching prefix decides.
    pub deny: Vec<String>,
    /// How many clients are remembered, for the rate limit and the interleaved mode.
    pub clients: usize,
    /// In the long run, each address is answered at most once per this span; 0 disables the limit.
    #[serde(with = "humantime_serde")]
    pub rate_interval: StdDuration,
    /// This many requests may arrive at once.
    pub rate_burst: u32,
    /// Offers the interleaved mode (RFC 9769) to clients that ask for it.
    pub interleaved: bool,
    /// The stratum to claim when the reference has none because it is not an NTP server.
    pub stratum: u8,
    /// The server's certificate with its chain, PEM. With it, the server serves NTS, too.
    pub nts_certificate: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub nts_key: Option<PathBuf>,
    /// Where clients get keys (TCP); if empty, port 4460 of each address in `listen`.
    pub nts_ke_listen: Vec<SocketAddr>,
    /// The host at which clients use their keys, if it is not the one that they got them from.
    pub nts_ntp_server: Option<String>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let defaults = Config::default();
        Self {
            listen: Vec::new(),
            allow: access::local_networks().iter().map(ToString::to_string).collect(),
            deny: Vec::new(),
            clients: defaults.clients,
            rate_interval: StdDuration::from_millis(500),
            rate_burst: defaults.rate_burst,
            interleaved: defaults.interleaved,
            stratum: 10,
            nts_certificate: None,
            nts_key: None,
            nts_ke_listen: Vec::new(),
            nts_ntp_server: None,
        }
    }
}

impl ServerConfig {
    /// Validates every key.
    ///
    /// # Errors
    /// The first invalid key, with what would be valid.
    pub fn validate(&self) -> Result<()> {
        self.protocol()?;
        ensure!((1..=15).contains(&self.stratum), "server.stratum must be from 1 to 15");
        for (key, addresses, usual) in [
            ("listen", &self.listen, "NTP's is 123"),
            ("nts_ke_listen", &self.nts_ke_listen, "NTS's is 4460"),
        ] {
            for (index, address) in addresses.iter().enumerate() {
                ensure!(
                    !addresses[..index].contains(address),
                    "server.{key} has {address} twice; remove one"
                );
                ensure!(address.port() != 0, "server.{key}: {address} needs a port; {usual}");
            }
        }
        self.validate_nts()
    }

    fn validate_nts(&self) -> Result<()> {
        let files = [("nts_certificate", &self.nts_certificate), ("nts_key", &self.nts_key)];
        for (key, path) in files {
            if let Some(path) = path {
                ensure!(path.is_absolute(), "server.{key} must be an absolute path");
            }
        }
        match (&self.nts_certificate, &self.nts_key) {
            (Some(_), None) => bail!(
                "server.nts_certificate needs server.nts_key, the file with the certificate's private key (PEM); set it"
            ),
            (None, Some(_)) => bail!(
                "server.nts_key needs server.nts_certificate, the file with its certificate and chain (PEM); set it"
            ),
            (Some(_), Some(_)) => ensure!(
                !self.listen.is_empty(),
                "server.nts_certificate needs server.listen, where NTP is served; set it, for example to [\"0.0.0.0:123\", \"[::]:123\"]"
            ),
            (None, None) => {
                let needs =
                    "needs server.nts_certificate and server.nts_key; set them or remove it";
                ensure!(self.nts_ke_listen.is_empty(), "server.nts_ke_listen {needs}");
                ensure!(self.nts_ntp_server.is_none(), "server.nts_ntp_server {needs}");
            }
        }
        if let Some(name) = &self.nts_ntp_server {
            ensure!(
                server_name(name.as_bytes()).is_some(),
                "server.nts_ntp_server: {name:?} is neither a host name nor an address; correct it"
            );
        }
        Ok(())
    }

    /// Where clients get keys.
    pub fn key_addresses(&self) -> Vec<SocketAddr> {
        if !self.nts_ke_listen.is_empty() {
            return self.nts_ke_listen.clone();
        }
        let mut addresses = Vec::new();
        for address in &self.listen {
            let mut address = *address;
            address.set_port(DEFAULT_KE_PORT);
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }

    /// The port at which NTP is served to a client that got its keys at `local`.
    pub fn ntp_port(&self, local: IpAddr) -> u16 {
        let covers = |listen: &&SocketAddr| listen.ip() == local;
        let is_any = |listen: &&SocketAddr| {
            listen.ip().is_unspecified() && listen.is_ipv4() == local.is_ipv4()
        };
        let found = self.listen.iter().find(covers).or_else(|| self.listen.iter().find(is_any));
        found.or(self.listen.first()).map_or(DEFAULT_NTP_PORT, SocketAddr::port)
    }

    /// The parameters of the protocol's state machine.
    pub fn protocol(&self) -> Result<Config> {
        let prefixes = |key: &str, texts: &[String]| {
            let parse = |text: &String| text.parse::<Prefix>();
            texts.iter().map(parse).collect::<Result<Vec<_>, _>>().context(format!("server.{key}"))
        };
        let config = Config {
            allow: prefixes("allow", &self.allow)?,
            deny: prefixes("deny", &self.deny)?,
            clients: self.clients,
            rate_interval: span(self.rate_interval),
            rate_burst: self.rate_burst,
            interleaved: self.interleaved,
        };
        config.validate().context("[server]")?;
        Ok(config)
    }

    /// True if the server at `address` is this one; `local` is our address on the route to it.
    pub fn is_own(&self, address: SocketAddr, local: IpAddr) -> bool {
        let same = |listen: &SocketAddr| {
            listen.port() == address.port()
                && (listen.ip().is_unspecified() || listen.ip() == address.ip())
        };
        address.ip() == local && self.listen.iter().any(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: fn(&mut ServerConfig)) -> String {
        let mut config = ServerConfig::default();
        change(&mut config);
        format!("{:#}", config.validate().unwrap_err())
    }

    #[test]
    fn the_default_is_valid_and_the_protocols_own() {
        let config = ServerConfig::default();
        config.validate().unwrap();
        assert_eq!(config.protocol().unwrap(), Config::default());
    }

    #[test]
    fn mistakes_are_named() {
        assert!(error(|c| c.allow = vec!["10.0.0.1/8".into()]).contains("write 10.0.0.0/8"));
        assert!(error(|c| c.deny = vec!["x".into()]).starts_with("server.deny"));
        assert!(error(|c| c.stratum = 16).contains("1 to 15"));
        assert!(error(|c| c.clients = 1).contains("clients is 1"));
        assert!(error(|c| c.rate_burst = 0).contains("rate_burst"));
        let twice: fn(&mut ServerConfig) = |c| c.listen = vec!["0.0.0.0:123".parse().unwrap(); 2];
        assert!(error(twice).contains("twice"));
        assert!(error(|c| c.listen = vec!["0.0.0.0:0".parse().unwrap()]).contains("123"));
    }

    fn with_nts() -> ServerConfig {
        ServerConfig {
            listen: vec!["192.0.2.1:123".parse().unwrap(), "[::]:1123".parse().unwrap()],
            nts_certificate: Some("/etc/timevisor/nts.crt".into()),
            nts_key: Some("/etc/timevisor/nts.key".into()),
            ..ServerConfig::default()
        }
    }

    #[test]
    fn nts_needs_both_files_and_a_server() {
        with_nts().validate().unwrap();
        let wrong = |change: fn(&mut ServerConfig)| {
            let mut config = with_nts();
            change(&mut config);
            format!("{:#}", config.validate().unwrap_err())
        };
        assert!(wrong(|c| c.nts_key = None).contains("needs server.nts_key"));
        assert!(wrong(|c| c.nts_certificate = None).contains("needs server.nts_certificate"));
        assert!(wrong(|c| c.nts_key = Some("nts.key".into())).contains("absolute path"));
        assert!(wrong(|c| c.listen.clear()).contains("set it, for example"));
        let at = |c: &mut ServerConfig, text: &str| {
            c.nts_ke_listen.push(text.parse().unwrap());
        };
        assert!(error(|c| c.nts_ke_listen.push("[::]:4460".parse().unwrap())).contains("needs"));
        assert!(error(|c| c.nts_ntp_server = Some("a".into())).contains("needs"));
        assert!(wrong(|c| c.nts_ntp_server = Some("a b".into())).contains("correct it"));
        let mut config = with_nts();
        at(&mut config, "[::]:0");
        assert!(config.validate().unwrap_err().to_string().contains("NTS's is 4460"));
        config.nts_ke_listen.clear();
        at(&mut config, "[::]:4460");
        at(&mut config, "[::]:4460");
        assert!(config.validate().unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn keys_are_given_beside_ntp_and_lead_to_its_port() {
        let mut config = with_nts();
        let texts = |c: &ServerConfig| {
            c.key_addresses().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(texts(&config), ["192.0.2.1:4460", "[::]:4460"]);
        let port = |text: &str| with_nts().ntp_port(text.parse().unwrap());
        assert_eq!((port("192.0.2.1"), port("2001:db8::1"), port("192.0.2.9")), (123, 1123, 123));
        config.nts_ke_listen = vec!["127.0.0.1:4461".parse().unwrap()];
        assert_eq!(texts(&config), ["127.0.0.1:4461"]);
    }

    #[test]
    fn a_reference_that_is_this_server_is_recognized() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let here: IpAddr = "192.0.2.1".parse().unwrap();
        let config = ServerConfig {
            listen: vec![at("0.0.0.0:123"), at("127.0.0.1:1123")],
            ..Default::default()
        };
        assert!(config.is_own(at("192.0.2.1:123"), here));
        assert!(config.is_own(at("127.0.0.1:1123"), "127.0.0.1".parse().unwrap()));
        assert!(!config.is_own(at("192.0.2.1:1123"), here), "not at this address");
        assert!(!config.is_own(at("192.0.2.9:123"), here), "another machine");
        assert!(!ServerConfig::default().is_own(at("192.0.2.1:123"), here), "no server");
    }
}
