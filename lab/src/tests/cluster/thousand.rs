//! A thousand nodes of a cluster, each with a socket of its own, start at once against one timevisord; and
//! once more in a cluster with a key, whose questions and answers are packets of NTS.
//!
//! They run in one thread of this program, which looks at each of them in turn, so that the kernel's stamps
//! decide how wide their bounds are. Bounds are compared with CLOCK_REALTIME, which the
//! daemon's server serves. Beside it, one chronyd starts. Times are reported and gate nothing.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_clock_page::Counter as _;
use timevisor_cluster::client::Client;
use timevisor_cluster::node::{Event, Node, Settings};
use timevisor_cluster::settle;
use timevisor_cluster::wire::Random;
use timevisor_estimate::RateLimits;
use timevisor_linux::clock::{bracket, monotonic, realtime};
use timevisor_linux::counter::{HostCounter, Tsc};
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::udp::Sockets;
use timevisor_linux::udp::stamped::StampedClient;
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::nts::shared::{Sealer, Secret};
use timevisor_time::{Duration as Span, Instant as Time, Period, RateError, Tai, Utc};

use crate::chrony_client::ChronyClient;
use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::scenario::Context;
use crate::tests::faults::common::reference;

const NODES: usize = 1_000;
const PORT: u16 = 41_240;
/// Of the counter against the period that is measured here.
const RATE: RateError = RateError::from_ppm(100);
const PATIENCE: Duration = Duration::from_secs(60);
/// Any value: nodes and judge use the same.
const TAI_OFFSET: Span = Span::from_secs(37);

struct Member {
    client: Client,
    socket: StampedClient,
    vouched: Option<Duration>,
}

pub(crate) fn thousand(ctx: &Context) -> anyhow::Result<String> {
    let upstream = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    let key = host.directory().join("sealed.key");
    host.cli(&["cluster", "key", key.to_str().context("a path of UTF-8")?])?;
    let lines = format!(
        "{}[server]\nlisten = [\"127.0.0.1:{PORT}\"]\nrate_interval = \"0s\"\n[[cluster]]\nname = \"lab\"\nchildren = 2000\n\
         [[cluster]]\nname = \"sealed\"\nchildren = 2000\nkey = {key:?}\n",
        reference(&upstream.address())
    );
    host.start(&lines)?;
    host.wait_synchronized(1_000)?;

    let counter = HostCounter::Tsc(Tsc::unchecked());
    let nominal = period(&counter)?;
    let secret = Secret::parse(&std::fs::read(&key)?)?;
    let plain = start(&host, &counter, nominal, "lab", None)?;
    let sealed = start(&host, &counter, nominal, "sealed", Some(&secret))?;
    let beside = chronyd_beside(ctx)?;
    Ok(format!("{NODES} nodes without a key: {plain}; with one: {sealed}; {beside}"))
}

/// How long one chronyd with a burst takes from its start until it says that it is synchronized to
/// the same server.
fn chronyd_beside(ctx: &Context) -> anyhow::Result<String> {
    let began = Instant::now();
    let server = format!("127.0.0.1 port {PORT} iburst minpoll 0 maxpoll 0");
    let mut chronyd = ChronyClient::start(ctx, "cold", &server, 0)?;
    chronyd.wait(PATIENCE)?;
    let took = began.elapsed();
    Ok(format!(
        "one chronyd with iburst was synchronized {:.0} ms after its start, and claims {:.1} us then",
        took.as_secs_f64() * 1e3,
        Duration::from_nanos(u64::try_from(chronyd.claim()?)?).as_secs_f64() * 1e6
    ))
}

/// All nodes start; returns how they got on.
fn start(
    host: &Host,
    counter: &HostCounter,
    nominal: Period,
    cluster: &str,
    secret: Option<&Secret>,
) -> anyhow::Result<String> {
    let name = Name::new(cluster).context("a short name")?;
    let began = Instant::now();
    let mut members = (0..NODES)
        .map(|index| Member::new(index, name, secret, nominal))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let ready = began.elapsed();
    let cpu = daemon_cpu(host)?;
    let began = Instant::now();
    let mut random = 1;
    while members.iter().any(|member| member.vouched.is_none()) {
        interrupt::check()?;
        ensure!(began.elapsed() < PATIENCE, "{}", unsettled(&members));
        step(&mut members, counter, nominal, began, &mut random)?;
    }
    let cpu = daemon_cpu(host)?.saturating_sub(cpu);
    let outside = members.iter().filter(|member| !member.holds(counter)).count();
    ensure!(outside == 0, "the bounds of {outside} nodes exclude the truth");

    let mut settled: Vec<Duration> = members.iter().filter_map(|member| member.vouched).collect();
    settled.sort();
    let mut questions: Vec<u64> = members.iter().map(|member| member.client.questions()).collect();
    questions.sort_unstable();
    let median = questions[NODES / 2];
    ensure!(median <= 12, "{median} questions a node in the median");
    let refused: usize = members.iter().map(|member| member.client.refusals().count()).sum();
    ensure!(refused == 0, "{refused} refusals");
    let (half, widest) = widths(&members, counter);
    Ok(format!(
        "bounded within {:.0} ms (median {:.0}) of the first question, sockets took {:.0} ms, {median} questions a \
         node and {} at most, half-width {half:.1} us in the median and {widest:.1} at most, truth inside each, the daemon used \
         {:.1} ms of a processor ({:.0} nodes a second of it)",
        settled[NODES - 1].as_secs_f64() * 1e3,
        settled[NODES / 2].as_secs_f64() * 1e3,
        ready.as_secs_f64() * 1e3,
        questions[NODES - 1],
        cpu.as_secs_f64() * 1e3,
        f64::from(u32::try_from(NODES)?) / cpu.as_secs_f64(),
    ))
}

impl Member {
    fn new(
        index: usize,
        name: Name,
        secret: Option<&Secret>,
        nominal: Period,
    ) -> anyhow::Result<Self> {
        let server = SocketAddr::from(([127, 0, 0, 1], PORT));
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
    fn holds(&self, counter: &HostCounter) -> bool {
        let moment = bracket(counter, 3);
        let truth = (moment.realtime + TAI_OFFSET).relabel::<Tai>();
        let at = |counter| self.client.node().at(counter).map(|(interval, _)| interval);
        at(moment.before).zip(at(moment.after)).is_some_and(|(before, after)| {
            before.earliest() <= truth && truth <= after.latest() + Span::from_nanos(1)
        })
    }
}

/// Sends what is due, and takes what has arrived.
fn step(
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
fn period(counter: &HostCounter) -> anyhow::Result<Period> {
    let first = bracket(counter, 10);
    interrupt::sleep(Duration::from_millis(500))?;
    let last = bracket(counter, 10);
    let ticks = last.before - first.before;
    let seconds = (last.realtime - first.realtime).as_secs_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a frequency")]
    let hz = (ticks as f64 / seconds).round() as u64;
    Period::from_hz(hz).context("the counter stands still")
}

fn unsettled(members: &[Member]) -> String {
    let left: Vec<&Member> = members.iter().filter(|m| m.vouched.is_none()).collect();
    let questions: u64 = left.iter().map(|member| member.client.questions()).sum();
    format!("{} nodes have no bounds after {PATIENCE:?}, and {questions} questions", left.len())
}

/// Median and largest half-width, us.
fn widths(members: &[Member], counter: &HostCounter) -> (f64, f64) {
    let now = counter.read_ordered();
    let half = |member: &Member| {
        let interval = member.client.node().at(now).map(|(interval, _)| interval.width());
        interval.map_or(f64::MAX, |width| width.as_secs_f64() * 5e5)
    };
    let mut all: Vec<f64> = members.iter().map(half).collect();
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[all.len() - 1])
}

/// Processor time of the daemon's threads, from /proc/PID/task/TID/schedstat.
fn daemon_cpu(host: &Host) -> anyhow::Result<Duration> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{}/task", host.pid()?))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().context("an empty schedstat")?;
        sum += first.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(sum))
}
