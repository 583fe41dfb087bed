//! Members of groups (the Rust client) over a real timevisor-bus, with clocks that tests drive.
//!
//! | file | tests |
//! | --- | --- |
//! | this one | a group on one host, and on three |
//! | `elsewhere.rs` | a bus that is reached over the network |
//! | `support.rs` | the bus as a process, and the clock |
#![expect(clippy::unwrap_used, reason = "a test fails where nothing was expected to")]

mod elsewhere;
mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use timevisor::group::{
    Accept, Group, GroupError, GroupWait, JoinError, JoinOptions, Order, Proposed, Reported, Secret,
};

use support::{Bus, LONG, Running, until};

struct Cell {
    folder: tempfile::TempDir,
    bus: Bus,
    time: Running,
}

impl Cell {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bus = Bus::start(&folder.path().join("socket"), &[]);
        Self { folder, bus, time: Running::new() }
    }

    fn try_join(&self, member: &str, options: JoinOptions) -> Result<Group, JoinError> {
        let bus = Some(self.bus.socket.clone().into());
        let timeline = self.time.clock.timeline();
        Group::join(&timeline, "cell7", member, &JoinOptions { bus, ..options })
    }

    fn join(&self, member: &str) -> Group {
        let group = self.try_join(member, JoinOptions::default()).unwrap();
        group.accept(Accept::All);
        group
    }

    fn three(&self) -> [Group; 3] {
        let members = ["a", "b", "c"].map(|member| self.join(member));
        members.iter().for_each(|member| member.wait_for(3, LONG).unwrap());
        members
    }
}

#[test]
fn messages_come_with_their_time_in_both_orders_and_the_history_first() {
    let cell = Cell::new();
    let [a, b, c] = cell.three();
    // Its own copy says that the bus has it.
    let own = a.subscribe("poses", Order::Arrival, 0).unwrap();
    a.publish("poses", b"0").unwrap();
    until(&own, |_| true);
    let arrival = b.subscribe("poses", Order::Arrival, 10).unwrap();
    let in_time = c.subscribe("poses", Order::Time { hold: Duration::from_secs(5) }, 0).unwrap();
    let first = until(&arrival, |_| true);
    assert_eq!((first.payload.as_slice(), first.is_old), (&b"0"[..], true));
    // So that the bus has heard of the subscription.
    std::thread::sleep(Duration::from_millis(200));
    for round in 0..20_u8 {
        a.publish("poses", &[round]).unwrap();
        b.publish("poses", &[100 + round]).unwrap();
    }
    let mut last = i64::MIN;
    for _ in 0..40 {
        let message = until(&in_time, |_| true);
        assert_eq!((message.late_ns, message.unheard.len()), (0, 0));
        let latest = message.stamp.unwrap().interval.latest().floor_nanos();
        assert!(latest >= last);
        last = latest;
    }
    for _ in 0..40 {
        assert!(!until(&arrival, |_| true).is_old);
    }
}

#[test]
fn all_fire_at_one_time_and_nobody_where_one_says_no() {
    let cell = Cell::new();
    let [a, b, c] = cell.three();
    let fires = [&a, &b, &c].map(Group::proposals);
    let at_ns = cell.time.now_ns() + 100_000_000;
    let pending = a.propose(at_ns, b"grip").unwrap();
    assert!(pending.decided(LONG).unwrap());
    let outcome = pending.wait(LONG).unwrap();
    assert_eq!(outcome.agreed(), Some(true));
    for inbox in &fires {
        let fire = until(inbox, |it| matches!(it, Proposed::Fire { .. }));
        let Proposed::Fire { interval, late_ns, payload, .. } = fire else { unreachable!() };
        assert_eq!(payload, b"grip");
        assert!(interval.latest().ceil_nanos() >= at_ns);
        assert!(interval.earliest().floor_nanos() <= at_ns + late_ns + 1);
    }
    c.accept(Accept::Ask);
    let pending = b.propose(cell.time.now_ns() + 200_000_000, b"again").unwrap();
    let Proposed::Asked(proposal) = until(&fires[2], |it| matches!(it, Proposed::Asked(_))) else {
        unreachable!()
    };
    c.answer(proposal.id, false);
    assert!(!pending.decided(LONG).unwrap());
    assert_eq!(pending.wait(LONG).unwrap().agreed(), Some(false));
    let soon = a.propose(cell.time.now_ns(), b"now").unwrap_err().to_string();
    assert!(soon.contains("too close"), "{soon}");
}

#[test]
fn a_barrier_releases_three_threads_and_a_leader_hands_over() {
    let cell = Cell::new();
    let members = cell.three();
    std::thread::scope(|scope| {
        for member in &members {
            scope.spawn(|| {
                for _ in 0..3 {
                    member.barrier("start", 3, LONG).unwrap();
                }
            });
        }
    });
    let alone = members[0].barrier("alone", 2, Duration::from_millis(300));
    assert!(matches!(alone, Err(GroupError::TimedOut)));
    let voters = ["a", "b", "c"];
    let told = members.each_ref().map(Group::watch);
    members[0].stand("chief", &voters, Duration::from_millis(500)).unwrap();
    until(&told[0], |it| matches!(it, Reported::Leads { .. }));
    assert!(members[0].leads("chief") && !members[1].leads("chief"));
    members[1].stand("chief", &voters, Duration::from_millis(500)).unwrap();
    members[0].resign("chief");
    until(&told[1], |it| matches!(it, Reported::Leads { .. }));
    assert!(!members[0].leads("chief"));
}

#[test]
fn a_bus_that_restarts_is_said_and_the_group_goes_on() {
    let mut cell = Cell::new();
    let members = cell.three();
    let told = members.each_ref().map(Group::watch);
    cell.bus.kill();
    for inbox in &told {
        until(inbox, |it| *it == Reported::Disconnected);
    }
    assert!(matches!(members[0].publish("t", b"x"), Err(GroupError::Disconnected)));
    cell.bus.restart();
    for inbox in &told {
        until(inbox, |it| *it == Reported::Connected);
    }
    members.iter().for_each(|member| member.wait_for(3, LONG).unwrap());
    let pending = members[0].propose(cell.time.now_ns() + 100_000_000, b"").unwrap();
    assert_eq!(pending.wait(LONG).unwrap().agreed(), Some(true));
}

#[test]
fn each_subscription_gets_the_history_that_it_asked_for_and_nothing_twice() {
    let cell = Cell::new();
    let [a, b, _] = cell.three();
    let own = a.subscribe("t", Order::Arrival, 0).unwrap();
    for number in 0..5_u8 {
        a.publish("t", &[number]).unwrap();
        until(&own, |it| it.payload == [number]);
    }
    // All at once, and while more is published.
    let counts = [2, 0, 5, 3];
    let inboxes = counts.map(|count| b.subscribe("t", Order::Arrival, count).unwrap());
    for number in 5..200_u8 {
        a.publish("t", &[number]).unwrap();
    }
    let late = b.subscribe("t", Order::Arrival, 4).unwrap();
    for (inbox, count) in inboxes.iter().zip(counts) {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|(number, _)| *number != 199) {
            let message = inbox.next_within(LONG).expect("a message");
            seen.push((message.payload[0], message.is_old));
        }
        let numbers: Vec<u8> = seen.iter().map(|(number, _)| *number).collect();
        let first = numbers[0];
        assert_eq!(numbers, (first..200).collect::<Vec<_>>(), "{count}: none twice, none missing");
        assert_eq!(seen.iter().filter(|(_, is_old)| *is_old).count(), count as usize);
        assert!(count == 0 || seen[count as usize - 1].1, "the old ones come first");
    }
    let mut seen = Vec::new();
    while seen.last().is_none_or(|number| *number != 199) {
        seen.push(late.next_within(LONG).expect("a message").payload[0]);
    }
    assert_eq!(seen, (seen[0]..200).collect::<Vec<_>>());
}

/// More than a bus takes connections of one user: members of a process share one.
#[test]
fn three_hundred_members_of_a_process_come_back_after_a_restart_and_leave_one_by_one() {
    let mut cell = Cell::new();
    // A clock that stands: one that is driven wakes all of them each time.
    let clock = timevisor::manual::Clock::new(1_000_000_000_000);
    clock.set_error(Duration::from_micros(50));
    let timeline = clock.timeline();
    let options =
        JoinOptions { bus: Some(cell.bus.socket.clone().into()), ..JoinOptions::default() };
    let join =
        |number: usize| Group::join(&timeline, "many", &format!("m{number}"), &options).unwrap();
    let mut members: Vec<_> = (0..300).map(join).collect();
    members.iter().for_each(|member| member.wait_for(300, LONG).unwrap());
    let told = members[299].watch();
    cell.bus.restart();
    until(&told, |it| *it == Reported::Disconnected);
    until(&told, |it| *it == Reported::Connected);
    members.iter().for_each(|member| member.wait_for(300, LONG).unwrap());
    let inbox = members[0].subscribe("t", Order::Arrival, 0).unwrap();
    members[1].subscribe("t", Order::Arrival, 0).unwrap();
    while inbox.next_within(Duration::from_millis(100)).is_none() {
        let _ = members[7].publish("t", b"x");
    }
    drop(members.drain(..298));
    assert!(inbox.is_over());
    while members[0].members().len() > 2 {
        until(&told, |it| matches!(it, Reported::Gone(..)));
    }
    drop(members);
    // The line has ended with the last of them; the next one opens another, which may be faster than that end.
    let again = join(0);
    let end = Instant::now() + LONG;
    while again.members().len() > 1 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(again.members().len(), 1);
}

#[test]
fn who_dies_or_has_a_bad_clock_is_known_to_all() {
    let cell = Cell::new();
    let [a, b, c] = cell.three();
    let told = a.watch();
    drop(c);
    until(&told, |it| matches!(it, Reported::Gone(id, _) if id.name.as_str() == "c"));
    assert_eq!(a.members().len(), 2);
    cell.time.clock.forget();
    until(&told, |it| matches!(it, Reported::Present(info) if !info.met));
    assert!(matches!(a.propose(i64::MAX / 2, b""), Err(GroupError::Propose(_))));
    drop(b);
}

#[test]
fn what_cannot_be_joined_says_why() {
    let cell = Cell::new();
    let _a = cell.join("a");
    let again = cell.try_join("a", JoinOptions::default()).unwrap_err().to_string();
    assert!(again.contains("a member called a is in group cell7"), "{again}");
    let bad = cell.try_join("no name", JoinOptions::default()).unwrap_err().to_string();
    assert!(bad.contains("cannot be a name"), "{bad}");
    let nowhere =
        JoinOptions { bus: Some(cell.folder.path().join("no").into()), ..JoinOptions::default() };
    let timeline = cell.time.clock.timeline();
    let none = Group::join(&timeline, "cell7", "z", &nowhere).unwrap_err().to_string();
    assert!(none.contains("start timevisor-bus"), "{none}");
}

#[test]
fn a_group_with_a_key_needs_that_key() {
    let folder = tempfile::tempdir().unwrap();
    let text = |last: &str| format!("{}{last}\n", "0123456789abcdef".repeat(3) + "0123456789abcd");
    let file = folder.path().join("key");
    std::fs::write(&file, text("ef")).unwrap();
    let config = folder.path().join("bus.toml");
    std::fs::write(&config, format!("[[group]]\nname = \"cell7\"\nkey = {file:?}\n")).unwrap();
    let bus = Bus::start(&folder.path().join("socket"), &["--config", config.to_str().unwrap()]);
    let time = Running::new();
    let join = |member: &str, key: Option<&str>| {
        let key = key.map(|last| Secret::parse(text(last).as_bytes()).unwrap());
        let options =
            JoinOptions { bus: Some(bus.socket.clone().into()), key, ..JoinOptions::default() };
        Group::join(&time.clock.timeline(), "cell7", member, &options)
    };
    let _member = join("a", Some("ef")).unwrap();
    for wrong in [Some("ee"), None] {
        let error = join("b", wrong).unwrap_err().to_string();
        assert!(error.contains("the key of group cell7 does not match"), "{error}");
    }
}

#[test]
fn a_group_with_a_key_is_one_group_on_three_hosts_in_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let text = "0123456789abcdef".repeat(4);
    let key = folder.path().join("key");
    std::fs::write(&key, &text).unwrap();
    let port = || {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap()
    };
    // The outer ones are connected to the one in the middle only.
    let middle = port();
    let hosts = [
        format!("[hosts]\nconnect = [\"{middle}\"]\n"),
        format!("[hosts]\nlisten = [\"{middle}\"]\n"),
        format!("[hosts]\nconnect = [\"{middle}\"]\n"),
    ];
    let time = Running::new();
    let mut buses = Vec::new();
    let mut members = Vec::new();
    for index in [1, 0, 2] {
        let config = folder.path().join(format!("{index}.toml"));
        let group = format!("[[group]]\nname = \"cell7\"\nkey = {key:?}\n");
        std::fs::write(&config, hosts[index].clone() + &group).unwrap();
        let socket = folder.path().join(format!("socket{index}"));
        let bus = Bus::start(&socket, &["--config", config.to_str().unwrap()]);
        let options = JoinOptions {
            bus: Some(bus.socket.clone().into()),
            key: Some(Secret::parse(text.as_bytes()).unwrap()),
            ..JoinOptions::default()
        };
        buses.push(bus);
        let timeline = time.clock.timeline();
        let member = Group::join(&timeline, "cell7", &format!("m{index}"), &options).unwrap();
        member.accept(Accept::All);
        members.push(member);
    }
    members.iter().for_each(|member| member.wait_for(3, LONG).unwrap());
    let inbox = members[2].subscribe("t", Order::Arrival, 0).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let large = vec![9; 1 << 20];
    members[1].publish("t", &large).unwrap();
    assert_eq!(until(&inbox, |_| true).payload, large);
    let pending = members[1].propose(time.now_ns() + 300_000_000, b"all").unwrap();
    assert_eq!(pending.wait(LONG).unwrap().agreed(), Some(true));
    // A bus that dies is noticed, and its member with it.
    let told = members[1].watch();
    buses[2].kill();
    until(&told, |it| matches!(it, Reported::Gone(id, _) if id.name.as_str() == "m2"));
}

#[test]
fn a_bus_that_hangs_keeps_no_program_from_ending() {
    let cell = Cell::new();
    let group = cell.join("a");
    let pid = cell.bus.process.id().to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    // More than a socket takes; then publishing fails instead of growing.
    let full = (0..64).any(|_| group.publish("t", &vec![0; 1 << 20]).is_err());
    assert!(full, "64 MiB were taken by a bus that takes nothing");
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(group);
        done.send(()).unwrap();
    });
    ended.recv_timeout(LONG).expect("dropping a group hangs");
    assert!(Command::new("kill").args(["-CONT", &pid]).status().unwrap().success());
}

/// Looks as an event loop does; that of the Python client's tests polls the descriptors.
fn looked_for<T>(wait: &mut GroupWait<T>) -> Result<T, GroupError> {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = wait.on_ready()? {
            return Ok(found);
        }
        assert!(Instant::now() < end, "it did not happen in 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_event_loop_waits_without_blocking() {
    let cell = Cell::new();
    let a = cell.join("a");
    let mut both = a.wait_for_fd(2).unwrap();
    let mut names = a.wait_for_names_fd(&["a", "b"]).unwrap();
    assert!(both.on_ready().unwrap().is_none());
    let b = cell.join("b");
    looked_for(&mut both).unwrap();
    looked_for(&mut names).unwrap();
    b.wait_for(2, LONG).unwrap();
    let mut waits = [&a, &b].map(|member| member.barrier_fd("start", 2).unwrap());
    assert!(matches!(a.barrier("start", 2, LONG), Err(GroupError::WaitsAlready(_))));
    for wait in &mut waits {
        looked_for(wait).unwrap();
    }
    drop(waits);
    // Who ends its wait does not wait there any more, and may come back.
    drop(a.barrier_fd("start", 2).unwrap());
    assert!(a.barrier_fd("start", 2).unwrap().give_up().is_none());
    let waits = [&a, &b].map(|member| member.barrier_fd("start", 2).unwrap());
    for mut wait in waits {
        looked_for(&mut wait).unwrap();
    }
    let pending = a.propose(cell.time.now_ns() + 100_000_000, b"grip").unwrap();
    assert!(looked_for(&mut pending.decided_fd().unwrap()).unwrap());
    assert_eq!(looked_for(&mut pending.wait_fd().unwrap()).unwrap().agreed(), Some(true));
}

#[test]
fn leaving_ends_inboxes_and_waits() {
    let cell = Cell::new();
    let a = cell.join("a");
    let messages = a.subscribe("poses", Order::Arrival, 0).unwrap();
    a.publish("poses", b"0").unwrap();
    let pending = a.propose(cell.time.now_ns() + 100_000_000_000, b"").unwrap();
    let mut both = a.wait_for_fd(2).unwrap();
    let reader = std::thread::spawn(move || {
        let found = until(&messages, |_| true);
        // Longer than the test may take: the end wakes it up.
        let end = messages.next_within(Duration::MAX);
        (found.payload, end, messages.is_over())
    });
    std::thread::sleep(Duration::from_millis(100));
    a.leave();
    let (payload, end, is_over) = reader.join().unwrap();
    assert_eq!((payload.as_slice(), end, is_over), (&b"0"[..], None, true));
    assert!(matches!(both.on_ready(), Err(GroupError::Left)));
    assert!(matches!(pending.wait(Duration::MAX), Err(GroupError::Left)));
}
