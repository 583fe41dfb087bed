//! Local timelines: when they begin, and the lives that a master gives them.

use super::*;

fn source(registry: &Registry, text: &str) -> Source {
    let mut timelines = registry.timelines().map(|(timeline, _)| timeline);
    timelines.find(|timeline| timeline.name() == name(text)).unwrap().source()
}

#[test]
fn a_local_timeline_begins_when_it_is_made() {
    let mut setup = setup();
    setup.timelines[0].origin = Origin::Local { master: None };
    let mut registry = Registry::new(setup, NOW).unwrap();
    registry.add_owner(&Owner::Host, Scale::Tai, 0);
    registry.open(7, Tenant::User(7), &Owner::Host).unwrap();
    assert_eq!(source(&registry, "grid"), Source::Local { life: LifeId(1), zero: NOW });
    let later = NOW + Duration::from_secs(1);
    let first = registry.bind_at(7, &making("cell", Epoch::Local), later).unwrap();
    assert_eq!(source(&registry, "cell"), Source::Local { life: LifeId(2), zero: later });
    // Joining it later changes nothing.
    let much_later = NOW + Duration::from_secs(9);
    registry.bind_at(7, &making("cell", Epoch::Local), much_later).unwrap();
    assert_eq!(source(&registry, "cell"), Source::Local { life: LifeId(2), zero: later });
    // When created again, it is another one.
    registry.close(7, much_later);
    registry.open(9, Tenant::User(7), &Owner::Host).unwrap();
    let again = registry.bind_at(9, &making("cell", Epoch::Local), much_later).unwrap();
    assert_eq!(source(&registry, "cell"), Source::Local { life: LifeId(3), zero: much_later });
    assert_ne!(again.place, first.place);
}

#[test]
fn a_master_defines_its_timeline_while_it_is_bound() {
    let mut registry = registry();
    let at = |secs| NOW + Duration::from_secs(secs);
    // A follower may come first: it is admitted by the future quality, and told the current one.
    let follower = registry.try_bind(1, &requiring("zone", 100)).unwrap();
    assert_eq!((follower.met, follower.achieved), (false, Achieved::default()));
    assert_eq!(source(&registry, "zone"), Source::Undefined);
    assert_eq!(registry.quality(gives(1)), []);

    // The master's refused binding starts nothing.
    assert_eq!(registry.refusal(7, &requiring("zone", 1)), ProblemCode::CannotBeMet);
    let before = registry.changes(&Owner::vm("web")).unwrap();
    let master = registry.bind_at(7, &requiring("zone", 2000), at(1)).unwrap();
    assert!(master.met);
    assert_eq!(source(&registry, "zone"), Source::Local { life: LifeId(1), zero: at(1) });
    assert!(registry.changes(&Owner::vm("web")).unwrap() > before);
    // Its first life causes no step for anybody.
    assert!(!registry.has_disrupted());
    let events = registry.quality(gives(1));
    assert!(matches!(events[..], [(1, Event::Quality { met: true, .. })]), "{events:?}");

    // A second binding of the master changes nothing, nor does its end.
    let second = registry.bind_at(7, &reading("zone"), at(2)).unwrap();
    registry.unbind(7, Binding { binding: second.binding }, at(3)).unwrap();
    assert_eq!(source(&registry, "zone"), Source::Local { life: LifeId(1), zero: at(1) });

    registry.close(7, at(4));
    assert_eq!(source(&registry, "zone"), Source::Undefined);
    let row = registry.rows(1, gives(1)).unwrap().pop().unwrap();
    assert_eq!((row.name.as_str(), row.achieved), ("zone", Achieved::default()));
    let events = registry.quality(gives(1));
    assert!(matches!(events[..], [(1, Event::Quality { met: false, .. })]), "{events:?}");

    // In another life, members that stayed are notified; the master that starts it and those that
    // left are not.
    registry.try_bind(8, &reading("zone")).unwrap();
    registry.open(70, Tenant::User(7), &Owner::Host).unwrap();
    registry.bind_at(70, &reading("zone"), at(5)).unwrap();
    assert_eq!(source(&registry, "zone"), Source::Local { life: LifeId(2), zero: at(5) });
    registry.close(8, at(5));
    assert!(registry.has_disrupted());
    let events = registry.quality(gives(1));
    let binding = follower.binding;
    assert_eq!(events[0], (1, Event::Disrupted { binding }));
    assert!(matches!(events[1..], [(1, Event::Quality { met: true, .. })]), "{events:?}");
    assert_eq!(registry.quality(gives(1)), []);
}
