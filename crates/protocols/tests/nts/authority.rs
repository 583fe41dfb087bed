//! A certificate authority of the test's own, and TLS servers with its certificates.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, date_time_ymd,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection};
use timevisor_protocols::nts::TrustAnchors;
use timevisor_protocols::nts::server::Identity;
use timevisor_time::{Instant, Utc};

/// Certificates are valid from 2026-01-01 to 2027-01-01; this lies between.
pub(crate) const NOW: Instant<Utc> = Instant::from_unix_nanos(1_780_000_000_000_000_000);

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2100, 1, 1);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn trusted(&self) -> TrustAnchors {
        TrustAnchors::from_pem(self.pem().as_bytes()).unwrap()
    }

    /// A certificate for `name`, and its key.
    pub(crate) fn certify(&self, name: &str) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2027, 1, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// The same for our own server.
    pub(crate) fn identity(&self, name: &str) -> Identity {
        let (certificate, key) = self.certify(name);
        Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap()
    }

    /// A server with a certificate for `name`.
    pub(crate) fn server(&self, name: &str, tls: Tls) -> ServerConnection {
        let (certificate, key) = self.certify(name);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.alpn_protocols = match tls {
            Tls::Nts => vec![b"ntske/1".to_vec()],
            Tls::Web => vec![b"h2".to_vec()],
            Tls::Silent => vec![],
        };
        ServerConnection::new(Arc::new(config)).unwrap()
    }
}

/// The protocol inside the TLS.
#[derive(Clone, Copy)]
pub(crate) enum Tls {
    Nts,
    Web,
    /// Names none at all.
    Silent,
}
