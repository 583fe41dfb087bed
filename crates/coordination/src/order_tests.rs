use super::*;
use proptest::prelude::*;

fn member(index: u64) -> MemberId {
    MemberId { name: format!("m{index}").parse().unwrap(), incarnation: 0 }
}

fn at(ms: i64) -> Instant<Local> {
    Instant::from_bits(0) + Duration::from_millis(ms)
}

fn around(ms: i64) -> Interval<Local> {
    Interval::around(at(ms), Duration::from_millis(1))
}

fn order(members: u64) -> TimeOrder<&'static str> {
    TimeOrder::new(Settings::default(), (0..members).map(member))
}

fn delivered(order: &mut TimeOrder<&'static str>, now: Duration) -> Vec<&'static str> {
    order.deliver(now).into_iter().map(|it| it.message).collect()
}

#[test]
fn a_message_waits_for_all_members_to_pass_it() {
    let (mut order, now) = (order(2), Duration::ZERO);
    order.arrived(member(0), 1, around(10), "later", now);
    assert!(order.deliver(now).is_empty());
    order.arrived(member(1), 1, around(5), "earlier", now);
    assert!(order.deliver(now).is_empty(), "member 1 has come to 4 ms only");
    order.passed(member(1), at(12));
    // 5 +- 1 is passed by both; 10 +- 1 not by member 0, whose earliest is 9.
    assert_eq!(delivered(&mut order, now), ["earlier"]);
    order.passed(member(0), at(12));
    assert_eq!(delivered(&mut order, now), ["later"]);
}

#[test]
fn who_is_silent_holds_up_for_so_long_only_and_is_named() {
    let (mut order, now) = (order(3), Duration::ZERO);
    order.arrived(member(0), 1, around(10), "a", now);
    order.passed(member(0), at(20));
    order.passed(member(1), at(20));
    assert_eq!(order.next(), Some(Duration::from_millis(500)));
    assert!(order.deliver(Duration::from_millis(499)).is_empty());
    let [only] = order.deliver(Duration::from_millis(500)).try_into().unwrap();
    assert_eq!((only.message, only.unheard), ("a", vec![member(2)]));
    // What it surely sent before that is told to be late.
    order.arrived(member(2), 1, around(3), "b", now);
    let [late] = order.deliver(now).try_into().unwrap();
    let by = around(10).earliest() - around(3).latest();
    assert_eq!((late.message, late.late), ("b", by));
}

#[test]
fn who_has_left_holds_nobody_up() {
    let (mut order, now) = (order(2), Duration::ZERO);
    order.arrived(member(0), 1, around(10), "a", now);
    order.passed(member(0), at(20));
    order.left(member(1));
    assert_eq!(delivered(&mut order, now), ["a"]);
}

#[test]
fn another_origin_ends_the_old_order_and_loses_nothing() {
    let (mut order, now) = (order(2), Duration::ZERO);
    order.arrived(member(0), 1, around(10), "a", now);
    order.arrived(member(1), 1, around(5), "b", now);
    let old: Vec<_> = order.restarted().into_iter().map(|it| it.message).collect();
    assert_eq!(old, ["b", "a"]);
    // The new timeline may be behind the old one.
    order.arrived(member(0), 2, around(1), "c", now);
    order.passed(member(0), at(3));
    order.passed(member(1), at(3));
    let [new] = order.deliver(now).try_into().unwrap();
    assert_eq!((new.message, new.late), ("c", Duration::ZERO));
}

#[test]
fn too_many_messages_are_delivered_early_not_lost() {
    let settings = Settings { most: 2, ..Settings::default() };
    let mut order = TimeOrder::new(settings, [member(0), member(1)]);
    let now = Duration::ZERO;
    for (ms, message) in [(1, "a"), (2, "b"), (5, "c")] {
        order.arrived(member(0), ms, around(i64::try_from(ms).unwrap()), message, now);
    }
    let early = order.deliver(now);
    assert_eq!(early.len(), 1);
    // Member 0 has passed it by its later messages.
    assert_eq!((early[0].message, early[0].unheard.as_slice()), ("a", &[member(1)][..]));
}

proptest! {
    /// Members stamp as time goes, and their messages come with any delay, each member's in order.
    #[test]
    fn nothing_is_delivered_after_what_it_surely_precedes(
        sent in proptest::collection::vec((0_usize..3, 0_i64..20, 0_i64..4, 0_i64..40), 1..60),
    ) {
        let mut clock = 0;
        let mut arrivals = Vec::new();
        let mut last = [0; 3];
        for (sequence, (from, after, half, delay)) in sent.into_iter().enumerate() {
            clock += after;
            let arrives = (clock + delay).max(last[from]);
            last[from] = arrives;
            arrivals.push((arrives, from, sequence, clock, half));
        }
        arrivals.sort_unstable();
        let mut order = TimeOrder::new(Settings { hold: Duration::from_secs(9), most: 100 }, (0..3).map(member));
        let (mut out, mut earliest) = (Vec::new(), [Instant::<Local>::MIN; 3]);
        let count = arrivals.len();
        for (_, from, sequence, clock, half) in arrivals {
            // A member's earliest never goes back: Member::stamp sees to it.
            let interval = Interval::around(at(clock), Duration::from_millis(half));
            let first = interval.earliest().max(earliest[from]);
            earliest[from] = first;
            let interval = Interval::new(first, interval.latest().max(first)).unwrap();
            let number = u64::try_from(sequence).unwrap();
            order.arrived(member(from as u64), number, interval, sequence, Duration::ZERO);
            out.extend(order.deliver(Duration::ZERO));
        }
        (0..3).for_each(|from| order.passed(member(from), at(100_000)));
        out.extend(order.deliver(Duration::ZERO));
        prop_assert_eq!(out.len(), count);
        for (index, a) in out.iter().enumerate() {
            prop_assert_eq!(a.late, Duration::ZERO);
            for b in &out[index + 1..] {
                prop_assert!(b.interval.latest().to_bits() >= a.interval.earliest().to_bits());
            }
        }
    }
}
