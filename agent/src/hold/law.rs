//! When a workload has to stand still; pure.
//!
//! It may run only while the page vouches for the time, CLOCK_REALTIME is right by it, and the host
//! does not announce a disruption that begins. A resume, a migration and a restore need no case of
//! their own: the page vouches for nothing until its host's clock is on it, and CLOCK_REALTIME is
//! behind it until somebody has set it.

use core::fmt;

use timevisor_clock_page::Notice;
use timevisor_time::Duration;

/// What one look at the page and at CLOCK_REALTIME says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// How far CLOCK_REALTIME is surely off, not below 0; `None` while the page vouches for
    /// nothing, or cannot be read.
    pub off: Option<Duration>,
    /// What the host announces.
    pub notice: Notice,
}

/// Limits of the law.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// CLOCK_REALTIME may be this far off while the workload runs. It goes on once it is half of
    /// that, so that it does not stop and go.
    pub within: Duration,
    /// The longest hold for a notice alone: the disruption may not come, and whoever announced it
    /// may have died.
    pub notice_at_most: Duration,
}

/// Why the workload stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The page vouches for nothing.
    Page,
    /// CLOCK_REALTIME is this far off.
    Clock(Duration),
    /// A disruption begins.
    Notice,
    /// An earlier timevisor-guest held it.
    Earlier,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Page => f.write_str(
                "the page does not vouch for the time (a stop, a migration, a restore, or no page at all)",
            ),
            Self::Clock(off) => write!(f, "CLOCK_REALTIME is off by {off}"),
            Self::Notice => f.write_str("the host announces a disruption that begins"),
            Self::Earlier => f.write_str("an earlier timevisor-guest held it"),
        }
    }
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Stop the workload.
    Freeze(Why),
    /// Let it go on, after this time.
    Thaw(Duration),
}

/// The law's state.
#[derive(Debug)]
pub struct Law {
    limits: Limits,
    held_since: Option<Duration>,
    /// Since when a disruption has been beginning.
    imminent_since: Option<Duration>,
}

impl Law {
    /// For a workload that runs.
    pub fn new(limits: Limits) -> Self {
        Self { limits, held_since: None, imminent_since: None }
    }

    /// For a workload that an earlier law held.
    pub fn holding(limits: Limits, now: Duration) -> Self {
        Self { held_since: Some(now), ..Self::new(limits) }
    }

    /// Whether the workload stands still.
    pub fn holds(&self) -> bool {
        self.held_since.is_some()
    }

    /// Handles one look. `now` is a monotonic clock's.
    pub fn update(&mut self, seen: &Seen, now: Duration) -> Option<Order> {
        if seen.notice != Notice::Imminent {
            self.imminent_since = None;
        } else if self.imminent_since.is_none() {
            self.imminent_since = Some(now);
        }
        match (self.reason(seen, now), self.held_since) {
            (Some(why), None) => {
                self.held_since = Some(now);
                Some(Order::Freeze(why))
            }
            (None, Some(since)) => {
                self.held_since = None;
                Some(Order::Thaw(now - since))
            }
            (Some(_), Some(_)) | (None, None) => None,
        }
    }

    fn reason(&self, seen: &Seen, now: Duration) -> Option<Why> {
        let within = if self.holds() { self.limits.within.half() } else { self.limits.within };
        let announced = self.imminent_since.is_some_and(|s| now - s < self.limits.notice_at_most);
        match seen.off {
            None => Some(Why::Page),
            Some(off) if off > within => Some(Why::Clock(off)),
            Some(_) if announced => Some(Why::Notice),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits =
        Limits { within: Duration::from_millis(1), notice_at_most: Duration::from_secs(600) };
    const GOOD: Seen = Seen { off: Some(Duration::ZERO), notice: Notice::None };
    const NOTHING: Seen = Seen { off: None, notice: Notice::None };

    fn at(ms: i64) -> Duration {
        Duration::from_millis(ms)
    }

    fn off(span: Duration) -> Seen {
        Seen { off: Some(span), ..GOOD }
    }

    #[test]
    fn a_restore_holds_it_until_the_clock_is_set() {
        let mut law = Law::new(LIMITS);
        assert_eq!(law.update(&GOOD, at(0)), None);
        assert_eq!(law.update(&NOTHING, at(10)), Some(Order::Freeze(Why::Page)));
        assert_eq!(law.update(&NOTHING, at(20)), None, "once");
        let year = Duration::from_secs(31_000_000);
        assert_eq!(law.update(&off(year), at(30)), None, "the page is good, the clock is not");
        assert_eq!(law.update(&GOOD, at(40)), Some(Order::Thaw(at(30))));
    }

    /// The host said nothing, and the page is good at once: a migration that took 30 ms.
    #[test]
    fn a_clock_that_is_late_is_enough() {
        let mut law = Law::new(LIMITS);
        let late = at(30);
        assert_eq!(law.update(&off(late), at(0)), Some(Order::Freeze(Why::Clock(late))));
        assert_eq!(law.update(&GOOD, at(10)), Some(Order::Thaw(at(10))));
    }

    #[test]
    fn a_notice_holds_it_over_the_move() {
        let mut law = Law::new(LIMITS);
        let soon = Seen { notice: Notice::Soon, ..GOOD };
        let imminent = Seen { notice: Notice::Imminent, ..GOOD };
        assert_eq!(law.update(&soon, at(0)), None, "there is time left");
        assert_eq!(law.update(&imminent, at(10)), Some(Order::Freeze(Why::Notice)));
        assert_eq!(law.update(&NOTHING, at(20)), None);
        assert_eq!(law.update(&off(at(500)), at(30)), None);
        assert_eq!(law.update(&GOOD, at(40)), Some(Order::Thaw(at(30))));
    }

    #[test]
    fn a_notice_alone_holds_it_for_a_while_only() {
        let mut law = Law::new(LIMITS);
        let imminent = Seen { notice: Notice::Imminent, ..GOOD };
        assert_eq!(law.update(&imminent, at(0)), Some(Order::Freeze(Why::Notice)));
        assert_eq!(law.update(&imminent, at(599_999)), None);
        assert_eq!(law.update(&imminent, at(600_000)), Some(Order::Thaw(at(600_000))));
        assert_eq!(law.update(&imminent, at(700_000)), None, "the same notice");
        assert_eq!(law.update(&GOOD, at(700_010)), None);
        assert_eq!(law.update(&imminent, at(700_020)), Some(Order::Freeze(Why::Notice)), "another");
    }

    #[test]
    fn it_does_not_stop_and_go_at_the_limit() {
        let mut law = Law::new(LIMITS);
        let micros = |us| off(Duration::from_micros(us));
        assert_eq!(law.update(&micros(1_000), at(0)), None);
        assert!(law.update(&micros(1_001), at(10)).is_some());
        assert_eq!(law.update(&micros(999), at(20)), None);
        assert_eq!(law.update(&micros(500), at(30)), Some(Order::Thaw(at(20))));
    }

    #[test]
    fn what_an_earlier_one_held_goes_on_when_it_may() {
        let mut law = Law::holding(LIMITS, at(0));
        assert_eq!(law.update(&NOTHING, at(10)), None);
        assert_eq!(law.update(&GOOD, at(20)), Some(Order::Thaw(at(20))));
    }

    fn seen() -> impl Strategy<Value = Seen> {
        let off = prop_oneof![
            Just(None),
            (0i64..3_000).prop_map(|us| Some(Duration::from_micros(us))),
            (0i64..1_000_000_000).prop_map(|s| Some(Duration::from_secs(s))),
        ];
        let notice = prop_oneof![Just(Notice::None), Just(Notice::Soon), Just(Notice::Imminent)];
        (off, notice).prop_map(|(off, notice)| Seen { off, notice })
    }

    proptest! {
        /// The workload never runs while the page does not vouch or CLOCK_REALTIME is not set, nor
        /// in the first ten minutes of a disruption; and it always runs where nothing speaks
        /// against it.
        #[test]
        fn it_never_runs_while_it_must_not(
            looks in proptest::collection::vec((seen(), 0i64..400_000), 1..60), earlier: bool,
        ) {
            let mut law = if earlier { Law::holding(LIMITS, at(0)) } else { Law::new(LIMITS) };
            let (mut running, mut now, mut imminent_since) = (!earlier, at(0), None);
            for (seen, pause) in looks {
                now += at(pause);
                match law.update(&seen, now) {
                    Some(Order::Freeze(_)) => {
                        prop_assert!(running, "frozen twice");
                        running = false;
                    }
                    Some(Order::Thaw(after)) => {
                        prop_assert!(!running && !after.is_negative(), "thawed twice");
                        running = true;
                    }
                    None => {}
                }
                prop_assert_eq!(law.holds(), !running);
                match seen.notice {
                    Notice::Imminent => _ = imminent_since.get_or_insert(now),
                    _ => imminent_since = None,
                }
                let announced = imminent_since.is_some_and(|since| now - since < LIMITS.notice_at_most);
                let right = seen.off.is_some_and(|off| off <= LIMITS.within);
                prop_assert!(!running || (right && !announced), "{seen:?} at {now}");
                let surely = seen.off.is_some_and(|off| off <= LIMITS.within.half());
                prop_assert!(running || !surely || announced, "held for nothing: {seen:?} at {now}");
            }
        }
    }
}
