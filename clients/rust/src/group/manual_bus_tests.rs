use super::*;
use crate::group::{Accept, Group, GroupError, Inbox, JoinOptions, Order, Reported};
use crate::manual::Clock;

const LONG: Duration = Duration::from_secs(30);

struct Cell {
    bus: Bus,
    clock: Clock,
}

impl Cell {
    fn new() -> Self {
        let clock = Clock::new(1_000_000_000_000);
        clock.set_error(Duration::from_micros(50));
        Self { bus: Bus::new().unwrap(), clock }
    }

    fn join(&self, member: &str) -> Group {
        let bus = Some(self.bus.clone().into());
        let options =
            JoinOptions { bus, lease: Duration::from_millis(500), ..JoinOptions::default() };
        let group = Group::join(&self.clock.timeline(), "cell7", member, &options).unwrap();
        group.accept(Accept::All);
        group
    }
}

fn until<T: fmt::Debug>(inbox: &Inbox<T>, is: impl Fn(&T) -> bool) -> T {
    loop {
        let next = inbox.next_within(LONG).expect("it does not come");
        if is(&next) {
            return next;
        }
    }
}

#[test]
fn members_act_together_without_any_process() {
    let cell = Cell::new();
    let (a, b) = (cell.join("a"), cell.join("b"));
    a.wait_for(2, LONG).unwrap();
    b.wait_for(2, LONG).unwrap();
    let pending = a.propose(1_001_000_000_000, b"grip").unwrap();
    assert!(pending.decided(LONG).unwrap());
    cell.clock.advance(Duration::from_secs(1));
    let outcome = pending.wait(LONG).unwrap();
    assert_eq!((outcome.agreed(), outcome.fired.len()), (Some(true), 2));
}

#[test]
fn what_is_lost_is_said_and_what_is_late_comes() {
    let cell = Cell::new();
    let (a, b) = (cell.join("a"), cell.join("b"));
    a.wait_for(2, LONG).unwrap();
    let (messages, told) = (b.subscribe("t", Order::Arrival, 0).unwrap(), b.watch());
    let own = a.subscribe("t", Order::Arrival, 0).unwrap();
    while messages.next_within(Duration::from_millis(50)).is_none() {
        a.publish("t", b"first").unwrap();
    }
    cell.bus.lose(500, 7);
    let mut lost = 0;
    while lost < 20 {
        a.publish("t", b"x").unwrap();
        if let Some(Reported::Lost { count, .. }) = told.next_within(Duration::from_millis(1)) {
            lost += count;
        }
    }
    cell.bus.heal();
    a.publish("t", b"last").unwrap();
    until(&messages, |it| it.payload == b"last");
    until(&own, |it| it.payload == b"last");
    // Kept messages come first, late or not.
    cell.bus.delay(Duration::from_millis(50));
    let later = b.subscribe("t", Order::Arrival, 2).unwrap();
    a.publish("t", b"new").unwrap();
    let old = [until(&later, |_| true), until(&later, |_| true)];
    assert!(old.iter().all(|it| it.is_old) && old[1].payload == b"last", "{old:?}");
    assert_eq!(until(&later, |_| true).payload, b"new");
    cell.bus.delay(Duration::from_millis(200));
    let begun = Instant::now();
    a.publish("t", b"late").unwrap();
    until(&messages, |it| it.payload == b"late");
    assert!(begun.elapsed() >= Duration::from_millis(200));
}

#[test]
fn who_is_cut_off_has_gone_and_comes_back() {
    let cell = Cell::new();
    let (a, b) = (cell.join("a"), cell.join("b"));
    a.wait_for(2, LONG).unwrap();
    b.wait_for(2, LONG).unwrap();
    let (told, told_b) = (a.watch(), b.watch());
    cell.bus.cut("b");
    until(&told, |it| matches!(it, Reported::Gone(id, _) if id.name.as_str() == "b"));
    assert_eq!(a.members().len(), 1);
    cell.bus.heal();
    until(&told, |it| matches!(it, Reported::Present(info) if info.who.name == "b" && info.met));
    until(&told_b, |it| *it == Reported::Connected);
    cell.bus.restart();
    until(&told, |it| *it == Reported::Disconnected);
    until(&told, |it| *it == Reported::Connected);
    a.wait_for(2, LONG).unwrap();
    cell.bus.cut("b");
    // Nobody fires where one cannot be asked.
    let pending = a.propose(1_000_500_000_000, b"").unwrap();
    cell.clock.advance(Duration::from_secs(1));
    assert!(!pending.decided(LONG).unwrap());
}

/// What `propose` refuses has a wait that ends when it no longer does: others' words of this member
/// come a moment later than its page's.
#[test]
fn who_waits_for_quality_can_propose_then() {
    let cell = Cell::new();
    let (a, b) = (cell.join("a"), cell.join("b"));
    a.wait_for(2, LONG).unwrap();
    for _ in 0..20 {
        cell.clock.forget();
        assert!(a.propose(1_001_000_000_000, b"").is_err());
        assert!(matches!(a.wait_for(2, Duration::ZERO), Err(GroupError::TimedOut)));
        let named = a.wait_for_names(&["a"], Duration::ZERO);
        assert!(matches!(named, Err(GroupError::TimedOut)));
        assert!(a.wait_for_fd(2).unwrap().on_ready().unwrap().is_none());
        cell.clock.step(1_000_000_000_000);
        a.wait_for_names(&["a", "b"], LONG).unwrap();
        a.propose(1_001_000_000_000, b"").unwrap();
    }
    b.leave();
}
