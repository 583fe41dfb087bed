//! Places stamps of another clock on the timeline's counter, rounded outward.
//!
//! The other clock is CLOCK_MONOTONIC, which nobody can set but which is slewed, or a PTP clock. A
//! reading of it between two readings of the counter, and the fastest rate at which it may run,
//! tell between which counter values a stamp was taken; the older the stamp, the farther they are
//! apart ([`crate::packets`] does the same with CLOCK_REALTIME). Each stamp is placed by three
//! comparisons: the first since the last disruption, the one before the event, and one after it.
//!
//! CLOCK_MONOTONIC stands still while the machine sleeps, and the counter may go on. So after a
//! sleep, and after a disruption of the timeline, comparisons from before count no more, and stamps
//! from before the next comparison are refused.

use timevisor_linux::clock::{Bracket, kernel_clock, monotonic_bracket, suspended};
use timevisor_linux::counter::HostCounter;
use timevisor_time::{Duration, Instant, Local, Period, RateError, Utc};

use super::error::Unplaced;
use crate::packets::{self, STA_PPSTIME};
use crate::source::CounterRef;
use crate::timeline::Timeline;

/// Readings per comparison; the narrowest is used.
const TRIES: usize = 4;

/// How a clock that stamps is compared with the counter, and how fast it may run against true time.
pub(super) trait Clock {
    fn compare(&self, counter: &HostCounter) -> Result<Bracket, Unplaced>;
    fn rate(&self) -> RateError;
    /// How far a stamp may be from the clock's reading at that moment, beyond a nanosecond.
    fn grain(&self) -> Duration;
}

/// CLOCK_MONOTONIC.
pub(super) struct Monotonic;

impl Clock for Monotonic {
    fn compare(&self, counter: &HostCounter) -> Result<Bracket, Unplaced> {
        if kernel_clock()?.status & STA_PPSTIME != 0 {
            return Err(Unplaced::NoCounter("the kernel follows a pulse per second"));
        }
        Ok(monotonic_bracket(counter, TRIES))
    }

    fn rate(&self) -> RateError {
        timevisor_linux::stamps::SLEW_LIMIT
    }

    fn grain(&self) -> Duration {
        Duration::ZERO
    }
}

/// What must not change between two comparisons.
#[derive(Clone, Copy, Debug)]
struct State {
    /// The timeline's clock: where it is from, and its disruptions.
    clock: (u64, u64),
    /// How long the machine has slept since boot, at least, and how much more at most.
    slept: (Duration, Duration),
}

impl State {
    fn now(timeline: &Timeline) -> Result<Self, Unplaced> {
        // It notes the publication, too, so that later stamps can be converted.
        let (reading, _) = timeline.look()?;
        Ok(Self { clock: (reading.origin, reading.disruption), slept: suspended() })
    }

    /// Whether the same clocks ran from one to the other.
    fn leads_to(&self, after: &Self) -> bool {
        let slept = after.slept.0 - self.slept.0;
        // Two nanoseconds for what the kernel rounds.
        let error = self.slept.1 + after.slept.1 + Duration::from_nanos(2);
        self.clock == after.clock && slept <= error && -slept <= error
    }
}

/// One comparison.
#[derive(Clone, Copy, Debug)]
struct Compared {
    bracket: Bracket,
    state: State,
}

/// Comparisons since events can come.
pub(super) struct Placer<C> {
    clock: C,
    begun: Compared,
    last: Compared,
    /// The clock that stamps was set: stamps of before and after cannot be told apart.
    was_set: bool,
}

/// The counter values between which a stamp was taken.
pub(super) type Placed = (u64, u64);

impl<C: Clock> Placer<C> {
    /// Compares the clocks first; stamps from before are refused.
    pub(super) fn new(timeline: &Timeline, clock: C) -> Result<Self, Unplaced> {
        let begun = compare(timeline, &clock)?;
        Ok(Self { clock, begun, last: begun, was_set: false })
    }

    /// Compares the clocks while no stamp comes, so that one after a disruption can be placed. Returns
    /// the comparison before.
    pub(super) fn renew(&mut self, timeline: &Timeline) -> Result<Bracket, Unplaced> {
        let now = compare(timeline, &self.clock)?;
        self.take(now)
    }

    fn take(&mut self, now: Compared) -> Result<Bracket, Unplaced> {
        let before = std::mem::replace(&mut self.last, now);
        // It cannot go back by itself.
        self.was_set |= now.bracket.realtime < before.bracket.realtime;
        if self.was_set {
            return Err(Unplaced::Contradiction);
        }
        if before.state.leads_to(&now.state) {
            return Ok(before.bracket);
        }
        self.begun = now;
        Err(Unplaced::Disrupted)
    }

    /// Places a stamp that was just read.
    pub(super) fn place<S>(
        &mut self,
        timeline: &Timeline,
        stamp: Instant<S>,
    ) -> Result<Placed, Unplaced> {
        let before = self.renew(timeline)?;
        let (shortest, longest) =
            timeline.rate_limits()?.ok_or(Unplaced::NoCounter("the time is not known yet"))?;
        let rates = rates((shortest, longest), self.clock.rate());
        let compared = [self.begun.bracket, before, self.last.bracket];
        match packets::placed(stamp.relabel(), compared, rates) {
            Ok(placed) => Ok(widened(placed, self.clock.grain(), shortest)),
            Err(error) => {
                let why = Unplaced::from(error);
                self.was_set |= matches!(why, Unplaced::Contradiction);
                Err(why)
            }
        }
    }
}

/// Compares the clocks, again if they were disturbed meanwhile.
fn compare(timeline: &Timeline, clock: &impl Clock) -> Result<Compared, Unplaced> {
    let mut before = State::now(timeline)?;
    for _ in 0..TRIES {
        let bracket = with_counter(timeline, |counter| clock.compare(counter))?;
        let state = State::now(timeline)?;
        if before.leads_to(&state) {
            return Ok(Compared { bracket, state });
        }
        before = state;
    }
    Err(Unplaced::Disrupted)
}

/// Calls with the counter, unless it is a clock for tests.
pub(super) fn with_counter<T>(
    timeline: &Timeline,
    call: impl FnOnce(&HostCounter) -> Result<T, Unplaced>,
) -> Result<T, Unplaced> {
    use timevisor_clock_page::{Counter as _, CounterId};
    timeline.with_reader(|reader| match reader.counter() {
        CounterRef::Host(counter) if counter.id() != CounterId::Invalid => call(counter),
        _ => Err(Unplaced::NoCounter("it is a clock for tests")),
    })
}

/// The counter's period as a clock that is off by at most `rate` measures it.
pub(super) fn rates(true_time: (Period, Period), rate: RateError) -> (Period, Period) {
    (true_time.0.slowest_time(rate), true_time.1.fastest_time(rate))
}

pub(super) fn widened(placed: Placed, grain: Duration, shortest: Period) -> Placed {
    let ticks = if grain == Duration::ZERO { 0 } else { shortest.ticks_in(grain) + 1 };
    (placed.0.wrapping_sub(ticks), placed.1.wrapping_add(ticks))
}

/// As [`Bracket`], of a PTP clock.
pub(super) fn bracket_of(sample: &timevisor_linux::phc::Sample) -> Bracket {
    let time: Instant<Local> = sample.time;
    let realtime: Instant<Utc> = time.relabel();
    Bracket { before: sample.before, realtime, after: sample.after }
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
