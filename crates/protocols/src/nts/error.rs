//! Reasons why keys could not be established, with the next step.
//!
//! What it does not do: decide when to try again. [`super::retry`] does.

use rustls::CertificateError;

use super::date::UnixSeconds;
use super::validity::CertificateTime;

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
    /// The certificate has expired, or the clock is ahead.
    #[error(
        "the server's certificate expired at {not_after} and {time}; {}",
        if time.is_ours() { "renew it" } else { "renew it, or set this machine's clock if it is wrong" }
    )]
    Expired {
        /// End of validity.
        not_after: UnixSeconds,
        /// The time at which it was judged.
        time: CertificateTime,
    },
    /// The certificate is not valid yet, or the clock is behind, as after a boot without a
    /// battery-backed clock.
    #[error(
        "the server's certificate is valid from {not_before} and {time}; {}",
        if time.is_ours() { "look at the server's clock" } else { SET_CLOCK }
    )]
    NotYetValid {
        /// Begin of validity.
        not_before: UnixSeconds,
        /// The time at which it was judged.
        time: CertificateTime,
    },
    /// Validity begins or ends within the time's bounds.
    #[error(
        "the server's certificate {} at {boundary} and {time}, so it is not known whether it is valid; wait for \
         narrower bounds",
        if *begins { "becomes valid" } else { "expires" }
    )]
    Unclear {
        /// The begin or the end of the validity.
        boundary: UnixSeconds,
        /// True for the begin.
        begins: bool,
        /// The time at which it was judged.
        time: CertificateTime,
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

/// The likely cause of a certificate of the future.
const SET_CLOCK: &str = "set this machine's clock, for instance with `date -s`, or wait for other references, by whose \
                         time it is then checked";

impl KeyError {
    /// True if the certificate was refused because of the time, and would not be so at `time`.
    #[must_use]
    pub fn is_overcome_by(&self, time: &CertificateTime) -> bool {
        match self {
            Self::Expired { not_after, .. } => time.is_before(*not_after),
            Self::NotYetValid { not_before, .. } => time.is_after(*not_before),
            Self::Unclear { boundary, .. } => !time.straddles(*boundary),
            _ => false,
        }
    }

    /// True if the certificate was refused because of the time.
    #[must_use]
    pub fn depends_on_time(&self) -> bool {
        matches!(self, Self::Expired { .. } | Self::NotYetValid { .. } | Self::Unclear { .. })
    }

    /// The name in JSON and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Name { .. } => "name",
            Self::NoAuthority => "no_authority",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not_yet_valid",
            Self::Unclear { .. } => "validity_unclear",
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
/// for, `time` the time at which certificates were judged.
pub(super) fn from_tls(error: rustls::Error, server: &str, time: &CertificateTime) -> KeyError {
    use rustls::{AlertDescription, Error};
    match error {
        Error::InvalidCertificate(error) => from_certificate(error, server, time),
        Error::NoApplicationProtocol
        | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => KeyError::NotNts,
        Error::PeerIncompatible(_)
        | Error::AlertReceived(
            AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure,
        ) => KeyError::Incompatible { what: error.to_string() },
        other => KeyError::Tls { what: other.to_string() },
    }
}

fn from_certificate(error: CertificateError, server: &str, time: &CertificateTime) -> KeyError {
    let time = *time;
    match error {
        CertificateError::ExpiredContext { not_after, .. } => {
            let boundary = UnixSeconds(not_after.as_secs());
            if time.straddles(boundary) {
                return KeyError::Unclear { boundary, begins: false, time };
            }
            KeyError::Expired { not_after: boundary, time }
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            let boundary = UnixSeconds(not_before.as_secs());
            if time.straddles(boundary) {
                return KeyError::Unclear { boundary, begins: true, time };
            }
            KeyError::NotYetValid { not_before: boundary, time }
        }
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
