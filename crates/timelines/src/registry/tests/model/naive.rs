//! The naive model: lists of sessions and bindings, searched for every answer.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::quality::Needs;

/// `None` for the operator's.
pub(super) type Key = (Option<Tenant>, String);

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) session: u64,
    pub(super) binding: u64,
    pub(super) key: Key,
    pub(super) epoch: Epoch,
    pub(super) requirement: Option<Requirement>,
    pub(super) met: bool,
}

pub(super) type At = (Owner, u32, u16);

pub(super) struct Model {
    pub(super) now: Duration,
    pub(super) gives: [u64; 2],
    pub(super) sessions: BTreeMap<u64, (Tenant, Owner, u64)>,
    pub(super) held: Vec<Held>,
    /// When each entry was freed; what is on it; every generation it had with its timeline.
    pub(super) freed: BTreeMap<At, Duration>,
    pub(super) on_page: BTreeMap<At, (u16, TimelineId)>,
    pub(super) generations: BTreeSet<(At, u16)>,
}

/// The operator's timelines: epoch, clock, visible to the user 7, to 8, to the VM.
pub(super) fn configured(text: &str) -> Option<(Epoch, Option<ClockId>, [bool; 3])> {
    Some(match text {
        "tai" => (Epoch::Tai, Some(CLOCK_A), [true; 3]),
        "utc" => (Epoch::Utc, Some(CLOCK_A), [true; 3]),
        "grid" => (Epoch::Tai, Some(CLOCK_B), [true; 3]),
        "eight" => (Epoch::Utc, Some(CLOCK_A), [false, true, false]),
        "zone" | "elapsed" => (Epoch::Local, None, [true; 3]),
        _ => return None,
    })
}

pub(super) const CONFIGURED: [&str; 6] = ["tai", "utc", "elapsed", "grid", "eight", "zone"];

pub(super) fn sees(tenant: &Tenant, text: &str) -> bool {
    let i = (0..3).find(|i| who(*i).0 == *tenant).unwrap();
    configured(text).unwrap().2[i]
}

pub(super) fn clock_of(key: &Key, epoch: Epoch) -> Option<ClockId> {
    match configured(&key.1) {
        Some((_, clock, _)) => clock,
        None => (epoch != Epoch::Local).then_some(CLOCK_A),
    }
}

pub(super) fn page_clock(owner: &Owner) -> &'static str {
    if *owner == Owner::Host { "tai" } else { "utc" }
}

pub(super) fn achieved(gives: [u64; 2]) -> impl Fn(&Timeline, &Owner) -> Achieved {
    move |timeline, _| quality_of(timeline.clock(), gives)
}

pub(super) fn quality_of(clock: Option<ClockId>, gives: [u64; 2]) -> Achieved {
    let ns = clock.map_or(1, |clock| gives[clock.0]);
    let known = (ns > 0).then_some(ns);
    Achieved { below_ns: known, above_ns: known, estimated_error_ns: known, resolution_ns: known }
}

pub(super) fn meets(requirement: Option<Requirement>, achieved: &Achieved) -> bool {
    requirement.is_none_or(|requirement| Needs::of(&requirement).unwrap().met_by(achieved))
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            now: NOW,
            gives: [100, 100],
            sessions: BTreeMap::new(),
            held: Vec::new(),
            freed: BTreeMap::new(),
            on_page: BTreeMap::new(),
            generations: BTreeSet::new(),
        }
    }

    pub(super) fn tenant(&self, held: &Held) -> &Tenant {
        &self.sessions[&held.session].0
    }

    pub(super) fn owner(&self, held: &Held) -> &Owner {
        &self.sessions[&held.session].1
    }

    pub(super) fn shown(&self, owner: &Owner) -> BTreeSet<Key> {
        let here = self.held.iter().filter(|held| self.owner(held) == owner);
        let clock: Key = (None, page_clock(owner).to_owned());
        here.map(|held| held.key.clone()).filter(|key| *key != clock).collect()
    }

    pub(super) fn current(&self, held: &Held) -> Achieved {
        let zone_is_undefined = held.key.1 == "zone"
            && !self
                .held
                .iter()
                .any(|other| other.key.1 == "zone" && *self.tenant(other) == Tenant::User(7));
        if zone_is_undefined {
            return Achieved::default();
        }
        quality_of(clock_of(&held.key, held.epoch), self.gives)
    }

    /// What a bind must lead to: the key and epoch bound to, or the code of the refusal.
    pub(super) fn judge(&self, session: u64, bind: &Bind) -> Result<(Key, Epoch), ProblemCode> {
        let (tenant, owner, _) = self.sessions.get(&session).ok_or(ProblemCode::Session)?;
        if bind.requirement.is_some_and(|requirement| requirement.validate().is_err()) {
            return Err(ProblemCode::BadRequest);
        }
        let mine = || self.held.iter().filter(|held| self.tenant(held) == tenant);
        let private: Key = (Some(tenant.clone()), bind.timeline.clone());
        let (key, epoch, new) = if let Some((epoch, ..)) = configured(&bind.timeline) {
            match (sees(tenant, &bind.timeline), bind.create) {
                (false, Some(_)) => return Err(ProblemCode::Exists),
                (false, None) => return Err(ProblemCode::NotFound),
                (true, Some(other)) if other != epoch => return Err(ProblemCode::Exists),
                (true, _) => ((None, bind.timeline.clone()), epoch, false),
            }
        } else if let Some(held) = mine().find(|held| held.key == private) {
            if bind.create.is_some_and(|epoch| epoch != held.epoch) {
                return Err(ProblemCode::Exists);
            }
            (private, held.epoch, false)
        } else {
            (private, bind.create.ok_or(ProblemCode::NotFound)?, true)
        };
        let limits = parameters().limits(tenant);
        let made: BTreeSet<&Key> =
            mine().map(|held| &held.key).filter(|key| key.0.is_some()).collect();
        if mine().count() >= limits.bindings as usize
            || new && made.len() >= limits.timelines as usize
        {
            return Err(ProblemCode::Quota);
        }
        let shown = self.shown(owner);
        if !shown.contains(&key) && bind.timeline != page_clock(owner) {
            let resting = self
                .freed
                .iter()
                .filter(|((at, ..), since)| at == owner && self.now < **since + QUARANTINE);
            let ready = 17 - shown.len() - resting.count();
            let to_come = CONFIGURED.iter().filter(|text| {
                **text != page_clock(owner) && !shown.contains(&(None, (**text).to_owned()))
            });
            let kept = if key.0.is_some() { to_come.count() } else { 0 };
            if ready <= kept {
                return Err(ProblemCode::Unavailable);
            }
        }
        let achievable = quality_of(clock_of(&key, epoch), [ACHIEVABLE_NS; 2]);
        if !bind.best_effort && !meets(bind.requirement, &achievable) {
            return Err(ProblemCode::CannotBeMet);
        }
        Ok((key, epoch))
    }

    pub(super) fn demand(&self, clock: ClockId) -> Option<Demand> {
        let on_it = self.held.iter().filter(|held| clock_of(&held.key, held.epoch) == Some(clock));
        Demand::tightest(
            on_it.filter_map(|held| held.requirement).map(|one| Needs::of(&one).unwrap()),
        )
    }

    /// Changes since clients were last notified, as (session, binding, met).
    pub(super) fn edges(&mut self) -> BTreeSet<(u64, u64, bool)> {
        let now: Vec<bool> =
            self.held.iter().map(|held| meets(held.requirement, &self.current(held))).collect();
        let changed = self.held.iter_mut().zip(now).filter(|(held, met)| held.met != *met);
        changed
            .map(|(held, met)| {
                held.met = met;
                (held.session, held.binding, met)
            })
            .collect()
    }
}
