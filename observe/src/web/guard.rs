//! Which requests are served at all, and the headers of every answer.
//!
//! A page of a stranger's, open in a browser on this host, must not read the dashboard: browsers keep
//! it from other origins' answers, except where a name of the stranger's leads to our address (DNS
//! rebinding). The browser then still sends that name as Host, so only names that are known to be
//! ours are served. A literal address cannot be rebound.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::{Shared, count};

/// Scripts, styles and data are this server's; nothing else is loaded, and nobody frames the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

pub async fn guard(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let mut response = if is_ours(host.unwrap_or_default(), &shared.names) {
        count(&shared.counters.served);
        next.run(request).await
    } else {
        count(&shared.counters.wrong_host);
        let text = "This server does not know that name. Use its address or localhost, or start timevisor-observe with --name.\n";
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether a Host header names this server: an address, localhost, or one of `names`, with any port.
fn is_ours(host: &str, names: &[String]) -> bool {
    let host = host.to_ascii_lowercase();
    if let Some(rest) = host.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        return address.parse::<Ipv6Addr>().is_ok() && is_port(port);
    }
    let (name, port) = host.find(':').map_or((host.as_str(), ""), |at| host.split_at(at));
    let known = name == "localhost"
        || name.parse::<Ipv4Addr>().is_ok()
        || names.iter().any(|it| it == name);
    known && is_port(port)
}

fn is_port(port: &str) -> bool {
    port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_are_served() {
        let names = ["clock.example".to_owned()];
        for host in [
            "localhost",
            "LOCALHOST:9975",
            "127.0.0.1",
            "127.0.0.1:9975",
            "192.0.2.1:80",
            "[::1]",
            "[::1]:9975",
            "Clock.Example:443",
        ] {
            assert!(is_ours(host, &names), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9975",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:99999",
            "clock.example.",
            "[::1",
            "[evil]",
            "::1",
            "localhost@evil.example",
            "0x7f000001",
        ] {
            assert!(!is_ours(host, &names), "{host}");
        }
    }
}
