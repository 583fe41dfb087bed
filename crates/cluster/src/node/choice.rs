//! Whom a node asks, and when.

use timevisor_time::Duration;

use super::{
    Answer, Burst, FIRST_PATIENCE, FIRST_WAIT, LAST_PAUSE, LOSSES, MOST_IN_VAIN, MOST_KNOWN, Node,
    State, WAITS,
};
use crate::address::Address;
use crate::children::Asker;
use crate::settle::Settle;

/// Every so many questions somebody is asked who was lost.
const RETRY: usize = 16;

impl<A: Address> Node<A> {
    /// This server may have bounds soon: it is asked again, ever later, and then another one.
    pub(super) fn wait_for(&mut self, server: A, now: Duration) {
        let slow = self.half_trip(now);
        match &mut self.state {
            State::Asking(burst) if burst.server == server && burst.losses < WAITS => {
                let pause =
                    Duration::from_nanos(burst.pause.floor_nanos() * 4_i64.pow(burst.losses));
                self.next = now + pause.max(slow).min(FIRST_PATIENCE);
                burst.losses += 1;
            }
            _ => self.failed(server, now),
        }
    }

    /// This server is of no use now.
    pub(super) fn failed(&mut self, server: A, now: Duration) {
        match &self.state {
            State::Asking(burst) if burst.server == server => {
                self.led_to_nobody |= burst.referred;
                self.tried.push(server);
                self.try_another(now);
            }
            _ => {
                self.lose(server);
                self.schedule(now);
            }
        }
    }

    /// This server has given no answer of use once more.
    pub(super) fn lose(&mut self, server: A) {
        if self.known.contains(&server) || self.seeds.contains(&server) {
            *self.lost.entry(server).or_default() += 1;
        }
    }

    pub(super) fn try_another(&mut self, now: Duration) {
        if let Some(server) = self.untried() {
            self.ask(server, now);
        } else {
            self.state = State::Pausing;
            self.next = now + self.pause;
            self.pause = (self.pause + self.pause).min(LAST_PAUSE);
            self.in_vain += u32::from(core::mem::take(&mut self.led_to_nobody));
        }
    }

    /// The next server after a pause, to be asked now.
    pub(super) fn another(&mut self, now: Duration) -> Option<A> {
        let server = self.untried();
        if let Some(server) = server {
            self.ask(server, now);
            self.next = Duration::MAX;
        } else {
            self.next = now + self.pause;
        }
        server
    }

    pub(super) fn ask(&mut self, server: A, now: Duration) {
        let (settle, slowest) = (Settle::default(), Duration::ZERO);
        let pause = FIRST_WAIT;
        let burst =
            Burst { server, settle, losses: 0, slowest, received: 0, referred: false, pause };
        self.state = State::Asking(burst);
        self.next = now;
    }

    /// A full server's first answer names others: one of them is asked instead. False if there is none, or that has led
    /// to nobody of use too often.
    pub(super) fn go_where_referred(&mut self, from: A, answer: &Answer<A>, now: Duration) -> bool {
        let State::Asking(burst) = &self.state else { return false };
        let is_first = burst.server == from && burst.settle.answers() == 0;
        let refers = is_first && self.asker() == Asker::New && self.settings.liars == 0;
        if !refers || self.in_vain >= MOST_IN_VAIN {
            return false;
        }
        let Some(other) = self.one_of(&answer.others) else { return false };
        self.tried.push(from);
        self.ask_referred(other, answer.said.is_some(), now);
        true
    }

    /// Half of what the answer to the last question has taken until now.
    fn half_trip(&self, now: Duration) -> Duration {
        (now - self.asked_at).half().min(FIRST_PATIENCE)
    }

    /// Asks a server that another one has just named. Where many start at once, the queue is at that other one, so this
    /// one may wait for its own bounds about as long as the name took to come. `knows`: the other one has bounds, and
    /// may be asked after all where those it names are of no use.
    fn ask_referred(&mut self, server: A, knows: bool, now: Duration) {
        let slow = self.half_trip(now);
        self.ask(server, now);
        if let State::Asking(burst) = &mut self.state {
            burst.referred = knows;
            burst.pause = burst.pause.max(slow);
        }
    }

    /// Who may be asked next. Everybody starts at the seeds, so these ask the master itself, if they
    /// know it: what one of them is further away, all below it are.
    fn untried(&mut self) -> Option<A> {
        let is_seed = self.seeds.contains(&self.own);
        let is_first = is_seed || self.settings.liars > 0;
        let master: Vec<A> = self.settings.trusted.filter(|_| is_first).into_iter().collect();
        let lists = [master, self.known.clone(), self.seeds.clone()];
        if self.settings.liars == 0 {
            return lists.iter().find_map(|servers| self.one_of(servers));
        }
        // Another port of a host that was asked is no further vote, so other hosts come first.
        let asked: Vec<A> = self.tried.iter().map(|at| at.host()).collect();
        let is_further = |at: &A| !asked.contains(&at.host());
        let [master, known, seeds] = lists;
        let others = [known, seeds].concat();
        let further: Vec<A> = others.iter().copied().filter(is_further).collect();
        [master, further, others].iter().find_map(|servers| self.one_of(servers))
    }

    /// Any of these that may be asked.
    pub(super) fn one_of(&mut self, servers: &[A]) -> Option<A> {
        let usable =
            |at: &&A| !self.is_own(**at) && !self.tried.contains(at) && !self.mesh.is_named(**at);
        let usable: Vec<A> = servers.iter().filter(usable).copied().collect();
        let count = u64::try_from(usable.len()).unwrap_or(1).max(1);
        let index = usize::try_from(self.draw() % count).unwrap_or(0);
        usable.get(index).copied()
    }

    /// This node itself; where some may lie, other servers on its host, too: they have no vote of their own.
    fn is_own(&self, at: A) -> bool {
        let is_beside = self.settings.liars > 0 && at.host() == self.own.host();
        at == self.own || (is_beside && self.settings.trusted != Some(at))
    }

    /// SplitMix64.
    pub(super) fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Where some may lie, nobody is believed who was not listed, so nobody else is asked.
    pub(super) fn learn(&mut self, others: &[A]) {
        if self.settings.liars > 0 {
            return;
        }
        for other in others {
            self.remember(*other);
        }
    }

    pub(super) fn remember(&mut self, server: A) {
        let is_new = server != self.own && !self.known.contains(&server);
        if is_new && self.known.len() < MOST_KNOWN {
            self.known.push(server);
        }
    }

    /// It is asked only if it is a seed, or somebody names it again.
    pub(super) fn forget(&mut self, server: A) {
        self.known.retain(|known| *known != server);
        self.lost.remove(&server);
    }

    /// Whom to ask now and then: those who were of use, and the seeds where these are too few; those who
    /// have been lost ([`LOSSES`]) only where all these are too few. Who refused yesterday may serve today.
    pub(super) fn peers(&self) -> Vec<A> {
        let (here, lost) = self.here_and_lost();
        let all = self.one_of_each_host_first(here).into_iter().chain(lost);
        all.take(self.settings.peers).collect()
    }

    /// Where some may lie, further ports of a host come last: they have no further vote.
    fn one_of_each_host_first(&self, servers: Vec<A>) -> Vec<A> {
        if self.settings.liars == 0 {
            return servers;
        }
        let mut hosts = Vec::new();
        let (first, further): (Vec<A>, Vec<A>) = servers.into_iter().partition(|at| {
            let voter = self.mesh.voter(*at).filter(|voter| !hosts.contains(voter));
            hosts.extend(voter);
            voter.is_some()
        });
        first.into_iter().chain(further).collect()
    }

    /// Each of the peers in turn, and now and then somebody who was lost, or is none of them.
    pub(super) fn whose_turn(&self) -> Option<A> {
        let peers = self.peers();
        let (here, lost) = self.here_and_lost();
        // Two parts of a cluster that were cut off from each other meet again only where somebody asks
        // across: on the cluster's own timeline that is everybody's business.
        let others = here.into_iter().filter(|_| self.succession.is_some());
        let away: Vec<A> = others.chain(lost).filter(|at| !peers.contains(at)).collect();
        let again = self.turn.is_multiple_of(RETRY) && !away.is_empty();
        let (among, turn) = if again { (&away, self.turn / RETRY) } else { (&peers, self.turn) };
        among.get(turn % among.len().max(1)).copied()
    }

    fn here_and_lost(&self) -> (Vec<A>, Vec<A>) {
        let seeds = self.seeds.iter().filter(|seed| !self.known.contains(seed));
        let all = self.known.iter().chain(seeds);
        let usable = all.filter(|at| !self.mesh.is_named(**at) && !self.is_own(**at)).copied();
        usable.partition(|at| {
            let losses = self.lost.get(at).copied().unwrap_or(0);
            losses < LOSSES || self.settings.trusted == Some(*at)
        })
    }

    pub(super) fn schedule(&mut self, now: Duration) {
        if matches!(self.state, State::Vouching | State::Leading(_)) {
            self.next = match i64::try_from(self.peers().len()) {
                Ok(0) | Err(_) => Duration::MAX,
                Ok(count) => now + Duration::from_nanos(self.settings.poll.floor_nanos() / count),
            };
        }
    }
}
