//! `[server]`: this host's clock served over NTP.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use timevisor_protocols::ntp::server::{Config, Prefix, access};

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
        for (index, address) in self.listen.iter().enumerate() {
            ensure!(
                !self.listen[..index].contains(address),
                "server.listen has {address} twice; remove one"
            );
            ensure!(address.port() != 0, "server.listen: {address} needs a port; NTP's is 123");
        }
        Ok(())
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
