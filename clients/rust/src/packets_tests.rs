use proptest::prelude::*;
use timevisor_linux::counter::{self, Choice};

use super::*;
use crate::manual::Clock;

const START: u64 = 1 << 50;
const NOMINAL: i128 = (1 << 84) / 1_000_000_000;

/// CLOCK_REALTIME against a 1 GHz counter: the rate changes at every step, in parts per million.
struct World(Vec<(u64, i64)>);

impl World {
    fn realtime(&self, counter: u64) -> Instant<Utc> {
        let (mut at, mut millionths) = (START, 0i128);
        for (index, (ticks, ppm)) in self.0.iter().enumerate() {
            let last = index + 1 == self.0.len();
            let span = if last { counter - at } else { (*ticks).min(counter - at) };
            millionths += i128::from(span) * i128::from(1_000_000 + ppm);
            at += span;
        }
        Instant::from_unix_nanos(1_700_000_000_000_000_000 + millionths / 1_000_000)
    }

    fn bracket(&self, before: u64, width: u64, place: u64) -> Bracket {
        let realtime = self.realtime(before + width * place / 100);
        Bracket { before, realtime, after: before + width }
    }
}

fn rates() -> (Period, Period) {
    let period =
        |ppm: i128| Period::from_bits(u64::try_from(NOMINAL + NOMINAL * ppm / 1_000_000).unwrap());
    (period(-15).slowest_time(SLEW_LIMIT), period(15).fastest_time(SLEW_LIMIT))
}

proptest! {
    /// However fast and often the clock is slewed, up to the kernel's maximum, the result contains
    /// the packet's counter value.
    #[test]
    fn the_packet_is_inside(
        steps in prop::collection::vec((1u64..2_000_000, -240_000i64..=240_000), 1..20),
        begun in 0u64..1_000, packet in 0u64..10_000_000, between in 0u64..10_000_000, now in 0u64..1_000_000,
        widths in [1u64..20_000, 1u64..20_000], places in [0u64..=100, 0u64..=100],
    ) {
        let world = World(steps);
        let begun = START + begun;
        let packet = begun + packet;
        // The earlier comparison may be before or after the packet.
        let before = world.bracket(begun + between, widths[0], places[0]);
        let now = world.bracket(packet.max(before.after) + now, widths[1], places[1]);
        let (first, last) =
            placed(world.realtime(packet), [world.bracket(START, begun - START, 0), before, now], rates()).unwrap();
        prop_assert!(first <= packet && packet <= last, "{} {} {}", first, packet, last);
        prop_assert!(last <= now.after && first >= START - 4);
    }
}

/// As fast as the kernel can slew, all the time.
#[test]
fn the_fastest_slew_is_covered() {
    for ppm in [-238_000, 238_000] {
        let world = World(vec![(1, ppm)]);
        let begun = world.bracket(START, 100, 50);
        let compared = [begun, begun, world.bracket(START + 2_000_000_000, 100, 50)];
        for packet in [START + 1_000_000, START + 1_000_000_000, START + 1_999_000_000] {
            let (first, last) = placed(world.realtime(packet), compared, rates()).unwrap();
            assert!(first <= packet && packet <= last, "{ppm}");
        }
    }
}

#[test]
fn stamps_of_other_times_are_refused() {
    let world = World(vec![(1, 0)]);
    let begun = world.bracket(START + 1_000, 100, 50);
    let compared = [begun, begun, world.bracket(START + 50_000, 100, 50)];
    let placed = |counter| placed(world.realtime(counter), compared, rates());
    assert!(matches!(placed(START + 900), Err(PacketStampError::TooOld)));
    assert!(matches!(placed(START + 50_200), Err(PacketStampError::Future)));
    let (first, last) = placed(START + 49_000).unwrap();
    // 1 us before the comparison: its width, and a quarter on either side.
    assert!(
        first >= START + 48_500 && last <= START + 49_500,
        "{} {}",
        first - START,
        last - START
    );
}

#[test]
fn a_clock_that_was_set_is_noticed_and_slews_are_not() {
    let ns = Duration::from_nanos;
    let last = World(vec![(1, 0)]).bracket(START, 1, 0);
    let mut state = State { begun: last, last, offset: (ns(1_000), ns(1_080)), was_set: false };
    assert!(!state.is_stepped((ns(1_020), ns(1_120))));
    assert_eq!(state.offset, (ns(1_020), ns(1_080)));
    assert!(!state.is_stepped((ns(1_081), ns(1_100))), "rounding");
    assert!(state.is_stepped((ns(1_090), ns(1_300))));
    assert!(state.is_stepped((ns(-900_000_000), ns(-899_999_000))));
}

#[test]
fn a_clock_for_tests_has_no_packets() {
    let refused = Clock::new(0).timeline().packet_stamps();
    assert!(matches!(refused, Err(PacketStampError::NoCounter(_))));
}

#[test]
fn this_machines_clocks_keep_their_offset() {
    let (counter, _) = counter::select(Choice::Auto).unwrap();
    let last = bracket(&counter, TRIES);
    let mut state = State { begun: last, last, offset: offset(), was_set: false };
    for _ in 0..1000 {
        assert!(!state.is_stepped(offset()));
    }
}
