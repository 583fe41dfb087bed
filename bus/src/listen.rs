//! Sockets, certificates, and who connects.

use std::fs;
use std::io::BufReader;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::account::Account;
use crate::carrier::Carrier;
use crate::config::Tcp;
use crate::connection;

/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// So many are under way at once.
const HANDSHAKES: usize = 64;

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
                tokio::task::spawn_local(connection::serve(stream, account, carrier.clone()));
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
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let Ok(place) = Arc::clone(&handshakes).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let _ = stream.set_nodelay(true);
                let (tls, carrier) = (tls.clone(), carrier.clone());
                tokio::task::spawn_local(async move {
                    let done = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await;
                    drop(place);
                    let account = Account::of(from.ip());
                    match done {
                        Ok(Ok(stream)) => connection::serve(stream, account, carrier).await,
                        Ok(Err(error)) => debug!("{from}: {error}"),
                        Err(_) => debug!("{from} did not finish its handshake"),
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
