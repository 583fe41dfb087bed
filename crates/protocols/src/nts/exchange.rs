//! Key establishment with one server: TLS around one message each way (RFC 8915 sections 3 to 5.1).
//!
//! Bytes in, bytes out: the caller owns the connection and the deadline. The exchange requires TLS
//! 1.3, the protocol name "ntske/1", and a certificate for the server that is valid at the time
//! that the caller passes, or throughout its bounds. Sessions are not resumed, so every establishment checks the certificate.
//! TLS's secrets are not logged, whatever SSLKEYLOGFILE says.
//!
//! What it does not do: connect, look up names, or keep time. Random numbers are TLS's, from the
//! kernel.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use zeroize::Zeroizing;

use super::aead::{KEY_LEN, Key};
use super::error::{KeyError, from_tls};
use super::negotiation::{AES_SIV_CMAC_256, Answer, NTPV4, request};
use super::trust::TrustAnchors;
use super::validity::{AtBothEnds, CertificateTime};

/// RFC 8915 section 4.
pub const ALPN: &[u8] = b"ntske/1";
/// RFC 8915 section 5.1.
pub(super) const EXPORTER_LABEL: &[u8] = b"EXPORTER-network-time-security";

/// One direction of the NTP packets (RFC 8915 section 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Direction {
    /// C2S.
    ClientToServer = 0,
    /// S2C.
    ServerToClient = 1,
}

/// The context from which TLS derives a direction's key (RFC 8915 section 5.1).
#[must_use]
pub const fn exporter_context(direction: Direction) -> [u8; 5] {
    let [protocol_hi, protocol_lo] = NTPV4.to_be_bytes();
    let [algorithm_hi, algorithm_lo] = AES_SIV_CMAC_256.to_be_bytes();
    [protocol_hi, protocol_lo, algorithm_hi, algorithm_lo, direction as u8]
}

/// Keys, cookies, and the server to use them with.
#[derive(Clone, Debug)]
pub struct Established {
    /// Seals requests.
    pub client_to_server: Key,
    /// Opens answers.
    pub server_to_client: Key,
    /// The server's half of the negotiation.
    pub answer: Answer,
}

/// A key establishment under way.
#[derive(Debug)]
pub struct Exchange {
    server: String,
    time: CertificateTime,
    tls: ClientConnection,
    answer: Vec<u8>,
}

impl Exchange {
    /// Starts one with `server` (a DNS name or an IP address, without a port), whose certificate
    /// must be valid at `time`.
    ///
    /// # Errors
    /// When no certificate can have this name, or no authority is trusted.
    pub fn start(
        server: &str,
        trust: &TrustAnchors,
        time: CertificateTime,
    ) -> Result<Self, KeyError> {
        let name = ServerName::try_from(server.to_owned())
            .map_err(|_| KeyError::Name { name: server.to_owned() })?;
        let failed = |error| from_tls(error, server, &time);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let check =
            WebPkiServerVerifier::builder_with_provider(trust.roots()?, Arc::clone(&provider))
                .build()
                .map_err(|error| KeyError::Tls { what: error.to_string() })?;
        // "Dangerous" is that a verifier could accept anything. This one runs the usual check, twice.
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AtBothEnds { check, time }))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        let mut tls = ClientConnection::new(Arc::new(config), name).map_err(failed)?;
        // TLS buffers it until the handshake is complete.
        tls.writer().write_all(&request()).map_err(|error| internal(&error))?;
        Ok(Self { server: server.to_owned(), time, tls, answer: Vec::new() })
    }

    /// Returns the bytes to send now; at the end they close the session, and after an error they
    /// state the reason.
    #[must_use]
    pub fn output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to a vector cannot fail.
        while self.tls.wants_write() && self.tls.write_tls(&mut bytes).is_ok() {}
        bytes
    }

    /// Reads bytes from the server. `Some` is the end: send the last output and close the
    /// connection.
    ///
    /// # Errors
    /// The first defect of the server's messages; the exchange is then over.
    pub fn on_bytes(&mut self, mut bytes: &[u8]) -> Result<Option<Established>, KeyError> {
        while !bytes.is_empty() {
            self.tls.read_tls(&mut bytes).map_err(|error| internal(&error))?;
            let state = self
                .tls
                .process_new_packets()
                .map_err(|e| from_tls(e, &self.server, &self.time))?;
            self.read(state.plaintext_bytes_to_read())?;
        }
        if self.tls.is_handshaking() {
            return Ok(None);
        }
        if self.tls.alpn_protocol() != Some(ALPN) {
            return Err(KeyError::NotNts);
        }
        let Some(answer) = Answer::parse(&self.answer)? else { return Ok(None) };
        self.tls.send_close_notify();
        self.establish(answer).map(Some)
    }

    /// Returns the server's own certificate, DER; servers that show the same one are one party.
    #[must_use]
    pub fn certificate(&self) -> Option<&[u8]> {
        Some(self.tls.peer_certificates()?.first()?.as_ref())
    }

    /// Says why no keys will come after the server has closed the connection.
    #[must_use]
    pub fn on_end(&self) -> KeyError {
        KeyError::Closed
    }

    fn read(&mut self, len: usize) -> Result<(), KeyError> {
        let start = self.answer.len();
        self.answer.resize(start + len, 0);
        self.tls.reader().read_exact(&mut self.answer[start..]).map_err(|error| internal(&error))
    }

    fn establish(&self, answer: Answer) -> Result<Established, KeyError> {
        Ok(Established {
            client_to_server: self.key(Direction::ClientToServer)?,
            server_to_client: self.key(Direction::ServerToClient)?,
            answer,
        })
    }

    fn key(&self, direction: Direction) -> Result<Key, KeyError> {
        let context = exporter_context(direction);
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        self.tls
            .export_keying_material(&mut bytes[..], EXPORTER_LABEL, Some(&context))
            .map_err(|error| from_tls(error, &self.server, &self.time))?;
        Ok(Key::new(bytes))
    }
}

/// Reading and writing vectors fails only when the TLS library's own limits are exceeded.
fn internal(error: &std::io::Error) -> KeyError {
    KeyError::Tls { what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8915 section 5.1, byte for byte.
    #[test]
    fn exporter_contexts() {
        assert_eq!(exporter_context(Direction::ClientToServer), [0, 0, 0, 15, 0]);
        assert_eq!(exporter_context(Direction::ServerToClient), [0, 0, 0, 15, 1]);
    }
}
