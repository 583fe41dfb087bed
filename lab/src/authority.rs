//! A test's own certificate authority, for servers that use TLS.
//!
//! It stores nothing: the authority and its keys exist only until the test ends.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType, date_time_ymd,
};

/// An authority whose certificate is valid for a century.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// The files with a server's certificate and key.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// In PEM format.
    pub certificate: PathBuf,
    /// In PEM format.
    pub key: PathBuf,
}

impl Authority {
    /// Creates a new authority.
    ///
    /// # Errors
    /// When the system provides no randomness.
    pub fn new() -> anyhow::Result<Self> {
        let mut params = CertificateParams::new(vec![])?;
        params.distinguished_name.push(DnType::CommonName, "Timevisor lab");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2120, 1, 1);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Writes the authority's certificate.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        Ok(fs::write(path, self.0.pem())?)
    }

    /// Writes `name.crt` and `name.key` for the server at `address`, valid from 2020 to the end of
    /// `last_year`.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn certify(
        &self,
        address: IpAddr,
        last_year: i32,
        dir: &Path,
        name: &str,
    ) -> anyhow::Result<ServerFiles> {
        let mut params = CertificateParams::new(vec![])?;
        params.subject_alt_names = vec![SanType::IpAddress(address)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 12, 31);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        let files = ServerFiles {
            certificate: dir.join(format!("{name}.crt")),
            key: dir.join(format!("{name}.key")),
        };
        fs::write(&files.certificate, certificate.pem())?;
        fs::write(&files.key, key.serialize_pem())?;
        Ok(files)
    }
}
