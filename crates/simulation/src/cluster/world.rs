//! The event queue: questions and answers on their way, servers that take time, timers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use timevisor_cluster::children::Asker;
use timevisor_cluster::facts::{Statement, middle};
use timevisor_cluster::mesh::Standing;
use timevisor_cluster::node::{Answer, Event, Lead, Node, Origin, Question, Settings};
use timevisor_time::{Duration, Instant, Interval, Tai};

use super::{Lie, Naming, Plan, Report, nanos, nominal};
use crate::random::Random;

const ROOT: u32 = 0;

/// A counter: its value at true time 0, and by how much it is fast, ppb.
#[derive(Clone, Copy)]
struct Ticker {
    start: u64,
    ppb: i64,
}

impl Ticker {
    fn at(self, now: u64) -> u64 {
        let ahead = i128::from(now) * i128::from(self.ppb) / 1_000_000_000;
        let ahead = i64::try_from(ahead).unwrap_or(0);
        self.start.wrapping_add(now).wrapping_add_signed(ahead)
    }
}

/// A node and its counter.
struct Host {
    node: Option<Node<u32>>,
    ticker: Ticker,
    dead: bool,
    /// What it last said, and of which origin, to find a step back.
    said: Option<Instant<Tai>>,
    judged_origin: Option<Option<Origin>>,
    /// The question that waits for its answer.
    question: u64,
    /// The server works until then.
    busy_until: u64,
    asked: u32,
    /// Of these questions, those with an answer.
    answered: u32,
    vouched: Option<Vouched>,
    served: u64,
    /// When the liar first answered it, and how often it has.
    liar: Option<(u64, u32)>,
}

/// When a node first vouched for bounds since its start, and for which.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vouched {
    pub(super) at: u64,
    pub(super) level: u8,
    pub(super) width: Duration,
}

impl Host {
    fn counter(&self, now: u64) -> u64 {
        self.ticker.at(now)
    }
}

enum What {
    Timer,
    /// A question arrives.
    Question {
        from: u32,
        number: u64,
        sent: u64,
        asker: Asker,
    },
    /// An answer arrives.
    Answer {
        from: u32,
        number: u64,
        answer: Box<Answer<u32>>,
    },
    /// No answer has come.
    Late {
        server: u32,
        number: u64,
    },
    Restart,
    Death,
}

struct Entry {
    at: u64,
    order: u64,
    node: u32,
    what: What,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
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
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// A cluster in motion.
pub struct World {
    plan: Plan,
    random: Random,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    now: u64,
    hosts: Vec<Host>,
    named: Vec<Naming>,
    outside: u64,
    judged: u64,
    messages: u64,
    /// The masters of timelines of the cluster's own.
    leads: BTreeMap<Origin, (Ticker, Lead)>,
    masters: Vec<(u32, u64, u32)>,
    backward: u64,
    /// Who vouched for bounds without the truth, and when.
    wrong: Vec<(u32, u64)>,
    /// Nodes that said that their origin is another one, and how often one changed without that.
    changes: Vec<(u32, u64)>,
    silent_changes: u64,
}

impl World {
    /// The world of a seed.
    #[must_use]
    pub fn new(plan: &Plan, seed: u64) -> Self {
        let mut random = Random::stream(seed, "cluster");
        let hosts = (0..plan.nodes).map(|_| Host {
            node: None,
            ticker: Ticker {
                start: random.bits() >> 2,
                // One part per billion is a nanosecond a second.
                ppb: Duration::from_secs_f64(
                    plan.rate.ppb() * 1e-9 * (2.0 * random.uniform() - 1.0),
                )
                .floor_nanos(),
            },
            dead: false,
            said: None,
            judged_origin: None,
            question: 0,
            busy_until: 0,
            asked: 0,
            answered: 0,
            vouched: None,
            served: 0,
            liar: None,
        });
        let mut hosts: Vec<Host> = hosts.collect();
        if let Some((index, ppb)) = plan.fast
            && let Some(host) = hosts.get_mut(index as usize)
        {
            host.ticker.ppb = ppb;
        }
        let mut world = Self {
            plan: plan.clone(),
            random,
            queue: BinaryHeap::new(),
            order: 0,
            now: 0,
            hosts,
            named: Vec::new(),
            outside: 0,
            judged: 0,
            messages: 0,
            leads: BTreeMap::new(),
            masters: Vec::new(),
            backward: 0,
            wrong: Vec::new(),
            changes: Vec::new(),
            silent_changes: 0,
        };
        let start = nanos(plan.start) as f64;
        for (index, at, back) in &plan.deaths {
            world.push(nanos(*at), *index, What::Death);
            if let Some(back) = back {
                world.push(nanos(*back), *index, What::Restart);
            }
        }
        let first = plan.masters();
        for index in first..plan.nodes {
            // The seeds are first: whoever starts a million hosts starts their servers before.
            let is_seed = index < plan.seeds;
            let at = if is_seed { 0.0 } else { world.random.uniform() * start };
            world.boot(index, nanos(Duration::from_secs_f64(at * 1e-9)));
            if world.random.uniform() < plan.restarts {
                let at = nanos(Duration::from_secs_f64(world.random.uniform()));
                world.push(at, index, What::Restart);
            }
        }
        for index in 0..first {
            // A root answers as a server does, and asks nobody.
            let root = world.node(index, Vec::new());
            world.hosts[index as usize].node = Some(root);
        }
        world
    }

    fn node(&mut self, index: u32, seeds: Vec<u32>) -> Node<u32> {
        let plan = &self.plan;
        let settings = Settings {
            burst: plan.burst,
            spacing: plan.spacing,
            children: plan.children,
            lease: Duration::from_secs(3600),
            peers: plan.peers,
            poll: plan.poll,
            liars: plan.liars,
            trusted: (plan.trusted && plan.masters() > 0).then_some(ROOT),
            succession: plan.succession,
            rate: plan.limits(),
            nominal: nominal(),
        };
        let random = self.random.bits();
        Node::new(index, settings, seeds, random, span(self.now))
    }

    fn boot(&mut self, index: u32, at: u64) {
        self.now = at;
        let seeds = (self.plan.first_seed..self.plan.seeds.min(self.plan.nodes)).collect();
        let node = self.node(index, seeds);
        self.hosts[index as usize].node = Some(node);
        let host = &mut self.hosts[index as usize];
        (host.vouched, host.liar) = (None, None);
        self.push(at, index, What::Timer);
    }

    fn push(&mut self, at: u64, node: u32, what: What) {
        self.order += 1;
        self.queue.push(Reverse(Entry { at, order: self.order, node, what }));
    }

    /// Runs to the plan's end.
    pub fn run(&mut self) {
        self.run_with(|_| ());
    }

    /// Runs until this moment; [`Self::run`] goes on.
    pub fn run_until(&mut self, until: Duration) {
        let end = nanos(until);
        while self.queue.peek().is_some_and(|Reverse(entry)| entry.at <= end) {
            let Some(Reverse(entry)) = self.queue.pop() else { break };
            self.now = entry.at;
            self.handle(entry);
        }
        self.now = end;
    }

    /// The origin that each node follows.
    #[must_use]
    pub fn origins(&self) -> Vec<Option<Origin>> {
        self.hosts.iter().map(|host| host.node.as_ref()?.origin()).collect()
    }

    /// Runs to the plan's end, and says now and then how far it is.
    pub fn run_with(&mut self, mut progress: impl FnMut(Duration)) {
        let end = nanos(self.plan.until);
        let mut count = 0_u64;
        while let Some(Reverse(entry)) = self.queue.pop() {
            if entry.at > end {
                break;
            }
            self.now = entry.at;
            self.handle(entry);
            count += 1;
            if count.is_multiple_of(1 << 20) {
                progress(span(self.now));
            }
        }
        self.now = end;
    }

    fn handle(&mut self, entry: Entry) {
        let index = entry.node;
        if self.hosts[index as usize].dead && !matches!(entry.what, What::Restart) {
            return;
        }
        match entry.what {
            What::Timer => self.timer(index),
            What::Question { from, number, sent, asker } => {
                self.question(index, from, number, sent, asker);
            }
            What::Answer { from, number, answer } => self.answer(index, from, number, *answer),
            What::Late { server, number } => {
                let (now, host) = (span(self.now), &mut self.hosts[index as usize]);
                if host.question == number
                    && let Some(node) = &mut host.node
                {
                    host.question += 1;
                    let (events, counter) = (node.lost(server, now), host.counter(self.now));
                    self.happened(index, counter, events);
                    self.timer(index);
                }
            }
            What::Restart => {
                // Another boot: the counter begins elsewhere.
                let host = &mut self.hosts[index as usize];
                host.ticker.start = self.random.bits() >> 2;
                (host.dead, host.said) = (false, None);
                host.question += 1;
                self.boot(index, self.now);
            }
            What::Death => {
                let host = &mut self.hosts[index as usize];
                (host.dead, host.node) = (true, None);
            }
        }
    }

    /// Whether this node leads its timeline from now on.
    fn succeed(&mut self, index: u32) {
        let (now, host) = (span(self.now), &mut self.hosts[index as usize]);
        let counter = host.ticker.at(self.now);
        let Some(node) = &mut host.node else { return };
        if !node.is_to_lead() {
            return;
        }
        let origin = node.lead(counter, self.random.bits(), now);
        if let Some(lead) = node.leads() {
            self.leads.insert(origin, (host.ticker, lead));
            self.masters.push((index, self.now, origin.generation));
        }
    }

    fn timer(&mut self, index: u32) {
        let now = span(self.now);
        let Some(node) = &mut self.hosts[index as usize].node else { return };
        let question = node.on_timer(now);
        self.succeed(index);
        let host = &mut self.hosts[index as usize];
        let Some(node) = &mut host.node else { return };
        if let Some(Question { server, until }) = question {
            let asker = node.asker();
            host.question += 1;
            host.asked += 1;
            let (number, sent) = (host.question, host.counter(self.now));
            self.send(index, server, What::Question { from: index, number, sent, asker });
            self.push(nanos(until), index, What::Late { server, number });
        } else {
            let at = node.poll_at();
            if at < Duration::MAX {
                self.push(nanos(at).max(self.now), index, What::Timer);
            }
        }
    }

    /// On its way, if it is not lost.
    fn send(&mut self, from: u32, to: u32, what: What) {
        self.messages += 1;
        let is_cut = self.plan.cut.is_some_and(|(begin, end, first)| {
            (begin..end).contains(&span(self.now)) && (from < first) != (to < first)
        });
        if is_cut || self.random.uniform() < self.plan.link.loss {
            return;
        }
        let link = self.plan.link;
        let queueing = self.random.exponential() * f64::from(link.queueing_ns) * 1e-9;
        let queueing = nanos(Duration::from_secs_f64(queueing));
        self.push(self.now + u64::from(link.minimum_ns) + queueing, to, what);
    }

    fn question(&mut self, index: u32, from: u32, number: u64, sent: u64, asker: Asker) {
        let arrived = self.now;
        let service = u64::from(self.plan.service_ns);
        let host = &mut self.hosts[index as usize];
        let left = host.busy_until.max(arrived) + service;
        host.busy_until = left;
        host.served += 1;
        let (at_arrival, at_departure) =
            (self.clock(index, from, arrived), self.clock(index, from, left));
        let Some(node) = &mut self.hosts[index as usize].node else { return };
        let others = node.asked(from, asker, span(arrived));
        let is_root = index < self.plan.masters();
        let level = if is_root { 0 } else { node.level().unwrap_or(u8::MAX) };
        let silence = node.silence(span(arrived));
        let own = node.origin().unwrap_or(Origin::UTC);
        let origin = if self.plan.succession.is_none() { Origin::UTC } else { own };
        let lies =
            self.plan.lie == Lie::Origin && self.plan.liar.is_some_and(|(liar, _)| liar == index);
        let origin = if lies { Origin { generation: u32::MAX, epoch: 1 } } else { origin };
        let vouched = at_arrival.zip(at_departure).filter(|_| is_root || node.vouches());
        let standing = vouched.map_or(Standing::Told, |((_, standing), _)| standing);
        let said =
            vouched.map(|((arrived, _), (left, _))| Statement { sent, arrived, left, received: 0 });
        let answer = Answer { said, standing, level, origin, silence, others };
        let before = self.now;
        self.now = left;
        self.send(index, from, What::Answer { from: index, number, answer: Box::new(answer) });
        self.now = before;
    }

    /// What a node says of the time at this moment, to this one.
    fn clock(&self, index: u32, to: u32, at: u64) -> Option<(Interval<Tai>, Standing)> {
        if let Some((liar, off_ns)) = self.plan.liar
            && liar == index
        {
            let off = Duration::from_nanos(off_ns);
            let off = match self.plan.lie {
                Lie::Since(moment) if span(at) < moment => Duration::ZERO,
                Lie::Constant | Lie::Since(_) | Lie::Origin => off,
                Lie::Ramp => Duration::from_secs_f64(off.as_secs_f64() * span(at).as_secs_f64()),
                Lie::TwoFaced if to.is_multiple_of(2) => off,
                Lie::TwoFaced => Duration::ZERO - off,
            };
            let wrong = Interval::around(truth(at) + off, Duration::from_nanos(100));
            return Some((wrong, Standing::Vouched));
        }
        if index < self.plan.masters() {
            return Some((Interval::around(truth(at), Duration::ZERO), Standing::Vouched));
        }
        let host = &self.hosts[index as usize];
        host.node.as_ref()?.at(host.counter(at))
    }

    fn answer(&mut self, index: u32, from: u32, number: u64, mut answer: Answer<u32>) {
        let now = span(self.now);
        let host = &mut self.hosts[index as usize];
        let received = host.counter(self.now);
        if host.question != number {
            return;
        }
        let Some(node) = &mut host.node else { return };
        // Answered: the timeout finds another number.
        host.question += 1;
        host.answered += 1;
        if let Some(said) = &mut answer.said {
            said.received = received;
            if self.plan.liar.is_some_and(|(liar, _)| liar == from) {
                let (_, answers) = host.liar.get_or_insert((self.now, 0));
                *answers += 1;
            }
        }
        let origin = node.origin();
        let events = node.answered(from, &answer, now);
        let changed = origin.is_some() && node.origin() != origin;
        let said_anew = events.contains(&Event::BeganAnew);
        self.silent_changes += u64::from(changed != said_anew);
        self.happened(index, received, events);
        self.judge(index);
        self.timer(index);
    }

    fn happened(&mut self, index: u32, counter: u64, events: Vec<Event<u32>>) {
        let host = &mut self.hosts[index as usize];
        let Some(node) = &host.node else { return };
        for event in events {
            match event {
                Event::Vouches => {
                    let width = node.at(counter).map(|(interval, _)| interval.width());
                    let found = node.level().zip(width);
                    let at = self.now;
                    host.vouched = found.map(|(level, width)| Vouched { at, level, width });
                }
                Event::Named(named) => {
                    let (heard, answers) = host.liar.unwrap_or((self.now, 0));
                    let naming = Naming { by: index, named, at: self.now, heard, answers };
                    self.named.push(naming);
                }
                Event::BeganAnew => self.changes.push((index, self.now)),
                Event::Stranger(_) => {}
            }
        }
    }

    /// Whether what a node vouches for holds the truth.
    fn judge(&mut self, index: u32) {
        let is_liar = self.plan.liar.is_some_and(|(liar, _)| liar == index);
        let Some((interval, Standing::Vouched)) = self.clock(index, index, self.now) else {
            return;
        };
        if !is_liar {
            self.judged += 1;
            let truth = self.truth_for(index);
            let outside = !truth.is_some_and(|truth| interval.contains(truth));
            self.outside += u64::from(outside);
            if outside {
                self.wrong.push((index, self.now));
            }
            let host = &mut self.hosts[index as usize];
            let said = middle(&interval);
            let before = host.said.replace(said);
            // Estimates of one origin are a matter of crates/host-clock, which never turns them back.
            let is_anew = host.judged_origin.replace(host.node.as_ref().and_then(Node::origin));
            let is_anew = is_anew.flatten() != host.node.as_ref().and_then(Node::origin);
            self.backward += u64::from(is_anew && before.is_some_and(|before| said < before));
        }
    }

    /// The time of the timeline that this node has.
    fn truth_for(&self, index: u32) -> Option<Instant<Tai>> {
        if self.plan.succession.is_none() {
            return Some(truth(self.now));
        }
        let origin = self.hosts[index as usize].node.as_ref()?.origin()?;
        let (ticker, lead) = self.leads.get(&origin)?;
        let ticks = ticker.at(self.now).wrapping_sub(lead.counter);
        Some(lead.time + nominal().span(ticks))
    }

    /// The width of each node's bounds, from earliest to latest; `None` without any.
    #[must_use]
    pub fn widths(&self) -> Vec<Option<Duration>> {
        let width = |host: &Host| {
            let (interval, _) = host.node.as_ref()?.at(host.counter(self.now))?;
            Some(interval.width())
        };
        self.hosts.iter().map(width).collect()
    }

    /// What has come of it; judges all nodes once more.
    #[must_use]
    pub fn report(&mut self) -> Report {
        let mut report = Report::new(self.plan.nodes);
        let first = self.plan.masters();
        for index in first..self.plan.nodes {
            self.judge(index);
            let host = &self.hosts[index as usize];
            let Some(node) = &host.node else { continue };
            let width = node.at(host.counter(self.now)).map(|(interval, _)| interval.width());
            report.add(host.vouched, [host.asked, host.answered], width);
        }
        report.busiest = self.hosts.iter().map(|host| host.served).max().unwrap_or(0);
        (report.messages, report.judged, report.outside) =
            (self.messages, self.judged, self.outside);
        report.named = self.named.iter().map(|naming| (naming.by, naming.named)).collect();
        report.namings.clone_from(&self.named);
        let hosts = (0..).zip(&self.hosts);
        let heard = hosts.filter_map(|(index, host)| host.liar.map(|(at, n)| (index, at, n)));
        report.heard_liar = heard.collect();
        report.masters.clone_from(&self.masters);
        report.backward = self.backward;
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let origins: BTreeSet<_> = nodes.filter_map(Node::origin).collect();
        report.origins_at_end = origins.len();
        report.last_origin = origins.last().copied();
        report.wrong.clone_from(&self.wrong);
        report.changes.clone_from(&self.changes);
        report.silent_changes = self.silent_changes;
        report.finish();
        report
    }
}

fn truth(at: u64) -> Instant<Tai> {
    Instant::from_unix_nanos(1_700_000_000_000_000_000 + i128::from(at))
}

fn span(ns: u64) -> Duration {
    Duration::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX))
}
