//! Random sequences of operations against a naive model that keeps lists and searches them.

mod check;
mod naive;

use std::collections::BTreeSet;

use proptest::prelude::*;

use self::check::{check, check_empty};
use self::naive::{CONFIGURED, Held, Model, achieved, clock_of, meets, quality_of};
use super::*;

const QUARANTINE: Duration = Duration::from_secs(1);
const ACHIEVABLE_NS: u64 = 50;

#[derive(Clone, Debug)]
enum Op {
    Open {
        session: u64,
        who: usize,
    },
    Close {
        session: u64,
    },
    Bind {
        session: u64,
        bind: Bind,
    },
    Update {
        session: u64,
        binding: u64,
        requirement: Option<Requirement>,
        best_effort: bool,
    },
    Unbind {
        session: u64,
        binding: u64,
    },
    Wait {
        ms: i64,
    },
    /// The quality of each clock from now on; 0 if unknown.
    Give {
        ns: [u64; 2],
    },
    Quality,
    Move {
        owner: usize,
    },
    Restart,
}

fn owners() -> [Owner; 2] {
    [Owner::Host, Owner::vm("web")]
}

fn who(i: usize) -> (Tenant, Owner) {
    let [host, web] = owners();
    match i {
        0 => (Tenant::User(7), host),
        1 => (Tenant::User(8), host),
        _ => (Tenant::vm("web"), web),
    }
}

fn requirements() -> impl Strategy<Value = Option<Requirement>> {
    let one = (30u64..300, 30u64..300, prop_oneof![4 => Just(None), 1 => Just(Some(0.9))]);
    let one = one.prop_map(|(below_ns, above_ns, p)| Requirement {
        // Sometimes malformed.
        below_ns: if below_ns == 299 { 0 } else { below_ns },
        above_ns,
        resolution_ns: None,
        confidence: p.map_or(Confidence::WorstCase, Confidence::Probability),
    });
    proptest::option::weighted(0.7, one)
}

fn binds() -> impl Strategy<Value = Bind> {
    let names = prop_oneof![
        1 => proptest::sample::select(CONFIGURED.to_vec())
            .prop_map(str::to_owned),
        3 => (0..20u32).prop_map(|i| format!("t{i}")),
    ];
    let epochs = proptest::sample::select(vec![Epoch::Tai, Epoch::Utc, Epoch::Local]);
    let create = proptest::option::weighted(0.8, epochs);
    (names, create, requirements(), any::<bool>()).prop_map(
        |(timeline, create, requirement, best_effort)| Bind {
            timeline,
            create,
            requirement,
            best_effort,
        },
    )
}

fn ops() -> impl Strategy<Value = Op> {
    let update = (0..5u64, 1..12u64, requirements(), any::<bool>());
    prop_oneof![
        4 => (0..5u64, 0..3usize).prop_map(|(session, who)| Op::Open { session, who }),
        1 => (0..5u64).prop_map(|session| Op::Close { session }),
        20 => (0..5u64, binds()).prop_map(|(session, bind)| Op::Bind { session, bind }),
        4 => update.prop_map(|(session, binding, requirement, best_effort)| Op::Update {
            session, binding, requirement, best_effort
        }),
        6 => (0..5u64, 1..12u64).prop_map(|(session, binding)| Op::Unbind { session, binding }),
        1 => (1..1500i64).prop_map(|ms| Op::Wait { ms }),
        2 => [0..300u64, 0..300u64].prop_map(|ns| Op::Give { ns }),
        3 => Just(Op::Quality),
        1 => (0..2usize).prop_map(|owner| Op::Move { owner }),
        1 => Just(Op::Restart),
    ]
}

fn parameters() -> Parameters {
    let mut parameters = Parameters { host_pages: 1, ..Parameters::default() };
    (parameters.user.bindings, parameters.user.timelines) = (9, 5);
    (parameters.vm.bindings, parameters.vm.timelines) = (30, 20);
    parameters
}

fn apply(registry: &mut Registry, model: &mut Model, op: Op) {
    let before = registry.clone();
    let (now, gives) = (model.now, achieved(model.gives));
    let achievable = achieved([ACHIEVABLE_NS; 2]);
    let refused = match op {
        Op::Open { session, who: i } => {
            let (tenant, owner) = who(i);
            let opened = registry.open(session, tenant.clone(), &owner);
            assert_eq!(opened.is_ok(), !model.sessions.contains_key(&session));
            model.sessions.entry(session).or_insert((tenant, owner, 1));
            opened.is_err()
        }
        Op::Close { session } => {
            model.held.retain(|held| held.session != session);
            let open = model.sessions.remove(&session).is_some();
            assert_eq!(registry.close(session, now), open);
            !open
        }
        Op::Bind { session, bind } => {
            let expected = model.judge(session, &bind);
            let result = registry.bind(session, &bind, now, gives, achievable);
            match (result, expected) {
                (Ok(bound), Ok((key, epoch))) => {
                    let next = &mut model.sessions.get_mut(&session).unwrap().2;
                    assert_eq!((bound.binding, bound.epoch), (*next, epoch));
                    *next += 1;
                    let requirement = bind.requirement;
                    let binding = bound.binding;
                    let met = bound.met;
                    model.held.push(Held { session, binding, key, epoch, requirement, met });
                    let held = model.held.last().unwrap();
                    assert_eq!(bound.achieved, model.current(held));
                    assert_eq!(met, meets(requirement, &bound.achieved));
                    let entry = registry.entries(model.owner(held)).find(|entry| {
                        entry.place == bound.place && entry.name.as_str() == bound.timeline
                    });
                    assert!(entry.is_some(), "bound to where it is not");
                    false
                }
                (Err(problem), Err(code)) => {
                    assert_eq!(problem.code, code, "{problem}");
                    true
                }
                (result, expected) => panic!("{result:?} instead of {expected:?}"),
            }
        }
        Op::Update { session, binding, requirement, best_effort } => {
            let update = Update { binding, requirement, best_effort };
            let result = registry.update(session, &update, gives, achievable);
            let at = |held: &Held| (held.session, held.binding) == (session, binding);
            let found = model.held.iter().position(at);
            let valid = requirement.is_none_or(|requirement| requirement.validate().is_ok());
            let admitted = valid
                && found.is_some_and(|i| {
                    let held = &model.held[i];
                    let can = quality_of(clock_of(&held.key, held.epoch), [ACHIEVABLE_NS; 2]);
                    best_effort || meets(requirement, &can)
                });
            assert_eq!(result.is_ok(), admitted);
            if let (Ok(bound), Some(i)) = (&result, found) {
                model.held[i].requirement = requirement;
                model.held[i].met = bound.met;
                assert_eq!(bound.met, meets(requirement, &model.current(&model.held[i])));
            }
            result.is_err()
        }
        Op::Unbind { session, binding } => {
            let count = model.held.len();
            model.held.retain(|held| (held.session, held.binding) != (session, binding));
            let result = registry.unbind(session, Binding { binding }, now);
            assert_eq!(result.is_ok(), model.held.len() < count);
            result.is_err()
        }
        Op::Wait { ms } => {
            model.now += Duration::from_millis(ms);
            true
        }
        Op::Give { ns } => {
            model.gives = ns;
            true
        }
        Op::Quality => {
            let mut seen = BTreeSet::new();
            for (session, event) in registry.quality(gives) {
                match event {
                    Event::Quality { binding, met, .. } => {
                        assert!(seen.insert((session, binding, met)));
                    }
                    Event::Disrupted { binding } => {
                        let told = |held: &Held| {
                            (held.session, held.binding, held.key.1.as_str())
                                == (session, binding, "zone")
                        };
                        assert!(model.held.iter().any(told));
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(seen, model.edges());
            false
        }
        Op::Move { owner } => {
            let owner = &owners()[owner];
            let events = registry.move_owner(owner);
            let here = model.held.iter().filter(|held| model.owner(held) == owner).count();
            assert_eq!(events.len(), here);
            // The same entries, treated as new uses that start now.
            model.on_page.retain(|at, _| at.0 != *owner);
            false
        }
        Op::Restart => {
            let [_, web] = owners();
            let ended = registry.remove_owner(&web, now);
            let here = |session: &u64| model.sessions[session].1 == web;
            assert_eq!(ended, model.sessions.keys().copied().filter(here).collect::<Vec<_>>());
            model.held.retain(|held| !ended.contains(&held.session));
            model.sessions.retain(|session, _| !ended.contains(session));
            registry.add_owner(&web, Scale::Utc, 0);
            // A fresh page.
            model.on_page.retain(|at, _| at.0 != web);
            model.freed.retain(|at, _| at.0 != web);
            model.generations.retain(|(at, _)| at.0 != web);
            false
        }
    };
    if refused {
        assert_eq!(*registry, before);
    }
    check(registry, model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn the_registry_does_as_the_naive_model(ops in proptest::collection::vec(ops(), 1..120)) {
        let setup = Setup { parameters: parameters(), ..setup() };
        let mut registry = Registry::new(setup, NOW).unwrap();
        registry.add_owner(&Owner::Host, Scale::Tai, 0);
        registry.add_owner(&Owner::vm("web"), Scale::Utc, 0);
        let mut model = Model::new();
        for (session, who) in (0..3).zip(0..3) {
            apply(&mut registry, &mut model, Op::Open { session, who });
        }
        for op in ops {
            apply(&mut registry, &mut model, op);
        }
        for session in 0..5 {
            apply(&mut registry, &mut model, Op::Close { session });
        }
        check_empty(&registry, model.now);
    }
}
