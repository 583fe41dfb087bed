//! Where timelines are on pages, and when the daemon has to write.

use timevisor_protocols::channel::Place;

use super::*;

const fn place(page: u32, entry: u16, generation: u16) -> Place {
    Place { page, entry, generation }
}

#[test]
fn a_pages_own_clock_needs_no_entry() {
    let mut registry = registry();
    let mut at = |session, text| registry.try_bind(session, &reading(text)).unwrap().place;
    assert_eq!(at(7, "tai"), place(0, 0, 0));
    assert_eq!(at(7, "utc"), place(0, 1, 1));
    assert_eq!(at(1, "utc"), place(0, 0, 0));
    assert_eq!(at(1, "tai"), place(0, 1, 1));
    let ids = |owner: &Owner| -> Vec<TimelineId> {
        registry.entries(owner).map(|entry| entry.timeline).collect()
    };
    assert_eq!(ids(&Owner::Host), [TimelineId::TAI, TimelineId::UTC]);
    assert_eq!(ids(&Owner::vm("web")), [TimelineId::UTC, TimelineId::TAI]);
    assert_eq!(ids(&Owner::vm("none")), []);
}

#[test]
fn every_change_of_the_entries_is_counted_and_nothing_else() {
    let mut registry = registry();
    let mut seen = (registry.changes(&Owner::Host).unwrap(), Vec::new());
    seen.1 = registry.entries(&Owner::Host).collect();
    let mut changed = |registry: &Registry| {
        let now: Vec<Entry> = registry.entries(&Owner::Host).collect();
        let changes = registry.changes(&Owner::Host).unwrap();
        let (counted, differs) = (changes > seen.0, now != seen.1);
        assert_eq!(counted, differs);
        seen = (changes, now);
        counted
    };
    registry.try_bind(7, &reading("tai")).unwrap();
    assert!(!changed(&registry));
    // Entry 0 shows the tightest requirement of all members, including those in VMs.
    registry.try_bind(1, &requiring("tai", 300)).unwrap();
    assert!(changed(&registry));
    assert_eq!(seen_requirement(&registry), Some(300));
    registry.try_bind(7, &requiring("tai", 400)).unwrap();
    assert!(!changed(&registry));
    registry.close(1, NOW);
    assert!(changed(&registry));
    assert_eq!(seen_requirement(&registry), Some(400));
    let grid = registry.try_bind(7, &reading("grid")).unwrap();
    assert!(changed(&registry));
    registry.try_bind(8, &reading("grid")).unwrap();
    assert!(!changed(&registry));
    registry.unbind(7, Binding { binding: grid.binding }, NOW).unwrap();
    assert!(!changed(&registry));
    registry.close(8, NOW);
    assert!(changed(&registry));
}

fn seen_requirement(registry: &Registry) -> Option<u64> {
    registry.entries(&Owner::Host).next().unwrap().required_half_width_ns
}

#[test]
fn clients_timelines_leave_room_for_the_operators() {
    let mut registry = registry();
    // 17 entries; `tai`, `elapsed`, `grid`, `zone` and `eight` may still come.
    for i in 0..12 {
        registry.try_bind(1, &making(&format!("t{i}"), Epoch::Local)).unwrap();
    }
    assert_eq!(registry.refusal(1, &making("more", Epoch::Local)), ProblemCode::Unavailable);
    registry.try_bind(1, &reading("grid")).unwrap();
    assert_eq!(registry.refusal(1, &making("more", Epoch::Local)), ProblemCode::Unavailable);
    registry.try_bind(1, &reading("t3")).unwrap();
}

#[test]
fn a_freed_entry_comes_back_after_the_quarantine_as_another_generation() {
    let mut setup = setup();
    setup.parameters.host_pages = 1;
    let mut registry = Registry::new(setup, NOW).unwrap();
    registry.add_owner(&Owner::Host, Scale::Tai, 41);
    registry.open(7, Tenant::User(7), &Owner::Host).unwrap();
    // 5 of the operator's may still come (utc, elapsed, grid, eight, zone).
    for i in 0..12 {
        registry.try_bind(7, &making(&format!("t{i}"), Epoch::Local)).unwrap();
    }
    registry.unbind(7, Binding { binding: 4 }, NOW).unwrap();
    let more = making("more", Epoch::Local);
    let almost = NOW + Duration::from_millis(999);
    assert!(registry.bind_at(7, &more, almost).is_err());
    let utc = registry.bind_at(7, &reading("utc"), almost).unwrap();
    assert_eq!(utc.place, place(0, 13, 42));
    let after = NOW + Duration::from_secs(1);
    assert_eq!(registry.bind_at(7, &more, after).unwrap().place, place(0, 14, 42));
    // Once around: the freed entry is the last in the queue.
    registry.bind_at(7, &reading("grid"), after).unwrap();
    registry.bind_at(7, &reading("zone"), after).unwrap();
    registry.bind_at(7, &reading("elapsed"), after).unwrap();
    registry.open(8, Tenant::User(8), &Owner::Host).unwrap();
    assert_eq!(registry.bind_at(8, &reading("eight"), after).unwrap().place, place(0, 4, 43));
}

#[test]
fn a_page_that_was_taken_over_tells_every_reader() {
    let mut registry = registry();
    let grid = registry.try_bind(7, &reading("grid")).unwrap();
    let tai = registry.try_bind(7, &reading("tai")).unwrap();
    registry.try_bind(1, &reading("grid")).unwrap();
    let before = registry.changes(&Owner::Host).unwrap();
    let events = registry.move_owner(&Owner::Host);
    let moved = |binding, place| (7, Event::Moved { binding, place });
    assert_eq!(events, [moved(grid.binding, place(0, 1, 2)), moved(tai.binding, place(0, 0, 0))]);
    assert!(registry.changes(&Owner::Host).unwrap() > before);
    assert_eq!(registry.entries(&Owner::Host).nth(1).unwrap().place, place(0, 1, 2));
    assert_eq!(registry.entries(&Owner::vm("web")).nth(1).unwrap().place, place(0, 1, 1));
    assert_eq!(registry.move_owner(&Owner::vm("none")), []);
}

#[test]
fn a_page_that_is_gone_takes_its_sessions_along() {
    let mut registry = registry();
    registry.try_bind(1, &requiring("grid", 200)).unwrap();
    assert_eq!(registry.remove_owner(&Owner::vm("web"), NOW), [1]);
    assert_eq!(registry.remove_owner(&Owner::vm("web"), NOW), [0; 0]);
    assert_eq!(registry.demand(CLOCK_B), None);
    assert_eq!(registry.changes(&Owner::vm("web")), None);
    assert_eq!(registry.refusal(1, &reading("tai")), ProblemCode::Session);
    assert!(registry.open(2, Tenant::vm("web"), &Owner::vm("web")).is_err());
}
