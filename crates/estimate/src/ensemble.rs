//! All references together: what is published, and with which status.

use std::collections::BTreeMap;

use timevisor_time::{Duration, Instant, Interval, Period, RateError, Tai};

use crate::combination::Combination;
use crate::estimators::shifted_exponential::{Saved, UnusableState};
use crate::exchange::Exchange;
use crate::parameters::Parameters;
use crate::rate::RateLimits;
use crate::reference::{Observation, ReferenceClock, View};
use crate::selection::{Agreement, agree, default_faulty};
use crate::witnesses::{Vote, agree_as_witnesses};

/// How far the knowledge may be trusted; the page's status follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quality {
    /// No exchange yet.
    Nothing,
    /// Too few exchanges to call it synchronized; bounds hold.
    Initializing,
    /// Bounds hold, exchanges keep coming.
    Synchronized,
    /// Bounds hold and grow: exchanges stopped coming.
    FreeRunning,
    /// A contradiction is being worked off, or the references disagree.
    Unreliable,
}

/// What is known at one counter value.
#[derive(Clone, Debug)]
pub struct Knowledge {
    /// The counter value.
    pub at: u64,
    /// How far to trust it.
    pub quality: Quality,
    /// Why the quality is not `Synchronized`, in words.
    pub reason: Option<String>,
    /// Bounds, estimate and rate; `None` for [`Quality::Nothing`].
    pub clock: Option<Clock>,
    /// The references outvoted by the others.
    pub falsetickers: Vec<Falseticker>,
}

/// A reference that the majority excludes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Falseticker {
    /// Its name.
    pub name: String,
    /// Why, in words.
    pub reason: String,
}

/// Bounds, estimate and rate at one counter value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Clock {
    /// Holds true time.
    pub interval: Interval<Tai>,
    /// Inside `interval`.
    pub estimate: Instant<Tai>,
    /// The periods at which the interval's ends move, for as long as a publication is valid.
    pub slopes: RateLimits,
    /// Limits of the counter's period at any time.
    pub limits: RateLimits,
    /// Best guess of the period, inside `limits`.
    pub period: Period,
    /// One sigma of `estimate`.
    pub estimated_error: Duration,
    /// Counter value of the newest exchange.
    pub as_of: u64,
}

/// A place for one reference when the references change: see [`Ensemble::rearrange`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The reference's name.
    pub name: String,
    /// Its index before, whose facts it keeps; `None` for one that has said nothing yet.
    pub continues: Option<usize>,
}

/// The references and what was decided about them so far.
#[derive(Clone, Debug)]
pub struct Ensemble {
    parameters: Parameters,
    references: Vec<(String, ReferenceClock)>,
    /// The witness of each reference: references with one source have one vote.
    witnesses: Vec<usize>,
    /// A reference that has said nothing yet.
    blank: ReferenceClock,
    /// Weighs the members' estimates without ever hopping between paths of unequal asymmetry.
    combination: Combination,
    /// Beginnings and ends of disagreements.
    disagreements: u64,
    disagreeing: bool,
    /// Contradictions that voided what was published; those of an outvoted reference do not.
    voids: u64,
    seen_contradictions: u64,
}

impl Ensemble {
    /// References by name; `nominal` and `nominal_error` as in [`ReferenceClock::new`].
    #[must_use]
    pub fn new(
        parameters: &Parameters,
        names: &[String],
        nominal: Period,
        nominal_error: RateError,
    ) -> Self {
        let blank = ReferenceClock::new(parameters, nominal, nominal_error);
        Self {
            parameters: parameters.clone(),
            references: names.iter().map(|n| (n.clone(), blank.clone())).collect(),
            witnesses: (0..names.len()).collect(),
            blank,
            combination: Combination::new(parameters.handover),
            disagreements: 0,
            disagreeing: false,
            voids: 0,
            seen_contradictions: 0,
        }
    }

    /// Rate limits from an earlier daemon, for every reference: see [`ReferenceClock::adopt_rate`].
    pub fn adopt_rate(&mut self, measured: &RateLimits) {
        self.references.iter_mut().for_each(|(_, r)| r.adopt_rate(measured));
        self.blank.adopt_rate(measured);
    }

    /// The estimates to go on with after a restart, by reference: see [`ReferenceClock::saved`].
    #[must_use]
    pub fn saved(&self) -> BTreeMap<String, Saved> {
        let save = |(name, r): &(String, ReferenceClock)| Some((name.clone(), r.saved()?));
        self.references.iter().filter_map(save).collect()
    }

    /// Goes on with the estimates of an earlier daemon; references that are not there any more are
    /// ignored.
    ///
    /// # Errors
    /// The first state that cannot be true. The others are used.
    pub fn resume(&mut self, saved: &BTreeMap<String, Saved>) -> Result<(), UnusableState> {
        let mut result = Ok(());
        for (name, reference) in &mut self.references {
            if let Some(saved) = saved.get(name) {
                result = result.and(reference.resume(saved));
            }
        }
        result
    }

    /// Takes an exchange with reference `index` in.
    pub fn observe(&mut self, index: usize, exchange: &Exchange) -> Observation {
        self.references[index].1.observe(exchange)
    }

    /// Forgets what reference `index` said: another server has taken its place.
    pub fn forget(&mut self, index: usize) {
        self.references[index].1 = self.blank.clone();
        self.combination.forget(index);
        // Its contradictions went with it; that is no new one.
        self.seen_contradictions = self.contradictions();
    }

    /// Makes these the references, in this order. What a reference said that is no longer among them
    /// is forgotten. Each is a witness of its own until [`Self::set_witnesses`].
    ///
    /// # Panics
    /// If a slot continues a reference that does not exist.
    pub fn rearrange(&mut self, slots: &[Slot], stale_after: Duration) {
        self.parameters.stale_after = stale_after;
        let before = std::mem::take(&mut self.references);
        let clock = |slot: &Slot| match slot.continues {
            Some(index) => before[index].1.clone(),
            None => self.blank.clone(),
        };
        self.references = slots.iter().map(|slot| (slot.name.clone(), clock(slot))).collect();
        self.witnesses = (0..slots.len()).collect();
        self.combination.renumber(|old| slots.iter().position(|slot| slot.continues == Some(old)));
        // Contradictions that went with a reference, or came along, are no new ones.
        self.seen_contradictions = self.contradictions();
    }

    /// Says which references are one witness: those with the same number, because they have their
    /// time from one source. By default each is a witness of its own.
    ///
    /// # Panics
    /// Unless there is one number for each reference.
    pub fn set_witnesses(&mut self, witnesses: &[usize]) {
        assert_eq!(witnesses.len(), self.references.len(), "one number for each reference");
        self.witnesses.clear();
        self.witnesses.extend_from_slice(witnesses);
    }

    /// The state of reference `index`.
    #[must_use]
    pub fn reference(&self, index: usize) -> &ReferenceClock {
        &self.references[index].1
    }

    /// The wander that the facts of every reference ask for, 1/s, where that is more than the
    /// operator's statement: with several references it is the oscillator that breaks it.
    #[must_use]
    pub fn beyond_floor(&self) -> Option<f64> {
        let mut of_each = self.references.iter().map(|(_, r)| r.beyond_floor());
        let first = of_each.next()??;
        of_each.try_fold(first, |least, wander| Some(least.min(wander?)))
    }

    /// What reference `index` contributes to the estimate, 0 to 1; `None` where it does not count.
    #[must_use]
    pub fn share(&self, index: usize) -> Option<f64> {
        self.combination.share(index)
    }

    /// The reference whose estimate weighs most.
    #[must_use]
    pub fn chosen(&self) -> Option<usize> {
        self.combination.heaviest()
    }

    /// Grows whenever bounds were invalidated: what is published next need not nest in what was
    /// published before.
    #[must_use]
    pub fn disruptions(&self) -> u64 {
        self.disagreements + self.voids
    }

    /// Contradictions of all references so far.
    #[must_use]
    pub fn contradictions(&self) -> u64 {
        self.references.iter().map(|(_, r)| r.contradictions()).sum()
    }

    /// What is known at counter value `now`.
    pub fn at(&mut self, now: u64) -> Knowledge {
        let views: Vec<(usize, View)> = self
            .references
            .iter()
            .enumerate()
            .filter_map(|(i, (_, r))| r.at(now).map(|v| (i, v)))
            .collect();
        let intervals: Vec<_> = views.iter().map(|(_, v)| v.interval).collect();
        let votes =
            views.iter().map(|(i, v)| Vote { witness: self.witnesses[*i], interval: v.interval });
        let votes: Vec<Vote<Tai>> = votes.collect();
        // Of all witnesses, not only of those that have answered: whoever answers first may be the
        // one that is wrong.
        let all = distinct(self.witnesses.iter().copied());
        let answered = distinct(votes.iter().map(|vote| vote.witness));
        let faulty = default_faulty(all);
        let Some(first) = views.first().filter(|_| answered > faulty) else {
            return self.nothing(now, answered, faulty + 1);
        };
        let agreement = agree_as_witnesses(&votes, default_faulty(answered)).map(|vote| {
            // One that has not answered excludes nothing, so it may be among the right ones.
            let wide = agree_as_witnesses(&votes, faulty);
            let interval = wide.map_or(vote.interval, |wide| wide.interval);
            Agreement { interval: self.with_plain_vote(interval, &intervals), ..vote }
        });
        // Its end is a new beginning too: what was published meanwhile may have followed the wrong
        // one.
        if agreement.is_none() != self.disagreeing {
            self.disagreements += 1;
        }
        self.disagreeing = agreement.is_none();
        // Without a majority nobody knows who is right: the hull of everybody is all that can be
        // said.
        let outcome = agreement.unwrap_or_else(|| Agreement {
            interval: intervals.iter().fold(first.1.interval, |hull, i| hull.hull(i)),
            members: (0..views.len()).collect(),
            falsetickers: Vec::new(),
        });
        let members: Vec<_> = outcome.members.iter().map(|i| views[*i]).collect();
        let falsetickers = outcome
            .falsetickers
            .iter()
            .map(|i| self.falseticker(&views[*i], &outcome.interval))
            .collect();
        let clock = self.clock(now, &members, outcome.interval);
        let (quality, reason) = self.quality(now, &members, clock.as_of);
        self.note_contradictions(quality);
        Knowledge { at: now, quality, reason, clock: Some(clock), falsetickers }
    }

    /// Widens what witnesses agree on to what the references agree on, each with a vote of its own.
    ///
    /// A server may claim an honest one's source. With one witness less the vote forgives one error
    /// less, and a part of the truth would be cut off by whoever made the claim. Where the two votes
    /// exclude each other, servers with one source err together, and the witnesses are right.
    fn with_plain_vote(&self, of_witnesses: Interval<Tai>, all: &[Interval<Tai>]) -> Interval<Tai> {
        let faulty = default_faulty(self.references.len()).min(all.len().saturating_sub(1));
        let plain = agree(all, faulty).map(|plain| plain.interval);
        match plain.filter(|plain| plain.intersect(&of_witnesses).is_some()) {
            Some(plain) => plain.hull(&of_witnesses),
            None => of_witnesses,
        }
    }

    fn nothing(&self, now: u64, answered: usize, needed: usize) -> Knowledge {
        let all = distinct(self.witnesses.iter().copied());
        let reason = match answered {
            0 => "no reference has answered yet".to_owned(),
            n => {
                format!("{n} of {all} references has answered, {needed} are needed for a majority")
            }
        };
        Knowledge {
            at: now,
            quality: Quality::Nothing,
            reason: Some(reason),
            clock: None,
            falsetickers: Vec::new(),
        }
    }

    /// A contradiction voids what was published only if it leaves the clock unreliable.
    fn note_contradictions(&mut self, quality: Quality) {
        let contradictions = self.contradictions();
        if contradictions != self.seen_contradictions && quality == Quality::Unreliable {
            self.voids += 1;
        }
        self.seen_contradictions = contradictions;
    }

    fn falseticker(&self, (index, view): &(usize, View), right: &Interval<Tai>) -> Falseticker {
        let (early, late) =
            (right.earliest() - view.interval.latest(), view.interval.earliest() - right.latest());
        let (by, side) = if early > late { (early, "earlier") } else { (late, "later") };
        let reason = format!("its whole interval is {by} {side} than what the majority allows");
        Falseticker { name: self.references[*index].0.clone(), reason }
    }

    fn clock(&mut self, now: u64, members: &[(usize, View)], interval: Interval<Tai>) -> Clock {
        // A member that is working off a contradiction counts only if all do.
        let trusted: Vec<_> = members.iter().filter(|(_, v)| v.trusted).copied().collect();
        let voices = if trusted.is_empty() { members } else { &trusted[..] };
        let combined = self.combination.combine(now, voices, self.disagreements + self.voids);
        let widest = |of: fn(&View) -> RateLimits| {
            members.iter().map(|(_, v)| of(v)).reduce(|a, b| RateLimits {
                shortest: a.shortest.min(b.shortest),
                longest: a.longest.max(b.longest),
            })
        };
        let unknown = combined.limits;
        Clock {
            interval,
            estimate: combined.time.max(interval.earliest()).min(interval.latest()),
            // Whichever member an end comes from, it moves no faster than the fastest of them.
            slopes: widest(|v| v.slopes).unwrap_or(unknown),
            limits: widest(|v| v.limits).unwrap_or(unknown),
            period: combined.period,
            estimated_error: combined.error,
            as_of: combined.as_of,
        }
    }

    fn quality(
        &self,
        now: u64,
        members: &[(usize, View)],
        as_of: u64,
    ) -> (Quality, Option<String>) {
        if self.disagreeing {
            return (
                Quality::Unreliable,
                Some("the references disagree and none has a majority".into()),
            );
        }
        if let Some((index, _)) = members.iter().find(|(_, v)| !v.trusted)
            && members.iter().filter(|(_, v)| v.trusted).count() * 2 <= members.len()
        {
            let (name, reference) = &self.references[*index];
            let reason = match reference.beyond_limits() {
                Some(rate) => format!("by {name}, {}", self.parameters.rate_broken_by(rate)),
                None => format!("{name} contradicted its own bounds; rebuilding them"),
            };
            return (Quality::Unreliable, Some(reason));
        }
        let used: u64 = members.iter().map(|(i, _)| self.references[*i].1.used()).sum();
        if used < u64::from(self.parameters.first_exchanges) {
            let wanted = self.parameters.first_exchanges;
            return (
                Quality::Initializing,
                Some(format!("{used} of the first {wanted} exchanges")),
            );
        }
        let age = members[0].1.limits.longest.span(now.wrapping_sub(as_of));
        if age > self.parameters.stale_after {
            return (Quality::FreeRunning, Some(format!("no exchange with a reference for {age}")));
        }
        (Quality::Synchronized, None)
    }
}

fn distinct(numbers: impl Iterator<Item = usize>) -> usize {
    numbers.collect::<std::collections::BTreeSet<usize>>().len()
}

#[cfg(test)]
#[path = "ensemble_tests.rs"]
mod tests;
