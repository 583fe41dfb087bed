//! HTTP: who is served, and what.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | listening, TLS, the limits of connections |
//! | `guard.rs` | which requests are served at all, and the headers of every answer |
//! | `pages.rs` | what is at which path |
//! | `stream.rs` | news for browsers (server-sent events) |
//!
//! Everything is read with GET; there is nothing to change. Anybody who reaches the address may read:
//! on loopback that is every user of this host.

mod guard;
mod pages;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use futures_util::future::join_all;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use crate::options::Options;
use crate::sampler::Observed;

/// Connections at a time.
const MOST_CONNECTIONS: usize = 128;
/// Those of one address of the network. On loopback all have the same address.
const MOST_OF_AN_ADDRESS: u32 = 32;
/// Those of them that get news.
const MOST_VIEWERS: u64 = 32;
/// How long a TLS handshake, or the head of a request, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// After accept(2) has failed, as when descriptors run out.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// Requests by outcome.
#[derive(Clone, Copy, Debug, Default)]
pub struct Served {
    pub served: u64,
    /// Another host was asked for: DNS rebinding, or a name that is not configured.
    pub wrong_host: u64,
    /// Too many connections or viewers.
    pub busy: u64,
    /// Browsers that get news now.
    pub viewers: u64,
}

impl Served {
    pub const fn outcomes(&self) -> [(&'static str, u64); 3] {
        [("served", self.served), ("wrong_host", self.wrong_host), ("busy", self.busy)]
    }
}

#[derive(Debug, Default)]
struct Counters {
    served: AtomicU64,
    wrong_host: AtomicU64,
    busy: AtomicU64,
    viewers: AtomicU64,
}

impl Counters {
    fn now(&self) -> Served {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Served {
            served: of(&self.served),
            wrong_host: of(&self.wrong_host),
            busy: of(&self.busy),
            viewers: of(&self.viewers),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What handlers share.
#[derive(Clone)]
struct Shared {
    observed: Observed,
    counters: Arc<Counters>,
    names: Arc<[String]>,
}

/// The web server, bound.
pub struct Web {
    listeners: Vec<TcpListener>,
    tls: Option<TlsAcceptor>,
    router: Router,
    counters: Arc<Counters>,
    places: Arc<Semaphore>,
    /// Connections by address, of the network only.
    of_address: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

/// A connection's place among those of its address; it is free again on drop.
struct Place {
    address: IpAddr,
    of_address: Arc<Mutex<HashMap<IpAddr, u32>>>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.of_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.address);
            }
        }
    }
}

impl Web {
    /// # Errors
    /// When an address cannot be listened at.
    pub async fn bind(
        options: &Options,
        tls: Option<TlsAcceptor>,
        observed: Observed,
    ) -> Result<Self> {
        let mut listeners = Vec::new();
        for address in &options.listen {
            let listener = TcpListener::bind(address).await.with_context(|| {
                format!("cannot listen at {address}; is another timevisor-observe running?")
            })?;
            let scheme = if tls.is_some() { "https" } else { "http" };
            info!("{scheme}://{}/ and {scheme}://{0}/metrics", listener.local_addr()?);
            listeners.push(listener);
        }
        let counters = Arc::new(Counters::default());
        let names = options.names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let shared = Shared { observed, counters: Arc::clone(&counters), names };
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let of_address = Arc::default();
        Ok(Self { listeners, tls, router: pages::router(shared), counters, places, of_address })
    }

    /// A place for a connection, if there is one.
    fn place(&self, from: SocketAddr) -> Option<Place> {
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let address = from.ip().to_canonical();
        let mut all = self.of_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(address).or_default();
        // A refused address has places, so its entry is not a new one.
        if *count >= MOST_OF_AN_ADDRESS && !address.is_loopback() {
            return None;
        }
        *count += 1;
        Some(Place { address, of_address: Arc::clone(&self.of_address), _place: permit })
    }

    /// The addresses, with the ports that were chosen.
    #[cfg(test)]
    fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Serves for ever.
    pub async fn serve(self) {
        join_all(self.listeners.iter().map(|listener| self.accept(listener))).await;
    }

    async fn accept(&self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    // One that finds no place is told by the end of its connection.
                    let Some(place) = self.place(from) else {
                        count(&self.counters.busy);
                        continue;
                    };
                    let (tls, router) = (self.tls.clone(), self.router.clone());
                    tokio::spawn(async move {
                        serve_connection(stream, from, tls, router).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(AFTER_FAILURE).await;
                }
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    from: SocketAddr,
    tls: Option<TlsAcceptor>,
    router: Router,
) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return speak(stream, from, router).await };
    match tokio::time::timeout(PATIENCE, tls.accept(stream)).await {
        Ok(Ok(stream)) => speak(stream, from, router).await,
        Ok(Err(error)) => debug!("{from}: {error}"),
        Err(_) => debug!("{from} did not finish its handshake"),
    }
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    from: SocketAddr,
    router: Router,
) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        debug!("{from}: {error}");
    }
}
