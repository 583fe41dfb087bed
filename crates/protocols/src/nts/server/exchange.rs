//! Key establishment with one client: TLS around one message each way (RFC 8915 sections 3 to 5.1).
//!
//! Bytes in, bytes out: the caller owns the connection and the deadline. The exchange requires TLS
//! 1.3 and the protocol name "ntske/1". Sessions are not resumed and no tickets are sent, as on the
//! client's side. TLS's secrets are not logged.
//!
//! What it does not do: accept connections, limit them, keep time, or make cookies. Random numbers
//! are TLS's, from the kernel.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{ServerConfig, ServerConnection};
use zeroize::Zeroizing;

use super::cookie::SessionKeys;
use super::negotiation::{MAX_REQUEST, Refusal, request};
use crate::nts::aead::KEY_LEN;
use crate::nts::exchange::{ALPN, Direction, EXPORTER_LABEL, exporter_context};

/// The server's certificate and key, ready for TLS.
#[derive(Clone, Debug)]
pub struct Identity(Arc<ServerConfig>);

/// Why a certificate and its key cannot be used. The text says what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityError {
    /// The certificate's file is damaged.
    #[error("the certificate's file is not PEM: {what}; it must hold BEGIN CERTIFICATE lines")]
    CertificatePem {
        /// The parser's message.
        what: String,
    },
    /// It has no certificate.
    #[error(
        "the certificate's file holds no certificate; give the chain in PEM, the server's own first (Let's Encrypt's fullchain.pem)"
    )]
    NoCertificate,
    /// The key's file is damaged.
    #[error("the key's file is not PEM: {what}; it must hold a BEGIN PRIVATE KEY line")]
    KeyPem {
        /// The parser's message.
        what: String,
    },
    /// It has no key.
    #[error("the key's file holds no private key; give it in PEM (Let's Encrypt's privkey.pem)")]
    NoKey,
    /// The key is not the certificate's.
    #[error("the key does not belong to the certificate; give the two files of one certificate")]
    Mismatch,
    /// TLS cannot use them.
    #[error(
        "TLS cannot use them: {what}; have the certificate issued again, with an ECDSA P-256 or RSA key"
    )]
    Unusable {
        /// The TLS library's message.
        what: String,
    },
}

impl Identity {
    /// Reads a chain of certificates, the server's own first, and its key. Whether clients trust
    /// the chain is theirs to judge.
    ///
    /// # Errors
    /// The first defect.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| IdentityError::CertificatePem { what: error.to_string() })?;
        if chain.is_empty() {
            return Err(IdentityError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound => IdentityError::NoKey,
            other => IdentityError::KeyPem { what: other.to_string() },
        })?;
        let unusable = |error: rustls::Error| match error {
            rustls::Error::InconsistentKeys(_) => IdentityError::Mismatch,
            other => IdentityError::Unusable { what: other.to_string() },
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self(Arc::new(config)))
    }
}

/// Why an exchange ended without an answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExchangeError {
    /// TLS failed: the client does not trust us, has no TLS 1.3, or is no TLS client.
    #[error("TLS failed: {what}")]
    Tls {
        /// The TLS library's message.
        what: String,
    },
    /// The client speaks TLS, but does not ask for NTS.
    #[error("the client did not ask for ntske/1")]
    NotNts,
}

/// What the client's bytes lead to.
#[derive(Debug)]
pub enum Progress {
    /// More bytes are needed.
    Going,
    /// The client gets keys: pass the answer with its cookies to [`Exchange::answer`].
    Agreed(SessionKeys),
    /// The client gets none, and has been told so.
    Refused(Refusal),
}

/// A key establishment under way.
#[derive(Debug)]
pub struct Exchange {
    tls: ServerConnection,
    request: Vec<u8>,
    /// The client's message has been judged.
    is_over: bool,
}

impl Exchange {
    /// Starts one.
    ///
    /// # Errors
    /// When TLS cannot start, for instance without random numbers.
    pub fn start(identity: &Identity) -> Result<Self, ExchangeError> {
        let mut tls = ServerConnection::new(Arc::clone(&identity.0)).map_err(from_tls)?;
        // An answer with the largest certificates in use fits; more would wait for a client that
        // does not read.
        tls.set_buffer_limit(Some(64 * 1024));
        Ok(Self { tls, request: Vec::new(), is_over: false })
    }

    /// Returns the bytes to send now; after an error they state the reason.
    #[must_use]
    pub fn output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to a vector cannot fail.
        while self.tls.wants_write() && self.tls.write_tls(&mut bytes).is_ok() {}
        bytes
    }

    /// Reads bytes from the client. What follows its message is ignored.
    ///
    /// # Errors
    /// The exchange is then over: send the last output and close the connection.
    pub fn on_bytes(&mut self, mut bytes: &[u8]) -> Result<Progress, ExchangeError> {
        while !bytes.is_empty() && !self.is_over {
            self.tls.read_tls(&mut bytes).map_err(|error| internal(&error))?;
            let state = self.tls.process_new_packets().map_err(from_tls)?;
            self.read(state.plaintext_bytes_to_read())?;
            if self.request.len() > MAX_REQUEST {
                break;
            }
        }
        if self.is_over || self.tls.is_handshaking() {
            return Ok(Progress::Going);
        }
        if self.tls.alpn_protocol() != Some(ALPN) {
            self.is_over = true;
            self.tls.send_close_notify();
            return Err(ExchangeError::NotNts);
        }
        match request(&self.request) {
            None => Ok(Progress::Going),
            Some(Ok(())) => {
                self.is_over = true;
                Ok(Progress::Agreed(self.keys()?))
            }
            Some(Err(refusal)) => {
                self.is_over = true;
                self.answer(&refusal.answer())?;
                Ok(Progress::Refused(refusal))
            }
        }
    }

    /// Sends our message and ends the session.
    ///
    /// # Errors
    /// When TLS takes no more bytes.
    pub fn answer(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        self.tls.writer().write_all(message).map_err(|error| internal(&error))?;
        self.tls.send_close_notify();
        Ok(())
    }

    fn read(&mut self, len: usize) -> Result<(), ExchangeError> {
        let start = self.request.len();
        self.request.resize(start + len, 0);
        self.tls.reader().read_exact(&mut self.request[start..]).map_err(|error| internal(&error))
    }

    fn keys(&self) -> Result<SessionKeys, ExchangeError> {
        let client_to_server = self.key(Direction::ClientToServer)?;
        let server_to_client = self.key(Direction::ServerToClient)?;
        Ok(SessionKeys::new(&client_to_server, &server_to_client))
    }

    fn key(&self, direction: Direction) -> Result<Zeroizing<[u8; KEY_LEN]>, ExchangeError> {
        let context = exporter_context(direction);
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        self.tls
            .export_keying_material(&mut bytes[..], EXPORTER_LABEL, Some(&context))
            .map_err(from_tls)?;
        Ok(bytes)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err wants")]
fn from_tls(error: rustls::Error) -> ExchangeError {
    ExchangeError::Tls { what: error.to_string() }
}

/// Reading and writing vectors fails only when the TLS library's own limits are exceeded.
fn internal(error: &std::io::Error) -> ExchangeError {
    ExchangeError::Tls { what: error.to_string() }
}
