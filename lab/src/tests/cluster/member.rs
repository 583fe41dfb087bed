//! A node of a cluster without a daemon: the state machine that hosts run, and a socket.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use timevisor_cluster::client::Client;
use timevisor_cluster::node::{Event, Node, Settings};
use timevisor_cluster::settle;
use timevisor_cluster::wire::Random;
use timevisor_estimate::RateLimits;
use timevisor_linux::clock::{bracket, monotonic, realtime};
use timevisor_linux::counter::HostCounter;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::udp::Sockets;
use timevisor_linux::udp::stamped::StampedClient;
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::nts::shared::{Sealer, Secret};
use timevisor_time::{Duration as Span, Instant as Time, Period, RateError, Tai, Utc};

use crate::interrupt;

/// Of the counter against the period that is measured here.
const RATE: RateError = RateError::from_ppm(100);
/// Any value: nodes and judge use the same.
const TAI_OFFSET: Span = Span::from_secs(37);

pub(super) struct Member {
    pub(super) client: Client,
    socket: StampedClient,
    /// How long after the start it had bounds.
    pub(super) vouched: Option<Duration>,
}

impl Member {
    /// One that asks the server at this port of the loopback interface.
    pub(super) fn new(
        server: u16,
        index: usize,
        name: Name,
        secret: Option<&Secret>,
        nominal: Period,
    ) -> anyhow::Result<Self> {
        let server = SocketAddr::from(([127, 0, 0, 1], server));
        let settings = Settings {
            burst: settle::Limits { wanted: None, most: 8 },
            spacing: Span::ZERO,
            children: 10,
            lease: Span::from_secs(60),
            peers: 0,
            poll: Span::from_secs(1),
            liars: 0,
            trusted: None,
            succession: None,
            rate: RateLimits::around(nominal, RATE),
            nominal,
        };
        let port = 20_000 + u16::try_from(index)?;
        let own = SocketAddr::from(([127, 0, 0, 1], port));
        let node = Node::new(own, settings, vec![server], index as u64, monotonic());
        let socket = StampedClient::open(server, Sockets::Stamped)?;
        let sealer = secret.map(|secret| {
            let byte = u8::try_from(index % 256).unwrap_or(0);
            Sealer::new(secret.cookie_keys(name), &[[byte; 32], [!byte; 32]].into())
        });
        let client = Client::new(node, name, port).with_sealer(sealer);
        Ok(Self { client, socket, vouched: None })
    }

    fn ask(&mut self, counter: &HostCounter, random: u64) -> anyhow::Result<()> {
        let mut bytes = [0; Random::LEN];
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.to_be_bytes()));
        if let Some((_, question)) = self.client.on_timer(monotonic(), &Random(bytes)) {
            self.client.sent(self.socket.send(counter, &question)?);
        }
        Ok(())
    }

    fn take(&mut self, counter: &HostCounter, nominal: Period, began: Instant) {
        let mut buffer = [0; 512];
        while let Ok(Some(received)) = self.socket.recv(counter, (nominal, RATE), &mut buffer) {
            let server = self.socket.peer();
            let (Some(query), Some((ta, tf))) = (self.client.waits_for(server), received.around)
            else {
                continue;
            };
            self.client.sent(ta);
            let said = query.read(&buffer[..received.len], realtime());
            let tai = |utc: Time<Utc>| Some((utc + TAI_OFFSET).relabel::<Tai>());
            let events = self.client.heard(server, said, tf, tai, monotonic());
            if events.contains(&Event::Vouches) {
                self.vouched = Some(began.elapsed());
            }
        }
    }

    /// Whether its interval has the truth, which was read between two values of the counter.
    pub(super) fn holds(&self, counter: &HostCounter) -> bool {
        let moment = bracket(counter, 3);
        let truth = (moment.realtime + TAI_OFFSET).relabel::<Tai>();
        let at = |counter| self.client.node().at(counter).map(|(interval, _)| interval);
        at(moment.before).zip(at(moment.after)).is_some_and(|(before, after)| {
            before.earliest() <= truth && truth <= after.latest() + Span::from_nanos(1)
        })
    }
}

/// Sends what is due, and takes what has arrived.
pub(super) fn step(
    members: &mut [Member],
    counter: &HostCounter,
    nominal: Period,
    began: Instant,
    random: &mut u64,
) -> anyhow::Result<()> {
    for member in members.iter_mut() {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        member.ask(counter, *random)?;
    }
    let mut fds: Vec<_> =
        members.iter().map(|member| PollFd::readable(member.socket.as_fd())).collect();
    wait(&mut fds, Some(Duration::from_millis(5)))?;
    let ready: Vec<bool> =
        fds.iter().map(PollFd::ready).map(|ready| ready.readable || ready.error).collect();
    for (member, _) in members.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
        member.take(counter, nominal, began);
    }
    Ok(())
}

/// The counter's period against CLOCK_REALTIME, which nobody steers here.
pub(super) fn period(counter: &HostCounter) -> anyhow::Result<Period> {
    let first = bracket(counter, 10);
    interrupt::sleep(Duration::from_millis(500))?;
    let last = bracket(counter, 10);
    let ticks = last.before - first.before;
    let seconds = (last.realtime - first.realtime).as_secs_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a frequency")]
    let hz = (ticks as f64 / seconds).round() as u64;
    Period::from_hz(hz).context("the counter stands still")
}
