//! The event queue: clients and servers that ship, and a network that loses, repeats, delays, reorders
//! and replays their datagrams.
//!
//! A host serves the interval of its node. timevisord serves its page's, which is inside of that.

mod judging;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use timevisor_cluster::children::Children;
use timevisor_cluster::client::Client;
use timevisor_cluster::mesh::Standing;
use timevisor_cluster::node::{Event, Lead, Node, Origin, Settings};
use timevisor_cluster::wire::{Random as Bytes, stamp_of, time_of};
use timevisor_cluster::{settle, succession};
use timevisor_estimate::RateLimits;
use timevisor_protocols::ntp::precise::{Bounds, Errors, Name, RateLimits as WireRate, Status};
use timevisor_protocols::ntp::server::{
    Action, Cluster, Config, OwnTimeline, PreciseTime, ServedClock, ServedTime, Server,
    Unsynchronized,
};
use timevisor_protocols::ntp::{ERA_PIVOT, LeapIndicator};
use timevisor_time::{Duration, Instant, Interval, Tai, Utc};

use super::liar::{self, Misleading};
use super::plan::{Lie, Path, Plan};
use super::ticker::Ticker;
use super::{Judged, chance, log_range, pick, span};
use crate::cluster::{nanos, nominal};
use crate::random::Random;

const LEAP: Duration = Duration::from_secs(37);
/// Answers that are kept to be replayed.
const KEPT: usize = 64;

/// One host, from one boot to the next.
struct Host {
    client: Client,
    server: Server,
    ticker: Ticker,
    dead: bool,
    busy_until: u64,
    /// Whom it asked last.
    asked: Option<SocketAddr>,
    timer: u64,
    /// Which boot this is, of all hosts' boots.
    boot: u64,
    /// Boots that it has heard, and the origins that they stated.
    heard: BTreeSet<(u64, Origin)>,
    /// The last bounds that were judged: the origin, the counter, the interval.
    said: Option<(Option<Origin>, u64, Interval<Tai>)>,
}

/// A master of the cluster's own timeline.
struct Leading {
    /// Its counter, since when it is the timeline.
    ticker: Ticker,
    lead: Lead,
    /// What it followed before, and whom it had heard.
    before: Option<Origin>,
    heard: BTreeSet<(u64, Origin)>,
}

enum What {
    Timer,
    Question {
        from: usize,
        /// At which of its ports.
        port: u16,
        bytes: Vec<u8>,
    },
    Serve {
        from: usize,
        port: u16,
        bytes: Vec<u8>,
        arrived: Option<Told>,
        silence: Option<Duration>,
    },
    Answer {
        from: SocketAddr,
        bytes: Vec<u8>,
    },
    Restart,
    Death,
    /// Everybody is judged.
    Look,
}

/// What a host says of the time at one moment.
#[derive(Clone, Copy)]
struct Told {
    interval: Interval<Tai>,
    origin: Option<Origin>,
}

struct Entry(u64, u64, usize, What);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

pub struct World {
    plan: Plan,
    dice: Random,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    now: u64,
    hosts: Vec<Host>,
    leads: BTreeMap<Origin, Leading>,
    kept: Vec<(usize, SocketAddr, Vec<u8>)>,
    judged: Judged,
}

fn name() -> Name {
    Name::new("props").unwrap()
}

/// The port at which every host answers.
const PORT: u16 = 123;

pub fn address(host: usize) -> SocketAddr {
    let [.., high, low] = host.to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, high, low + 1)), PORT)
}

/// A further port of a host.
pub fn at_port(address: SocketAddr, further: u16) -> SocketAddr {
    SocketAddr::new(address.ip(), PORT + further)
}

fn host_at(address: SocketAddr) -> usize {
    let IpAddr::V4(ip) = address.ip() else { return usize::MAX };
    let [_, net, high, low] = ip.octets();
    let host = usize::from(high) * 256 + usize::from(low);
    if net == 0 { host.wrapping_sub(1) } else { usize::MAX }
}

impl World {
    /// Runs the world of this plan.
    pub fn run(plan: Plan, seed: u64) -> Judged {
        let mut dice = Random::stream(seed, "cluster in motion");
        let hosts = (0..plan.nodes).map(|index| boot(&plan, index, &mut dice, 0)).collect();
        let mut world = Self {
            dice,
            queue: BinaryHeap::new(),
            order: 0,
            now: 0,
            hosts,
            leads: BTreeMap::new(),
            kept: Vec::new(),
            judged: Judged { worlds: 1, ..Judged::default() },
            plan,
        };
        for index in 0..world.plan.nodes {
            let at = if world.plan.own_timeline() { 0 } else { world.dice.bits() % 500_000_000 };
            world.push(at, index, What::Timer);
        }
        for (index, at, back) in world.plan.deaths.clone() {
            world.push(at, index, What::Death);
            if let Some(back) = back {
                world.push(back, index, What::Restart);
            }
        }
        for _ in 0..20 {
            let at = world.dice.bits() % world.plan.until_ns;
            world.push(at, 0, What::Look);
        }
        while let Some(Reverse(Entry(at, _, index, what))) = world.queue.pop() {
            if at > world.plan.until_ns {
                break;
            }
            world.now = at;
            world.handle(index, what);
        }
        world.judged.origins += world.leads.len() as u64;
        world.now = world.plan.until_ns;
        (0..world.plan.nodes).for_each(|host| world.look_for_bounds(host));
        world.judged
    }

    fn push(&mut self, at: u64, host: usize, what: What) {
        self.order += 1;
        self.queue.push(Reverse(Entry(at, self.order, host, what)));
    }

    fn handle(&mut self, index: usize, what: What) {
        let dead = self.hosts[index].dead;
        match what {
            What::Look => return (0..self.plan.nodes).for_each(|host| self.judge(host)),
            What::Restart => {
                if dead {
                    self.hosts[index] = boot(&self.plan, index, &mut self.dice, self.now);
                    self.judged.restarts += 1;
                }
            }
            What::Death => {
                self.hosts[index].dead = true;
                self.judged.deaths += u64::from(!dead);
                return;
            }
            _ if dead => return,
            What::Timer => {}
            What::Question { from, port, bytes } => {
                if port >= PORT + self.ports(index) {
                    return;
                }
                let service = self.plan.service_ns[index];
                let left = self.hosts[index].busy_until.max(self.now) + service;
                self.hosts[index].busy_until = left;
                let (arrived, silence) = (self.told(index, from), self.silence(index));
                self.push(left, index, What::Serve { from, port, bytes, arrived, silence });
                return;
            }
            What::Serve { from, port, bytes, arrived, silence } => {
                return self.serve(index, (from, port), &bytes, arrived, silence);
            }
            What::Answer { from, bytes } => self.answer(index, from, &bytes),
        }
        self.timer(index);
    }

    fn timer(&mut self, index: usize) {
        if self.plan.roots.iter().any(|(root, ..)| *root == index) {
            return;
        }
        let now = span(self.now);
        let bytes = std::array::from_fn(|_| self.dice.bits().to_be_bytes()[0]);
        let host = &mut self.hosts[index];
        let question = host.client.on_timer(now, &Bytes(bytes));
        if host.client.node().is_to_lead() {
            let (counter, before) = (host.ticker.at(self.now), host.client.node().origin());
            let origin = host.client.lead(counter, self.dice.bits(), now);
            if let Some(lead) = host.client.node().leads() {
                let (ticker, heard) = (host.ticker.clone(), host.heard.clone());
                self.leads.insert(origin, Leading { ticker, lead, before, heard });
            }
        }
        let host = &mut self.hosts[index];
        if let Some((server, bytes)) = question {
            host.asked = Some(server);
            // The counter is read before the datagram leaves, sometimes long before. A datagram that
            // cannot be sent has no stamp.
            if !chance(&mut self.dice, 0.01) {
                host.client.sent(host.ticker.at(self.now));
                let late = self.dice.bits() % self.plan.stamped_ns;
                let port = server.port();
                let what = |bytes| What::Question { from: index, port, bytes };
                self.send(index, host_at(server), late, &bytes, what);
            }
        }
        let due = nanos(self.hosts[index].client.poll_at()).max(self.now + 1);
        let host = &mut self.hosts[index];
        // Timers that are not due do nothing.
        if due != host.timer && due < self.plan.until_ns {
            host.timer = due;
            let late = if chance(&mut self.dice, 0.1) { self.dice.bits() % 5_000_000 } else { 0 };
            self.push(due + late, index, What::Timer);
        }
    }

    /// Through the network, which may lose it, and may deliver it more than once.
    fn send(
        &mut self,
        from: usize,
        to: usize,
        late: u64,
        bytes: &[u8],
        what: impl Fn(Vec<u8>) -> What,
    ) {
        let path = self.plan.paths.get(from).and_then(|paths| paths.get(to).copied().flatten());
        let Some(Path { minimum_ns, queueing_ns }) = path else { return };
        let delay = |dice: &mut Random| {
            let queueing = dice.exponential() * queueing_ns as f64 * 1e-9;
            minimum_ns + nanos(Duration::from_secs_f64(queueing))
        };
        if !chance(&mut self.dice, self.plan.loss) {
            let mut at = self.now + late + delay(&mut self.dice);
            if chance(&mut self.dice, self.plan.late) {
                at += log_range(&mut self.dice, 100_000, 4_000_000_000);
                self.judged.late += 1;
            }
            self.push(at, to, what(bytes.to_vec()));
        }
        if chance(&mut self.dice, self.plan.duplicated) {
            let at = self.now + late + delay(&mut self.dice);
            let at = at + log_range(&mut self.dice, 1_000, 4_000_000_000);
            self.push(at, to, what(bytes.to_vec()));
            self.judged.duplicated += 1;
        }
        if chance(&mut self.dice, self.plan.truncated) {
            let length = pick(&mut self.dice, bytes.len());
            let at = self.now + late + delay(&mut self.dice);
            self.push(at, to, what(bytes[..length].to_vec()));
        }
    }

    fn ports(&self, index: usize) -> u16 {
        if self.plan.is_liar(index) { self.plan.liar_ports } else { 1 }
    }

    /// What a host says of the time now.
    fn told(&self, index: usize, asker: usize) -> Option<Told> {
        let host = &self.hosts[index];
        let (counter, origin) = (host.ticker.at(self.now), host.client.node().origin());
        if let Some((liar, lie)) = self.plan.liar
            && liar == index
            && let Some(offset) = liar::offset(lie, asker, self.now)
        {
            let truth = self.truth(index, self.now)?;
            let interval = Interval::around(truth + offset, Duration::from_nanos(200));
            return Some(Told { interval, origin });
        }
        let root = self.plan.roots.iter().find(|(root, ..)| *root == index);
        if let Some((_, below, above)) = root {
            let truth = utc(self.now);
            let interval = Interval::new(truth - span(*below), truth + span(*above));
            return Some(Told { interval: interval?, origin });
        }
        let (interval, standing) = host.client.node().at(counter)?;
        let vouched = standing == Standing::Vouched && host.client.node().vouches();
        vouched.then_some(Told { interval, origin })
    }

    fn silence(&self, index: usize) -> Option<Duration> {
        let lies = matches!(self.plan.liar, Some((liar, Lie::Silence)) if liar == index);
        if lies {
            return Some(Duration::ZERO);
        }
        self.hosts[index].client.node().silence(span(self.now))
    }

    fn serve(
        &mut self,
        index: usize,
        (from, port): (usize, u16),
        bytes: &[u8],
        arrived: Option<Told>,
        silence: Option<Duration>,
    ) {
        let left = self.told(index, from);
        let own = self.plan.own_timeline();
        let stamp = |time: Instant<Tai>| if own { stamp_of(time) } else { time.relabel() - LEAP };
        let (clock, received) = match arrived.zip(left) {
            Some((arrived, left)) if arrived.origin == left.origin => {
                let received = within(&mut self.dice, &arrived.interval);
                // A clock is not turned back.
                let transmit = within(&mut self.dice, &left.interval).max(received);
                let receive = errors(received, &arrived.interval);
                let errors = errors(transmit, &left.interval);
                let bounds = Bounds { receive, transmit: errors };
                let time = self.served(index, stamp(transmit), bounds, left.origin, silence);
                (ServedClock::Known(time), stamp(received))
            }
            Some(_) => (ServedClock::Mute, ERA_PIVOT),
            None => (ServedClock::Unknown(Unsynchronized::Starting), ERA_PIVOT),
        };
        let asker = SocketAddr::new(address(from).ip(), 40_000);
        let now = span(self.now);
        let action = self.hosts[index].server.respond(now, bytes, received, &clock, asker);
        let bytes = match action {
            Action::Reply { bytes, .. } => bytes.to_vec(),
            Action::Kiss { bytes } => bytes.to_vec(),
            Action::Protected { .. } | Action::Drop(_) => return,
        };
        let at = at_port(address(index), port - PORT);
        self.send(index, from, 0, &bytes, |bytes| What::Answer { from: at, bytes });
        if self.kept.len() < KEPT {
            self.kept.push((from, at, bytes));
        } else {
            let place = pick(&mut self.dice, KEPT);
            self.kept[place] = (from, at, bytes);
        }
        if chance(&mut self.dice, self.plan.replayed) {
            let (to, at, bytes) = self.kept[pick(&mut self.dice, self.kept.len())].clone();
            // To whom it was sent, or to somebody else; from who sent it, or as if from who is asked.
            let to = if chance(&mut self.dice, 0.7) { to } else { from };
            let asked = self.hosts[to].asked.filter(|_| chance(&mut self.dice, 0.6));
            let late = self.now + log_range(&mut self.dice, 1_000, 10_000_000);
            self.push(late, to, What::Answer { from: asked.unwrap_or(at), bytes });
            self.judged.replayed += 1;
        }
    }

    fn served(
        &self,
        index: usize,
        transmit: Instant<Utc>,
        bounds: Bounds,
        origin: Option<Origin>,
        silence: Option<Duration>,
    ) -> ServedTime {
        let host = &self.hosts[index];
        let level = match self.plan.liar {
            Some((liar, Lie::Level(level))) if liar == index => level,
            _ => host.client.node().level().unwrap_or(1),
        };
        let own = self.plan.own_timeline();
        let rate = WireRate::within(self.plan.rate);
        let timeline = own.then(|| OwnTimeline { name: name(), level, rate, silence });
        let origin = origin.filter(|_| own).unwrap_or(Origin::UTC);
        ServedTime {
            transmit,
            error: bounds.largest(),
            leap: LeapIndicator::NoWarning,
            stratum: level.clamp(1, 15),
            reference_id: *b"PROP",
            reference: transmit,
            precision: -30,
            precise: Some(PreciseTime {
                bounds,
                status: Status::Synchronized,
                epoch: origin.epoch,
                generation: origin.generation,
                timeline,
            }),
        }
    }

    fn answer(&mut self, index: usize, from: SocketAddr, bytes: &[u8]) {
        if self.plan.roots.iter().any(|(root, ..)| *root == index) {
            return;
        }
        let own = self.plan.own_timeline();
        let boot = self.hosts.get(host_at(from)).map(|host| host.boot);
        let host = &mut self.hosts[index];
        let Some(query) = host.client.waits_for(from) else {
            self.judged.unasked += 1;
            return;
        };
        let about = if own { ERA_PIVOT } else { utc(self.now).relabel() };
        let said = query.read(bytes, about);
        self.judged.strays += u64::from(said.is_err());
        let counter = host.ticker.at(self.now);
        if let Ok(said) = &said
            && said.intervals.is_some()
            && let Some(boot) = boot
        {
            host.heard.insert((boot, said.origin));
        }
        let tai =
            |time: Instant<Utc>| Some(if own { time_of(time) } else { (time + LEAP).relabel() });
        let events = host.client.heard(from, said, counter, tai, span(self.now));
        for event in events {
            let Event::Named(named) = event else { continue };
            let is_liar = self.plan.is_liar(host_at(named));
            if is_liar {
                self.judged.named += 1;
            } else {
                self.wrong(index, &format!("names {}, who is honest", host_at(named)));
            }
        }
        self.judged.answers += 1;
        self.judge(index);
    }
}

/// A moment in the interval.
fn within(dice: &mut Random, interval: &Interval<Tai>) -> Instant<Tai> {
    let share = i128::from(dice.bits() % 1025);
    interval.earliest() + Duration::from_bits(interval.width().to_bits() * share / 1024)
}

/// How far the ends of the interval are from this moment in it.
fn errors(at: Instant<Tai>, interval: &Interval<Tai>) -> Errors {
    Errors { below: at - interval.earliest(), above: interval.latest() - at }
}

fn utc(at: u64) -> Instant<Tai> {
    Instant::from_unix_nanos(1_800_000_000_000_000_000 + i128::from(at))
}

fn boot(plan: &Plan, index: usize, dice: &mut Random, now: u64) -> Host {
    let ticker = Ticker::new(dice, plan.rate, plan.until_ns);
    let poll = span(plan.poll_ns);
    let after = poll + poll + poll + poll;
    let succession = succession::Settings { after, step: poll, leads: true };
    let lease = span(plan.poll_ns * 8);
    let settings = Settings {
        burst: settle::Limits { wanted: None, most: plan.most },
        spacing: span(plan.spacing_ns),
        children: plan.children,
        lease,
        peers: plan.peers,
        poll,
        liars: plan.liars,
        trusted: plan.trusted.map(address),
        succession: plan.own_timeline().then_some(succession),
        rate: RateLimits::around(nominal(), plan.both()),
        nominal: nominal(),
    };
    let ports = |seed: usize| if plan.is_liar(seed) { plan.liar_ports } else { 1 };
    let all_ports = |seed: &usize| {
        let at = address(*seed);
        (0..ports(*seed)).map(move |port| at_port(at, port))
    };
    let seeds = plan.seeds[index].iter().flat_map(all_ports).collect();
    let node = Node::new(address(index), settings, seeds, dice.bits(), span(now));
    // Rounding on the wire adds less than a part per billion.
    let most = plan.rate.plus(timevisor_time::RateError::from_ppb(1));
    let client = Client::new(node, name(), 123).with_most_rate(most);
    let config = if plan.limits[index] {
        Config::default()
    } else {
        Config { rate_interval: Duration::ZERO, ..Config::default() }
    };
    let mut server = Server::new(Config { clients: 64, ..config }, dice.bits()).unwrap();
    let children = Children::<SocketAddr>::new(plan.children, lease);
    let misleads = match plan.liar {
        Some((liar, Lie::Referrals(to))) if liar == index => Some(to),
        _ => None,
    };
    let is_timeline = plan.own_timeline();
    let referrer = Box::new(Misleading { children, to: misleads, own: address(index) });
    server.serve_cluster(Cluster { name: name(), is_timeline, secret: None, referrer });
    Host {
        client,
        server,
        ticker,
        dead: false,
        busy_until: now,
        asked: None,
        timer: 0,
        boot: dice.bits(),
        heard: BTreeSet::new(),
        said: None,
    }
}
