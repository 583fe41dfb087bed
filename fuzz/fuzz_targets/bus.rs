//! Programs and other hosts in front of a bus: any frames of any connection, with names, handles and
//! messages that are often right. Nobody gets a message of a group that he is not in, or with another
//! sender than the member that sent it; what is kept stays within its limits; frames that the bus
//! writes can be read. A member gets any messages of others: it never fires without a commit that all
//! have voted for.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use timevisor_coordination::hub::{Hub, Out, Settings, Trust};
use timevisor_coordination::member::{self, Event, Member};
use timevisor_coordination::{Envelope, MemberId, Message, Name, Now, Reading};
use timevisor_fuzz::{decode, edited, log_scaled, pieces, some_bytes};
use timevisor_protocols::bus::between::{Between, PURPOSE};
use timevisor_protocols::bus::{Frames, FromBus, Sides, ToBus, VERSION, Who, frame};
use timevisor_protocols::nts::shared::Secret;
use timevisor_time::{Duration, Instant, Interval};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const NAMES: [&str; 5] = ["a", "b", "sealed", "", "not a name"];

fuzz_target!(|data: &[u8]| {
    if let [first, second, stream @ ..] = data {
        frames(stream, *first, *second);
    }
    decode(data, hub);
    decode(data, one_member);
});

/// How a stream is cut does not matter.
fn frames(stream: &[u8], first: u8, second: u8) {
    let take = |parts: &mut dyn Iterator<Item = &[u8]>| {
        let (mut frames, mut found) = (Frames::default(), Vec::new());
        for part in parts {
            frames.push(part);
            loop {
                match frames.take() {
                    Ok(Some(content)) => found.push(content.to_vec()),
                    Ok(None) => break,
                    Err(_) => return (found, true),
                }
            }
        }
        (found, false)
    };
    let whole = take(&mut std::iter::once(stream));
    assert_eq!(whole, take(&mut pieces(stream, first, second)));
    for content in whole.0 {
        if let Ok(said) = ToBus::decode(&content) {
            assert_eq!(said.encode(), content);
        }
    }
}

fn secret() -> Secret {
    Secret::parse(SECRET).expect("64 digits")
}

fn name(u: &mut Unstructured) -> Result<String> {
    Ok((*u.choose(&NAMES)?).to_owned())
}

fn who(u: &mut Unstructured) -> Result<Who> {
    Ok(Who { name: name(u)?, incarnation: u.int_in_range(0..=3)? })
}

fn message(u: &mut Unstructured) -> Result<Vec<u8>> {
    let who = who(u)?;
    let Ok(name) = who.name.parse() else { return Ok(some_bytes(u)?.to_vec()) };
    let from = MemberId { name, incarnation: who.incarnation };
    let payload = some_bytes(u)?.to_vec();
    let message = Message::Publication { topic: Name::TAI, payload };
    let bytes = Envelope { from, sequence: 1, stamp: None, message }.encode();
    if u.arbitrary()? { edited(u, &bytes) } else { Ok(bytes) }
}

fn to_bus(u: &mut Unstructured) -> Result<ToBus> {
    let handle = u.int_in_range(0..=3)?;
    Ok(match u.int_in_range(0..=8)? {
        0 => ToBus::Hello { version: u.int_in_range(0..=VERSION)?, client: name(u)? },
        1 | 2 => ToBus::Join {
            handle,
            group: name(u)?,
            who: who(u)?,
            timeline: "tai".to_owned(),
            requirement: None,
            lease_ms: u.arbitrary()?,
        },
        3 => ToBus::Prove { handle, proof: u.arbitrary()? },
        4 => ToBus::Alive {
            handle,
            achieved: Some(Sides { below_ns: u.arbitrary()?, above_ns: 1 }),
            met: u.arbitrary()?,
        },
        5 => ToBus::Leave { handle },
        6 => ToBus::Subscribe { handle, topic: name(u)?, history: u.arbitrary()? },
        7 => ToBus::Unsubscribe { handle, topic: name(u)? },
        _ => ToBus::Send {
            handle,
            to: if u.arbitrary()? { Some(who(u)?) } else { None },
            topic: if u.arbitrary()? { Some(name(u)?) } else { None },
            message: message(u)?,
        },
    })
}

/// Frames of three connections, of two users and of the network.
fn hub(u: &mut Unstructured) -> Result<()> {
    let keys = [("sealed".parse().expect("a name"), secret())].into();
    let settings = Settings { history: 4, history_bytes: 1000, members: 3, ..Settings::default() };
    let mut hub = Hub::new(settings, keys, 1);
    let trusts = [Trust::Local(1), Trust::Local(2), Trust::Remote];
    let mut now = Duration::ZERO;
    // The groups that each connection was let into, by handle.
    let mut joining: BTreeMap<(u64, u32), String> = BTreeMap::new();
    let mut joined: BTreeMap<(u64, u32), String> = BTreeMap::new();
    let mut count = 0;
    for connection in 0..3 {
        hub.connected(connection, trusts[connection as usize]);
    }
    while !u.is_empty() && count < 200 {
        count += 1;
        let connection = u.int_in_range(0..=2)?;
        let mut out = Vec::new();
        match u.int_in_range(0..=5)? {
            0 => {
                now = now + Duration::from_millis(log_scaled(u)?);
                hub.on_timer(now, &mut out);
            }
            1 => {
                let group = name(u)?.parse().unwrap_or(Name::TAI);
                let said = Between::Message { to: None, topic: None, message: message(u)? };
                let key = secret().message_key(PURPOSE);
                let bytes = said.seal(&key, group.as_str(), u.int_in_range(1..=3)?, count);
                let bytes = if u.arbitrary()? { edited(u, &bytes)? } else { bytes };
                hub.heard(group, &bytes, now, &mut out);
                // Nobody has said who its members are.
                assert!(!out.iter().any(|it| matches!(it, Out::Frame(..))));
            }
            2 => {
                let bytes = some_bytes(u)?;
                hub.frame(connection, bytes, [7; 16], now, &mut out);
            }
            _ => {
                let said = to_bus(u)?;
                if let ToBus::Join { handle, group, .. } = &said {
                    joining.insert((connection, *handle), group.clone());
                }
                hub.frame(connection, &said.encode(), [7; 16], now, &mut out);
            }
        }
        for action in out {
            let Out::Frame(to, bytes) = action else { continue };
            let said = FromBus::decode(&bytes).expect("the bus writes what can be read");
            assert_eq!(frame(&bytes).len(), bytes.len() + 4);
            match said {
                FromBus::Joined { handle, .. } => {
                    let group = joining[&(to, handle)].clone();
                    // Nobody here can prove anything.
                    assert!(group != "sealed" && to != 2, "{group} was joined by {to}");
                    joined.insert((to, handle), group);
                }
                FromBus::Deliver { handles, message, .. } => {
                    let sender = Envelope::sender(&message).expect("checked");
                    assert!(NAMES[..3].contains(&sender.name.as_str()));
                    for handle in handles {
                        assert!(joined.contains_key(&(to, handle)), "a stranger gets a message");
                    }
                }
                _ => {}
            }
        }
        assert!(hub.groups().all(|(_, members)| members <= 3));
    }
    Ok(())
}

fn now(ms: i64) -> Now {
    let elapsed = Duration::from_millis(ms);
    let estimate = Instant::from_bits(0) + elapsed;
    let interval = Interval::around(estimate, Duration::from_micros(10));
    Now { elapsed, reading: Some(Reading { interval, estimate, origin: 0, met: true }) }
}

/// One member gets anything from others.
fn one_member(u: &mut Unstructured) -> Result<()> {
    let id = |name: &str| MemberId { name: name.parse().expect("a name"), incarnation: 1 };
    let own = id("a");
    let mut member = Member::new(own, member::Settings::default(), 1);
    let (mut ms, mut agreed, mut votes) = (0, BTreeSet::new(), BTreeSet::new());
    let mut count = 0;
    while !u.is_empty() && count < 200 {
        count += 1;
        ms += log_scaled(u)? % 50;
        let now = now(ms);
        let bytes = some_bytes(u)?;
        if let Ok(envelope) = Envelope::decode(bytes) {
            if let Message::Decide { id, commits: true } = &envelope.message {
                agreed.insert(*id);
            }
            member.heard(envelope, &now);
        }
        member.on_timer(&now);
        for event in member.events() {
            match event {
                Event::Asked(proposal) => {
                    member.answer(proposal.id, true, &now);
                    votes.insert(proposal.id);
                }
                Event::Fire { id, .. } | Event::Released { id, .. } => {
                    assert!(agreed.contains(&id) && votes.contains(&id));
                }
                _ => {}
            }
        }
        member.outbox();
        let _ = member.next(&now);
    }
    Ok(())
}
