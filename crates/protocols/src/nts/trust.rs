//! The certificate authorities that we trust to identify servers.
//!
//! What it does not do: read files. The caller passes their contents.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::error::KeyError;

/// A set of authorities. The default set is empty and trusts nobody.
#[derive(Clone, Debug)]
pub struct TrustAnchors(Arc<RootCertStore>);

/// Why a file of authorities cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TrustError {
    /// The file has no certificate, or a damaged one.
    #[error(
        "it is not PEM: {what}; it must hold the authority's certificate between BEGIN and END lines"
    )]
    Pem {
        /// The parser's message.
        what: String,
    },
    /// A certificate in the file cannot be an authority's.
    #[error("certificate {number} in it is refused: {what}; replace it")]
    Certificate {
        /// Its position, counted from 1.
        number: usize,
        /// The TLS library's message.
        what: String,
    },
    /// The file is PEM, but has no certificates.
    #[error("it holds no certificate; give the authority's, not a key")]
    Empty,
}

impl Default for TrustAnchors {
    fn default() -> Self {
        Self(Arc::new(RootCertStore::empty()))
    }
}

impl TrustAnchors {
    /// Reads the authorities in a PEM file. Every one must be usable, because the operator chose
    /// them.
    ///
    /// # Errors
    /// The first defect.
    pub fn from_pem(pem: &[u8]) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        for (index, certificate) in CertificateDer::pem_slice_iter(pem).enumerate() {
            let certificate =
                certificate.map_err(|error| TrustError::Pem { what: error.to_string() })?;
            roots.add(certificate).map_err(|error| TrustError::Certificate {
                number: index + 1,
                what: error.to_string(),
            })?;
        }
        if roots.is_empty() { Err(TrustError::Empty) } else { Ok(Self(Arc::new(roots))) }
    }

    /// Reads the authorities among these certificates (DER). Unusable ones are skipped, because a
    /// system's collection may have a few obsolete ones.
    pub fn from_der<C: AsRef<[u8]>>(certificates: impl IntoIterator<Item = C>) -> Self {
        let mut roots = RootCertStore::empty();
        let certificates = certificates.into_iter();
        roots.add_parsable_certificates(
            certificates.map(|c| CertificateDer::from(c.as_ref().to_vec())),
        );
        Self(Arc::new(roots))
    }

    /// Returns the number of authorities.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if no authority is trusted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the set for the TLS library. An empty set is refused, because it is always a
    /// configuration error.
    ///
    /// # Errors
    /// When it is empty.
    pub fn roots(&self) -> Result<Arc<RootCertStore>, KeyError> {
        if self.is_empty() { Err(KeyError::NoAuthority) } else { Ok(Arc::clone(&self.0)) }
    }
}
