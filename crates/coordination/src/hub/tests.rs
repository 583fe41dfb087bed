use super::*;
use crate::testing::name;
use crate::{Message, To};
use timevisor_protocols::bus::Info;
use zeroize::Zeroizing;

const LEASE_MS: u32 = 1_000;

struct Rig {
    hub: Hub,
    now: Duration,
    out: Vec<Out>,
}

fn ms(ms: i64) -> Duration {
    Duration::from_millis(ms)
}

impl Rig {
    fn new(settings: Settings) -> Self {
        let secret = |byte: u8| {
            let mut bytes = [byte; 32];
            bytes[0] = 1;
            Secret::new(Zeroizing::new(bytes))
        };
        let keys = [(name("sealed"), secret(7))].into();
        Self { hub: Hub::new(settings, keys, 99), now: Duration::ZERO, out: Vec::new() }
    }

    fn connect(&mut self, connection: Connection) {
        self.hub.connected(connection, Trust::Local(1000));
        self.send(connection, &ToBus::Hello { version: VERSION, client: "test".into() });
        assert_eq!(self.frames(connection).len(), 1);
    }

    fn send(&mut self, connection: Connection, frame: &ToBus) {
        let random = [u8::try_from(connection).unwrap(); 16];
        self.hub.frame(connection, &frame.encode(), random, self.now, &mut self.out);
    }

    fn join(&mut self, connection: Connection, handle: u32, group: &str, member: &str) {
        self.send(connection, &join(handle, group, member));
    }

    fn frames(&mut self, connection: Connection) -> Vec<FromBus> {
        let mut found = Vec::new();
        self.out.retain(|out| match out {
            Out::Frame(to, content) if *to == connection => {
                found.push(FromBus::decode(content).unwrap());
                false
            }
            _ => true,
        });
        found
    }

    fn run_to(&mut self, until: i64) {
        while self.now < ms(until) {
            self.now += ms(1);
            self.hub.on_timer(self.now, &mut self.out);
        }
    }
}

fn join(handle: u32, group: &str, member: &str) -> ToBus {
    ToBus::Join {
        handle,
        group: group.into(),
        who: Who { name: member.into(), incarnation: u64::from(handle) },
        timeline: "tai".into(),
        requirement: None,
        lease_ms: LEASE_MS,
    }
}

fn message(member: &str, incarnation: u64, text: &str) -> Vec<u8> {
    let from = MemberId { name: name(member), incarnation };
    let message = Message::Publication { topic: name("t"), payload: text.into() };
    Envelope { from, sequence: 1, stamp: None, message }.encode()
}

fn refusal(frames: &[FromBus]) -> Option<Refusal> {
    frames.iter().find_map(|frame| match frame {
        FromBus::Refused { refusal, .. } => Some(*refusal),
        _ => None,
    })
}

fn texts(frames: &[FromBus]) -> Vec<String> {
    let text = |frame: &FromBus| match frame {
        FromBus::Deliver { message, .. } => match Envelope::decode(message).unwrap().message {
            Message::Publication { payload, .. } => Some(String::from_utf8(payload).unwrap()),
            _ => None,
        },
        _ => None,
    };
    frames.iter().filter_map(text).collect()
}

#[test]
fn members_know_each_other_and_learn_who_has_gone_and_why() {
    let mut rig = Rig::new(Settings::default());
    (1..=3).for_each(|connection| rig.connect(connection));
    rig.join(1, 1, "cell7", "a");
    rig.join(2, 2, "cell7", "b");
    rig.join(3, 3, "cell7", "c");
    let joined = rig.frames(3);
    let FromBus::Joined { members, lease_ms: LEASE_MS, .. } = &joined[0] else {
        panic!("{joined:?}")
    };
    let names: Vec<_> = members.iter().map(|it: &Info| it.who.name.clone()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    rig.run_to(20);
    rig.frames(1);
    rig.send(2, &ToBus::Leave { handle: 2 });
    rig.hub.disconnected(3, rig.now, &mut rig.out);
    rig.run_to(40);
    let gone: Vec<_> = rig
        .frames(1)
        .into_iter()
        .flat_map(|frame| match frame {
            FromBus::Members { gone, .. } => gone,
            _ => Vec::new(),
        })
        .map(|(who, why)| (who.name, why))
        .collect();
    assert_eq!(gone, [("b".into(), Gone::Left), ("c".into(), Gone::Disconnected)]);
}

#[test]
fn who_is_silent_for_its_lease_is_removed_and_told_so() {
    let mut rig = Rig::new(Settings::default());
    (1..=2).for_each(|connection| rig.connect(connection));
    rig.join(1, 1, "cell7", "a");
    rig.join(2, 2, "cell7", "b");
    for step in 1..=12 {
        rig.run_to(step * 100);
        rig.send(1, &ToBus::Alive { handle: 1, achieved: None, met: true });
    }
    assert_eq!(refusal(&rig.frames(2)), Some(Refusal::Removed));
    assert_eq!(
        rig.hub.groups().collect::<Vec<_>>(),
        [(GroupId { user: Some(1000), name: name("cell7") }, 1)]
    );
    // It may come back.
    rig.join(2, 2, "cell7", "b");
    assert!(matches!(rig.frames(2)[0], FromBus::Joined { .. }));
}

#[test]
fn a_thousand_joins_are_told_in_few_frames() {
    let mut rig = Rig::new(Settings::default());
    rig.connect(1);
    rig.connect(2);
    rig.join(2, 0, "cell7", "watcher");
    rig.frames(2);
    for handle in 1..=1000 {
        rig.join(1, handle, "cell7", &format!("m{handle}"));
    }
    rig.run_to(100);
    let frames = rig.frames(2);
    let told: usize = frames
        .iter()
        .map(|frame| match frame {
            FromBus::Members { present, .. } => present.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(told, 1000);
    assert!(frames.len() <= 3, "{} frames", frames.len());
}

#[test]
fn messages_reach_all_or_subscribers_or_one_and_the_history_is_complete_or_says_so() {
    let mut rig = Rig::new(Settings { history: 3, ..Settings::default() });
    (1..=3).for_each(|connection| rig.connect(connection));
    for (connection, member) in [(1, "a"), (2, "b"), (3, "c")] {
        rig.join(connection, u32::try_from(connection).unwrap(), "cell7", member);
    }
    rig.send(2, &ToBus::Subscribe { handle: 2, topic: "t".into(), history: 0 });
    (1..=3).for_each(|connection| drop(rig.frames(connection)));
    let send = |rig: &mut Rig, to: Option<Who>, topic: Option<&str>, text: &str| {
        let (topic, message) = (topic.map(str::to_owned), message("a", 1, text));
        rig.send(1, &ToBus::Send { handle: 1, to, topic, message });
    };
    send(&mut rig, None, None, "all");
    send(&mut rig, None, Some("t"), "topic");
    send(&mut rig, Some(Who { name: "c".into(), incarnation: 3 }), None, "one");
    send(&mut rig, Some(Who { name: "c".into(), incarnation: 4 }), None, "nobody");
    assert_eq!(texts(&rig.frames(1)), [""; 0]);
    assert_eq!(texts(&rig.frames(2)), ["all", "topic"]);
    assert_eq!(texts(&rig.frames(3)), ["all", "one"]);
    (0..3).for_each(|index| send(&mut rig, None, Some("t"), &format!("{index}")));
    rig.send(3, &ToBus::Subscribe { handle: 3, topic: "t".into(), history: 10 });
    let frames = rig.frames(3);
    assert_eq!(texts(&frames), ["0", "1", "2"]);
    let (topic, sent, dropped) = ("t".into(), 3, 1);
    assert_eq!(frames[3], FromBus::History { handle: 3, topic, sent, dropped });
}

#[test]
fn groups_of_one_user_keep_so_much_together_and_take_nothing_from_other_users() {
    let size = message("a", 1, "0").len();
    let mut rig = Rig::new(Settings { kept_bytes: 4 * size, ..Settings::default() });
    rig.connect(1);
    rig.hub.connected(2, Trust::Local(1001));
    rig.send(2, &ToBus::Hello { version: VERSION, client: "test".into() });
    rig.join(1, 1, "one", "a");
    rig.join(1, 2, "two", "a");
    rig.join(2, 1, "one", "a");
    let send = |rig: &mut Rig, connection, handle, text: &str| {
        let (topic, message) = (Some("t".into()), message("a", u64::from(handle), text));
        rig.send(connection, &ToBus::Send { handle, to: None, topic, message });
    };
    (0..6).for_each(|index| send(&mut rig, 1, 1, &format!("{index}")));
    send(&mut rig, 1, 2, "no room");
    (0..3).for_each(|index| send(&mut rig, 2, 1, &format!("{index}")));
    let kept = |rig: &mut Rig, connection, handle| {
        rig.frames(connection);
        rig.send(connection, &ToBus::Subscribe { handle, topic: "t".into(), history: 10 });
        let frames = rig.frames(connection);
        let Some(FromBus::History { dropped, .. }) = frames.last() else { panic!("{frames:?}") };
        (texts(&frames).concat(), *dropped)
    };
    assert_eq!(kept(&mut rig, 1, 1), ("2345".into(), 2));
    assert_eq!(kept(&mut rig, 1, 2), (String::new(), 1));
    assert_eq!(kept(&mut rig, 2, 1), ("012".into(), 0));
    // A group that ends gives back what it kept.
    rig.send(1, &ToBus::Leave { handle: 1 });
    rig.run_to(1);
    send(&mut rig, 1, 2, "room");
    rig.send(1, &ToBus::Unsubscribe { handle: 2, topic: "t".into() });
    assert_eq!(kept(&mut rig, 1, 2), ("room".into(), 1));
}

#[test]
fn what_is_not_allowed_is_refused_with_a_reason() {
    let mut rig = Rig::new(Settings { members: 2, ..Settings::default() });
    rig.hub.connected(1, Trust::Local(1000));
    rig.join(1, 1, "cell7", "a");
    assert_eq!(refusal(&rig.frames(1)), Some(Refusal::Version), "no hello");
    assert_eq!(rig.out, [Out::Close(1)]);
    rig.out.clear();
    (1..=2).for_each(|connection| rig.connect(connection));
    rig.join(1, 1, "cell7", "a");
    rig.frames(1);
    rig.join(2, 1, "cell7", "a");
    assert_eq!(refusal(&rig.frames(2)), Some(Refusal::NameTaken));
    rig.join(1, 1, "cell8", "z");
    assert_eq!(refusal(&rig.frames(1)), Some(Refusal::Handle));
    rig.join(2, 1, "cell 7", "a");
    assert_eq!(refusal(&rig.frames(2)), Some(Refusal::Name));
    let ToBus::Join { handle, group, who, requirement, lease_ms, .. } = join(2, "cell7", "b")
    else {
        unreachable!()
    };
    let timeline = "utc".into();
    rig.send(2, &ToBus::Join { handle, group, who, timeline, requirement, lease_ms });
    assert_eq!(refusal(&rig.frames(2)), Some(Refusal::Timeline));
    rig.join(2, 2, "cell7", "b");
    rig.frames(2);
    rig.join(2, 3, "cell7", "c");
    assert_eq!(refusal(&rig.frames(2)), Some(Refusal::Full));
    // Nobody speaks in another's name.
    let send = ToBus::Send { handle: 2, to: None, topic: None, message: message("a", 1, "x") };
    rig.send(2, &send);
    assert_eq!(refusal(&rig.frames(2)), Some(Refusal::Message));
    assert!(rig.frames(1).iter().all(|frame| !matches!(frame, FromBus::Deliver { .. })));
    rig.hub.frame(2, b"\xff", [0; 16], rig.now, &mut rig.out);
    assert_eq!(refusal(&rig.frames(2)), Some(Refusal::Version));
    assert_eq!(rig.out, [Out::Close(2)]);
}

#[test]
fn a_group_with_a_key_is_joined_by_who_knows_it() {
    let mut rig = Rig::new(Settings::default());
    rig.connect(1);
    let mut try_key = |byte: u8, handle: u32| {
        rig.join(1, handle, "sealed", "a");
        let [FromBus::Challenge { nonce, .. }] = rig.frames(1)[..] else { panic!() };
        let mut bytes = [byte; 32];
        bytes[0] = 1;
        let key = Secret::new(Zeroizing::new(bytes));
        let proof = key.proof(PURPOSE, &about(name("sealed"), name("a")), &nonce);
        rig.send(1, &ToBus::Prove { handle, proof });
        refusal(&rig.frames(1))
    };
    assert_eq!(try_key(8, 1), Some(Refusal::Key));
    assert_eq!(try_key(7, 2), None);
    // Another user's group of a name without a key is another group.
    rig.connect(2);
    rig.join(2, 1, "open", "a");
    rig.hub.connected(3, Trust::Local(1001));
    rig.send(3, &ToBus::Hello { version: VERSION, client: "other".into() });
    rig.frames(3);
    rig.join(3, 1, "open", "a");
    let [FromBus::Joined { members, .. }, ..] = &rig.frames(3)[..] else { panic!() };
    assert_eq!(members.len(), 1);
    // Over the network nobody joins a group that has no key.
    rig.hub.connected(5, Trust::Remote);
    rig.send(5, &ToBus::Hello { version: VERSION, client: "far".into() });
    rig.join(5, 1, "open", "a");
    assert_eq!(refusal(&rig.frames(5)), Some(Refusal::Key));
}

#[test]
fn members_agree_over_a_hub() {
    use crate::member::{Event, Member, Settings as MemberSettings};
    use crate::propose::Plan;
    use crate::testing::{at, id, now_at};
    let mut rig = Rig::new(Settings::default());
    rig.connect(1);
    let mut members: Vec<_> =
        (0..3).map(|index| Member::new(id(index), MemberSettings::default(), 0)).collect();
    for index in 0..3_u32 {
        let who = Who { name: format!("m{index}"), incarnation: 1 };
        let ToBus::Join { handle, group, timeline, requirement, lease_ms, .. } =
            join(index, "cell7", "x")
        else {
            unreachable!()
        };
        rig.send(1, &ToBus::Join { handle, group, who, timeline, requirement, lease_ms });
    }
    rig.frames(1);
    let participants = (0..3).map(id).collect();
    let late_at_most = ms(10);
    let plan = Plan { at: at(50), late_at_most, participants, payload: Vec::new() };
    members[0].propose(plan, &now_at(0)).unwrap();
    let mut fired = 0;
    for step in 0..60 {
        let now = now_at(step);
        for index in 0..3 {
            members[index].on_timer(&now);
            for event in members[index].events() {
                match event {
                    Event::Asked(proposal) => members[index].answer(proposal.id, true, &now),
                    Event::Fire { .. } => fired += 1,
                    _ => {}
                }
            }
            for (to, envelope) in members[index].outbox() {
                let to = match to {
                    To::All => None,
                    To::Member(id) => {
                        Some(Who { name: id.name.to_string(), incarnation: id.incarnation })
                    }
                };
                let handle = u32::try_from(index).unwrap();
                let message = envelope.encode();
                rig.send(1, &ToBus::Send { handle, to, topic: None, message });
            }
            for frame in rig.frames(1) {
                if let FromBus::Deliver { handles, message, .. } = frame {
                    let envelope = Envelope::decode(&message).unwrap();
                    for handle in handles {
                        members[handle as usize].heard(envelope.clone(), &now);
                    }
                }
            }
        }
    }
    assert_eq!(fired, 3);
}

fn is_about_a_handle(out: &Out) -> bool {
    let Out::Frame(_, bytes) = out else { return false };
    matches!(FromBus::decode(bytes), Ok(FromBus::Refused { refusal: Refusal::Handle, .. }))
}

/// Two hubs, and what each says to the other.
struct Hosts {
    rigs: [Rig; 2],
    recorded: Vec<Vec<u8>>,
    cut: bool,
}

impl Hosts {
    fn new() -> Self {
        let mut rigs = [Rig::new(Settings::default()), Rig::new(Settings::default())];
        rigs[1].hub.incarnation = 100;
        rigs.iter_mut().for_each(|rig| rig.connect(1));
        Self { rigs, recorded: Vec::new(), cut: false }
    }

    fn join(&mut self, host: usize, handle: u32, member: &str) {
        let rig = &mut self.rigs[host];
        rig.join(1, handle, "sealed", member);
        let Some(FromBus::Challenge { nonce, .. }) = rig.frames(1).pop() else { panic!() };
        let mut bytes = [7; 32];
        bytes[0] = 1;
        let key = Secret::new(Zeroizing::new(bytes));
        let proof = key.proof(PURPOSE, &about(name("sealed"), name(member)), &nonce);
        rig.send(1, &ToBus::Prove { handle, proof });
    }

    fn run_to(&mut self, until: i64) {
        while self.rigs[0].now < ms(until) {
            for rig in &mut self.rigs {
                rig.now += ms(1);
                rig.hub.on_timer(rig.now, &mut rig.out);
                // Programs are alive.
                if (rig.now + ms(1)).floor_nanos() / 1_000_000 % 100 == 0 {
                    for handle in 1..4 {
                        rig.send(1, &ToBus::Alive { handle, achieved: None, met: true });
                    }
                    // Not every host has each of them.
                    rig.out.retain(|out| !is_about_a_handle(out));
                }
            }
            for from in 0..2 {
                let mut said = Vec::new();
                self.rigs[from].out.retain(|out| match out {
                    Out::Peers(_, bytes) => {
                        said.push(bytes.clone());
                        false
                    }
                    _ => true,
                });
                self.recorded.extend(said.clone());
                if !self.cut {
                    let to = &mut self.rigs[1 - from];
                    for bytes in said {
                        to.hub.heard(name("sealed"), &bytes, to.now, &mut to.out);
                    }
                }
            }
        }
    }

    /// What the members of a host were told, and who is there by that.
    fn present(&mut self, host: usize) -> Vec<String> {
        let mut present = std::collections::BTreeSet::new();
        for frame in self.rigs[host].frames(1) {
            match frame {
                FromBus::Joined { members, .. } => {
                    present.extend(members.into_iter().map(|it| it.who.name));
                }
                FromBus::Members { present: some, gone, .. } => {
                    present.retain(|name| !gone.iter().any(|(who, _)| who.name == *name));
                    present.extend(some.into_iter().map(|it| it.who.name));
                }
                _ => {}
            }
        }
        present.into_iter().collect()
    }
}

#[test]
fn a_group_with_a_key_is_one_group_on_two_hosts_until_they_are_cut_off() {
    let mut hosts = Hosts::new();
    hosts.join(0, 1, "a");
    hosts.join(1, 2, "b");
    hosts.run_to(100);
    assert_eq!(hosts.present(0), ["a", "b"]);
    assert_eq!(hosts.present(1), ["a", "b"]);
    let send = ToBus::Send { handle: 1, to: None, topic: None, message: message("a", 1, "hello") };
    hosts.rigs[0].send(1, &send);
    hosts.run_to(110);
    assert_eq!(texts(&hosts.rigs[1].frames(1)), ["hello"]);
    hosts.cut = true;
    hosts.run_to(3_000);
    let frames = hosts.rigs[0].frames(1);
    let unheard = frames.iter().any(|frame| {
        matches!(frame, FromBus::Members { gone, .. } if gone.iter().any(|it| it.1 == Gone::Unheard))
    });
    assert!(unheard, "{frames:?}");
    hosts.rigs[1].frames(1);
    hosts.cut = false;
    hosts.run_to(4_000);
    assert_eq!((hosts.present(0), hosts.present(1)), (vec!["b".into()], vec!["a".into()]));
}

#[test]
fn of_two_members_of_one_name_one_stays_on_both_hosts() {
    let mut hosts = Hosts::new();
    hosts.join(0, 2, "same");
    hosts.join(1, 1, "same");
    hosts.run_to(100);
    let lost = hosts.rigs[0].frames(1);
    assert_eq!(refusal(&lost), Some(Refusal::Removed));
    assert_eq!(refusal(&hosts.rigs[1].frames(1)), None);
}

#[test]
fn what_was_recorded_before_is_not_believed() {
    let mut hosts = Hosts::new();
    hosts.join(0, 1, "a");
    hosts.join(1, 2, "b");
    hosts.run_to(1_000);
    let recorded = std::mem::take(&mut hosts.recorded);
    // Another start of one bus, and what was said before comes again.
    let mut rig = Rig::new(Settings::default());
    rig.hub.incarnation = 101;
    rig.connect(1);
    hosts.rigs[1] = rig;
    hosts.join(1, 3, "c");
    let to = &mut hosts.rigs[1];
    to.frames(1);
    for bytes in recorded {
        to.hub.heard(name("sealed"), &bytes, to.now, &mut to.out);
    }
    let told = to.frames(1);
    assert!(!told.iter().any(|it| matches!(it, FromBus::Members { .. } | FromBus::Deliver { .. })));
}

#[test]
fn what_was_recorded_from_a_bus_that_fell_silent_is_not_believed_either() {
    let mut hosts = Hosts::new();
    hosts.join(0, 1, "a");
    hosts.join(1, 2, "b");
    hosts.run_to(900);
    let send = ToBus::Send { handle: 1, to: None, topic: None, message: message("a", 1, "old") };
    hosts.rigs[0].send(1, &send);
    hosts.run_to(1_000);
    let recorded = std::mem::take(&mut hosts.recorded);
    hosts.cut = true;
    hosts.run_to(4_000);
    let to = &mut hosts.rigs[1];
    to.frames(1);
    for bytes in recorded {
        to.hub.heard(name("sealed"), &bytes, to.now, &mut to.out);
    }
    to.hub.on_timer(to.now + ms(50), &mut to.out);
    let told = to.frames(1);
    let is_believed = |frame: &FromBus| match frame {
        FromBus::Members { present, .. } => !present.is_empty(),
        FromBus::Deliver { .. } => true,
        _ => false,
    };
    assert!(!told.iter().any(is_believed), "{told:?}");
}
