//! The event queue.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use timevisor_coordination::leader;
use timevisor_coordination::member::{Event, Member, Settings};
use timevisor_coordination::propose::Plan as Proposal;
use timevisor_coordination::{Envelope, MemberId, Message, Name, Now, ProposalId, To};
use timevisor_time::Duration;

use super::clock::{Clock, log_range, nanos, truth};
use super::judge::{Judge, Judged};
use super::plan::{Plan, Proposed};
use crate::random::Random;

#[derive(Clone, Debug)]
enum What {
    /// Set for then; it counts only if no earlier one was set since.
    Timer(u64),
    Message(Vec<u8>),
    Propose(Proposed),
    Answer(ProposalId, bool),
    Arrive,
    Crash,
    Restart,
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

struct Node {
    member: Member,
    clock: Clock,
    dead: bool,
    timer: u64,
}

pub struct World {
    plan: Plan,
    dice: Random,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    now: u64,
    nodes: Vec<Node>,
    judge: Judge,
}

fn name(text: &str) -> Name {
    text.parse().unwrap_or(Name::TAI)
}

fn id(index: usize, dice: &mut Random) -> MemberId {
    MemberId { name: name(&format!("m{index}")), incarnation: dice.bits() }
}

fn member(own: MemberId, random: u64) -> Member {
    let longest_term = Duration::from_secs(1);
    Member::new(own, Settings { longest_term, ..Settings::default() }, random)
}

impl World {
    pub fn run(plan: Plan, seed: u64) -> Judged {
        let mut dice = Random::stream(seed, "group in motion");
        let nodes = (0..plan.members).map(|index| Node {
            member: member(id(index, &mut dice), dice.bits()),
            clock: Clock::new(&plan, &mut dice),
            dead: false,
            timer: u64::MAX,
        });
        let nodes = nodes.collect();
        let mut world = Self {
            nodes,
            dice,
            queue: BinaryHeap::new(),
            order: 0,
            now: 0,
            judge: Judge::default(),
            plan,
        };
        world.judge.judged.schedules = 1;
        world.begin();
        while let Some(Reverse(Entry(at, _, index, what))) = world.queue.pop() {
            if at > world.plan.until_ns {
                break;
            }
            world.now = at;
            world.handle(index, what);
            world.look_for_leaders();
        }
        let is_calm = world.plan.is_calm();
        let mut judged = world.judge.end(is_calm);
        judged.wrong.iter_mut().for_each(|text| *text = format!("seed {seed}: {text}"));
        judged
    }

    fn begin(&mut self) {
        for proposed in self.plan.proposals.clone() {
            self.push(proposed.when, proposed.by, What::Propose(proposed));
        }
        for (index, at, back) in self.plan.crashes.clone() {
            self.push(at, index, What::Crash);
            if let Some(back) = back {
                self.push(back, index, What::Restart);
            }
        }
        for index in 0..self.plan.members {
            if self.plan.parties > 0 {
                let at = self.dice.bits() % (self.plan.until_ns / 2);
                self.push(at, index, What::Arrive);
            }
            self.stand(index);
            self.flush(index);
        }
    }

    fn stand(&mut self, index: usize) {
        if !self.plan.candidates.contains(&index) {
            return;
        }
        let now = self.now_of(index);
        let voters = (0..self.plan.members).map(|voter| name(&format!("m{voter}"))).collect();
        let span = |ns: u64| Duration::from_nanos(ns.try_into().unwrap_or(i64::MAX));
        let term = span(self.plan.term_ns);
        let settings = leader::Settings { voters, term, retry: span(self.plan.term_ns / 8) };
        if let Err(error) = self.nodes[index].member.stand(name("lead"), settings, &now) {
            self.judge.wrong(format!("cannot stand: {error}"));
        }
    }

    fn push(&mut self, at: u64, host: usize, what: What) {
        self.order += 1;
        self.queue.push(Reverse(Entry(at, self.order, host, what)));
    }

    fn now_of(&self, index: usize) -> Now {
        self.nodes[index].clock.now(&self.plan, self.now)
    }

    fn handle(&mut self, index: usize, what: What) {
        let now = self.now_of(index);
        let node = &mut self.nodes[index];
        match what {
            What::Restart if node.dead => {
                let own = id(index, &mut self.dice);
                node.member = member(own, self.dice.bits());
                (node.dead, node.timer) = (false, u64::MAX);
                self.stand(index);
            }
            What::Crash => {
                node.dead = true;
                // Its connection ends: the others learn it.
                let gone = node.member.id();
                self.nodes.iter_mut().for_each(|other| other.member.left(gone));
                return;
            }
            _ if node.dead => return,
            What::Restart => return,
            What::Timer(due) if due != node.timer => return,
            What::Timer(_) => {
                node.timer = u64::MAX;
                node.member.on_timer(&now);
            }
            What::Message(bytes) => match Envelope::decode(&bytes) {
                Ok(envelope) => {
                    node.member.heard(envelope, &now);
                    node.member.on_timer(&now);
                }
                Err(error) => self.judge.wrong(format!("a message cannot be read: {error}")),
            },
            What::Propose(proposed) => self.propose(index, proposed, &now),
            What::Answer(id, accepts) => node.member.answer(id, accepts, &now),
            What::Arrive => {
                let parties = self.plan.parties.min(self.plan.members.try_into().unwrap_or(2));
                node.member.arrive(name("gate"), parties, &now);
            }
        }
        self.flush(index);
    }

    fn propose(&mut self, index: usize, proposed: Proposed, now: &Now) {
        let Some(reading) = now.reading else { return };
        let span = |ns: u64| Duration::from_nanos(ns.try_into().unwrap_or(i64::MAX));
        let among = |other: usize| other == index || proposed.among >> other & 1 == 1;
        let all = self.nodes.iter().enumerate().filter(|(other, _)| among(*other));
        let participants: Vec<_> = all.map(|(_, node)| node.member.id()).collect();
        let plan = Proposal {
            at: reading.latest() + span(proposed.lead_ns),
            late_at_most: span(proposed.late_ns),
            participants,
            payload: b"act".to_vec(),
        };
        // A clock that has failed proposes nothing.
        let _ = self.nodes[index].member.propose(plan, now);
    }

    /// Sends what a member wants to send, tells what it wants to tell, and sets its timer.
    fn flush(&mut self, index: usize) {
        loop {
            let node = &mut self.nodes[index];
            let (sent, events, own) =
                (node.member.outbox(), node.member.events(), node.member.id());
            if sent.is_empty() && events.is_empty() {
                break;
            }
            for (to, envelope) in sent {
                self.note(own, &envelope.message);
                self.send(index, to, &envelope);
            }
            for event in events {
                self.told(index, own, event);
            }
        }
        self.set_timer(index);
    }

    fn note(&mut self, own: MemberId, message: &Message) {
        match message {
            Message::Propose(proposal) => {
                self.judge.proposed(proposal);
            }
            Message::Vote { id, accepts: true, .. } => self.judge.accepted(*id, own),
            _ => {}
        }
    }

    fn told(&mut self, index: usize, own: MemberId, event: Event) {
        let now = self.now_of(index);
        let origin = now.reading.map_or(0, |reading| reading.origin);
        let truth = truth(&self.plan, origin, self.now);
        match event {
            Event::Asked(proposal) => {
                if self.dice.chance(0.02) && !self.plan.is_calm() {
                    return;
                }
                let accepts = self.dice.chance(self.plan.accepts);
                let at = self.now + self.dice.bits() % self.plan.thinks_ns;
                self.push(at, index, What::Answer(proposal.id, accepts));
            }
            Event::Decided { id, commits } => self.judge.decided(id, commits, own, truth),
            Event::Fire { id, interval, late, .. } => {
                self.judge.fires(id, own, interval, late, truth);
            }
            Event::Released { id, interval, late, .. } => {
                self.judge.judged.releases += 1;
                self.judge.fires(id, own, interval, late, truth);
            }
            Event::Outcome(outcome) | Event::Split { outcome, .. } => {
                self.judge.outcome(own, outcome);
            }
            Event::Leader(leader::Event::Leads { .. }) => self.judge.judged.leases += 1,
            Event::FromTheFuture { from, by } => {
                self.judge.wrong(format!("a stamp of {from:?} is {by} ahead, but bounds hold"));
            }
            Event::Received { .. }
            | Event::Passed { .. }
            | Event::WantsTicks(_)
            | Event::Lost { .. }
            | Event::AnotherOrigin { .. }
            | Event::Leader(leader::Event::Ended { .. }) => {}
        }
    }

    fn send(&mut self, from: usize, to: To, envelope: &Envelope) {
        let bytes = envelope.encode();
        for other in 0..self.nodes.len() {
            let reached = match to {
                To::All => other != from,
                To::Member(member) => self.nodes[other].member.id() == member,
            };
            if reached && other != from {
                self.judge.judged.messages += 1;
                self.transmit(from, other, &bytes);
            }
        }
    }

    fn transmit(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let cut = self.plan.partitions.iter().any(|(begin, end, sides)| {
            (*begin..*end).contains(&self.now) && (sides >> from ^ sides >> to) & 1 == 1
        });
        if cut {
            return;
        }
        let delay = |dice: &mut Random, plan: &Plan| {
            plan.delay_ns + nanos(dice.exponential() * plan.queueing_ns as f64)
        };
        if !self.dice.chance(self.plan.loss) {
            let mut at = self.now + delay(&mut self.dice, &self.plan);
            if self.dice.chance(self.plan.late) {
                at += log_range(&mut self.dice, 1_000_000, 4_000_000_000);
            }
            self.push(at, to, What::Message(bytes.to_vec()));
        }
        if self.dice.chance(self.plan.repeated) {
            let at = self.now + log_range(&mut self.dice, 10_000, 4_000_000_000);
            self.push(at, to, What::Message(bytes.to_vec()));
        }
    }

    fn set_timer(&mut self, index: usize) {
        let now = self.now_of(index);
        let node = &self.nodes[index];
        let next = node.member.next(&now);
        let elapsed = next.elapsed.map(|at| node.clock.elapses(at));
        let at = next.at.map(|at| node.clock.reaches(&self.plan, at, self.now));
        let Some(due) = elapsed.into_iter().chain(at).min() else { return };
        let due = due.max(self.now + 1_000);
        if due < node.timer {
            self.nodes[index].timer = due;
            let late = self.dice.chance(self.plan.late_wake);
            let late = if late { self.dice.bits() % self.plan.late_wake_ns } else { 0 };
            self.push(due + late, index, What::Timer(due));
        }
    }

    /// Two members never lead at one time.
    fn look_for_leaders(&mut self) {
        if self.plan.candidates.is_empty() {
            return;
        }
        let leads = |index: &usize| {
            let node = &self.nodes[*index];
            !node.dead && node.member.leads(name("lead"), &self.now_of(*index))
        };
        let leaders: Vec<_> = (0..self.nodes.len()).filter(leads).collect();
        if leaders.len() > 1 {
            self.judge.wrong(format!("at {} ns members {leaders:?} lead", self.now));
        }
    }
}
