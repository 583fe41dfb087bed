use super::*;
use crate::member::Event as Told;
use crate::testing::{Net, at, id, name, now_at};

fn settings(voters: usize) -> Settings {
    Settings {
        voters: (0..voters).map(|voter| id(voter).name).collect(),
        term: Duration::from_millis(200),
        retry: Duration::from_millis(20),
    }
}

fn leaders(net: &Net) -> Vec<usize> {
    let leads = |index: &usize| net.members[*index].leads(name("lead"), &net.now);
    (0..net.members.len()).filter(leads).collect()
}

#[test]
fn one_leads_goes_on_leading_and_another_one_follows_when_its_lease_has_surely_ended() {
    let mut net = Net::new(3);
    for index in 0..2 {
        let now = net.now;
        net.members[index].stand(name("lead"), settings(3), &now).unwrap();
    }
    net.run_to(450);
    assert!(leaders(&net).is_empty(), "nobody knows what was granted before they joined");
    net.run_to(600);
    let [first] = leaders(&net).try_into().unwrap();
    let other = 1 - first;
    net.run_to(2_000);
    assert_eq!(leaders(&net), [first], "it renews its lease");
    net.isolate(first);
    let mut gap = 0;
    while leaders(&net) != [other] {
        assert!(leaders(&net).len() < 2);
        net.run_to(net.ms + 1);
        gap += 1;
    }
    assert!(gap > 100 && gap < 400, "{gap} ms");
    let ended = Told::Leader(Event::Ended { office: name("lead") });
    assert!(net.told_by(first).any(|event| *event == ended));
}

#[test]
fn who_resigns_frees_the_office_at_once() {
    let mut net = Net::new(3);
    let now = net.now;
    net.members[0].stand(name("lead"), settings(3), &now).unwrap();
    net.run_to(600);
    assert_eq!(leaders(&net), [0]);
    let now = net.now;
    net.members[0].resign(name("lead"), &now);
    net.members[1].stand(name("lead"), settings(3), &now).unwrap();
    net.flush();
    net.run_to(net.ms + 50);
    assert_eq!(leaders(&net), [1]);
}

#[test]
fn a_minority_elects_nobody() {
    let mut net = Net::new(3);
    let now = net.now;
    net.members[0].stand(name("lead"), settings(3), &now).unwrap();
    net.isolate(0);
    net.run_to(3_000);
    assert!(leaders(&net).is_empty());
}

#[test]
fn a_voter_keeps_its_promise_whoever_asks_for_less() {
    let mut offices = Offices::new(id(0), Duration::from_millis(500), 0);
    let vote = |offices: &mut Offices, to: usize, until: i64, ms: i64| {
        offices.vote(id(to), name("lead"), at(until), &now_at(ms).reading.unwrap())
    };
    assert!(vote(&mut offices, 1, 100, 0).is_err(), "just joined");
    assert_eq!(vote(&mut offices, 1, 1_200, 1_000), Ok(()));
    assert_eq!(vote(&mut offices, 2, 1_300, 1_001), Err(at(1_200)));
    // A shorter lease of the same member does not shorten what it was promised.
    assert_eq!(vote(&mut offices, 1, 1_100, 1_002), Ok(()));
    assert_eq!(vote(&mut offices, 2, 1_300, 1_150), Err(at(1_200)));
    assert_eq!(vote(&mut offices, 2, 1_300, 1_200), Err(at(1_200)), "not surely past");
    assert_eq!(vote(&mut offices, 2, 1_300, 1_201), Ok(()));
    assert!(vote(&mut offices, 2, 1_900, 1_300).is_err(), "longer than the longest");
}

#[test]
fn settings_by_which_nobody_can_be_elected_are_refused() {
    let mut offices = Offices::new(id(0), Duration::from_secs(1), 0);
    let mut stand = |settings| offices.stand(name("lead"), settings, &now_at(0));
    assert_eq!(stand(settings(0)), Err(LeaderError::NoVoters));
    let term = Duration::from_secs(2);
    let long = LeaderError::Term(Duration::from_secs(1));
    assert_eq!(stand(Settings { term, ..settings(3) }), Err(long));
    let voters = vec![id(1).name, id(1).name];
    assert_eq!(stand(Settings { voters, ..settings(3) }), Err(LeaderError::Twice(id(1).name)));
}

#[test]
fn a_release_gives_back_what_was_asked_for_before_it_and_nothing_later() {
    let mut offices = Offices::new(id(0), Duration::from_millis(500), 0);
    let now = now_at(1_000);
    let reading = now_at(0).reading.unwrap();
    offices.follow(&reading);
    let vote = |offices: &mut Offices, to: usize, until: i64| {
        offices.vote(id(to), name("lead"), at(until), &now.reading.unwrap())
    };
    assert_eq!(vote(&mut offices, 1, 1_300), Ok(()));
    let release = |until: i64| Message::Release { office: name("lead"), until: at(until) };
    // It was sent before the claim, and comes after it.
    offices.heard(id(1), Some(7), &release(1_200), &now, &mut Vec::new());
    assert_eq!(vote(&mut offices, 2, 1_400), Err(at(1_300)));
    offices.heard(id(1), Some(7), &release(1_300), &now, &mut Vec::new());
    assert_eq!(vote(&mut offices, 2, 1_400), Ok(()));
    // Who was away has forgotten what was granted in its name meanwhile.
    offices.rejoined();
    assert!(vote(&mut offices, 3, 1_450).is_err());
}
