//! The succession: when this node asks everybody for the master, and when it becomes master itself.

use timevisor_time::{Duration, Instant, Tai};

use super::{Answer, Lead, Node, Origin, State};
use crate::address::Address;
use crate::succession::Rank;

impl<A: Address> Node<A> {
    /// Whether this node is to become master now: the caller reads the counter and calls
    /// [`Self::lead`].
    #[must_use]
    pub fn is_to_lead(&self) -> bool {
        matches!(&self.state, State::Canvassing(left) if left.is_empty())
    }

    /// Becomes master at this value of the counter, under an origin with this random epoch. Returns
    /// the origin.
    pub fn lead(&mut self, counter: u64, epoch: u64, now: Duration) -> Origin {
        let time = self.begins_with(counter, now);
        let generation = self.origin.map_or(1, |origin| origin.generation.saturating_add(1));
        let origin = Origin { generation, epoch };
        self.begin_anew(origin, now);
        self.state = State::Leading(Lead { counter, time });
        self.schedule(now);
        origin
    }

    /// When this node asks everybody, to take over if nobody knows better; [`Duration::MAX`] if never.
    pub(super) fn takes_over_at(&self) -> Duration {
        let Some(succession) = &self.succession else { return Duration::MAX };
        if matches!(self.state, State::Leading(_) | State::Canvassing(_)) {
            return Duration::MAX;
        }
        if self.origin.is_none() {
            return succession.begins_at(self.own, &self.seeds);
        }
        let (level, width) = (self.level().unwrap_or(u8::MAX), self.width);
        let rank = Rank { level, width, at: self.own };
        if width < Duration::MAX {
            succession.continues_at(rank)
        } else {
            // Who does not know the timeline cannot continue it, unless nobody does.
            succession.begins_again_at(rank)
        }
    }

    /// Everybody who is known. Who was lost stands behind, and is asked first: the less time has passed
    /// since the others have answered, the fewer of them have become master meanwhile.
    pub(super) fn canvass(&self) -> Vec<A> {
        let named: Vec<A> = self.mesh.named().collect();
        let seeds = self.seeds.iter().filter(|seed| !self.known.contains(seed));
        let all = self.known.iter().chain(seeds);
        let asked = all.filter(|at| !named.contains(at) && **at != self.own);
        // Who does not answer is asked once more: on a busy machine that is no proof of an end.
        asked.flat_map(|at| [*at, *at]).collect()
    }

    /// The canvass goes on after this one, unless somebody knows better.
    pub(super) fn canvassed(&mut self, server: A, answered: bool, now: Duration) {
        let State::Canvassing(left) = &mut self.state else { return };
        if answered {
            left.retain(|at| *at != server);
        } else if left.last() == Some(&server) {
            left.pop();
        }
        self.next = now;
        if self.origin.is_some() && !self.succession.as_ref().is_some_and(|s| s.is_gone(now)) {
            // Somebody has heard the master.
            self.state = if self.width < Duration::MAX { State::Vouching } else { State::Pausing };
            self.schedule(now);
        }
    }

    /// What an answer says of the timeline's master.
    pub(super) fn hear_of_master(&mut self, from: A, answer: &Answer<A>, now: Duration) {
        let Some(succession) = &mut self.succession else { return };
        match &answer.said {
            Some(said) => {
                let rank = Rank { level: answer.level, width: said.left.width(), at: from };
                succession.hear(rank, answer.silence, now);
            }
            None => succession.hear_none(from),
        }
    }

    /// What the timeline says when this node becomes its master: nothing that anybody's estimate has
    /// passed, as far as this node knows.
    pub(super) fn begins_with(&self, counter: u64, now: Duration) -> Instant<Tai> {
        let Some((interval, _)) = self.at(counter) else { return Instant::from_bits(0) };
        let (rate, nominal) = (&self.settings.rate, self.settings.nominal);
        let growth = |span: Duration| {
            let ticks = nominal.ticks_in(span);
            rate.longest.span_ceil(ticks) - rate.shortest.span(ticks)
        };
        let widest = self.succession.as_ref().map(|others| others.widest(now, growth));
        let widest = widest.unwrap_or(Duration::ZERO);
        interval.latest() + widest + widest
    }
}
