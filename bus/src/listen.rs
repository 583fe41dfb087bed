//! Sockets, certificates, and who connects.

use std::fs;
use std::io::BufReader;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::account::Account;
use crate::carrier::{Carrier, Seat};
use crate::config::Tcp;
use crate::connection;

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection from the network without a member ends between one and two of these: it may not know a key.
const WITHOUT_MEMBER: Duration = Duration::from_secs(10);

/// How often is said that connections from the network are refused.
const SAID: Duration = Duration::from_secs(60);

/// How long to wait after a failed accept, such as without free descriptors.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Listens at a Unix socket that every user may connect to.
pub fn unix(path: &Path) -> Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    if let Ok(metadata) = fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            bail!("{} is there and is no socket; remove it or choose --socket", path.display());
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            bail!(
                "another timevisor-bus listens at {}; stop it or choose --socket",
                path.display()
            );
        }
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    let listener = UnixListener::bind(path)
        .with_context(|| format!("cannot listen at {}; choose --socket", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Reads a certificate and its key.
pub fn tls(tcp: &Tcp) -> Result<TlsAcceptor> {
    let open = |path: &Path| {
        let file = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()));
        file.map(BufReader::new)
    };
    let chain = CertificateDer::pem_reader_iter(open(&tcp.certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("{} is no certificate", tcp.certificate.display()))?;
    let key = PrivateKeyDer::from_pem_reader(open(&tcp.key)?)
        .with_context(|| format!("{} is no private key", tcp.key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("the certificate and the key do not fit")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves the programs of this host, for ever.
pub async fn serve_unix(listener: UnixListener, carrier: Carrier) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Some(account) = account(&stream) else { continue };
                let Some(seat) = carrier.connected(account) else {
                    warn!("a connection is refused: too many of {account}");
                    continue;
                };
                tokio::task::spawn_local(async move { connection::serve(stream, &seat).await });
            }
            Err(error) => {
                warn!("cannot accept a connection: {error}");
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
}

fn account(stream: &UnixStream) -> Option<Account> {
    match stream.peer_cred() {
        Ok(credentials) => Some(Account::User(credentials.uid())),
        Err(error) => {
            warn!("a program's user is not known, it is not served: {error}");
            None
        }
    }
}

/// Serves programs elsewhere, for ever.
pub async fn serve_tcp(listener: TcpListener, tls: TlsAcceptor, carrier: Carrier) {
    let mut said: Option<Instant> = None;
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let Some(seat) = carrier.connected(Account::of(from.ip())) else {
                    if said.is_none_or(|said| said.elapsed() >= SAID) {
                        warn!(
                            "connections are refused, one of {from}: too many of its address, or of the network"
                        );
                        said = Some(Instant::now());
                    }
                    continue;
                };
                let tls = tls.clone();
                tokio::task::spawn_local(async move {
                    tokio::select! {
                        () = serve_remote(stream, from, tls, &seat) => {}
                        () = has_no_member(&seat) => debug!("{from} has no member"),
                        () = seat.gives_way() => debug!("{from} gives way"),
                    }
                });
            }
            Err(error) => {
                warn!("cannot accept a connection: {error}");
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
}

async fn serve_remote(stream: TcpStream, from: SocketAddr, tls: TlsAcceptor, seat: &Seat) {
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => connection::serve(stream, seat).await,
        Ok(Err(error)) => debug!("{from}: {error}"),
        Err(_) => debug!("{from} did not finish its handshake"),
    }
}

/// Returns when the connection has had no member for some time.
async fn has_no_member(seat: &Seat) {
    let mut before = true;
    loop {
        tokio::time::sleep(WITHOUT_MEMBER).await;
        let has = seat.has_members();
        if !has && !before {
            return;
        }
        before = has;
    }
}
