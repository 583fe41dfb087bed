//! When to step, when to slew, and by how much; pure.
//!
//! One step is allowed in each *era* of the page. An era begins at the start, when the page's
//! disruption marker changes, and when TAI - UTC changes (CLOCK_REALTIME is then off by the leap
//! second, which nobody has announced to the kernel). The first usable reading of the era decides:
//! if CLOCK_REALTIME is certainly off by more than the threshold, it is stepped to the estimate.
//! Everything later in the era is slewed by the law with which timevisord steers a host's clock
//! (timevisor-estimate `steering`): at most 500 ppm, so that CLOCK_REALTIME never goes back.

use core::fmt;

use timevisor_estimate::steering::{Input, KernelRate, Parameters, Steering};
use timevisor_time::Duration;

use super::beside::Beside;

/// What may be done to CLOCK_REALTIME.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Mode {
    /// Stepped once in an era, where that is needed.
    Step,
    /// Never stepped.
    Slew,
}

/// A period during which the page's clock was continuous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Era {
    /// The page's disruption marker.
    pub disruption: u64,
    /// TAI - UTC, if the page knows it.
    pub tai_offset: Option<i16>,
}

/// Why a step is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// No reading has been taken before.
    Start,
    /// The disruption marker changed.
    Disruption,
    /// TAI - UTC changed.
    TaiOffset,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "it was wrong at the start",
            Self::Disruption => "the page was disrupted: a resume, a migration or a restore",
            Self::TaiOffset => "TAI - UTC has changed: a leap second",
        })
    }
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    /// To be added immediately, before the rest.
    pub step: Option<(Duration, Why)>,
    /// The kernel's rate from now on.
    pub rate: KernelRate,
    /// What the kernel is to slew; replaces the remainder of the previous phase.
    pub phase: Duration,
    /// The clock's offset after the step, which is to be slewed.
    pub left: Duration,
}

/// The law's state.
#[derive(Debug)]
pub struct Law {
    mode: Mode,
    threshold: Duration,
    steering: Steering,
    era: Option<Era>,
}

impl Law {
    /// `threshold`: if the certain error is smaller than this, it is slewed.
    pub fn new(mode: Mode, threshold: Duration) -> Self {
        Self { mode, threshold, steering: Steering::new(Parameters::default()), era: None }
    }

    /// Handles one usable reading: about once a second, and immediately in a new era. `base`: true
    /// seconds per second of CLOCK_MONOTONIC_RAW, minus one.
    pub fn update(&mut self, era: Era, beside: &Beside, base: f64, elapsed: Duration) -> Order {
        let step = self.may_step(era).filter(|_| beside.outside() > self.threshold);
        self.era = Some(era);
        let step = step.map(|why| (beside.offset(), why));
        let left = beside.offset() - step.map_or(Duration::ZERO, |(by, _)| by);
        let half_width = beside.half_width();
        let command = self.steering.update(&Input { offset: left, half_width, base, elapsed });
        Order { step, rate: command.rate, phase: command.phase, left }
    }

    /// The order while nothing is reliable: the rate stays, and nothing is slewed.
    pub fn hold(&self, base: f64) -> Order {
        let command = self.steering.hold(base);
        Order { step: None, rate: command.rate, phase: command.phase, left: Duration::ZERO }
    }

    fn may_step(&self, era: Era) -> Option<Why> {
        if self.mode == Mode::Slew {
            return None;
        }
        match self.era {
            None => Some(Why::Start),
            Some(known) if known.disruption != era.disruption => Some(Why::Disruption),
            // A page that has only just learned TAI - UTC was not usable before.
            Some(known) if known.tai_offset != era.tai_offset => Some(Why::TaiOffset),
            Some(_) => None,
        }
    }
}

/// The minimum time to slew this offset away.
pub fn slew_time(offset: Duration) -> Duration {
    let ppm = f64::from(Parameters::default().max_slew_ppm);
    Duration::from_secs_f64(offset.abs().as_secs_f64() / (ppm * 1e-6))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use timevisor_time::{Instant, Utc};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MILLISECOND: Duration = Duration::from_millis(1);
    const FIRST: Era = Era { disruption: 7, tai_offset: Some(37) };

    /// CLOCK_REALTIME is behind by `offset`, and the page is good to 10 us.
    fn off(offset: Duration) -> Beside {
        let estimate = Instant::<Utc>::from_unix_nanos(1_800_000_000_000_000_000);
        let bound = Duration::from_micros(10);
        Beside {
            realtime: estimate - offset,
            earliest: estimate - bound,
            estimate,
            latest: estimate + bound,
            estimated_error: Duration::from_micros(1),
        }
    }

    fn step(law: &mut Law, era: Era, offset: Duration) -> Option<(Duration, Why)> {
        law.update(era, &off(offset), 0.0, SECOND).step
    }

    #[test]
    fn a_step_is_for_the_start_for_disruptions_and_for_leap_seconds() {
        let mut law = Law::new(Mode::Step, MILLISECOND);
        let years = Duration::from_secs(200_000_000);
        assert_eq!(step(&mut law, FIRST, years), Some((years, Why::Start)));
        // Another program sets the clock: slewed.
        assert_eq!(step(&mut law, FIRST, -years), None);
        let resumed = Era { disruption: 8, ..FIRST };
        assert_eq!(step(&mut law, resumed, SECOND), Some((SECOND, Why::Disruption)));
        let leap = Era { tai_offset: Some(38), ..resumed };
        assert_eq!(step(&mut law, leap, -SECOND), Some((-SECOND, Why::TaiOffset)));
        assert_eq!(step(&mut law, leap, SECOND), None);
    }

    #[test]
    fn only_what_is_surely_beyond_the_threshold_is_stepped() {
        let mut law = Law::new(Mode::Step, MILLISECOND);
        // With bounds of 10 us, it is certainly off by only 990 us.
        assert_eq!(step(&mut law, FIRST, MILLISECOND), None);
        // The first reading of an era decides.
        assert_eq!(step(&mut law, FIRST, SECOND), None);
        let next = Era { disruption: 8, ..FIRST };
        let beyond = -(MILLISECOND + Duration::from_micros(11));
        assert_eq!(step(&mut law, next, beyond), Some((beyond, Why::Disruption)));
    }

    #[test]
    fn after_a_step_nothing_is_left_to_slew() {
        let mut law = Law::new(Mode::Step, MILLISECOND);
        let order = law.update(FIRST, &off(SECOND), 0.0, SECOND);
        assert_eq!((order.phase, order.left), (Duration::ZERO, Duration::ZERO));
        assert_eq!(law.hold(0.0).phase, Duration::ZERO);
    }

    proptest! {
        /// Whatever happens to the page, slewing never sets the clock back: its rate stays within
        /// 500 ppm of the base.
        #[test]
        fn slewing_goes_on_forwards(
            micros in -10_000_000_000i64..10_000_000_000, markers in proptest::collection::vec(0u64..3, 1..40),
            base_ppm in -400i32..400,
        ) {
            let mut law = Law::new(Mode::Slew, MILLISECOND);
            let base = f64::from(base_ppm) * 1e-6;
            let mut offset = Duration::from_micros(micros);
            for disruption in markers {
                let order = law.update(Era { disruption, ..FIRST }, &off(offset), base, SECOND);
                prop_assert_eq!(order.step, None);
                // The kernel works off an eighth of the phase per second (timevisor-linux
                // `adjust`).
                let slewed = order.phase.as_secs_f64() / 8.0;
                prop_assert!(slewed.abs() <= 500.1e-6, "{slewed}");
                prop_assert!((order.rate.ratio() - base).abs() <= 1.1e-6);
                // Never overshoots the estimate.
                let next = offset - Duration::from_secs_f64(slewed);
                prop_assert!(next.abs() <= offset.abs());
                offset = next;
            }
        }
    }

    #[test]
    fn five_milliseconds_are_slewed_away_in_half_a_minute() {
        let mut law = Law::new(Mode::Slew, MILLISECOND);
        let mut offset = -Duration::from_millis(5);
        let mut seconds = 0;
        while offset.abs() > Duration::from_micros(100) {
            let order = law.update(FIRST, &off(offset), 0.0, SECOND);
            offset -= Duration::from_secs_f64(order.phase.as_secs_f64() / 8.0);
            seconds += 1;
        }
        assert!((25..40).contains(&seconds), "{seconds} s");
        assert_eq!(slew_time(Duration::from_millis(5)).as_secs_f64().round(), 10.0);
    }
}
