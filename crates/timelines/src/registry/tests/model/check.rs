//! The invariants between operations and at the end.

use std::collections::{BTreeMap, BTreeSet};

use timevisor_protocols::channel::Place;

use super::naive::{CONFIGURED, Key, page_clock, sees};
use super::*;

/// The invariants between operations.
pub(super) fn check(registry: &Registry, model: &mut Model) {
    for clock in [CLOCK_A, CLOCK_B] {
        assert_eq!(registry.demand(clock), model.demand(clock));
    }
    let key_of = |id: TimelineId| -> Key {
        let timeline = &registry.groups[&id].timeline;
        let maker = match &timeline.reach {
            Reach::Private(tenant) => Some(tenant.clone()),
            Reach::Configured(_) => None,
        };
        (maker, timeline.name.to_string())
    };
    let mut on_page = BTreeMap::new();
    for owner in owners() {
        let mut entries = registry.entries(&owner);
        let clock = entries.next().unwrap();
        assert_eq!((clock.place, clock.name), (CLOCK, name(page_clock(&owner))));
        let mut keys = BTreeSet::new();
        for entry in entries {
            assert!(keys.insert(key_of(entry.timeline)));
            let Place { page, entry: index, generation } = entry.place;
            assert!(page == 0 && (1..=17).contains(&index) && generation > 0);
            let use_ = (generation, entry.timeline);
            let taken = on_page.insert((owner.clone(), page, index), use_);
            assert_eq!(taken, None, "two timelines in one entry");
        }
        assert_eq!(keys, model.shown(&owner));
    }
    for (at, use_) in &on_page {
        if model.on_page.get(at) == Some(use_) {
            continue;
        }
        assert!(model.generations.insert((at.clone(), use_.0)), "generation again");
        assert!(!model.on_page.contains_key(at), "taken from under a reader");
        if let Some(since) = model.freed.remove(at) {
            assert!(model.now >= since + QUARANTINE);
        }
    }
    for at in model.on_page.keys().filter(|at| !on_page.contains_key(at)) {
        model.freed.insert((*at).clone(), model.now);
    }
    model.on_page = on_page;

    let temporary: BTreeSet<Key> = registry.temporary.values().map(|id| key_of(*id)).collect();
    let made: BTreeSet<Key> =
        model.held.iter().map(|held| held.key.clone()).filter(|key| key.0.is_some()).collect();
    assert_eq!(temporary, made);
    assert_eq!(registry.groups.len(), CONFIGURED.len() + made.len());
    for (tenant, usage) in &registry.usage {
        let limits = registry.limits(tenant);
        assert!(usage.bindings <= limits.bindings && usage.timelines <= limits.timelines);
    }
    for (session, (tenant, ..)) in &model.sessions {
        let rows = registry.rows(*session, achieved(model.gives)).unwrap();
        let seen: Vec<(String, u32)> =
            rows.into_iter().map(|row| (row.name, row.members)).collect();
        let own = made.iter().filter(|key| key.0.as_ref() == Some(tenant));
        let shown = CONFIGURED.iter().filter(|text| sees(tenant, text));
        let mut all: Vec<Key> = own.cloned().collect();
        all.extend(shown.map(|text| (None, (*text).to_owned())));
        let mut expected: Vec<(String, u32)> = all
            .into_iter()
            .map(|key| {
                let members = model.held.iter().filter(|held| held.key == key).count();
                (key.1, u32::try_from(members).unwrap())
            })
            .collect();
        expected.sort();
        assert_eq!(seen, expected);
    }
}

/// After the last session, only what the operator configured is left.
pub(super) fn check_empty(registry: &Registry, now: Duration) {
    for clock in [CLOCK_A, CLOCK_B] {
        assert_eq!(registry.demand(clock), None);
    }
    assert!(registry.usage.is_empty() && registry.sessions.is_empty());
    assert!(registry.temporary.is_empty() && registry.tallies.is_empty());
    assert_eq!(
        registry.timelines().map(|(_, members)| members).collect::<Vec<_>>(),
        [0; CONFIGURED.len()]
    );
    for owner in owners() {
        assert_eq!(registry.entries(&owner).count(), 1);
    }
    for pages in registry.owners.values() {
        assert_eq!(pages.slots.ready(now + QUARANTINE, QUARANTINE), 17);
    }
}
