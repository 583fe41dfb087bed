//! [`Group`]: members that share a timeline, exchange messages and act together at a time.
//!
//! A program joins a group under a name. A thread of the library holds the connection to the bus, answers
//! other members and wakes up when something is due, so the group works while the program does
//! something else. All members of a process that use the same bus share that thread. What members agree on, and what nobody can guarantee, is in
//! docs/explanation/coordination.md.
//!
//! ```no_run
//! use std::time::Duration;
//! use timevisor::group::{Accept, Order};
//! use timevisor::{Client, Requirement};
//! let client = Client::connect()?;
//! let need = Requirement::within(Duration::from_millis(1));
//! let group = client.join("cell7", "arm-a", &need)?;
//! group.accept(Accept::All);
//! group.wait_for(2, Duration::from_secs(10))?;
//! let at_ns = client.timeline("tai")?.now()?.latest_ns() + 50_000_000;
//! let outcome = group.propose(at_ns, b"grip")?.wait(Duration::from_secs(5))?;
//! println!("{} fired, {} did not, {} unknown", outcome.fired.len(), outcome.quiet.len(), outcome.unknown.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | owns |
//! | --- | --- |
//! | this one | [`Group`], [`JoinOptions`]: joining, and what a member can do |
//! | `address.rs` | [`BusAddress`]: where a bus listens |
//! | `link.rs` | the bytes to and from it, over a Unix socket or TLS |
//! | `connection.rs` | frames in and out |
//! | `line.rs` | a connection that all members of this process share |
//! | `driver.rs` | its thread |
//! | `seat.rs` | one member, as that thread looks after it |
//! | `state.rs` | what the program's threads and that thread share |
//! | `subscriptions.rs` | what a member gets of a topic's messages |
//! | `manual_bus.rs` | [`crate::manual::Bus`]: a bus in memory for tests, with faults |
//! | `events.rs` | [`Inbox`]: queues that the program reads |
//! | `waiting.rs` | [`GroupWait`], [`Pending`]: waits for an event loop, proposals that were made |
//! | `error.rs` | why something did not work |

mod address;
mod connection;
mod driver;
mod error;
mod events;
mod line;
mod link;
pub(crate) mod manual_bus;
mod seat;
mod state;
mod subscriptions;
mod waiting;

use std::sync::Arc;
use std::time::{Duration, Instant};

use timevisor_coordination::member::Member;
use timevisor_coordination::{MemberId, leader, propose};
use timevisor_protocols::bus::ToBus;
use timevisor_time::Duration as Span;

use crate::binding::Binding;
use crate::client::Client;
use crate::requirement::Requirement;
use crate::timeline::Timeline;
pub use address::BusAddress;
pub use error::{GroupError, JoinError};
pub use events::{Inbox, Message, Order, Proposed, Reported};
use line::Place;
use seat::Seat;
use state::{Join, Shared, State};
pub use timevisor_coordination::leader::LeaderError;
pub use timevisor_coordination::propose::Outcome;
pub use timevisor_coordination::propose::ProposeError;
pub use timevisor_coordination::{InvalidName, Name};
pub use timevisor_coordination::{MemberId as Id, Proposal, ProposalId, Stamp, Why};
pub use timevisor_protocols::bus::{Gone, Info, Refusal, Sides};
pub use timevisor_protocols::nts::shared::{Secret, SecretError};
use waiting::Arrival;
pub use waiting::{GroupWait, Pending};

/// How a member joins.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The group's timeline; `tai` by default.
    pub timeline: String,
    /// What this member needs of it.
    pub requirement: Option<Requirement>,
    /// Where the bus listens. By default `TIMEVISOR_BUS` (a path, or `tls://HOST:PORT` with
    /// `TIMEVISOR_BUS_AUTHORITY`), then timevisor-bus.socket in `XDG_RUNTIME_DIR`, then
    /// /run/timevisor-bus/socket.
    pub bus: Option<BusAddress>,
    /// The group's key, if it has one.
    pub key: Option<Secret>,
    /// After so long without a sign of this program the others count it as gone.
    pub lease: Duration,
}

impl Default for JoinOptions {
    fn default() -> Self {
        Self {
            timeline: "tai".to_owned(),
            requirement: None,
            bus: None,
            key: None,
            lease: Duration::from_secs(3),
        }
    }
}

/// Which proposals of others a member accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accept {
    /// All.
    All,
    /// None; so it is until something else is said.
    Nothing,
    /// The program decides: [`Group::proposals`] gives them, [`Group::answer`] answers.
    Ask,
}

/// A member of a group. Dropping it leaves the group.
pub struct Group {
    shared: Arc<Shared>,
    /// The requirement on the host, for as long as this lives.
    _binding: Option<Binding>,
}

impl Client {
    /// Joins a group on timeline `tai` with a requirement, which is also stated to the host.
    ///
    /// # Errors
    /// When the host cannot meet it, or the group cannot be joined.
    pub fn join(
        &self,
        group: &str,
        member: &str,
        requirement: &Requirement,
    ) -> Result<Group, JoinError> {
        let requirement = Some(*requirement);
        self.join_with(group, member, &JoinOptions { requirement, ..JoinOptions::default() })
    }

    /// Joins a group, with all options.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn join_with(
        &self,
        group: &str,
        member: &str,
        options: &JoinOptions,
    ) -> Result<Group, JoinError> {
        let binding = match &options.requirement {
            Some(requirement) => Some(self.bind(&options.timeline, requirement)?),
            None => None,
        };
        let timeline = match &binding {
            Some(binding) => binding.timeline().clone(),
            None => self.timeline(&options.timeline)?,
        };
        let mut group = Group::join(&timeline, group, member, options)?;
        group._binding = binding;
        Ok(group)
    }
}

impl Group {
    /// Joins a group with any timeline, such as that of a [`crate::manual::Clock`]. The timeline's name
    /// is the group's.
    ///
    /// # Errors
    /// When the bus cannot be reached, or refuses.
    pub fn join(
        timeline: &Timeline,
        group: &str,
        member: &str,
        options: &JoinOptions,
    ) -> Result<Self, JoinError> {
        let name = |text: &str| {
            text.parse::<Name>().map_err(|error| JoinError::Name(text.to_owned(), error))
        };
        let (group, member) = (name(group)?, name(member)?);
        name(timeline.name())?;
        let timeline = match &options.requirement {
            Some(requirement) => timeline.with_requirement(requirement)?,
            None => timeline.clone(),
        };
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| JoinError::Random(error.to_string()))?;
        let [incarnation, seed] = [&random[..8], &random[8..]]
            .map(|half| u64::from_le_bytes(half.try_into().unwrap_or_default()));
        let own = MemberId { name: member, incarnation };
        let sides = options
            .requirement
            .map(|it| Sides { below_ns: it.below_ns(), above_ns: it.above_ns() });
        let join = state::Join {
            group,
            own,
            timeline: timeline.name().to_owned(),
            requirement: sides,
            lease: options.lease,
            key: options.key.clone(),
        };
        let buses = BusAddress::candidates(options.bus.as_ref())?;
        if let Some(place) = Place::shared(&buses) {
            match Self::join_at(place, timeline.clone(), join.clone(), seed) {
                // The bus may just have gone, and be back.
                Err(JoinError::Silent) => {}
                done => return done,
            }
        }
        Self::join_at(Place::alone(buses)?, timeline, join, seed)
    }

    fn join_at(place: Place, timeline: Timeline, join: Join, seed: u64) -> Result<Self, JoinError> {
        let settings = timevisor_coordination::member::Settings::default();
        let member = Member::new(join.own, settings, seed);
        let shared = Arc::new(Shared::new(timeline, join, member, place));
        let (answered, answer) = std::sync::mpsc::channel();
        match Seat::new(&shared, answered) {
            Ok(seat) => shared.place.take(seat),
            Err(error) => {
                shared.place.line.leave(1);
                return Err(error.into());
            }
        }
        let group = Self { shared, _binding: None };
        match answer.recv_timeout(connection::TIMEOUT) {
            Ok(Ok(())) => Ok(group),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(JoinError::Silent),
        }
    }

    /// Who this member is.
    #[must_use]
    pub fn id(&self) -> MemberId {
        self.shared.join.own
    }

    /// All members as far as is known, this one included, in the order of their names.
    #[must_use]
    pub fn members(&self) -> Vec<Info> {
        if self.shared.is_forked() {
            return Vec::new();
        }
        self.shared.lock().members.values().cloned().collect()
    }

    /// What happens to the group and its messages, from now on.
    #[must_use]
    pub fn watch(&self) -> Inbox<Reported> {
        if self.shared.is_forked() {
            return Inbox::new().0;
        }
        self.shared.lock().watch()
    }

    /// Waits until so many members are there, this one included, whose clocks meet their requirements.
    /// This one's has to meet its own, whatever the number.
    ///
    /// # Errors
    /// When the time is over.
    pub fn wait_for(&self, count: usize, timeout: Duration) -> Result<(), GroupError> {
        self.wait(timeout, |state| self.shared.has_met(state, count).then_some(()))
    }

    /// Waits until these members are there, whose clocks meet their requirements.
    ///
    /// # Errors
    /// When the time is over.
    pub fn wait_for_names(&self, names: &[&str], timeout: Duration) -> Result<(), GroupError> {
        self.wait(timeout, |state| self.shared.has_met_names(state, names).then_some(()))
    }

    /// Publishes a message with the time of now.
    ///
    /// # Errors
    /// When the bus is not connected or the payload is longer than 1 MiB.
    pub fn publish(&self, topic: &str, payload: &[u8]) -> Result<(), GroupError> {
        let topic = topic.parse().map_err(|error| GroupError::Name(topic.to_owned(), error))?;
        if payload.len() > timevisor_coordination::MAX_PAYLOAD {
            return Err(GroupError::TooLong(payload.len()));
        }
        self.shared.act(|state, now| {
            if !state.is_connected() {
                return Err(GroupError::Disconnected);
            }
            state.member.publish(topic, payload.to_vec(), now);
            Ok(())
        })
    }

    /// Gets a topic's messages, those that were published before first: `history` of them at most.
    ///
    /// # Errors
    /// When the topic has no possible name.
    pub fn subscribe(
        &self,
        topic: &str,
        order: Order,
        history: u32,
    ) -> Result<Inbox<Message>, GroupError> {
        let topic: Name =
            topic.parse().map_err(|error| GroupError::Name(topic.to_owned(), error))?;
        self.shared.act(|state, _| Ok(state.subscribe(topic, order, history)))
    }

    /// Which proposals of others are accepted from now on.
    pub fn accept(&self, accept: Accept) {
        if !self.shared.is_forked() {
            self.shared.lock().accept = accept;
        }
    }

    /// Proposals of others, to be answered, where [`Accept::Ask`] was said; and from now on what is to
    /// be done because of proposals, and what came of them.
    #[must_use]
    pub fn proposals(&self) -> Inbox<Proposed> {
        if self.shared.is_forked() {
            return Inbox::new().0;
        }
        self.shared.lock().proposals()
    }

    /// Answers a proposal.
    pub fn answer(&self, id: ProposalId, accepts: bool) {
        let _ = self.shared.act(|state, now| {
            state.member.answer(id, accepts, now);
            Ok(())
        });
    }

    /// Proposes that all members fire at a time, in ns since the timeline's epoch. They may be late by
    /// 10 ms.
    ///
    /// # Errors
    /// When it cannot be proposed.
    pub fn propose(&self, at_ns: i64, payload: &[u8]) -> Result<Pending, GroupError> {
        self.propose_with(at_ns, payload, None, Duration::from_millis(10))
    }

    /// Proposes that these members, or all, fire at a time; who wakes up later than `late_at_most` after
    /// it does not.
    ///
    /// # Errors
    /// When it cannot be proposed.
    pub fn propose_with(
        &self,
        at_ns: i64,
        payload: &[u8],
        names: Option<&[&str]>,
        late_at_most: Duration,
    ) -> Result<Pending, GroupError> {
        let id = self.shared.act(|state, now| {
            let participants = state.participants(names)?;
            let plan = propose::Plan {
                at: timevisor_time::Instant::from_unix_nanos(i128::from(at_ns)),
                late_at_most: span(late_at_most),
                participants,
                payload: payload.to_vec(),
            };
            Ok(state.member.propose(plan, now)?)
        })?;
        Ok(Pending { shared: Arc::clone(&self.shared), id })
    }

    /// Waits at a barrier until so many members have arrived. All are released at one time. Returns how
    /// late this member surely was.
    ///
    /// # Errors
    /// When the time is over. [`Reported::Split`] says if not all of them were released together.
    pub fn barrier(
        &self,
        name: &str,
        parties: u32,
        timeout: Duration,
    ) -> Result<Duration, GroupError> {
        Arrival::new(&self.shared, name, parties)?.wait(timeout)
    }

    /// Wants to lead: `voters` are the names of the members that vote, and a lease is `term` long.
    ///
    /// # Errors
    /// When nobody can be elected by this.
    pub fn stand(&self, office: &str, voters: &[&str], term: Duration) -> Result<(), GroupError> {
        let name = |text: &str| {
            text.parse::<Name>().map_err(|error| GroupError::Name(text.to_owned(), error))
        };
        let office = name(office)?;
        let voters = voters.iter().map(|voter| name(voter)).collect::<Result<_, _>>()?;
        let settings = leader::Settings { voters, term: span(term), retry: span(term / 8) };
        self.shared.act(|state, now| Ok(state.member.stand(office, settings, now)?))
    }

    /// Does not want to lead any more.
    pub fn resign(&self, office: &str) {
        if let Ok(office) = office.parse() {
            let _ = self.shared.act(|state, now| {
                state.member.resign(office, now);
                Ok(())
            });
        }
    }

    /// Whether this member leads now. Nobody else does at the same time, as long as bounds hold.
    #[must_use]
    pub fn leads(&self, office: &str) -> bool {
        let Ok(office) = office.parse() else { return false };
        if self.shared.is_forked() {
            return false;
        }
        let state = self.shared.lock();
        state.member.leads(office, &self.shared.now())
    }

    /// Leaves, and waits until the bus has been told. Inboxes and waits of the group end.
    pub fn leave(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let handle = self.shared.place.handle;
        let told = self.shared.act(|state, _| {
            state.send(&ToBus::Leave { handle });
            state.ends = true;
            Ok(())
        });
        if told.is_ok() {
            self.shared.wait_until_over(seat::PATIENCE * 2);
        }
    }

    fn wait<T>(
        &self,
        timeout: Duration,
        is: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, GroupError> {
        self.shared.wait(Instant::now().checked_add(timeout), is)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

impl core::fmt::Debug for Group {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Group")
            .field("group", &self.shared.join.group)
            .field("member", &self.shared.join.own)
            .finish_non_exhaustive()
    }
}

fn span(span: Duration) -> Span {
    Span::from_nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
}
