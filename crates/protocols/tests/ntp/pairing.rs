//! Which stamps come out with which exchange: basic and interleaved answers that are lost, late,
//! doubled or reordered, and requests whose stamp nobody reported.

use std::collections::BTreeSet;

use proptest::prelude::*;
use timevisor_protocols::ntp::{Client, Config, Exchange, Outcome, RejectReason, Request};
use timevisor_time::Duration;

use crate::interleaved::World;
use crate::server::{answer, secs, stamps, utc};

fn basic() -> Client<u64> {
    Client::new(Config::default(), Duration::ZERO).expect("the default is valid")
}

/// The next request, at the time it is due.
fn ask(client: &mut Client<u64>, now: &mut Duration) -> Request {
    for _ in 0..3 {
        *now = (*now).max(client.poll_at());
        let random = now.floor_nanos().unsigned_abs() + 1;
        if let Some(request) = client.on_timer(*now, random) {
            return request;
        }
    }
    panic!("no request");
}

fn exchange(outcome: Outcome) -> Exchange {
    let Outcome::Exchange(exchange) = outcome else { panic!("no exchange: {outcome:?}") };
    exchange
}

#[test]
fn a_basic_answer_comes_with_the_stamps_of_its_request() {
    let (mut client, mut now) = (basic(), Duration::ZERO);
    for id in 1..=3 {
        let request = ask(&mut client, &mut now);
        client.sent(40 + id);
        let bytes = answer(&request, now).to_bytes();
        let pair = exchange(client.on_datagram(now, &bytes, utc(now), |ta| (ta, 90 + id)));
        assert_eq!((pair.ta, pair.tf, pair.response.request_id), (40 + id, 90 + id, id));
    }
}

#[test]
fn a_stamp_may_be_completed_after_the_send() {
    let (mut client, mut now) = (basic(), Duration::ZERO);
    assert_eq!(client.sent_mut(), None, "nothing was sent");
    let request = ask(&mut client, &mut now);
    client.sent(5);
    *client.sent_mut().expect("it is in flight") += 1;
    let bytes = answer(&request, now).to_bytes();
    let pair = exchange(client.on_datagram(now, &bytes, utc(now), |ta| (ta, 9)));
    assert_eq!((pair.ta, pair.tf), (6, 9));
    assert_eq!(client.sent_mut(), None, "it was answered");
}

#[test]
fn without_a_stamp_the_answer_counts_and_no_exchange_comes_of_it() {
    let (mut client, mut now) = (basic(), Duration::ZERO);
    let request = ask(&mut client, &mut now);
    let bytes = answer(&request, now).to_bytes();
    let outcome = client.on_datagram(now, &bytes, utc(now), |_| panic!("there is no stamp"));
    assert_eq!(outcome, Outcome::Kept { answered: request.id });
    assert_eq!((client.counters().accepted, client.reach().to_string()), (1, "1".to_owned()));
}

#[test]
fn a_lost_requests_stamp_goes_with_it() {
    let (mut client, mut now) = (basic(), Duration::ZERO);
    let lost = ask(&mut client, &mut now);
    client.sent(lost.id);
    now = client.poll_at();
    assert_eq!(client.on_timer(now, 1), None, "the timeout comes before the next request");
    assert_eq!(client.sent_mut(), None, "the lost one's stamp is gone");
    let next = ask(&mut client, &mut now);
    let bytes = answer(&next, now).to_bytes();
    let outcome = client.on_datagram(now, &bytes, utc(now), stamps);
    assert_eq!(outcome, Outcome::Kept { answered: next.id });
    // A stamp that is reported when nothing is in flight is nobody's.
    client.sent(99);
    assert_eq!(client.sent_mut(), None);
}

#[test]
fn refused_answers_ask_for_no_stamps() {
    let (mut client, mut now) = (basic(), Duration::ZERO);
    let request = ask(&mut client, &mut now);
    client.sent(request.id);
    let mut packet = answer(&request, now);
    packet.stratum = 16;
    let never = |_| panic!("a refused answer");
    let outcome = client.on_datagram(now, &packet.to_bytes(), utc(now), never);
    assert_eq!(outcome, Outcome::Rejected(RejectReason::Stratum));
    assert_eq!(client.sent_mut(), None);
    let late = answer(&request, now).to_bytes();
    let outcome = client.on_datagram(now + secs(0.1), &late, utc(now), never);
    assert_eq!(outcome, Outcome::Rejected(RejectReason::Duplicate));
}

#[test]
fn an_interleaved_answer_comes_with_the_stamps_of_the_previous_request() {
    let mut world = World::new();
    let mut pairs = vec![];
    for _ in 0..6 {
        let request = world.ask();
        let bytes = world.serve(&request, true);
        if let Outcome::Exchange(pair) = world.deliver(&bytes) {
            pairs.push((request.id, pair.response.request_id, pair.ta, pair.tf));
        }
    }
    let expected = [(1, 1), (2, 2), (4, 3), (5, 4), (6, 5)]
        .map(|(answered, id)| (answered, id, stamps(id).0, stamps(id).1));
    assert_eq!(pairs, expected, "and 3 was kept for the answer to 4");
}

#[test]
fn an_interleaved_exchange_without_a_stamp_is_left_out_alone() {
    let mut world = World::new();
    let mut seen = vec![];
    for n in 1..=7 {
        let request = if n == 4 { world.ask_without_stamp() } else { world.ask() };
        let bytes = world.serve(&request, true);
        if let Outcome::Exchange(pair) = world.deliver(&bytes) {
            seen.push(pair.response.request_id);
        }
    }
    assert_eq!(seen, [1, 2, 3, 5, 6]);
}

#[derive(Clone, Debug)]
enum Fate {
    Answered {
        measured: bool,
    },
    RequestLost,
    AnswerLost,
    /// An old answer arrives first, or again.
    Old(usize),
    Unstamped,
    Restart,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => any::<bool>().prop_map(|measured| Fate::Answered { measured }),
        1 => Just(Fate::RequestLost),
        1 => Just(Fate::AnswerLost),
        2 => (0usize..5).prop_map(Fate::Old),
        1 => Just(Fate::Unstamped),
        1 => Just(Fate::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Whatever happens to packets and stamps, an exchange has the stamps of its own request, and
    /// comes out once.
    #[test]
    fn an_exchange_has_its_own_stamps_and_comes_out_once(fates in prop::collection::vec(fate(), 1..60)) {
        let mut world = World::new();
        let (mut answers, mut out) = (Vec::<Vec<u8>>::new(), BTreeSet::new());
        for fate in fates {
            let unstamped = matches!(fate, Fate::Unstamped);
            let request = if unstamped { world.ask_without_stamp() } else { world.ask() };
            let mut deliveries = Vec::new();
            match fate {
                Fate::RequestLost => {}
                Fate::AnswerLost => answers.push(world.serve(&request, true)),
                Fate::Answered { measured } => deliveries.push(world.serve(&request, measured)),
                Fate::Old(back) => {
                    deliveries.extend(answers.iter().rev().nth(back).cloned());
                    deliveries.push(world.serve(&request, true));
                    deliveries.extend(deliveries.last().cloned());
                }
                Fate::Unstamped => deliveries.push(world.serve(&request, true)),
                Fate::Restart => world.client.restart(world.now),
            }
            for bytes in deliveries {
                // `World::deliver` compares the stamps with those of the request that the exchange
                // names.
                if let Outcome::Exchange(pair) = world.deliver(&bytes) {
                    prop_assert!(out.insert(pair.response.request_id), "twice: {pair:?}");
                }
                answers.push(bytes);
            }
        }
    }
}
