//! A node and its datagrams: what a host of the cluster runs, whatever its sockets are.
//!
//! The caller sends what [`Client::on_timer`] returns, and reports its counter from before that by
//! [`Client::sent`]. What arrives is read by [`Query::read`], which may happen in a thread without
//! rights, and handed to [`Client::heard`].

use std::collections::BTreeMap;
use std::net::SocketAddr;

use timevisor_protocols::ntp::precise::{Member, Name, RateLimits};
use timevisor_protocols::nts::shared::Sealer;
use timevisor_time::{Duration, Instant, Interval, RateError, Tai, Utc};

use crate::facts::Statement;
use crate::mesh::Standing;
use crate::node::{Answer, Event, Node, Origin, Question};
use crate::wire::{Query, Random, Refused, Said};

/// Servers whose last refusal is remembered.
const MOST_REFUSALS: usize = 64;

/// A question on its way.
#[derive(Clone, Debug)]
struct Waiting {
    question: Question<SocketAddr>,
    query: Query,
    sent: Option<u64>,
}

/// A node, its question, and why servers were of no use.
#[derive(Clone, Debug)]
pub struct Client {
    node: Node<SocketAddr>,
    timeline: Name,
    /// Where it serves others; 0 if it does not.
    port: u16,
    waiting: Option<Waiting>,
    refusals: BTreeMap<SocketAddr, Refused>,
    questions: u64,
    /// What lost questions have led to, until somebody asks.
    events: Vec<Event<SocketAddr>>,
    /// How far a timeline's rate may be from that of TAI.
    most_rate: RateError,
    /// Of the clock with this origin, as far as anybody has stated it.
    rate: Option<(Origin, RateLimits)>,
    /// Of a cluster with a key.
    sealer: Option<Sealer>,
}

impl Client {
    /// A client of the cluster of this name, which serves others at `port`.
    #[must_use]
    pub fn new(node: Node<SocketAddr>, timeline: Name, port: u16) -> Self {
        Self {
            node,
            timeline,
            port,
            waiting: None,
            refusals: BTreeMap::new(),
            questions: 0,
            events: Vec::new(),
            most_rate: RateError::ZERO,
            rate: None,
            sealer: None,
        }
    }

    /// Questions are sealed with this, and only answers are believed that are, too.
    #[must_use]
    pub fn with_sealer(self, sealer: Option<Sealer>) -> Self {
        Self { sealer, ..self }
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Node<SocketAddr> {
        &self.node
    }

    /// This node becomes the master of its timeline at this value of the counter, under an origin with
    /// this random epoch: see [`Node::is_to_lead`].
    pub fn lead(&mut self, counter: u64, epoch: u64, now: Duration) -> Origin {
        self.waiting = None;
        self.node.lead(counter, epoch, now)
    }

    /// Servers whose timeline may run faster or slower than this, against TAI, are of no use.
    #[must_use]
    pub fn with_most_rate(self, most_rate: RateError) -> Self {
        Self { most_rate, ..self }
    }

    /// How far the seconds of the clock that is followed may be from those of TAI: what others are told of it.
    #[must_use]
    pub fn rate(&self) -> Option<RateLimits> {
        let ours = |(origin, _): &(Origin, RateLimits)| Some(*origin) == self.node.origin();
        self.rate.filter(ours).map(|(_, rate)| rate)
    }

    fn note_rate(&mut self, said: &Said) {
        // Who has no bounds says nothing of the timeline.
        if said.intervals.is_none() {
            return;
        }
        let stated = said.rate;
        let before = self.rate.filter(|(origin, _)| *origin == said.origin);
        let widest = before.map_or(stated, |(_, rate)| RateLimits {
            min_ppt: rate.min_ppt.min(stated.min_ppt),
            max_ppt: rate.max_ppt.max(stated.max_ppt),
        });
        self.rate = Some((said.origin, widest));
    }

    /// Servers of no use, and why.
    pub fn refusals(&self) -> impl Iterator<Item = (SocketAddr, Refused)> + '_ {
        self.refusals.iter().map(|(server, why)| (*server, *why))
    }

    /// Questions that were sent.
    #[must_use]
    pub fn questions(&self) -> u64 {
        self.questions
    }

    /// When [`Self::on_timer`] has something to do.
    #[must_use]
    pub fn poll_at(&self) -> Duration {
        self.waiting.as_ref().map_or_else(|| self.node.poll_at(), |waiting| waiting.question.until)
    }

    /// What to send now, if anything.
    pub fn on_timer(&mut self, now: Duration, random: &Random) -> Option<(SocketAddr, Vec<u8>)> {
        if let Some(waiting) = &self.waiting {
            if now < waiting.question.until {
                return None;
            }
            let server = waiting.question.server;
            self.waiting = None;
            self.events.extend(self.node.lost(server, now));
        }
        let question = self.node.on_timer(now)?;
        let member = Member { asker: self.node.asker(), port: self.port };
        let made = Query::made(self.timeline, Some(member), self.sealer.as_ref(), random);
        let Some((query, datagram)) = made else {
            self.events.extend(self.node.lost(question.server, now));
            return None;
        };
        self.waiting = Some(Waiting { question, query, sent: None });
        self.questions += 1;
        Some((question.server, datagram))
    }

    /// The server of the question is this host: nothing is sent, and it is not asked again.
    pub fn is_self(&mut self, server: SocketAddr, now: Duration) {
        self.waiting = None;
        self.node.refused(server, now);
    }

    /// The question left no earlier than this value of our counter.
    pub fn sent(&mut self, counter: u64) {
        if let Some(waiting) = &mut self.waiting {
            waiting.sent = Some(counter);
        }
    }

    /// The question that waits for an answer of this server, to read a datagram with; `None` if there
    /// is none, and nothing that arrives from there is of interest.
    #[must_use]
    pub fn waits_for(&self, server: SocketAddr) -> Option<Query> {
        let waiting = self.waiting.as_ref().filter(|waiting| waiting.question.server == server)?;
        waiting.sent.map(|_| waiting.query.clone())
    }

    /// Takes in what [`Query::read`] made of a datagram from this server. `counter` is no earlier than
    /// its arrival; `tai` converts its stamps, and fails where TAI - UTC is not known.
    pub fn heard(
        &mut self,
        from: SocketAddr,
        said: Result<Said, Refused>,
        counter: u64,
        tai: impl Fn(Instant<Utc>) -> Option<Instant<Tai>>,
        now: Duration,
    ) -> Vec<Event<SocketAddr>> {
        let waiting = self.waiting.as_ref().filter(|waiting| waiting.question.server == from);
        let Some(&Waiting { question: Question { server, .. }, sent: Some(sent), .. }) = waiting
        else {
            return Vec::new();
        };
        let said = match said {
            Ok(said) if said.rate.largest() > self.most_rate => {
                self.waiting = None;
                let ppm = said.rate.largest_ppm();
                return self.refuse(server, Refused::Rate { ppm }, now);
            }
            Ok(said) => said,
            // Who forges one must not keep the right one from being heard.
            Err(Refused::Stray | Refused::Malformed) => return Vec::new(),
            // This one can be forged, too, by somebody who saw the question: it is remembered, and the
            // question waits for its end.
            Err(why @ Refused::WrongKey) => {
                self.remember(server, why);
                return Vec::new();
            }
            Err(why) => {
                self.waiting = None;
                return self.refuse(server, why, now);
            }
        };
        self.waiting = None;
        self.refusals.remove(&server);
        self.note_rate(&said);
        let tai = |interval: Interval<Utc>| {
            Interval::new(tai(interval.earliest())?, tai(interval.latest())?)
        };
        let intervals =
            said.intervals.and_then(|[arrived, left]| Some((tai(arrived)?, tai(left)?)));
        let statement = |(arrived, left)| Statement { sent, received: counter, arrived, left };
        let answer = Answer {
            said: intervals.map(statement),
            standing: Standing::Vouched,
            level: said.level,
            origin: said.origin,
            silence: said.silence,
            others: said.others.into_iter().flatten().collect(),
        };
        self.node.answered(server, &answer, now)
    }

    /// What followed from questions that nobody has answered; to be asked for after [`Self::on_timer`] and
    /// [`Self::unreachable`].
    pub fn take_events(&mut self) -> Vec<Event<SocketAddr>> {
        core::mem::take(&mut self.events)
    }

    /// The network says that nobody listens there: the question is not waited for.
    pub fn unreachable(&mut self, server: SocketAddr, now: Duration) {
        // There each is asked twice, because one that restarts has not gone.
        if self.node.canvasses() {
            return;
        }
        if self.waiting.take_if(|waiting| waiting.question.server == server).is_some() {
            self.events.extend(self.node.lost(server, now));
        }
    }

    fn remember(&mut self, server: SocketAddr, why: Refused) {
        if self.refusals.len() < MOST_REFUSALS || self.refusals.contains_key(&server) {
            self.refusals.insert(server, why);
        }
    }

    fn refuse(
        &mut self,
        server: SocketAddr,
        why: Refused,
        now: Duration,
    ) -> Vec<Event<SocketAddr>> {
        self.remember(server, why);
        match why {
            Refused::Header(_) | Refused::Contradiction => self.node.lost(server, now),
            Refused::Kiss(_) => self.node.declined(server, now),
            _ => {
                self.node.refused(server, now);
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "own_timeline_tests.rs"]
mod own_timeline_tests;
