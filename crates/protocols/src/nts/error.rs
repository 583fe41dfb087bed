//! Reasons why keys could not be established, with the next step.
//!
//! What it does not do: decide when to try again. [`super::retry`] does.

use rustls::CertificateError;

use super::date::UnixSeconds;

/// A failed key establishment, of which no result may be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// The name is neither a DNS name nor an IP address.
    #[error(
        "{name:?} is neither a host name nor an address that a certificate can name; correct it"
    )]
    Name {
        /// The configured name.
        name: String,
    },
    /// No authority is trusted.
    #[error(
        "there is no certificate authority to trust; install ca-certificates or set ca_file to a PEM file"
    )]
    NoAuthority,
    /// The certificate has expired, or our clock is ahead.
    #[error(
        "the server's certificate expired at {not_after} and this machine's clock says {now}; renew the certificate, or set the clock if it is wrong"
    )]
    Expired {
        /// End of validity.
        not_after: UnixSeconds,
        /// The time that was used for the check.
        now: UnixSeconds,
    },
    /// The certificate is not valid yet, or our clock is behind, as after a boot without a
    /// battery-backed clock.
    #[error(
        "the server's certificate is valid from {not_before} and this machine's clock says {now}; set the clock if it is wrong, for instance with `date -s`"
    )]
    NotYetValid {
        /// Begin of validity.
        not_before: UnixSeconds,
        /// The time that was used for the check.
        now: UnixSeconds,
    },
    /// An unknown authority signed the certificate.
    #[error(
        "the server's certificate comes from an unknown authority; set ca_file to that authority's PEM file, or suspect the network"
    )]
    UnknownAuthority,
    /// The certificate is valid, but for another name.
    #[error(
        "the server's certificate is not for {expected}; use a name that it is for, or have it reissued"
    )]
    WrongName {
        /// The name that we asked for.
        expected: String,
    },
    /// Any other defect of the certificate.
    #[error("the server's certificate is refused: {what}; have it reissued")]
    Certificate {
        /// The TLS library's message.
        what: String,
    },
    /// The server does not support TLS 1.3.
    #[error(
        "the server does not speak TLS 1.3 as NTS needs it ({what}); check host and nts_ke_port"
    )]
    Incompatible {
        /// The TLS library's message.
        what: String,
    },
    /// The server does not offer NTS within TLS: the protocol name "ntske/1" was not agreed on.
    #[error("the server speaks TLS but not NTS; check host and nts_ke_port")]
    NotNts,
    /// Any other failure of TLS.
    #[error("TLS failed: {what}; check host and nts_ke_port")]
    Tls {
        /// The TLS library's message.
        what: String,
    },
    /// The connection ended before the answer was complete.
    #[error(
        "the server closed the connection before its answer was complete; look at the server's log"
    )]
    Closed,
    /// The answer is longer than any sensible one.
    #[error("the server's answer exceeds {limit} bytes; check host and nts_ke_port")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// RFC 8915 section 4.1.3.
    #[error("the server answers with error {code} ({}); look at the server's log", error_name(*code))]
    ServerError {
        /// The code.
        code: u16,
    },
    /// RFC 8915 section 4.1.4; no warning is defined, and unknown ones count as errors.
    #[error("the server answers with warning {code}, which is not known; look at the server's log")]
    Warning {
        /// The code.
        code: u16,
    },
    /// The answer has a critical record that we do not know.
    #[error(
        "the server insists on record type {kind}, which is not known here; use another server"
    )]
    UnknownCritical {
        /// The type.
        kind: u16,
    },
    /// A record is duplicate, missing, empty, or of the wrong length.
    #[error(
        "the server's answer is malformed ({what}); look at the server's log or use another server"
    )]
    Malformed {
        /// Which record.
        what: &'static str,
    },
    /// The server offers no NTPv4.
    #[error("the server does not offer NTPv4 with NTS; use another server")]
    NoNtp,
    /// The server offers none of our algorithms.
    #[error("no AEAD algorithm in common: we have AES-SIV-CMAC-256 (15); enable it on the server")]
    NoAlgorithm,
    /// The answer has no usable cookie.
    #[error("the server gave no usable cookie; look at the server's log or use another server")]
    NoCookie,
}

impl KeyError {
    /// The name in JSON and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Name { .. } => "name",
            Self::NoAuthority => "no_authority",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not_yet_valid",
            Self::UnknownAuthority => "unknown_authority",
            Self::WrongName { .. } => "wrong_name",
            Self::Certificate { .. } => "certificate",
            Self::Incompatible { .. } => "incompatible",
            Self::NotNts => "not_nts",
            Self::Tls { .. } => "tls",
            Self::Closed => "closed",
            Self::TooLong { .. } => "too_long",
            Self::ServerError { .. } => "server_error",
            Self::Warning { .. } => "warning",
            Self::UnknownCritical { .. } => "unknown_critical",
            Self::Malformed { .. } => "malformed",
            Self::NoNtp => "no_ntp",
            Self::NoAlgorithm => "no_algorithm",
            Self::NoCookie => "no_cookie",
        }
    }
}

/// Sorts the TLS library's errors by what the operator can do. `server` is the name that we asked
/// for.
pub(super) fn from_tls(error: rustls::Error, server: &str) -> KeyError {
    use rustls::{AlertDescription, Error};
    match error {
        Error::InvalidCertificate(error) => from_certificate(error, server),
        Error::NoApplicationProtocol
        | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => KeyError::NotNts,
        Error::PeerIncompatible(_)
        | Error::AlertReceived(
            AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure,
        ) => KeyError::Incompatible { what: error.to_string() },
        other => KeyError::Tls { what: other.to_string() },
    }
}

fn from_certificate(error: CertificateError, server: &str) -> KeyError {
    match error {
        CertificateError::ExpiredContext { time, not_after } => KeyError::Expired {
            not_after: UnixSeconds(not_after.as_secs()),
            now: UnixSeconds(time.as_secs()),
        },
        CertificateError::NotValidYetContext { time, not_before } => KeyError::NotYetValid {
            not_before: UnixSeconds(not_before.as_secs()),
            now: UnixSeconds(time.as_secs()),
        },
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            KeyError::UnknownAuthority
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            KeyError::WrongName { expected: server.to_owned() }
        }
        other => KeyError::Certificate { what: other.to_string() },
    }
}

/// RFC 8915 section 4.1.3.
const fn error_name(code: u16) -> &'static str {
    match code {
        0 => "unrecognized critical record",
        1 => "bad request",
        2 => "internal server error",
        _ => "unknown",
    }
}
