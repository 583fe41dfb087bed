//! Who may be served as which VM: by table, with the attacks.

use super::*;

const MALLORY: u32 = 4001;
const ALICE: u32 = 4002;

fn process(uid: u32) -> Claimant {
    Claimant { uid: Some(uid), namespace: UserNamespace::Own, gained_rights: false }
}

fn contained(uid: u32) -> Claimant {
    Claimant { namespace: UserNamespace::Other, ..process(uid) }
}

/// `web` is prepared for root, `db` for Alice, `box` for Alice in a container, `conf` configured
/// for Alice and prepared for root, `rt` has a reservation only.
fn rules(discover: Discover) -> Rules {
    let alice = Owner::user(ALICE);
    let bound = |all: &[(&str, Owner)]| all.iter().map(|(n, o)| ((*n).to_owned(), *o)).collect();
    Rules {
        discover,
        configured: bound(&[("conf", alice)]),
        prepared: bound(&[
            ("web", Owner::ROOT),
            ("db", alice),
            ("box", Owner { namespace: UserNamespace::Other, ..alice }),
            ("conf", Owner::ROOT),
        ]),
        reserved: [String::from("rt"), String::from("db")].into(),
    }
}

fn every_discover() -> [Discover; 5] {
    let users = Discover::Users([MALLORY].into());
    [Discover::Nothing, Discover::Prepared, Discover::Root, users, Discover::All]
}

#[test]
fn a_bound_name_is_its_owners_in_every_mode() {
    for discover in every_discover() {
        let rules = rules(discover);
        let served = |claimant, name| rules.discovered(&claimant, name).is_ok();
        for (name, owner) in [
            ("web", process(0)),
            ("db", process(ALICE)),
            ("box", contained(ALICE)),
            ("conf", process(ALICE)),
            ("rt", process(0)),
        ] {
            assert!(served(owner, name), "{name} of {owner:?}, {:?}", rules.discover);
            let others = [process(0), process(ALICE), process(MALLORY), contained(0)];
            let more = [contained(ALICE), contained(MALLORY), process(u32::MAX)];
            for other in others.into_iter().chain(more).filter(|other| *other != owner) {
                let refused = rules.discovered(&other, name);
                assert!(
                    matches!(refused, Err(Reason::NotTheOwner { .. })),
                    "{name} claimed by {other:?}, {:?}: {refused:?}",
                    rules.discover
                );
                // Root who adds a process by hand is told the same.
                assert_eq!(rules.added(&other, name), refused);
            }
        }
    }
}

#[test]
fn an_unbound_name_is_for_whom_discover_says() {
    // In this order: root, Alice, Mallory, root of a container whose ids are the host's, Mallory in
    // a namespace of hers.
    let claimants =
        [process(0), process(ALICE), process(MALLORY), contained(0), contained(MALLORY)];
    let expected = [
        [false, false, false, false, false],
        [false, false, false, false, false],
        [true, false, false, false, false],
        [false, false, true, false, false],
        [true, true, true, true, true],
    ];
    for (discover, expected) in every_discover().into_iter().zip(expected) {
        let rules = rules(discover);
        for (claimant, expected) in claimants.iter().zip(expected) {
            let said = rules.discovered(claimant, "free");
            assert_eq!(said.is_ok(), expected, "{claimant:?}, {:?}: {said:?}", rules.discover);
            assert!(rules.added(claimant, "free").is_ok(), "root may add any");
        }
    }
}

/// A user who maps herself to root in a namespace of hers is still herself to the kernel.
#[test]
fn mapped_root_is_no_root() {
    let rules = rules(Discover::Root);
    let mapped = contained(MALLORY);
    assert!(rules.discovered(&mapped, "web").is_err());
    assert_eq!(
        rules.discovered(&mapped, "free"),
        Err(Reason::Stranger(Owner { uid: MALLORY, namespace: UserNamespace::Other }))
    );
}

#[test]
fn a_process_between_users_is_nobodys() {
    for discover in every_discover() {
        let rules = rules(discover);
        for name in ["web", "db", "free"] {
            let several = Claimant { uid: None, ..process(0) };
            assert_eq!(rules.discovered(&several, name), Err(Reason::SeveralUsers));
            // A set-user-id program of root's, with arguments and files of its starter's.
            let gained = Claimant { gained_rights: true, ..process(0) };
            assert_eq!(rules.discovered(&gained, name), Err(Reason::GainedRights));
            assert_eq!(rules.added(&gained, name), Err(Reason::GainedRights));
        }
    }
}

#[test]
fn nothing_of_strangers_need_be_looked_at() {
    let may = |discover| {
        let rules = rules(discover);
        [0, ALICE, MALLORY].map(|uid| rules.may_own(uid))
    };
    assert_eq!(may(Discover::Prepared), [true, true, false]);
    assert_eq!(may(Discover::Root), [true, true, false]);
    assert_eq!(may(Discover::Users([MALLORY].into())), [true, true, true]);
    assert_eq!(may(Discover::All), [true, true, true]);
    let none = Rules::default();
    assert!(!none.may_own(0) && !none.may_own(MALLORY));
    let reserved = Rules { reserved: ["rt".to_owned()].into(), ..Rules::default() };
    assert!(reserved.may_own(0) && !reserved.may_own(MALLORY));
}

/// Whoever can be served under some name passes the first look.
#[test]
fn the_first_look_loses_nobody() {
    for discover in every_discover() {
        let rules = rules(discover);
        for uid in [0, ALICE, MALLORY, 1, u32::MAX] {
            for claimant in [process(uid), contained(uid)] {
                let served = ["web", "db", "box", "conf", "rt", "free"]
                    .iter()
                    .any(|name| rules.discovered(&claimant, name).is_ok());
                assert!(!served || rules.may_own(uid), "{claimant:?}, {:?}", rules.discover);
            }
        }
    }
}

#[test]
fn a_refusal_says_what_root_can_do() {
    let step = |claimant, name: &str| {
        let reason = rules(Discover::Prepared).discovered(&claimant, name).unwrap_err();
        (reason.to_string(), reason.next_step(name))
    };
    let (reason, next) = step(process(MALLORY), "web");
    assert_eq!(reason, "the name belongs to user 0, the process to user 4001");
    assert!(next.contains("`timevisor vm args --name web --user 4001`"), "{next}");
    let (_, next) = step(process(0), "conf");
    assert!(next.contains("[guests.vm.conf] user to 0"), "{next}");
    let (reason, next) = step(contained(ALICE), "free");
    assert!(reason.contains("user 4002 in another user namespace"), "{reason}");
    assert!(next.contains("--user 4002 --user-namespace other"), "{next}");
    assert!(next.contains("[guests] discover"), "{next}");
}
