//! Several NTP servers behind one name. Each address is one reference, and an address that does not
//! serve is replaced.
//!
//! The number of references is fixed (`servers`), because the vote needs it; member n is `NAME#n`
//! in status output. A thread resolves the name, and does so again when all known addresses are in
//! use or have been given up. An address that was given up is not used again for an hour.
//!
//! Limitation: it does not detect that two addresses belong to one server (its IPv4 and IPv6
//! addresses, for instance).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use anyhow::{Context, Result};
use timevisor_estimate::Exchange;
use timevisor_protocols::control::Reference as Report;
use timevisor_time::Duration;

use super::server::Server;
use super::tally::{Refused, Tally};
use super::{Driver, Need, Surroundings, Upstream};
use crate::config::ReferenceConfig;

const PORT: u16 = 123;
/// A pool's name resolves to other addresses after a minute or two (the usual TTL is 130 s).
const RESOLVE_AGAIN: Duration = Duration::from_secs(130);
/// How often the daemon checks for the resolver's answer or a free address.
const LOOK: Duration = Duration::from_millis(250);
/// A server that has been useless for this long is replaced. By then its state machine has sent
/// eight requests and reported it unreachable, and a vote lost by chance is over.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an address that was given up is not tried again.
const GIVEN_UP: Duration = Duration::from_secs(3600);

/// Which member has which address.
#[derive(Default)]
struct Addresses {
    free: VecDeque<SocketAddr>,
    used: Vec<SocketAddr>,
    given_up: Vec<(SocketAddr, Duration)>,
}

impl Addresses {
    /// Adds the addresses that the resolver's thread found.
    fn learn(&mut self, found: &[SocketAddr], now: Duration) {
        self.given_up.retain(|(_, until)| now < *until);
        for address in found {
            let known = self.used.contains(address)
                || self.free.contains(address)
                || self.given_up.iter().any(|(gone, _)| gone == address);
            if !known {
                self.free.push_back(*address);
            }
        }
    }

    fn take(&mut self) -> Option<SocketAddr> {
        let address = self.free.pop_front()?;
        self.used.push(address);
        Some(address)
    }

    fn give_up(&mut self, address: SocketAddr, now: Duration) {
        self.used.retain(|used| *used != address);
        self.given_up.push((address, now + GIVEN_UP));
    }
}

/// A pool that its members share within one thread.
pub type Shared = Rc<RefCell<Pool>>;

/// One pool.
pub struct Pool {
    name: String,
    addresses: Addresses,
    resolving: Option<Receiver<Result<Vec<SocketAddr>>>>,
    resolve_at: Duration,
    problem: Option<String>,
}

impl Pool {
    pub fn new(name: &str, now: Duration) -> Shared {
        Rc::new(RefCell::new(Self {
            name: name.to_owned(),
            addresses: Addresses::default(),
            resolving: None,
            resolve_at: now,
            problem: None,
        }))
    }

    /// Returns a free address; starts the resolver if there is none.
    fn take(&mut self, now: Duration) -> Option<SocketAddr> {
        self.hear(now);
        let address = self.addresses.take();
        if address.is_none() && self.resolving.is_none() && now >= self.resolve_at {
            self.resolve_at = now + RESOLVE_AGAIN;
            match resolve(self.name.clone()) {
                Ok(answer) => self.resolving = Some(answer),
                Err(error) => self.problem = Some(format!("{error:#}")),
            }
        }
        address
    }

    fn hear(&mut self, now: Duration) {
        let Some(answer) = &self.resolving else { return };
        let found = match answer.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err(anyhow::anyhow!("the resolver's thread ended")),
            Ok(found) => found,
        };
        self.resolving = None;
        match found {
            Ok(found) => {
                self.problem = None;
                self.addresses.learn(&found, now);
            }
            Err(error) => {
                self.problem = Some(format!("{error:#}"));
                // Retry soon, to notice when a name server is back.
                self.resolve_at = now + Duration::from_secs(10);
            }
        }
    }
}

/// One of the pool's references.
pub struct Member {
    name: String,
    config: ReferenceConfig,
    pool: Shared,
    server: Option<(SocketAddr, Server)>,
    look_at: Duration,
    useless_since: Option<Duration>,
    falseticker: bool,
    replaced: bool,
    tally: Tally,
}

impl Member {
    pub fn new(config: &ReferenceConfig, pool: Shared, now: Duration) -> Self {
        Self {
            name: config.name(),
            config: config.clone(),
            pool,
            server: None,
            look_at: now,
            useless_since: None,
            falseticker: false,
            replaced: false,
            tally: Tally::new(config.name()),
        }
    }

    /// Finds an address if this member has none, and another one if the current address is useless.
    fn look(&mut self, now: Duration) {
        self.look_at = now + LOOK;
        let useless = match &self.server {
            None => return self.replace(now),
            Some((_, server)) => self.falseticker || !server.serves(),
        };
        if !useless {
            self.useless_since = None;
            return;
        }
        let since = *self.useless_since.get_or_insert(now);
        if now - since >= PATIENCE {
            self.replace(now);
        }
    }

    /// Keeps the old server until a new one is found.
    fn replace(&mut self, now: Duration) {
        let Some(address) = self.pool.borrow_mut().take(now) else {
            if self.server.is_none() {
                self.tell_waiting();
            }
            return;
        };
        match Server::new(&self.config, &address.to_string(), now) {
            Ok(server) => {
                if let Some((old, _)) = self.server.take() {
                    tracing::info!("reference {}: {old} is replaced by {address}", self.name);
                    self.pool.borrow_mut().addresses.give_up(old, now);
                    self.replaced = true;
                }
                self.server = Some((address, server));
                self.useless_since = None;
            }
            Err(error) => {
                self.tally.take(Err(Refused::new("unreachable", format!("{error:#}"))));
            }
        }
    }

    fn tell_waiting(&mut self) {
        let pool = self.pool.borrow();
        let text = match &pool.problem {
            Some(problem) => problem.clone(),
            None if pool.resolving.is_some() => return,
            None => format!(
                "{} has not given enough addresses yet; it is asked again every {RESOLVE_AGAIN}",
                pool.name
            ),
        };
        drop(pool);
        self.tally.take(Err(Refused { word: "no-address", text }));
    }
}

impl Driver for Member {
    fn poll_at(&self) -> Duration {
        match &self.server {
            Some((_, server)) => server.poll_at(),
            None => self.look_at,
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.server.as_ref().and_then(|(_, server)| server.fd())
    }

    fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        if now >= self.look_at {
            self.look(now);
        }
        self.server.as_mut().and_then(|(_, server)| server.on_timer(now, around))
    }

    fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        self.server.as_mut().map_or_else(Vec::new, |(_, server)| server.on_ready(now, around))
    }

    fn restart(&mut self, now: Duration) {
        self.useless_since = None;
        if let Some((_, server)) = &mut self.server {
            server.restart(now);
        }
    }

    fn take_replacement(&mut self) -> bool {
        std::mem::take(&mut self.replaced)
    }

    fn require(&mut self, now: Duration, need: &Need) {
        self.falseticker = need.falseticker;
        if let Some((_, server)) = &mut self.server {
            server.require(now, need);
        }
    }

    fn upstream(&self) -> Option<Upstream> {
        self.server.as_ref()?.1.upstream()
    }

    fn report(&self, now: Duration) -> Report {
        let name = self.name.clone();
        match &self.server {
            Some((address, server)) => {
                let report = server.report(now);
                Report { name, detail: format!("{address}: {}", report.detail), ..report }
            }
            None => self.tally.report("ntp", "", Duration::ZERO, None),
        }
    }
}

/// Resolves a name in a thread, because getaddrinfo waits many seconds for an unresponsive name
/// server.
fn resolve(name: String) -> Result<Receiver<Result<Vec<SocketAddr>>>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("resolver".to_owned())
        .spawn(move || sender.send(ask_resolver(&name)))
        .context("cannot start the resolver's thread")?;
    Ok(receiver)
}

fn ask_resolver(name: &str) -> Result<Vec<SocketAddr>> {
    let target = if name.contains(':') { name.to_owned() } else { format!("{name}:{PORT}") };
    let found = target
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {name}; check the name and DNS"))?;
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClockConfig, Config, ServerConfig};
    use crate::leap::Leap;
    use timevisor_linux::counter::{HostCounter, HostMonotonicRaw};
    use timevisor_linux::udp::Sockets;
    use timevisor_time::{Period, RateError};

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], PORT))
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Drives the members for this many seconds of simulated time; no server answers.
    fn run(members: &mut [Member], now: &mut Duration, seconds: i64) -> Vec<usize> {
        let leap = Leap::load(&ClockConfig { tai_offset: Some(37), ..ClockConfig::default() });
        let counter = HostCounter::MonotonicRaw(HostMonotonicRaw::INITIAL);
        let around = Surroundings {
            counter: &counter,
            calibration: (Period::from_hz(1_000_000_000).unwrap(), RateError::ZERO),
            leap: &leap,
            known: None,
            sockets: Sockets::Stamped,
            own_server: &ServerConfig::default(),
        };
        let end = *now + Duration::from_secs(seconds);
        let mut replaced = Vec::new();
        while *now < end {
            for (index, member) in members.iter_mut().enumerate() {
                if *now >= member.poll_at() {
                    member.on_timer(*now, &around);
                }
                if member.take_replacement() {
                    replaced.push(index);
                }
            }
            *now += SECOND.half();
        }
        replaced
    }

    #[test]
    fn a_server_that_does_not_answer_is_replaced_and_one_alone_is_kept() {
        // Sockets that are bound and never read: unresponsive servers.
        let silent: Vec<_> =
            (0..3).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let at: Vec<_> = silent.iter().map(|s| s.local_addr().unwrap()).collect();
        let text = "[[reference]]\ntype = \"ntp\"\npool = \"pool.invalid\"\nservers = 2\n";
        let config = Config::parse(text).unwrap();
        let mut now = Duration::from_secs(100);
        // The name is not resolved during this test, so no name server is needed.
        let pool = Pool::new("pool.invalid", now + GIVEN_UP);
        pool.borrow_mut().addresses.learn(&at, now);
        let mut members: Vec<_> =
            config.references.iter().map(|c| Member::new(c, Rc::clone(&pool), now)).collect();
        assert_eq!(run(&mut members, &mut now, 60), Vec::<usize>::new());
        let used = |m: &Member| m.server.as_ref().map(|(address, _)| *address);
        assert_eq!((used(&members[0]), used(&members[1])), (Some(at[0]), Some(at[1])));
        // After eight requests and a minute, the first member to give up takes the one remaining
        // address.
        assert_eq!(run(&mut members, &mut now, 90).len(), 1);
        let both = [used(&members[0]), used(&members[1])];
        assert!(both.contains(&Some(at[2])) && both[0] != both[1], "{both:?}");
        let report = members[0].report(now);
        assert_eq!((report.name.as_str(), report.kind.as_str()), ("pool.invalid#1", "ntp"));
        assert!(run(&mut members, &mut now, 300).is_empty());
    }

    #[test]
    fn every_address_has_one_user_and_those_given_up_rest() {
        let (start, hour) = (Duration::ZERO, GIVEN_UP);
        let mut addresses = Addresses::default();
        addresses.learn(&[address(1), address(2), address(1)], start);
        assert_eq!((addresses.take(), addresses.take()), (Some(address(1)), Some(address(2))));
        assert_eq!(addresses.take(), None);
        addresses.give_up(address(1), start);
        addresses.learn(&[address(1), address(2), address(3)], start);
        assert_eq!((addresses.take(), addresses.take()), (Some(address(3)), None));
        addresses.learn(&[address(1)], hour);
        assert_eq!(addresses.take(), Some(address(1)));
    }
}
