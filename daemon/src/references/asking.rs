//! Questions to the hosts of a cluster: sockets and time stamps. crates/cluster decides whom to ask and
//! what their answers prove together.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use timevisor_clock_page::Counter as _;
use timevisor_cluster::client::Client;
use timevisor_cluster::facts::middle;
use timevisor_cluster::mesh::Standing;
use timevisor_cluster::node::Event;
use timevisor_cluster::wire::Random;
use timevisor_estimate::Exchange;
use timevisor_linux::udp::stamped::{Stamped, StampedClient};
use timevisor_protocols::control::ClusterHost;
use timevisor_protocols::ntp::ERA_PIVOT;
use timevisor_time::{Duration, Instant, Tai, Utc};

use super::ntp::describe;
use super::path::source;
use super::tally::{PROBING, Refused};
use super::{Surroundings, random};

/// Packets that are taken at a time, so that a flood does not block the daemon's other work.
const MOST_PACKETS: usize = 16;

/// A node of a cluster with its socket.
pub struct Asking {
    client: Client,
    socket: Option<StampedClient>,
    /// Whose answer came last.
    answered: Option<SocketAddr>,
}

/// A datagram that belonged to a question, or the end of one that nobody answered.
pub struct Heard {
    /// The counter then.
    pub counter: u64,
    pub events: Vec<Event<SocketAddr>>,
}

impl Asking {
    pub fn new(client: Client) -> Self {
        Self { client, socket: None, answered: None }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    pub fn answered(&self) -> Option<SocketAddr> {
        self.answered
    }

    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.socket.iter().map(AsFd::as_fd).collect()
    }

    /// The next question finds its way anew.
    pub fn network_changed(&mut self) {
        self.socket = None;
    }

    /// Sends the question that is due, if one is. One that could not be sent counts as lost when its
    /// time is over. Returns what followed from one that was not answered.
    pub fn ask(
        &mut self,
        now: Duration,
        around: &Surroundings<'_>,
    ) -> (Option<Heard>, Result<(), Refused>) {
        let question = self.client.on_timer(now, &fresh());
        let events = self.client.take_events();
        let counter = around.counter.read_ordered();
        let lost = (!events.is_empty()).then_some(Heard { counter, events });
        let Some((server, question)) = question else { return (lost, Ok(())) };
        if source(server).is_ok_and(|source| around.own_server.is_own(server, source)) {
            // Somebody has named this host to itself.
            self.client.is_self(server, now);
            let text = format!("{server} is this host itself");
            return (lost, Err(Refused::new("own-server", text)));
        }
        (lost, self.send(server, &question, around))
    }

    fn send(
        &mut self,
        server: SocketAddr,
        question: &[u8],
        around: &Surroundings<'_>,
    ) -> Result<(), Refused> {
        let sent = self.connect(server, around)?.send(around.counter, question);
        self.client.sent(sent.map_err(|error| Refused::new("unreachable", describe(&error)))?);
        Ok(())
    }

    /// Opens a socket to `server` unless there is one.
    fn connect(
        &mut self,
        server: SocketAddr,
        around: &Surroundings<'_>,
    ) -> Result<&mut StampedClient, Refused> {
        let is_there = self.socket.as_ref().is_some_and(|socket| socket.peer() == server);
        if !is_there {
            self.socket = None;
            let opened = StampedClient::open(server, around.sockets);
            let opened = opened.map_err(|error| Refused::new("unreachable", describe(&error)))?;
            self.socket = Some(opened);
        }
        let text = "the socket is gone";
        self.socket.as_mut().ok_or_else(|| Refused::new("unreachable", text))
    }

    /// Takes what has arrived. `tai` converts the servers' stamps, and fails where it cannot.
    pub fn receive(
        &mut self,
        now: Duration,
        around: &Surroundings<'_>,
        tai: impl Fn(Instant<Utc>) -> Option<Instant<Tai>>,
    ) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut buffer = [0; 2048];
        for _ in 0..MOST_PACKETS {
            let Some(socket) = &mut self.socket else { break };
            match socket.recv(around.counter, around.calibration, &mut buffer) {
                Ok(Some(received)) => {
                    heard.extend(self.take(now, &buffer[..received.len], received, around, &tai));
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!("a host of a cluster: {}", describe(&error));
                    if error.is_refused() {
                        self.client.unreachable(socket.peer(), now);
                        let (counter, events) =
                            (around.counter.read_ordered(), self.client.take_events());
                        heard.extend((!events.is_empty()).then_some(Heard { counter, events }));
                    }
                    break;
                }
            }
        }
        heard
    }

    fn take(
        &mut self,
        now: Duration,
        bytes: &[u8],
        received: Stamped,
        around: &Surroundings<'_>,
        tai: impl Fn(Instant<Utc>) -> Option<Instant<Tai>>,
    ) -> Option<Heard> {
        let (peer, (ta, tf)) = (self.socket.as_ref()?.peer(), received.around?);
        let (query, bytes) = (self.client.waits_for(peer)?, bytes.to_vec());
        // Neither CLOCK_REALTIME nor another host may move a server's time by 136 years.
        let said = around.parser.run(move || query.read(&bytes, ERA_PIVOT)).ok()?;
        self.client.sent(ta);
        if said.is_ok() {
            self.answered = Some(peer);
        }
        let events = self.client.heard(peer, said, tf, tai, now);
        Some(Heard { counter: received.counter, events })
    }

    /// What all answers prove together at this value of the counter, as if a clock of this machine had
    /// been read: each answer is of another server, over another path, so there are no round trips that
    /// one could compare.
    pub fn known(&self, counter: u64) -> Result<Exchange, Refused> {
        let node = self.client.node();
        match node.at(counter).filter(|_| node.vouches()) {
            Some((interval, Standing::Vouched)) => {
                let (time, error) =
                    (middle(&interval), interval.width().half() + Duration::EPSILON);
                Ok(Exchange { ta: counter, tb: time, te: time, tf: counter, error })
            }
            _ if node.doubts_its_counter() => Err(Refused::new(
                "counter",
                "several hosts contradict what they said before, as this host's counter has it: its rate is beyond \
                 oscillator.unmeasured_rate_ppm, or more hosts are wrong than `liars` says",
            )),
            _ => {
                let asking = || Refused::new(PROBING, "asking the seeds");
                Err(self.trouble().unwrap_or_else(asking))
            }
        }
    }

    /// Why nobody who was asked is of use, if that is known.
    fn trouble(&self) -> Option<Refused> {
        let (server, why) = self.client.refusals().next()?;
        Some(Refused::new("refused", format!("{server}: {why}")))
    }
}

/// Random bytes for one question. Without any (never seen on Linux), its stamp is still another one
/// each time, and the cipher bears a nonce that is used twice.
fn fresh() -> Random {
    let mut bytes = [0; Random::LEN];
    if getrandom::fill(&mut bytes).is_err() {
        bytes[..8].copy_from_slice(&random().to_be_bytes());
    }
    Random(bytes)
}

/// By which address the others know this host, if it is one of the seeds; the first that its server
/// listens on otherwise.
pub fn own_address(seeds: &[SocketAddr], around: &Surroundings<'_>) -> SocketAddr {
    let is_own = |seed: &&SocketAddr| {
        source(**seed).is_ok_and(|source| around.own_server.is_own(**seed, source))
    };
    let listens = around.own_server.listen.first();
    let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
    seeds.iter().find(is_own).or(listens).copied().unwrap_or(unspecified)
}

/// Says what became of answers in the log.
pub fn log(cluster: &str, event: &Event<SocketAddr>) {
    match event {
        Event::Vouches => tracing::info!("cluster {cluster}: this host has bounds"),
        Event::BeganAnew => tracing::warn!("cluster {cluster}: its timeline began anew"),
        Event::Named(liar) => tracing::warn!(
            "cluster {cluster}: {liar} contradicts the others, and is not asked any more"
        ),
        Event::Stranger(host) => {
            tracing::warn!("cluster {cluster}: {host} has another timeline of this name");
        }
    }
}

/// What `timevisor cluster status` says of the hosts that were asked.
pub fn hosts(asking: &Asking, counter: u64) -> Vec<ClusterHost> {
    let ns = |span: Duration| u64::try_from(span.ceil_nanos()).ok();
    let client = asking.client();
    let heard = client.node().views(counter).map(|view| ClusterHost {
        address: view.at.to_string(),
        status: if view.named { "liar" } else { "heard" }.to_owned(),
        level: Some(view.level),
        width_ns: view.interval.and_then(|interval| ns(interval.width())),
        reason: None,
    });
    let refused = client.refusals().map(|(at, why)| ClusterHost {
        address: at.to_string(),
        status: "refused".to_owned(),
        reason: Some(why.to_string()),
        ..ClusterHost::default()
    });
    heard.chain(refused).collect()
}
