//! Looks up a name in a thread, because getaddrinfo(3) waits many seconds for an unresponsive name
//! server, which must not block the daemon.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use anyhow::{Context, Result, ensure};
use timevisor_time::Duration;

use crate::config::ServerAddress;

/// How often the daemon checks whether the resolver has answered.
pub const LOOK: Duration = Duration::from_millis(50);

/// After this long the C library's own patience is over, and something else hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// So many threads of one name may hang.
const MOST_THREADS: usize = 2;

/// Look-ups of one name, one at a time.
pub struct Resolver {
    target: ServerAddress,
    running: Option<Receiver<Result<Vec<SocketAddr>>>>,
    asked_at: Option<Duration>,
    /// Each thread has a copy.
    threads: Arc<()>,
}

impl Resolver {
    pub fn new(target: ServerAddress) -> Self {
        Self { target, running: None, asked_at: None, threads: Arc::new(()) }
    }

    /// Starts a look-up unless one is in progress, or the last one began less than `pause` ago.
    pub fn ask(&mut self, now: Duration, pause: Duration) -> Result<()> {
        let age = self.asked_at.map(|at| now - at);
        if self.is_running() && age.is_some_and(|age| age >= PATIENCE) {
            self.running = None;
        }
        if self.is_running() || age.is_some_and(|age| age < pause) {
            return Ok(());
        }
        ensure!(
            Arc::strong_count(&self.threads) <= MOST_THREADS,
            "look-ups of {} do not end; check the name services in /etc/nsswitch.conf",
            self.target
        );
        self.asked_at = Some(now);
        let thread = Arc::clone(&self.threads);
        let (sender, receiver) = mpsc::channel();
        let target = self.target.clone();
        std::thread::Builder::new()
            .name("resolver".to_owned())
            .spawn(move || {
                // Nobody receives the answer of a look-up that took too long.
                let _ = sender.send(look_up(&target));
                drop(thread);
            })
            .context("cannot start the resolver's thread")?;
        self.running = Some(receiver);
        Ok(())
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The answer, once.
    pub fn answer(&mut self) -> Option<Result<Vec<SocketAddr>>> {
        let answer = match self.running.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Err(anyhow::anyhow!("the resolver's thread ended without an answer"))
            }
            Ok(answer) => answer,
        };
        self.running = None;
        Some(answer)
    }
}

fn look_up(target: &ServerAddress) -> Result<Vec<SocketAddr>> {
    let (host, port) = target.host_and_port();
    let found = (host.as_str(), port).to_socket_addrs().with_context(|| match target {
        ServerAddress::Scoped { interface, .. } => {
            format!("cannot use {host}; check that there is an interface {interface}")
        }
        _ => format!("cannot resolve {host}; check the name and DNS"),
    })?;
    let found: Vec<SocketAddr> = found.collect();
    ensure!(!found.is_empty(), "{host} has no address");
    let usable: Vec<SocketAddr> = found.iter().filter_map(|address| server_at(*address)).collect();
    ensure!(
        !usable.is_empty(),
        "{host} resolves to {}, where no server can be; a name server that blocks names answers like that",
        found[0].ip()
    );
    Ok(usable)
}

/// The address in its only form; `None` where no server can be.
fn server_at(address: SocketAddr) -> Option<SocketAddr> {
    let ip = address.ip().to_canonical();
    let nobody = match ip {
        IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
    };
    // A scoped address keeps its scope.
    let same = if ip == address.ip() { address } else { SocketAddr::new(ip, address.port()) };
    (!nobody).then_some(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_servers_only() {
        let at = |text: &str| server_at(text.parse().unwrap()).map(|a| a.to_string());
        assert_eq!(at("10.0.0.1:123").as_deref(), Some("10.0.0.1:123"));
        assert_eq!(at("[::ffff:10.0.0.1]:123").as_deref(), Some("10.0.0.1:123"));
        assert_eq!(at("[fe80::1%3]:123").as_deref(), Some("[fe80::1%3]:123"));
        for nobody in
            ["0.0.0.0:123", "[::]:123", "224.0.1.1:123", "255.255.255.255:123", "[ff02::1]:123"]
        {
            assert_eq!(at(nobody), None, "{nobody}");
        }
    }
}
