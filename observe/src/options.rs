//! Arguments, and which addresses may be listened at.

use std::fs::File;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Metrics for Prometheus at /metrics, and a dashboard at /; it reads and changes nothing.
#[derive(Parser, Debug)]
#[command(name = "timevisor-observe", version)]
pub struct Options {
    /// Where to listen; may be given several times. Addresses of the network only with --certificate and --key
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9975")]
    pub listen: Vec<SocketAddr>,
    /// The certificate, with those that signed it, PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// A name by which browsers may reach this; may be given several times. Addresses and localhost always work
    #[arg(long = "name", value_name = "HOST")]
    pub names: Vec<String>,
    /// timevisord's run directory
    #[arg(long, value_name = "DIR", default_value = "/run/timevisor")]
    pub run_directory: PathBuf,
}

impl Options {
    /// TLS, if a certificate is given.
    ///
    /// # Errors
    /// When an address of the network is to be listened at without TLS, or the files are of no use.
    pub fn tls(&self) -> Result<Option<TlsAcceptor>> {
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            return match self.listen.iter().find(|address| !is_loopback(**address)) {
                Some(address) => bail!(
                    "{address} can be reached from the network, and nothing encrypts what is sent there: give --certificate and --key, or \
                     listen at 127.0.0.1 and let a proxy do that"
                ),
                None => Ok(None),
            };
        };
        let chain = CertificateDer::pem_reader_iter(open(certificate)?)
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("{} is no certificate in PEM", certificate.display()))?;
        let secret = PrivateKeyDer::from_pem_reader(open(key)?)
            .with_context(|| format!("{} is no key in PEM", key.display()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .with_context(|| {
                format!("{} and {} do not fit together", certificate.display(), key.display())
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Some(TlsAcceptor::from(Arc::new(config))))
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(BufReader::new(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn options(words: &[&str]) -> Options {
        Options::parse_from([&["timevisor-observe"], words].concat())
    }

    #[test]
    fn loopback_needs_nothing_and_the_network_needs_a_certificate() {
        Options::command().debug_assert();
        assert!(options(&[]).tls().unwrap().is_none());
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(options(&["--listen", address]).tls().unwrap().is_none(), "{address}");
        }
        for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[2001:db8::1]:1"] {
            let Err(error) = options(&["--listen", "127.0.0.1:1", "--listen", address]).tls()
            else {
                panic!("{address} is listened at without TLS")
            };
            assert!(error.to_string().contains("--certificate"), "{error}");
        }
    }

    #[test]
    fn a_certificate_and_its_key_are_taken_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["observe.example".to_owned()]).unwrap();
        let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let with = |key: &Path| {
            let files = [certificate.to_str().unwrap(), key.to_str().unwrap()];
            options(&["--listen", "0.0.0.0:1", "--certificate", files[0], "--key", files[1]]).tls()
        };
        assert!(with(&key).unwrap().is_some());
        assert!(with(&certificate).is_err_and(|error| error.to_string().contains("no key")));
        assert!(with(Path::new("/nowhere")).is_err());
        assert!(Options::try_parse_from(["o", "--certificate", "c"]).is_err());
    }
}
