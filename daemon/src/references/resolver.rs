//! Looks up a name in a thread, because getaddrinfo(3) waits many seconds for an unresponsive name
//! server, which must not block the daemon.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver, TryRecvError};

use anyhow::{Context, Result, ensure};
use timevisor_time::Duration;

use crate::config::ServerAddress;

/// How often the daemon checks whether the resolver has answered.
pub const LOOK: Duration = Duration::from_millis(50);

/// Look-ups of one name, one at a time.
pub struct Resolver {
    target: ServerAddress,
    running: Option<Receiver<Result<Vec<SocketAddr>>>>,
    asked_at: Option<Duration>,
}

impl Resolver {
    pub fn new(target: ServerAddress) -> Self {
        Self { target, running: None, asked_at: None }
    }

    /// Starts a look-up unless one is in progress, or the last one began less than `pause` ago.
    pub fn ask(&mut self, now: Duration, pause: Duration) -> Result<()> {
        if self.is_running() || self.asked_at.is_some_and(|at| now - at < pause) {
            return Ok(());
        }
        self.asked_at = Some(now);
        let (sender, receiver) = mpsc::channel();
        let target = self.target.clone();
        std::thread::Builder::new()
            .name("resolver".to_owned())
            .spawn(move || sender.send(look_up(&target)))
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
    Ok(found)
}
