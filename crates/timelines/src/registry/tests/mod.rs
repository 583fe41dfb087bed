//! The registry as a whole: rules one by one here, random sequences against a naive model in
//! `model`, and how the work grows with the members in `scale`.

mod masters;
mod model;
mod places;
mod scale;

use timevisor_protocols::channel::{
    Achieved, Bind, Binding, Bound, Confidence, Epoch, Event, Problem, ProblemCode, Requirement,
    Update,
};

use super::*;
use crate::quality::Demand;
use crate::setup::Configured;

const NOW: Duration = Duration::from_secs(100);
const CLOCK_A: ClockId = ClockId(0);
const CLOCK_B: ClockId = ClockId(1);

fn name(text: &str) -> TimelineName {
    text.parse().unwrap()
}

/// +-`ns`, a sigma of a fourth of it, and a tick of 1 ns.
fn gives(ns: u64) -> impl Fn(&Timeline, &Owner) -> Achieved {
    move |_, _| Achieved {
        below_ns: Some(ns),
        above_ns: Some(ns),
        estimated_error_ns: Some(ns / 4),
        resolution_ns: Some(1),
    }
}

fn setup() -> Setup {
    let only = |tenant: Tenant| Visibility::Tenants([tenant].into());
    let configured =
        |text: &str, origin, visibility| Configured { name: name(text), origin, visibility };
    Setup {
        timelines: vec![
            configured("grid", Origin::Tai(CLOCK_B), Visibility::Everyone),
            configured("eight", Origin::Utc(CLOCK_A), only(Tenant::User(8))),
            configured(
                "zone",
                Origin::Local { master: Some(Tenant::User(7)) },
                Visibility::Everyone,
            ),
        ],
        ..Setup::new(CLOCK_A)
    }
}

/// Sessions 7 and 8 of users of these numbers on the host, 1 in the VM `web`, whose page is UTC.
fn registry() -> Registry {
    let mut registry = Registry::new(setup(), NOW).unwrap();
    registry.add_owner(&Owner::Host, Scale::Tai, 0);
    registry.add_owner(&Owner::vm("web"), Scale::Utc, 0);
    registry.open(7, Tenant::User(7), &Owner::Host).unwrap();
    registry.open(8, Tenant::User(8), &Owner::Host).unwrap();
    registry.open(1, Tenant::vm("web"), &Owner::vm("web")).unwrap();
    registry
}

fn reading(timeline: &str) -> Bind {
    Bind { timeline: timeline.to_owned(), create: None, requirement: None, best_effort: false }
}

fn making(timeline: &str, epoch: Epoch) -> Bind {
    Bind { create: Some(epoch), ..reading(timeline) }
}

fn requiring(timeline: &str, ns: u64) -> Bind {
    Bind { requirement: Some(Requirement::within_ns(ns)), ..reading(timeline) }
}

impl Registry {
    /// Binds when 1000 ns are achieved and 100 ns are achievable.
    fn bind_at(&mut self, session: u64, bind: &Bind, now: Duration) -> Result<Bound, Problem> {
        self.bind(session, bind, now, gives(1000), gives(100))
    }

    fn try_bind(&mut self, session: u64, bind: &Bind) -> Result<Bound, Problem> {
        self.bind_at(session, bind, NOW)
    }

    fn refusal(&mut self, session: u64, bind: &Bind) -> ProblemCode {
        let before = self.clone();
        let problem = self.try_bind(session, bind).unwrap_err();
        assert_eq!(*self, before);
        assert!(!problem.next_step.is_empty());
        problem.code
    }
}

#[test]
fn names_are_the_operators_then_ones_own() {
    let mut registry = registry();
    let code = |registry: &mut Registry, session, bind: &Bind| registry.refusal(session, bind);
    assert_eq!(code(&mut registry, 7, &reading("cell7")), ProblemCode::NotFound);
    assert_eq!(code(&mut registry, 7, &reading("not this")), ProblemCode::BadRequest);
    assert_eq!(code(&mut registry, 9, &reading("tai")), ProblemCode::Session);
    // Another tenant's: unknown for reading, reserved for creating.
    assert_eq!(code(&mut registry, 7, &reading("eight")), ProblemCode::NotFound);
    assert_eq!(code(&mut registry, 7, &making("eight", Epoch::Utc)), ProblemCode::Exists);
    assert_eq!(code(&mut registry, 7, &making("grid", Epoch::Utc)), ProblemCode::Exists);
    assert_eq!(registry.try_bind(7, &making("grid", Epoch::Tai)).unwrap().epoch, Epoch::Tai);
    assert_eq!(registry.try_bind(8, &reading("eight")).unwrap().epoch, Epoch::Utc);

    // Two tenants, one name, two timelines.
    let seven = registry.try_bind(7, &making("cell7", Epoch::Local)).unwrap();
    let eight = registry.try_bind(8, &making("cell7", Epoch::Tai)).unwrap();
    assert_ne!(seven.place, eight.place);
    assert_eq!(registry.refusal(7, &making("cell7", Epoch::Tai)), ProblemCode::Exists);
    assert_eq!(registry.try_bind(7, &reading("cell7")).unwrap().place, seven.place);
    let names = |registry: &Registry, session| -> Vec<(String, u32, bool)> {
        let rows = registry.rows(session, gives(1)).unwrap().into_iter();
        rows.map(|row| (row.name, row.members, row.temporary)).collect()
    };
    let row = |text: &str, members, temporary| (text.to_owned(), members, temporary);
    assert_eq!(
        names(&registry, 7),
        [
            row("cell7", 2, true),
            row("elapsed", 0, false),
            row("grid", 1, false),
            row("tai", 0, false),
            row("utc", 0, false),
            row("zone", 0, false),
        ]
    );
    assert_eq!(names(&registry, 8).len(), 7);
    assert_eq!(names(&registry, 1).len(), 5);
}

#[test]
fn a_requirement_is_admitted_by_what_can_be_had() {
    let mut registry = registry();
    let problem = registry.try_bind(7, &requiring("tai", 99)).unwrap_err();
    assert_eq!(problem.code, ProblemCode::CannotBeMet);
    assert_eq!(problem.achievable.unwrap().below_ns, Some(100));
    assert_eq!(registry.refusal(7, &requiring("tai", 0)), ProblemCode::BadRequest);
    let fine = Requirement { resolution_ns: Some(1), ..Requirement::within_ns(100) };
    let bound = registry.try_bind(7, &Bind { requirement: Some(fine), ..reading("tai") }).unwrap();
    // It can be met, but is not yet.
    assert_eq!((bound.met, bound.achieved.below_ns), (false, Some(1000)));
    let best = Bind { best_effort: true, ..requiring("tai", 5) };
    assert!(!registry.try_bind(7, &best).unwrap().met);
    assert_eq!(registry.demand(CLOCK_A).unwrap().half_width_ns, Some(5));
    assert!(registry.try_bind(7, &reading("tai")).unwrap().met);
}

#[test]
fn a_refused_update_leaves_the_old_requirement() {
    let mut registry = registry();
    let binding = registry.try_bind(7, &requiring("tai", 500)).unwrap().binding;
    let update = |binding, ns, best_effort| Update {
        binding,
        requirement: Some(Requirement::within_ns(ns)),
        best_effort,
    };
    let before = registry.clone();
    for (bad, code) in [
        (update(binding, 50, false), ProblemCode::CannotBeMet),
        (update(binding, 0, true), ProblemCode::BadRequest),
        (update(binding + 1, 500, false), ProblemCode::NotFound),
    ] {
        let problem = registry.update(7, &bad, gives(1000), gives(100)).unwrap_err();
        assert_eq!((problem.code, &registry), (code, &before));
    }
    // Bindings belong to their session.
    let other = registry.update(8, &update(binding, 500, true), gives(1000), gives(100));
    assert_eq!(other.unwrap_err().code, ProblemCode::NotFound);

    let bound = registry.update(7, &update(binding, 50, true), gives(40), gives(100)).unwrap();
    assert!(bound.met);
    assert_eq!(registry.demand(CLOCK_A).unwrap().half_width_ns, Some(50));
    let nothing = Update { binding, requirement: None, best_effort: false };
    registry.update(7, &nothing, gives(1000), gives(100)).unwrap();
    assert_eq!(registry.demand(CLOCK_A), None);
}

#[test]
fn quotas_count_over_all_sessions_of_a_tenant() {
    let mut setup = setup();
    setup.parameters.user.bindings = 3;
    setup.parameters.user.timelines = 1;
    let mut registry = Registry::new(setup, NOW).unwrap();
    registry.add_owner(&Owner::Host, Scale::Tai, 0);
    for (session, uid) in [(1, 7), (2, 7), (3, 8), (4, 0)] {
        let limits = registry.open(session, Tenant::User(uid), &Owner::Host).unwrap();
        assert_eq!(limits.bindings, if uid == 0 { 4096 } else { 3 });
    }
    assert!(registry.open(4, Tenant::User(0), &Owner::Host).is_err());
    assert!(registry.open(5, Tenant::User(0), &Owner::vm("nowhere")).is_err());
    registry.try_bind(1, &making("a", Epoch::Local)).unwrap();
    assert_eq!(registry.refusal(2, &making("b", Epoch::Local)), ProblemCode::Quota);
    registry.try_bind(2, &reading("a")).unwrap();
    registry.try_bind(2, &reading("tai")).unwrap();
    assert_eq!(registry.refusal(1, &reading("tai")), ProblemCode::Quota);
    registry.try_bind(3, &making("b", Epoch::Local)).unwrap();
    // A closing session releases what it had, and a timeline lives as long as somebody is bound.
    registry.close(1, NOW);
    assert_eq!(registry.refusal(2, &making("b", Epoch::Local)), ProblemCode::Quota);
    registry.unbind(2, Binding { binding: 1 }, NOW).unwrap();
    registry.try_bind(2, &making("b", Epoch::Local)).unwrap();
}

#[test]
fn clients_are_told_edges_only() {
    let mut registry = registry();
    let tight = registry.try_bind(7, &requiring("tai", 200)).unwrap();
    let loose = registry.try_bind(1, &requiring("tai", 5000)).unwrap();
    registry.try_bind(8, &reading("tai")).unwrap();
    assert_eq!((tight.met, loose.met), (false, true));
    let edges = |registry: &mut Registry, ns| -> Vec<(u64, u64, bool)> {
        let events = registry.quality(gives(ns)).into_iter();
        events
            .map(|(session, event)| match event {
                Event::Quality { binding, met, achieved } => {
                    assert_eq!(achieved.below_ns, Some(ns));
                    (session, binding, met)
                }
                other => panic!("{other:?}"),
            })
            .collect()
    };
    assert_eq!(edges(&mut registry, 1000), []);
    assert_eq!(edges(&mut registry, 200), [(7, tight.binding, true)]);
    assert_eq!(edges(&mut registry, 199), []);
    assert_eq!(edges(&mut registry, 6000), [(7, tight.binding, false), (1, loose.binding, false)]);
    // Each owner's pages have their own quality.
    let worse_in_the_vm = |timeline: &Timeline, owner: &Owner| {
        let ns = if *owner == Owner::Host { 100 } else { 9000 };
        gives(ns)(timeline, owner)
    };
    let events = registry.quality(worse_in_the_vm);
    assert_eq!(events.iter().map(|(session, _)| *session).collect::<Vec<_>>(), [7]);
}

#[test]
fn disruptions_reach_the_members_of_a_clock_or_timeline() {
    let mut registry = registry();
    registry.try_bind(7, &reading("tai")).unwrap();
    registry.try_bind(8, &making("mine", Epoch::Utc)).unwrap();
    registry.try_bind(1, &reading("grid")).unwrap();
    registry.try_bind(1, &making("here", Epoch::Local)).unwrap();
    let sessions = |events: Vec<(u64, Event)>| -> Vec<u64> {
        assert!(events.iter().all(|(_, event)| matches!(event, Event::Disrupted { .. })));
        events.into_iter().map(|(session, _)| session).collect()
    };
    assert_eq!(sessions(registry.clock_disrupted(CLOCK_A)), [7, 8]);
    assert_eq!(sessions(registry.clock_disrupted(CLOCK_B)), [1]);
    assert_eq!(sessions(registry.timeline_disrupted(TimelineId::TAI)), [7]);
    assert_eq!(sessions(registry.timeline_disrupted(TimelineId(999))), [0; 0]);
}

#[test]
fn a_row_shows_the_tightest_requirement_as_it_was_asked() {
    let mut registry = registry();
    let probable = |ns| Requirement {
        confidence: Confidence::Probability(0.95),
        ..Requirement::within_ns(ns)
    };
    let mut require = |requirement| {
        let bind = Bind { requirement: Some(requirement), best_effort: true, ..reading("tai") };
        registry.try_bind(8, &bind).unwrap();
        let rows = registry.rows(7, gives(1)).unwrap();
        rows.into_iter().find(|row| row.name == "tai").unwrap().required
    };
    assert_eq!(require(probable(300)), Some(probable(300)));
    assert_eq!(require(probable(200)), Some(probable(200)));
    let uneven = Requirement { below_ns: 9, ..Requirement::within_ns(1000) };
    assert_eq!(require(uneven), Some(uneven));
    assert_eq!(require(Requirement::within_ns(10)), Some(uneven));
    let demand = Demand { half_width_ns: Some(9), sigma_ns: Some(52) };
    assert_eq!(registry.demand(CLOCK_A), Some(demand));
}
