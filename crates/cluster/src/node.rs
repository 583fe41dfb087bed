//! One node of a cluster, from its first question on.
//!
//! | state | what it does |
//! | --- | --- |
//! | asking | a burst of questions to one server; a full one refers it to others |
//! | vouching | it has bounds, serves, and asks its peers now and then |
//! | canvassing | the master is gone: everybody who is known is asked once whether he knows better |
//! | leading | it is the master of the cluster's own timeline: its counter is that timeline |
//!
//! A node that has bounds on hearsay only goes on asking until it has heard enough. When a server
//! does not answer, another one is asked: those that were referred to, then the seeds again.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | the states and answers |
//! | `types.rs` | what a node is told, and what it says |
//! | `choice.rs` | whom it asks, and when |
//! | `taking_over.rs` | the succession |
//!
//! The caller sends the [`Question`] of [`Node::on_timer`], one at a time, and reports what came of it by
//! [`Node::answered`] or, when its time is over, [`Node::lost`].

mod choice;
mod taking_over;
mod types;

use std::collections::BTreeMap;

use timevisor_time::{Duration, Interval, Tai};

use crate::address::Address;
use crate::children::{Asker, Children};
use crate::facts::Statement;
use crate::mesh::{Heard, Mesh, Standing, View};
use crate::settle::{Settle, Verdict};
use crate::succession::Succession;

pub use types::{Answer, Event, Lead, Origin, Question, Settings};

/// Questions in a row without an answer after which another server is asked.
const LOSSES: u32 = 3;
/// How long the first answer of a server is waited for; twice as long after each loss. Many start
/// at once after a power cut, and a server that is asked by all of them needs time.
const FIRST_PATIENCE: Duration = Duration::from_millis(200);
/// How long further answers are waited for: so many round trips, and at least [`LEAST_PATIENCE`].
const PATIENCE_TRIPS: i64 = 8;
const LEAST_PATIENCE: Duration = Duration::from_millis(5);
/// How long a server without bounds is waited for at least at first, and how often, four times as long each time. With
/// twice as long a node asked 20 times in the median where a million start at once.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const WAITS: u32 = 4;
/// The first pause after everybody was asked in vain; doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(64);
/// Referrals are followed until they led to nobody of use in so many rounds: then a full server that answers is
/// better than those it names.
const MOST_IN_VAIN: u32 = 2;
/// Servers that are remembered: peers, and who may be asked instead of them.
const MOST_KNOWN: usize = 64;

/// What the origin of an answer is to this node.
enum Compared {
    Ours,
    /// A greater one, which is believed.
    Anew,
    /// One that this node has left.
    Old,
    /// Another timeline of this name.
    Stranger,
}

#[derive(Clone, Copy, Debug)]
struct Burst<A> {
    server: A,
    settle: Settle,
    losses: u32,
    /// The longest of its answers.
    slowest: Duration,
    /// Our counter at the last one.
    received: u64,
    /// Another server has named it.
    referred: bool,
    /// The first pause where it has no bounds yet.
    pause: Duration,
}

#[derive(Clone, Debug)]
enum State<A> {
    /// Nobody is asked before `next`.
    Pausing,
    Asking(Burst<A>),
    Vouching,
    /// Those who are still to be asked, the next one last; with nobody left, this node leads.
    Canvassing(Vec<A>),
    Leading(Lead),
}

/// One node; `A` is an address.
#[derive(Clone, Debug)]
pub struct Node<A> {
    settings: Settings<A>,
    own: A,
    seeds: Vec<A>,
    state: State<A>,
    next: Duration,
    /// When the last question was sent.
    asked_at: Duration,
    pause: Duration,
    mesh: Mesh<A>,
    origin: Option<Origin>,
    succession: Option<Succession<A>>,
    children: Children<A>,
    /// Servers that may be asked, in the order in which they were heard of.
    known: Vec<A>,
    /// How many answers of use in a row each of them, and of the seeds, has failed to give.
    lost: BTreeMap<A, u32>,
    /// Servers that were asked since the last pause.
    tried: Vec<A>,
    /// Of the bounds with the last answer, from earliest to latest; [`Duration::MAX`] without.
    width: Duration,
    /// A burst has settled: there are bounds, perhaps on hearsay.
    has_settled: bool,
    /// Rounds in which referrals led to nobody of use, and whether they did in this one.
    in_vain: u32,
    led_to_nobody: bool,
    /// Whose turn it is.
    turn: usize,
    random: u64,
}

impl<A: Address> Node<A> {
    /// A node at `own` that knows these seeds and begins at `now`. `random` decides whom it asks among
    /// equals.
    #[must_use]
    pub fn new(
        own: A,
        settings: Settings<A>,
        mut seeds: Vec<A>,
        random: u64,
        now: Duration,
    ) -> Self {
        // Where some may lie, others do not make it known.
        let master = settings.trusted.filter(|at| settings.liars > 0 && !seeds.contains(at));
        seeds.extend(master);
        Self {
            own,
            state: State::Pausing,
            next: now,
            asked_at: now,
            pause: FIRST_PAUSE,
            mesh: Mesh::new(settings.liars, settings.trusted),
            seeds,
            origin: None,
            succession: settings.succession.map(|settings| Succession::new(settings, random, now)),
            children: Children::new(settings.children, settings.lease),
            known: Vec::new(),
            lost: BTreeMap::new(),
            tried: Vec::new(),
            width: Duration::MAX,
            has_settled: false,
            in_vain: 0,
            led_to_nobody: false,
            turn: 0,
            random,
            settings,
        }
    }

    /// When [`Self::on_timer`] has something to do.
    #[must_use]
    pub fn poll_at(&self) -> Duration {
        self.next.min(self.takes_over_at())
    }

    /// Whom to ask now, if anybody. One question at a time: the next is due after its answer.
    pub fn on_timer(&mut self, now: Duration) -> Option<Question<A>> {
        if now >= self.takes_over_at() {
            self.state = State::Canvassing(self.canvass());
        } else if now < self.next {
            return None;
        }
        // Until what came of the question is reported.
        self.next = Duration::MAX;
        let server = match &self.state {
            State::Asking(burst) => burst.server,
            State::Pausing => {
                self.tried.clear();
                self.another(now)?
            }
            State::Canvassing(left) => *left.last()?,
            State::Vouching | State::Leading(_) => {
                self.turn = self.turn.wrapping_add(1);
                self.whose_turn()?
            }
        };
        self.asked_at = now;
        Some(Question { server, until: now + self.patience() })
    }

    /// How long the answer to the next question is waited for.
    fn patience(&mut self) -> Duration {
        let most = match &self.state {
            State::Asking(burst) if burst.settle.answers() > 0 => {
                let trips = burst.slowest.floor_nanos().saturating_mul(PATIENCE_TRIPS);
                Duration::from_nanos(trips).max(LEAST_PATIENCE).min(FIRST_PATIENCE)
            }
            State::Asking(burst) => {
                Duration::from_nanos(FIRST_PATIENCE.floor_nanos() << burst.losses.min(LOSSES))
            }
            State::Pausing | State::Vouching | State::Canvassing(_) | State::Leading(_) => {
                FIRST_PATIENCE
            }
        };
        // Those who were lost together do not come back together.
        let part = i64::try_from(self.draw() % 1024).unwrap_or(0);
        most + Duration::from_nanos(most.floor_nanos() / 2048 * part)
    }

    /// What to say of itself in a question.
    #[must_use]
    pub fn asker(&self) -> Asker {
        if self.vouches() {
            Asker::Serving
        } else if self.has_settled {
            // Bounds on hearsay: other servers are looked for.
            Asker::Settled
        } else {
            Asker::New
        }
    }

    /// Takes an answer in.
    pub fn answered(&mut self, from: A, answer: &Answer<A>, now: Duration) -> Vec<Event<A>> {
        let mut events = Vec::new();
        // Who has no bounds says nothing about the timeline.
        if answer.said.is_some() {
            match self.compare(answer.origin) {
                Compared::Ours => {}
                Compared::Anew => {
                    self.begin_anew(answer.origin, now);
                    self.ask(from, now);
                    events.push(Event::BeganAnew);
                }
                Compared::Old => {
                    self.canvassed(from, true, now);
                    self.learn(&answer.others);
                    self.failed(from, now);
                    return events;
                }
                Compared::Stranger => {
                    events.push(Event::Stranger(from));
                    self.canvassed(from, true, now);
                    self.failed(from, now);
                    return events;
                }
            }
        }
        self.hear_of_master(from, answer, now);
        self.learn(&answer.others);
        if matches!(self.state, State::Leading(_)) {
            // Ours is the clock that they have heard.
            self.schedule(now);
            return events;
        }
        self.canvassed(from, true, now);
        let counts = self.settings.liars == 0
            || answer.standing == Standing::Vouched
            || self.settings.trusted == Some(from);
        let Some(said) = answer.said.filter(|_| counts) else {
            // It has no bounds itself, or not yet. A full one names those who will have some as soon.
            if !self.go_where_referred(from, answer, now) {
                self.wait_for(from, now);
            }
            return events;
        };
        match self.mesh.hear(from, &said, answer.level, &self.settings.rate) {
            Heard::Named => {
                self.forget(from);
                events.push(Event::Named(from));
            }
            Heard::Taken => drop(self.lost.remove(&from)),
            Heard::Outside | Heard::Ignored => {}
        }
        self.width = self.at(said.received).map_or(Duration::MAX, |(interval, _)| interval.width());
        match self.state {
            State::Asking(burst) if burst.server == from => {
                if !self.go_where_referred(from, answer, now) && self.go_on(burst, &said, now) {
                    events.push(self.vouch(now));
                }
            }
            _ => self.schedule(now),
        }
        events
    }

    /// The question got no answer, or one that says nothing.
    pub fn lost(&mut self, server: A, now: Duration) -> Vec<Event<A>> {
        self.canvassed(server, false, now);
        match &mut self.state {
            State::Asking(burst) if burst.server == server => {
                burst.losses += 1;
                let burst = *burst;
                if burst.losses < LOSSES {
                    self.next = now;
                } else if burst.settle.answers() == 0 {
                    self.failed(server, now);
                } else if self.settle(&burst, now) {
                    // It answers nobody so often, or has gone: what it said counts.
                    return vec![self.vouch(now)];
                }
            }
            // Somebody else has its turn.
            _ => {
                self.lose(server);
                if let Some(index) = self.known.iter().position(|known| *known == server) {
                    self.known.remove(index);
                    self.known.push(server);
                }
                self.schedule(now);
            }
        }
        Vec::new()
    }

    /// The server declines for good: it has no such timeline.
    pub fn refused(&mut self, server: A, now: Duration) {
        self.canvassed(server, true, now);
        self.forget(server);
        self.failed(server, now);
    }

    /// The server wants to be left alone. What it said before counts.
    pub fn declined(&mut self, server: A, now: Duration) -> Vec<Event<A>> {
        match self.state {
            State::Asking(burst) if burst.server == server && burst.settle.answers() > 0 => {
                self.settle(&burst, now).then(|| self.vouch(now)).into_iter().collect()
            }
            _ => {
                self.refused(server, now);
                Vec::new()
            }
        }
    }

    /// Somebody asks us. Returns other servers for it: see [`Children::asked`].
    pub fn asked(&mut self, by: A, asker: Asker, now: Duration) -> Vec<A> {
        self.children.asked(by, asker, now)
    }

    /// The interval that holds the timeline's time at this counter value, and what it is worth.
    #[must_use]
    pub fn at(&self, counter: u64) -> Option<(Interval<Tai>, Standing)> {
        if let State::Leading(lead) = &self.state {
            let (ticks, nominal) = (counter.wrapping_sub(lead.counter), self.settings.nominal);
            let (earliest, latest) = (nominal.span(ticks), nominal.span_ceil(ticks));
            let interval = Interval::new(lead.time + earliest, lead.time + latest);
            return interval.map(|interval| (interval, Standing::Vouched));
        }
        self.mesh.at(counter, &self.settings.rate)
    }

    /// The timeline, if this node is its master.
    #[must_use]
    pub fn leads(&self) -> Option<Lead> {
        match &self.state {
            State::Leading(lead) => Some(*lead),
            _ => None,
        }
    }

    /// How long ago anybody heard the master, by whatever path.
    #[must_use]
    pub fn silence(&self, now: Duration) -> Option<Duration> {
        if self.leads().is_some() {
            return Some(Duration::ZERO);
        }
        self.succession.as_ref().and_then(|succession| succession.silence(now))
    }

    /// When that was.
    #[must_use]
    pub fn master_heard(&self) -> Option<Duration> {
        self.succession.as_ref().and_then(Succession::master_heard)
    }

    /// Servers between this node and the master, itself included.
    #[must_use]
    pub fn level(&self) -> Option<u8> {
        if self.leads().is_some() {
            return Some(0);
        }
        self.mesh.level().map(|level| level.saturating_add(1))
    }

    /// The timeline.
    #[must_use]
    pub fn origin(&self) -> Option<Origin> {
        self.origin
    }

    /// Whether it vouches for its bounds and serves.
    #[must_use]
    pub fn vouches(&self) -> bool {
        match &self.state {
            State::Vouching | State::Leading(_) => true,
            State::Canvassing(_) => self.width < Duration::MAX,
            State::Asking(_) | State::Pausing => false,
        }
    }

    /// Servers that count.
    pub fn heard(&self) -> impl Iterator<Item = A> + '_ {
        self.mesh.heard()
    }

    /// What every server has said, those that lie included.
    pub fn views(&self, counter: u64) -> impl Iterator<Item = View<A>> + '_ {
        self.mesh.views(counter, &self.settings.rate)
    }

    /// Servers that lie.
    pub fn named(&self) -> impl Iterator<Item = A> + '_ {
        self.mesh.named()
    }

    /// Whether several servers contradict what this node's counter says of them: see
    /// [`Mesh::counter_is_doubted`].
    #[must_use]
    pub fn doubts_its_counter(&self) -> bool {
        self.mesh.counter_is_doubted()
    }

    /// Whether everybody is being asked if they have heard the master.
    #[must_use]
    pub fn canvasses(&self) -> bool {
        matches!(self.state, State::Canvassing(_))
    }

    /// Children whose lease has not ended.
    #[must_use]
    pub fn children(&self, now: Duration) -> usize {
        self.children.count(now)
    }

    fn is_vouched(&self, counter: u64) -> bool {
        self.at(counter).is_some_and(|(_, standing)| standing == Standing::Vouched)
    }

    /// The burst goes on, or somebody else is asked. True when there is nothing more to ask for.
    fn go_on(&mut self, mut burst: Burst<A>, said: &Statement, now: Duration) -> bool {
        let settings = &self.settings;
        let width = self.at(said.received).map_or(Duration::MAX, |(interval, _)| interval.width());
        let round_trip = settings.nominal.span(said.round_trip());
        // From one answer to the next.
        let ticks = settings.nominal.ticks_in(settings.spacing + round_trip);
        let growth = settings.rate.longest.span_ceil(ticks) - settings.rate.shortest.span(ticks);
        (burst.losses, burst.received) = (0, said.received);
        burst.slowest = burst.slowest.max(round_trip);
        let verdict = burst.settle.answer(round_trip, width, growth, &settings.burst);
        self.state = State::Asking(burst);
        if verdict == Verdict::Another {
            self.next = now + self.settings.spacing;
            return false;
        }
        self.settle(&burst, now)
    }

    /// The burst is over. True when there is nothing more to ask for.
    fn settle(&mut self, burst: &Burst<A>, now: Duration) -> bool {
        self.has_settled = true;
        self.remember(burst.server);
        if self.is_vouched(burst.received) {
            return true;
        }
        // On hearsay: somebody else has to say the same.
        self.tried.push(burst.server);
        self.try_another(now);
        false
    }

    fn vouch(&mut self, now: Duration) -> Event<A> {
        self.state = State::Vouching;
        (self.pause, self.in_vain) = (FIRST_PAUSE, 0);
        self.schedule(now);
        Event::Vouches
    }

    /// What an answer's origin means. That of UTC never changes, whoever says so.
    fn compare(&mut self, theirs: Origin) -> Compared {
        if self.succession.is_none() {
            if theirs != Origin::UTC {
                return Compared::Stranger;
            }
            self.origin = Some(theirs);
            return Compared::Ours;
        }
        let Some(ours) = self.origin.filter(|ours| *ours != theirs) else {
            self.origin = Some(theirs);
            return Compared::Ours;
        };
        if theirs < ours {
            let old = theirs.generation < ours.generation;
            return if old { Compared::Old } else { Compared::Stranger };
        }
        Compared::Anew
    }

    fn begin_anew(&mut self, origin: Origin, now: Duration) {
        if let Some(succession) = &mut self.succession {
            succession.begin_anew(now);
        }
        self.width = Duration::MAX;
        self.mesh = Mesh::new(self.settings.liars, self.settings.trusted);
        self.origin = Some(origin);
        self.has_settled = false;
        self.tried.clear();
        (self.pause, self.in_vain) = (FIRST_PAUSE, 0);
        self.state = State::Pausing;
        self.next = now;
    }
}
