use super::*;
use crate::member::Event as Told;
use crate::testing::{Net, at, id, now_at};

fn plan(ms: i64, members: usize) -> Plan {
    Plan {
        at: at(ms),
        late_at_most: Duration::from_millis(10),
        participants: (0..members).map(id).collect(),
        payload: b"grip".to_vec(),
    }
}

fn fires(net: &Net) -> Vec<usize> {
    let fired = net.told.iter().filter(|(_, event)| matches!(event, Told::Fire { .. }));
    fired.map(|(by, _)| *by).collect()
}

fn last_outcome(net: &Net, by: usize) -> Outcome {
    let all = net.told_by(by).filter_map(|event| match event {
        Told::Outcome(outcome) => Some(outcome.clone()),
        _ => None,
    });
    all.last().unwrap()
}

#[test]
fn all_fire_at_the_time_and_all_know_it() {
    let mut net = Net::new(3);
    net.members[0].propose(plan(100, 3), &net.now).unwrap();
    net.flush();
    let decided =
        net.told.iter().filter(|(_, it)| matches!(it, Told::Decided { commits: true, .. }));
    assert_eq!(decided.count(), 3, "decided long before its time");
    net.run_to(99);
    assert!(fires(&net).is_empty());
    net.run_to(101);
    assert_eq!(fires(&net), [0, 1, 2]);
    for by in 0..3 {
        let outcome = last_outcome(&net, by);
        assert_eq!((outcome.agreed(), outcome.fired.len()), (Some(true), 3));
    }
}

#[test]
fn one_vote_against_it_and_nobody_fires() {
    let mut net = Net::new(3);
    net.accepts[2] = Some(false);
    net.members[0].propose(plan(100, 3), &net.now).unwrap();
    net.run_to(300);
    assert!(fires(&net).is_empty());
    assert!((0..3).all(|by| last_outcome(&net, by).agreed() == Some(false)));
}

#[test]
fn who_never_answers_has_voted_against_it() {
    let mut net = Net::new(2);
    net.accepts[1] = None;
    net.members[0].propose(plan(100, 2), &net.now).unwrap();
    net.run_to(300);
    assert!(fires(&net).is_empty());
    assert!((0..2).all(|by| last_outcome(&net, by).agreed() == Some(false)));
    // Decided half way, not at the last moment.
    let aborted =
        net.told.iter().position(|(_, it)| matches!(it, Told::Decided { commits: false, .. }));
    assert!(aborted.is_some());
}

/// The two generals: who is cut off from the commit to the time does not fire, and everybody learns it.
#[test]
fn who_cannot_know_does_not_fire_and_all_know_that_in_the_end() {
    let mut net = Net::new(3);
    net.accepts = vec![None; 3];
    let proposal = net.members[0].propose(plan(100, 3), &net.now).unwrap();
    net.flush();
    let now = net.now;
    net.members[1].answer(proposal, true, &now);
    net.members[2].answer(proposal, true, &now);
    // The votes arrive; the commit does not reach member 2.
    for other in 0..2 {
        net.cut.insert((other, 2));
    }
    net.run_to(200);
    assert_eq!(fires(&net), [0, 1]);
    let expected = Why::Undecided;
    net.run_to(5_000);
    let alone = last_outcome(&net, 2);
    assert_eq!(alone.quiet, [(id(2), expected)]);
    assert_eq!((alone.agreed(), alone.unknown.len()), (None, 2));
    // Its report has reached the others, and theirs reach it when they can.
    assert_eq!(last_outcome(&net, 0).quiet, [(id(2), expected)]);
    net.cut.clear();
    net.run_to(7_000);
    for by in 0..3 {
        let outcome = last_outcome(&net, by);
        assert_eq!((outcome.fired.len(), outcome.quiet.len()), (2, 1));
        assert_eq!((outcome.agreed(), outcome.unknown.len()), (None, 0));
    }
}

#[test]
fn another_participant_tells_the_decision_of_a_proposer_that_is_gone() {
    let mut net = Net::new(3);
    net.cut.insert((0, 2));
    net.accepts = vec![None; 3];
    let proposal = net.members[0].propose(plan(200, 3), &net.now).unwrap();
    net.cut.clear();
    net.run_to(20);
    let now = net.now;
    net.members[1].answer(proposal, true, &now);
    net.members[2].answer(proposal, true, &now);
    net.cut.insert((0, 2));
    net.flush();
    net.run_to(25);
    net.isolate(0);
    net.run_to(300);
    assert_eq!(fires(&net), [0, 1, 2], "member 1 told member 2");
}

#[test]
fn a_clock_that_fails_or_changes_does_not_fire() {
    for spoil in [
        |now: &mut Now| now.reading = None,
        |now: &mut Now| now.reading.as_mut().unwrap().origin = 8,
        |now: &mut Now| now.reading.as_mut().unwrap().met = false,
    ] {
        let own = id(1);
        let mut proposals = Proposals::new(own, Settings::default());
        let proposal = Proposal {
            id: ProposalId { proposer: id(0), number: 0 },
            at: at(100),
            origin: 7,
            decide_by: at(50),
            late_at_most: Duration::from_millis(10),
            participants: vec![id(0), own],
            payload: Vec::new(),
        };
        let (id_of, mut out) = (proposal.id, Vec::new());
        proposals.heard(id(0), &Message::Propose(Box::new(proposal)), &now_at(0), &mut out);
        proposals.answer(id_of, true, &now_at(0), &mut out);
        let decide = Message::Decide { id: id_of, commits: true };
        proposals.heard(id(0), &decide, &now_at(1), &mut out);
        for ms in 2..2_000 {
            let mut now = now_at(ms);
            spoil(&mut now);
            proposals.on_timer(&now, &mut out);
        }
        assert!(!out.iter().any(|it| matches!(it, Action::Tell(Event::Fire { .. }))));
        let report = Message::Report { id: id_of, report: Report::Quiet(Why::Clock) };
        assert!(out.contains(&Action::Send(To::All, report)));
    }
}

#[test]
fn who_wakes_up_too_late_does_not_fire() {
    let mut net = Net::new(2);
    net.members[0].propose(plan(100, 2), &net.now).unwrap();
    net.flush();
    // 10 ms late is allowed, and said; 20 ms is not.
    for (index, ms) in [(0, 108), (1, 120)] {
        net.members[index].on_timer(&now_at(ms));
    }
    net.flush();
    net.run_to(200);
    assert_eq!(fires(&net), [0]);
    let late = net.told_by(0).find_map(|event| match event {
        Told::Fire { late, .. } => Some(late.floor_nanos()),
        _ => None,
    });
    assert!((7_989_999..=7_990_001).contains(&late.unwrap()), "{late:?}");
    assert_eq!(last_outcome(&net, 0).quiet, [(id(1), Why::Late)]);
}

#[test]
fn what_cannot_be_proposed_is_refused_with_a_reason() {
    let mut proposals = Proposals::new(id(0), Settings::default());
    let mut out = Vec::new();
    let mut propose = |plan, now: &Now| proposals.propose(plan, now, &mut out);
    let now = now_at(0);
    assert_eq!(propose(plan(1, 2), &now), Err(ProposeError::TooSoon(Duration::from_millis(2))));
    let unknown = Now { reading: None, ..now };
    assert_eq!(propose(plan(100, 2), &unknown), Err(ProposeError::Clock));
    let others = Plan { participants: vec![id(1)], ..plan(100, 2) };
    assert_eq!(propose(others, &now), Err(ProposeError::NotAmongThem));
    let long = Plan { payload: vec![0; MAX_PAYLOAD + 1], ..plan(100, 2) };
    assert_eq!(propose(long, &now), Err(ProposeError::TooLong(MAX_PAYLOAD + 1)));
    let many = Plan { participants: (0..5_000).map(id).collect(), ..plan(100, 2) };
    assert_eq!(propose(many, &now), Err(ProposeError::TooManyParticipants(5_000)));
    assert!(out.is_empty());
}

/// A report that comes late corrects the outcome although others are never heard again.
#[test]
fn an_outcome_is_corrected_with_everything_that_is_heard() {
    let own = id(0);
    let mut proposals = Proposals::new(own, Settings::default());
    let mut out = Vec::new();
    let proposal = proposals.propose(plan(100, 3), &now_at(0), &mut out).unwrap();
    for other in [1, 2] {
        let vote = Message::Vote { id: proposal, accepts: true, attempt: 0 };
        proposals.heard(id(other), &vote, &now_at(1), &mut out);
    }
    (90..3_000).for_each(|ms| proposals.on_timer(&now_at(ms), &mut out));
    let outcomes = |out: &[Action]| -> Vec<Outcome> {
        out.iter()
            .filter_map(|it| match it {
                Action::Tell(Event::Outcome(outcome)) => Some(outcome.clone()),
                _ => None,
            })
            .collect()
    };
    assert_eq!(outcomes(&out).last().unwrap().unknown, [id(1), id(2)]);
    let report = Message::Report { id: proposal, report: Report::Quiet(Why::Undecided) };
    proposals.heard(id(1), &report, &now_at(3_001), &mut out);
    let last = outcomes(&out).pop().unwrap();
    assert_eq!((last.quiet, last.unknown), (vec![(id(1), Why::Undecided)], vec![id(2)]));
}
