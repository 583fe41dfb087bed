//! The way to one NTP server: the addresses of its name, and a socket to one of them.
//!
//! crates/protocols decides which address is asked and when a socket is given up
//! ([`Candidates`]); this file looks names up, opens sockets and knows what prevents it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use timevisor_linux::udp::{Sockets, UdpClient};
use timevisor_protocols::ntp::{Candidates, Step};
use timevisor_protocols::nts::negotiation::DEFAULT_NTP_PORT;
use timevisor_time::Duration;

use super::Surroundings;
use super::resolver::{LOOK, Resolver};
use crate::config::ServerAddress;

/// A failed look-up or a missing route is tried again after this time, or when the network changes.
const RETRY: Duration = Duration::from_secs(10);
/// A name is not looked up more often while its server does not answer.
const LOOK_UP_PAUSE: Duration = Duration::from_secs(2);
/// Nor more often than this while its server answers, but refuses us or is wrong.
const LOOK_AGAIN_PAUSE: Duration = Duration::from_secs(60);

/// Why there is no socket, and when to look again.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// The word in `timevisor status`.
    pub word: &'static str,
    pub text: String,
    pub again: Duration,
}

/// The result of [`Path::open`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opened {
    /// There is no socket; [`Path::trouble`] says why.
    Nothing,
    /// There is a socket, to the same server as before.
    Same,
    /// There is a socket to a server that was not asked before this.
    Other,
}

pub struct Path {
    name: String,
    candidates: Candidates,
    /// `None` where the address is known without a look-up.
    resolver: Option<Resolver>,
    socket: Option<UdpClient>,
    /// The server that was asked last.
    asked: Option<SocketAddr>,
    /// Our own address on the way to the server when the socket was opened.
    source: Option<IpAddr>,
    /// Answers were lost: the next socket shows what arrives instead of them.
    lost: bool,
    /// Sockets have no source address or port of their own to change (a simulator's network).
    plain: bool,
    trouble: Option<Trouble>,
    look_at: Option<Duration>,
}

impl Path {
    /// `keyed`: the address will come with keys ([`Self::use_only`]).
    pub fn new(name: &str, keyed: bool) -> Result<Self> {
        let address: ServerAddress = name.parse().with_context(|| format!("reference {name}"))?;
        let (candidates, resolver) = match (address, keyed) {
            (ServerAddress::Literal(address), _) => (Candidates::literal(address), None),
            (_, true) => (Candidates::default(), None),
            (address, false) => (Candidates::default(), Some(Resolver::new(address))),
        };
        Ok(Self {
            name: name.to_owned(),
            candidates,
            resolver,
            socket: None,
            asked: None,
            source: None,
            lost: false,
            plain: false,
            trouble: None,
            look_at: None,
        })
    }

    /// The way to a name with these addresses, which is never looked up again.
    #[cfg(test)]
    pub fn known(name: &str, addresses: &[SocketAddr]) -> Self {
        let mut path = Self::new(name, true).unwrap();
        path.candidates.learn(addresses);
        path
    }

    /// Acts as if the socket had been opened with this source address.
    #[cfg(test)]
    pub fn pretend_source(&mut self, source: IpAddr) {
        self.source = Some(source);
    }

    /// The server's address is this one, whatever its name resolves to.
    pub fn use_only(&mut self, address: SocketAddr) {
        if self.candidates.addresses() != [address] {
            self.candidates = Candidates::literal(address);
            self.close();
        }
    }

    pub fn socket(&mut self) -> Option<&mut UdpClient> {
        self.socket.as_mut()
    }

    pub fn open_socket(&self) -> Option<&UdpClient> {
        self.socket.as_ref()
    }

    /// The server that is asked, also while there is no socket to it.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.candidates.current()
    }

    pub fn first_address(&self) -> Option<SocketAddr> {
        self.candidates.addresses().first().copied()
    }

    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// When a resolver's answer must be looked for.
    pub fn look_at(&self) -> Option<Duration> {
        self.look_at
    }

    /// Other addresses are known, to which [`Self::leave`] leads.
    pub fn has_others(&self) -> bool {
        let current = self.candidates.current();
        self.candidates.addresses().iter().any(|address| Some(*address) != current)
    }

    /// Every address was tried in vain.
    pub fn is_hopeless(&self) -> bool {
        self.candidates.is_hopeless()
    }

    /// The server answers and is of no use: the name may have another one now.
    pub fn look_again(&mut self, now: Duration) {
        self.look_up(now, LOOK_AGAIN_PAUSE);
    }

    fn close(&mut self) {
        self.socket = None;
    }

    /// Nothing prevents another attempt now.
    pub fn forget_trouble(&mut self) {
        self.trouble = None;
    }

    /// There can be no socket before `again`, for this reason.
    pub fn wait(&mut self, text: String, again: Duration) {
        self.close();
        self.trouble = Some(Trouble { word: "unreachable", text, again });
    }

    /// Takes the resolver's answer if there is one. Returns true if the server that is asked is
    /// left for one that the name has now.
    pub fn hear(&mut self, now: Duration) -> bool {
        self.look_at = None;
        let Some(resolver) = &mut self.resolver else { return false };
        let Some(answer) = resolver.answer() else {
            self.look_at = resolver.is_running().then_some(now + LOOK);
            return false;
        };
        match answer {
            Ok(found) => {
                self.candidates.learn(&found);
                self.trouble = None;
                let moved = self.candidates.reconsider() == Step::NextAddress;
                if moved {
                    self.close();
                }
                moved
            }
            Err(error) if self.candidates.addresses().is_empty() => {
                self.wait(format!("{error:#}"), now + RETRY);
                false
            }
            // The known addresses are better than none.
            Err(error) => {
                tracing::debug!("reference {}: {error:#}", self.name);
                false
            }
        }
    }

    /// Opens a socket unless there is one.
    pub fn open(&mut self, now: Duration, around: &Surroundings<'_>) -> Opened {
        self.plain = around.sockets == Sockets::Plain;
        if self.socket.is_some() {
            return Opened::Same;
        }
        if self.candidates.addresses().is_empty() {
            self.look_up(now, RETRY);
            let again = now + if self.look_at.is_some() { LOOK } else { RETRY };
            self.trouble = Some(match self.trouble.take() {
                Some(trouble) => Trouble { again, ..trouble },
                None => {
                    let text = "waiting for the name server; check DNS if this lasts".to_owned();
                    Trouble { word: "probing", text, again }
                }
            });
            return Opened::Nothing;
        }
        let mut problem = None;
        for _ in 0..self.candidates.addresses().len() {
            let current = self.candidates.current();
            let Some(peer) = current.or_else(|| self.candidates.choose(now, around.taken)) else {
                break;
            };
            match self.connect(peer, around) {
                Ok(socket) => {
                    self.socket = Some(socket);
                    self.trouble = None;
                    if self.asked == Some(peer) {
                        return Opened::Same;
                    }
                    tracing::debug!("reference {}: asking {peer}", self.name);
                    self.asked = Some(peer);
                    return Opened::Other;
                }
                Err(error) => {
                    problem = Some(format!("{error:#}"));
                    self.candidates.leave();
                }
            }
        }
        self.look_up(now, RETRY);
        self.trouble = Some(match problem {
            Some(text) => Trouble { word: "unreachable", text, again: now + RETRY },
            None => self.nobody_left(now + RETRY),
        });
        Opened::Nothing
    }

    /// There are addresses, and none of them may be asked.
    fn nobody_left(&self, again: Duration) -> Trouble {
        let addresses: Vec<String> =
            self.candidates.addresses().iter().map(SocketAddr::to_string).collect();
        if self.candidates.is_refused() {
            let text = format!(
                "every server of this name ({}) refuses us or is asked already for another reference; each is asked \
                 again after an hour: ask its operator, or use another server",
                addresses.join(", ")
            );
            return Trouble { word: "denied", text, again };
        }
        let text = format!(
            "every address ({}) is asked already for another reference: one server is one witness; remove one of the two",
            addresses.join(", ")
        );
        Trouble { word: "duplicate", text, again }
    }

    fn connect(&mut self, peer: SocketAddr, around: &Surroundings<'_>) -> Result<UdpClient> {
        self.source = None;
        if around.sockets == Sockets::Stamped {
            self.source = source(peer).ok();
            let own = &around.own_server;
            ensure!(
                self.source.is_none_or(|source| !own.is_own(peer, source)),
                "{peer} is this daemon's own server; remove the reference or the server"
            );
        }
        Ok(if self.lost {
            UdpClient::open_unconnected(peer, around.sockets)?
        } else {
            UdpClient::open(peer, around.sockets)?
        })
    }

    /// Our own address on the way to the server.
    pub fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// The server is a daemon of this machine, at the port of NTP.
    pub fn leads_here(&self) -> bool {
        self.peer().is_some_and(|peer| peer.port() == DEFAULT_NTP_PORT && peer.ip().is_loopback())
    }

    /// The server gave a usable answer.
    pub fn answered(&mut self) {
        self.candidates.answered();
        self.lost = false;
    }

    /// A request was lost, or its answer was of no use. `poll` is the interval of the requests.
    pub fn failed(&mut self, now: Duration, poll: Duration) -> Step {
        let step = self.candidates.failed();
        if self.resolver.is_some() {
            self.look_up(now, LOOK_UP_PAUSE.max(poll.half()));
        }
        if step == Step::NextAddress || (step == Step::NewSocket && !self.plain) {
            self.lost = true;
            self.close();
        }
        step
    }

    /// The server refuses us until `until`. Returns true if another one is asked.
    pub fn denied(&mut self, now: Duration, until: Duration) -> bool {
        let left = self.candidates.denied(now, until) == Step::NextAddress;
        self.look_again(now);
        if left {
            self.close();
        }
        left
    }

    /// Asks another address from now on.
    pub fn leave(&mut self) {
        self.candidates.leave();
        self.close();
    }

    /// Routes or addresses of this machine changed. Returns true if that concerns this server: then
    /// the next socket takes the new way.
    pub fn network_changed(&mut self) -> bool {
        if self.trouble.take_if(|trouble| trouble.word != "duplicate").is_some() {
            return false;
        }
        let Some(socket) = &self.socket else { return false };
        let now = source(socket.peer()).ok();
        let changed = now.is_some() && now != self.source;
        if changed {
            self.close();
        }
        changed
    }

    fn look_up(&mut self, now: Duration, pause: Duration) {
        let Some(resolver) = &mut self.resolver else { return };
        if let Err(error) = resolver.ask(now, pause) {
            tracing::debug!("reference {}: {error:#}", self.name);
        }
        self.look_at = resolver.is_running().then_some(now + LOOK);
    }
}

/// Our address as the server at `peer` sees it, by the present routes.
pub(super) fn source(peer: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::background::testing::{Hold, eventually};
    use super::super::testing::Host;
    use super::*;

    fn at(seconds: i64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_look_up_that_hangs_keeps_no_address_from_being_asked_and_the_next_one_is_heard() {
        // Opening a socket sends nothing, so nobody needs to be there.
        let [one, two, moved] =
            ["127.0.0.1:9", "127.0.0.2:9", "127.0.0.3:9"].map(|text| text.parse().unwrap());
        let (hold, pass) = Hold::first(1);
        let look_up = move |_: &ServerAddress| {
            pass();
            Ok(vec![moved])
        };
        let host = Host::new();
        let mut path = Path::known("name.invalid", &[one, two]);
        path.resolver = Some(Resolver::with("name.invalid".parse().unwrap(), Arc::new(look_up)));
        assert_eq!((path.open(at(0), &host.around()), path.peer()), (Opened::Other, Some(one)));
        assert_eq!(path.failed(at(1), at(64)), Step::NextAddress);
        hold.wait_for_calls(1);
        assert!(!path.hear(at(1)));
        assert_eq!(path.look_at(), Some(at(1) + LOOK), "not at once, and not never");
        assert_eq!((path.open(at(1), &host.around()), path.peer()), (Opened::Other, Some(two)));
        path.answered();
        for second in 2..61 {
            path.failed(at(second), at(64));
            assert!(!path.hear(at(second)));
            path.answered();
        }
        // The look-up's time is over: the next one is heard, while the first one hangs.
        path.failed(at(61), at(64));
        path.failed(at(62), at(64));
        eventually(|| path.hear(at(62)).then_some(()));
        assert_eq!((path.open(at(62), &host.around()), path.peer()), (Opened::Other, Some(moved)));
        drop(hold);
    }
}
