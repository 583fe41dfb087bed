//! When a certificate is judged, and the judgement at both ends of an interval.
//!
//! A clock with bounds knows more than CLOCK_REALTIME, and also what it does not know: a certificate
//! is valid if it is so at both ends of the clock's interval.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use timevisor_time::{Instant, Interval, Utc};

use super::date::UnixSeconds;

/// The time at which certificates are judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CertificateTime {
    earliest: u64,
    latest: u64,
    is_ours: bool,
}

impl CertificateTime {
    /// By a clock with bounds of its own.
    #[must_use]
    pub fn ours(bounds: Interval<Utc>) -> Self {
        let (earliest, latest) = (unix(bounds.earliest()), unix(bounds.latest()));
        Self { earliest, latest, is_ours: true }
    }

    /// By CLOCK_REALTIME, whose error nobody knows.
    #[must_use]
    pub fn of_machine(now: Instant<Utc>) -> Self {
        Self { earliest: unix(now), latest: unix(now), is_ours: false }
    }

    /// True for a clock of our own, false for CLOCK_REALTIME.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// True if a certificate with this beginning or this end of its validity is good at both ends.
    #[must_use]
    pub fn is_after(&self, not_before: UnixSeconds) -> bool {
        self.earliest >= not_before.0
    }

    /// See [`Self::is_after`].
    #[must_use]
    pub fn is_before(&self, not_after: UnixSeconds) -> bool {
        self.latest <= not_after.0
    }

    /// True if this boundary of a validity lies within the interval, so that nobody knows on which
    /// side the present is.
    #[must_use]
    pub fn straddles(&self, boundary: UnixSeconds) -> bool {
        self.earliest <= boundary.0 && boundary.0 <= self.latest
    }
}

/// `it is 2026-11-20 16:05 UTC`, and by which clock.
impl fmt::Display for CertificateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (earliest, latest) = (UnixSeconds(self.earliest), UnixSeconds(self.latest));
        match self.is_ours {
            false => write!(f, "this machine's clock says {earliest}"),
            true if self.latest - self.earliest < 60 => {
                write!(f, "the other references say {earliest}")
            }
            true => {
                write!(f, "the other references say that it is between {earliest} and {latest}")
            }
        }
    }
}

/// Times before 1970 become 1970: every certificate is then "not yet valid", which is the right
/// message.
fn unix(now: Instant<Utc>) -> u64 {
    u64::try_from(now.secs()).unwrap_or(0)
}

/// TLS's usual check of a server's certificate, at both ends of the interval.
#[derive(Debug)]
pub(super) struct AtBothEnds {
    pub check: Arc<WebPkiServerVerifier>,
    pub time: CertificateTime,
}

impl ServerCertVerifier for AtBothEnds {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let at = |secs| {
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(secs));
            self.check.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            )
        };
        let verified = at(self.time.earliest)?;
        if self.time.earliest == self.time.latest { Ok(verified) } else { at(self.time.latest) }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.check.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i128) -> Instant<Utc> {
        Instant::from_unix_nanos(secs * 1_000_000_000)
    }

    #[test]
    fn a_time_before_1970_is_1970() {
        assert_eq!(unix(Instant::from_unix_nanos(-5)), 0);
        assert_eq!(unix(Instant::from_unix_nanos(5_999_999_999)), 5);
    }

    #[test]
    fn an_interval_is_before_after_or_across_a_boundary() {
        let time = CertificateTime::ours(Interval::new(at(100), at(200)).unwrap());
        let said = |boundary| {
            let boundary = UnixSeconds(boundary);
            (time.is_after(boundary), time.is_before(boundary), time.straddles(boundary))
        };
        assert_eq!(said(99), (true, false, false));
        assert_eq!(said(150), (false, false, true));
        assert_eq!(said(201), (false, true, false));
        assert!(
            time.to_string().ends_with("between 1970-01-01 00:01 UTC and 1970-01-01 00:03 UTC")
        );
        let kernel = CertificateTime::of_machine(at(5));
        assert_eq!(kernel.to_string(), "this machine's clock says 1970-01-01 00:00 UTC");
    }
}
