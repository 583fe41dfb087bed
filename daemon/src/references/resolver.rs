//! Looks up a name in a thread, because getaddrinfo(3) waits many seconds for an unresponsive name
//! server, which must not block the daemon.
//!
//! The thread has no rights: the C library parses there what a name server says, or anybody in its
//! name.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use timevisor_linux::confine::{Permitted, confine_thread};
use timevisor_time::Duration;

use super::background::Background;
use crate::config::ServerAddress;
use crate::panics;

/// How often the daemon checks whether the resolver has answered.
pub const LOOK: Duration = Duration::from_millis(50);
/// After this long the C library's own patience is over, and something else hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the addresses of servers behind a name; it may block.
type LookUp = Arc<dyn Fn(&ServerAddress) -> Result<Vec<SocketAddr>> + Send + Sync>;

/// Look-ups of one name, one at a time.
pub struct Resolver {
    target: ServerAddress,
    look_up: LookUp,
    work: Background<Result<Vec<SocketAddr>>>,
    asked_at: Option<Duration>,
}

impl Resolver {
    pub fn new(target: ServerAddress) -> Self {
        Self::with(target, Arc::new(look_up_without_rights))
    }

    /// Looks the name up in another way than by the C library.
    pub fn with(target: ServerAddress, look_up: LookUp) -> Self {
        Self { target, look_up, work: Background::default(), asked_at: None }
    }

    /// Starts a look-up unless one is in progress, or the last one began less than `pause` ago.
    pub fn ask(&mut self, now: Duration, pause: Duration) -> Result<()> {
        self.work.abandon_after(PATIENCE, now);
        if self.is_running() || self.asked_at.is_some_and(|at| now - at < pause) {
            return Ok(());
        }
        let (target, look_up) = (self.target.clone(), Arc::clone(&self.look_up));
        let begun = self.work.begin("resolver", now, move || look_up(&target));
        ensure!(
            begun.context("cannot start the resolver's thread")?,
            "look-ups of {} do not end; check the name services in /etc/nsswitch.conf",
            self.target
        );
        self.asked_at = Some(now);
        Ok(())
    }

    pub fn is_running(&self) -> bool {
        self.work.is_running()
    }

    /// The answer, once.
    pub fn answer(&mut self) -> Option<Result<Vec<SocketAddr>>> {
        let died = |_| Err(anyhow!("the resolver's thread ended without an answer"));
        Some(self.work.answer()?.unwrap_or_else(died))
    }
}

/// Looks the name of an NTS server up in a thread of its own, and waits for it.
///
/// # Errors
/// When the name cannot be resolved.
pub fn look_up_host(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let resolve = move || {
        panics::contain();
        confine_thread(Permitted::NameResolution).context("nothing is looked up")?;
        let found = (host, port)
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve {host}; check the name and DNS"))?;
        Ok(found.collect())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("resolver".to_owned());
        let running = thread.spawn_scoped(scope, resolve);
        let running = running.context("cannot start the resolver's thread")?;
        running.join().unwrap_or_else(|_| Err(anyhow!("the resolver's thread ended early")))
    })
}

/// Confines the calling thread for good, which is made for this look-up.
fn look_up_without_rights(target: &ServerAddress) -> Result<Vec<SocketAddr>> {
    panics::contain();
    confine_thread(Permitted::NameResolution).context("nothing is looked up")?;
    look_up(target)
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
    use super::super::background::testing::{Hold, eventually};
    use super::*;

    const PAUSE: Duration = Duration::from_secs(10);

    fn at(seconds: i64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Finds `found`, but the first `count` look-ups hang.
    fn hanging(count: usize, found: SocketAddr) -> (Hold, Resolver) {
        let (hold, pass) = Hold::first(count);
        let look_up = move |_: &ServerAddress| {
            pass();
            Ok(vec![found])
        };
        (hold, Resolver::with("name.invalid".parse().unwrap(), Arc::new(look_up)))
    }

    fn address() -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], 123))
    }

    #[test]
    fn a_look_up_that_hangs_delays_neither_others_nor_the_next() {
        let (_held, mut hangs) = hanging(1, address());
        let (_none, mut other) = hanging(0, address());
        hangs.ask(at(0), PAUSE).unwrap();
        other.ask(at(0), PAUSE).unwrap();
        assert_eq!(eventually(|| other.answer()).unwrap(), [address()]);
        // One at a time, until its time is over.
        hangs.ask(at(59), PAUSE).unwrap();
        assert!(hangs.answer().is_none() && hangs.is_running());
        hangs.ask(at(60), PAUSE).unwrap();
        assert_eq!(eventually(|| hangs.answer()).unwrap(), [address()]);
    }

    #[test]
    fn look_ups_that_all_hang_are_few_and_told() {
        let (hold, mut resolver) = hanging(2, address());
        for second in [0, 60] {
            resolver.ask(at(second), PAUSE).unwrap();
        }
        hold.wait_for_calls(2);
        for second in [120, 121, 1000] {
            let told = resolver.ask(at(second), PAUSE).unwrap_err().to_string();
            assert!(told.contains("look-ups of name.invalid:123 do not end"), "{told}");
            assert!(!resolver.is_running());
        }
        drop(hold);
        eventually(|| resolver.ask(at(1001), PAUSE).ok());
        assert_eq!(eventually(|| resolver.answer()).unwrap(), [address()]);
        // The pause counts from the look-up that was started.
        resolver.ask(at(1010), PAUSE).unwrap();
        assert!(!resolver.is_running());
        resolver.ask(at(1011), PAUSE).unwrap();
        assert!(resolver.is_running());
    }

    #[test]
    fn a_name_is_looked_up_without_rights() {
        let mut resolver = Resolver::new("localhost:124".parse().unwrap());
        resolver.ask(at(0), PAUSE).unwrap();
        let found = eventually(|| resolver.answer()).unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 124));
        assert_eq!(look_up_host("127.0.0.1", 9).unwrap(), ["127.0.0.1:9".parse().unwrap()]);
        let error = format!("{:#}", look_up_host("name.invalid", 9).unwrap_err());
        assert!(error.contains("cannot resolve name.invalid"), "{error}");
        // This thread has what it had.
        assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_ok());
    }

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
