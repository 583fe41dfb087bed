//! Simulated worlds against the bounds: truth inside, later inside earlier, and failing assumptions
//! noticed in time.

use super::*;
use crate::estimators::Estimator;
use crate::estimators::shifted_exponential::ShiftedExponential;
use crate::estimators::shifted_exponential::testing::{World, nominal};
use crate::parameters::{CRYSTAL_WANDER, OCXO_WANDER};
use timevisor_time::Instant;

struct Observer {
    world: World,
    estimator: ShiftedExponential,
    bounds: HardBounds,
}

const POLL_S: f64 = 16.0;

impl Observer {
    fn new(world: World, parameters: &Parameters) -> Self {
        let unmeasured = RateLimits::around(nominal(), RateError::from_ppm(100));
        Self {
            world,
            estimator: ShiftedExponential::new(&parameters.estimator, nominal()),
            bounds: HardBounds::new(parameters, nominal(), unmeasured),
        }
    }

    fn poll(&mut self) -> Outcome {
        self.poll_after(POLL_S)
    }

    /// One exchange; the next begins `seconds` after this one did.
    fn poll_after(&mut self, seconds: f64) -> Outcome {
        let begin = self.world.now_s;
        let exchange = self.world.exchange();
        self.estimator.observe(&exchange);
        let diagnosis = self.estimator.diagnosis();
        let opinion = Opinion::of(&self.estimator, diagnosis, &exchange, nominal());
        let outcome = self.bounds.observe(&exchange, opinion.as_ref());
        self.world.advance(begin + seconds - self.world.now_s);
        outcome
    }

    fn now(&self) -> (u64, Instant<timevisor_time::Tai>) {
        (self.world.counter(), self.world.time())
    }

    fn holds_truth(&self) -> bool {
        let (counter, truth) = self.now();
        self.bounds.segment(counter, counter + 1).unwrap().interval.contains(truth)
    }

    fn half_width_us(&self) -> f64 {
        let counter = self.world.counter();
        self.bounds.segment(counter, counter + 1).unwrap().interval.width().as_secs_f64() * 5e5
    }
}

#[test]
fn four_honest_hours_are_narrow_covered_and_quiet() {
    for seed in 0..4 {
        let mut o = Observer::new(World::lan(seed), &Parameters::default());
        for _ in 0..900 {
            assert_eq!(o.poll(), Outcome::Agrees, "seed {seed}");
            assert!(o.holds_truth(), "seed {seed} at {} s", o.world.now_s);
        }
        // 30 us of path, and what queueing and wander add at the end of a poll; level 1 alone has
        // 250 us.
        assert!(o.half_width_us() < 130.0, "{}", o.half_width_us());
    }
}

#[test]
fn a_segment_holds_for_its_whole_length() {
    let mut o = Observer::new(World::lan(7), &Parameters::default());
    for _ in 0..400 {
        o.poll();
    }
    let (counter, _) = o.now();
    let s = o.bounds.segment(counter, counter + 101_000_000_000).unwrap();
    for _ in 0..10 {
        o.world.advance(10.0);
        let (then, truth) = o.now();
        let latest = s.interval.latest() + s.slopes.longest.span_ceil(then - counter);
        let earliest = s.interval.earliest() + s.slopes.shortest.span(then - counter);
        assert!(earliest <= truth && truth <= latest, "{then}");
        // What is said then lies inside what was said now: nothing was learned, and the chord is
        // outside the curve.
        let later = o.bounds.segment(then, then + 1).unwrap().interval;
        assert!(earliest <= later.earliest() && later.latest() <= latest);
    }
}

#[test]
fn later_bounds_lie_inside_earlier_ones() {
    let mut o = Observer::new(World::lan(3), &Parameters::default());
    let slack = Duration::from_nanos(1);
    for n in 0..600 {
        let ahead = o.world.counter() + 16_000_000_000;
        let before = o.bounds.segment(ahead, ahead + 1);
        o.poll();
        let after = o.bounds.segment(ahead, ahead + 1).unwrap().interval;
        // Until the rate is known, level 1 is in force now and then.
        if let Some(before) = before.filter(|_| n > 50) {
            assert!(before.interval.earliest() - slack <= after.earliest(), "exchange {n}");
            assert!(after.latest() <= before.interval.latest() + slack, "exchange {n}");
        }
    }
}

/// What fails after four hours, and whether trust was withdrawn before or when truth left the
/// bounds; `None` after a false alarm, of which one in ten days is normal.
fn notices(seed: u64, mut fail: impl FnMut(&mut World, f64)) -> Option<bool> {
    let mut o = Observer::new(World::lan(seed), &Parameters::default());
    for _ in 0..900 {
        o.poll();
        if !o.bounds.is_trusted() {
            return None;
        }
    }
    let begin = o.world.now_s;
    for _ in 0..100 {
        fail(&mut o.world, begin);
        o.poll();
        if !o.bounds.is_trusted() {
            return Some(true);
        }
        if !o.holds_truth() {
            return Some(false);
        }
    }
    Some(true)
}

#[test]
fn a_reference_that_gains_a_millionth_is_noticed_before_truth_is_lost() {
    let verdicts: Vec<_> = (0..12)
        .map(|seed| {
            notices(seed, |w, begin| w.reference_error_s = (w.now_s + POLL_S / 2.0 - begin) * 1e-6)
        })
        .collect();
    let false_alarms = verdicts.iter().filter(|v| v.is_none()).count();
    assert!(false_alarms <= 2 && !verdicts.contains(&Some(false)), "{verdicts:?}");
}

#[test]
fn a_millisecond_is_noticed_at_once_and_the_bounds_keep_the_truth() {
    let mut o = Observer::new(World::lan(5), &Parameters::default());
    for _ in 0..600 {
        o.poll();
    }
    o.world.reference_error_s = -1e-3;
    assert!(matches!(o.poll(), Outcome::Contradicted(gap) if gap > Duration::from_micros(500)));
    assert!(!o.bounds.is_trusted() && o.holds_truth(), "the hull of before and since");
}

#[test]
fn more_wander_than_the_floor_widens_the_bounds_instead_of_losing_truth() {
    let mut parameters = Parameters::default();
    parameters.bounds.wander_floor = 1e-10;
    for seed in 20..24 {
        let mut o = Observer::new(World::lan(seed), &parameters);
        for _ in 0..900 {
            o.poll();
        }
        let calm = o.bounds.wander();
        o.world.wander *= 5.0;
        for _ in 0..300 {
            o.poll();
            assert!(o.holds_truth() || !o.bounds.is_trusted(), "seed {seed}");
        }
        assert!(o.bounds.wander() > calm, "seed {seed}: {calm} is still in force");
    }
}

/// What was seen in quiet hours says nothing about the next change of temperature.
#[test]
fn quiet_hours_do_not_narrow_the_bounds_below_the_floor() {
    let mut world = World::lan(31);
    world.wander = 1e-11;
    let mut o = Observer::new(world, &Parameters::default());
    for _ in 0..5000 {
        o.poll();
        assert_eq!(o.bounds.wander().to_bits(), CRYSTAL_WANDER.to_bits());
    }
    // 0.5 ppm within 20 s, faster than the oscillator has ever been seen to change.
    for second in 0..200 {
        if second < 20 {
            o.world.frequency += 25e-9;
        }
        if second % 16 == 0 {
            o.poll();
        } else {
            o.world.advance(1.0);
        }
        assert!(o.holds_truth(), "after {second} s");
    }
    assert_eq!(o.bounds.beyond_floor(), None);
}

#[test]
fn a_floor_that_the_oscillator_breaks_is_told() {
    let mut parameters = Parameters::default();
    parameters.bounds.wander_floor = OCXO_WANDER;
    let mut world = World::lan(33);
    world.wander = 1e-11;
    let mut o = Observer::new(world, &parameters);
    for _ in 0..600 {
        o.poll();
        assert_eq!(o.bounds.beyond_floor(), None);
    }
    o.world.frequency += 1e-6;
    for _ in 0..40 {
        o.poll();
        assert!(o.holds_truth() || !o.bounds.is_trusted());
    }
    assert!(o.bounds.beyond_floor().is_some_and(|wander| wander > 1e-9));
}

#[test]
fn a_longer_path_is_no_contradiction() {
    let mut o = Observer::new(World::lan(9), &Parameters::default());
    for _ in 0..600 {
        o.poll();
    }
    o.world.minimum_s[0] += 300e-6;
    for _ in 0..600 {
        assert_eq!(o.poll(), Outcome::Agrees);
        assert!(o.holds_truth());
    }
    o.world.minimum_s[0] -= 300e-6;
    for _ in 0..600 {
        o.poll();
        assert!(o.holds_truth());
    }
}

#[test]
fn a_counter_beyond_the_stated_limits_is_told_by_the_second_exchange() {
    for seed in 0..12 {
        let mut world = World::lan(seed);
        world.frequency = 150e-6;
        let mut o = Observer::new(world, &Parameters::default());
        assert_eq!(o.poll(), Outcome::Agrees);
        assert!(o.bounds.is_trusted());
        // Facts may contradict each other as well; then everything starts over, untrusted too.
        for n in 2..40 {
            o.poll();
            assert!(!o.bounds.is_trusted(), "seed {seed}, exchange {n}");
        }
    }
}

#[test]
fn a_counter_within_the_limits_is_not_suspected() {
    for seed in 0..12 {
        let mut world = World::lan(seed);
        world.frequency = -75e-6;
        let mut o = Observer::new(world, &Parameters::default());
        for n in 0..40 {
            assert_eq!(o.poll(), Outcome::Agrees, "seed {seed}, exchange {n}");
            assert_eq!(o.bounds.beyond_limits(), None);
        }
    }
}

/// A host that just started answers late now and then: by milliseconds where the path takes 60 us,
/// and all of it in one direction.
#[test]
fn stalls_right_after_the_start_are_no_rate() {
    let mut alarms = Vec::new();
    for seed in 0..400 {
        let mut world = World::lan(seed);
        world.frequency = 5e-6;
        let mut o = Observer::new(world, &Parameters::default());
        let direction = usize::from(seed % 2 == 0);
        for n in 0..8_u32 {
            let stall = if (seed >> n) & 1 == 0 {
                0.0
            } else {
                20e-6 * 3.5_f64.powi(1 + (seed % 5) as i32)
            };
            o.world.minimum_s[direction] += stall;
            let begin = o.world.now_s;
            o.poll_after(1.0);
            o.world.minimum_s[direction] -= stall;
            if !o.bounds.is_trusted() {
                alarms.push((seed, n, stall, o.bounds.beyond_limits(), begin));
            }
        }
    }
    assert!(alarms.is_empty(), "{} {alarms:?}", alarms.len());
}
