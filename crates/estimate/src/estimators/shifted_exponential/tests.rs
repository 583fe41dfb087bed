//! Tests of the whole estimator in small simulated worlds.

use proptest::prelude::*;
use timevisor_time::{Duration, Instant};

use super::history::History;
use super::testing::{HZ, Random, World, estimator, nominal, rms};
use super::*;
use crate::estimators::Estimator;

const US: f64 = 1e-6;
/// Enough for the start and for several blocks of usual minima.
const SETTLED: usize = 64 + 12 * 9;

/// A world and an estimator that has seen `SETTLED` exchanges at 16 s polls.
fn settled(seed: u64) -> (World, ShiftedExponential) {
    let (mut world, mut estimator) = (World::lan(seed), estimator());
    world.run(&mut estimator, SETTLED, 16.0);
    (world, estimator)
}

#[test]
fn two_hours_on_a_lan_stay_within_three_microseconds() {
    for seed in 1..=3 {
        let (mut world, mut estimator) = (World::lan(seed), estimator());
        world.run(&mut estimator, 8, 2.0);
        let start = rms(&world.run(&mut estimator, 112, 16.0));
        let squares = world.run(&mut estimator, 338, 16.0);
        let error = rms(&squares);
        assert!(error < 3.0 * US, "seed {seed}: {error:e}");
        assert!(start < 10.0 * US, "seed {seed}: {start:e}");
        assert_eq!(estimator.changes(), Changes::default(), "seed {seed}");
    }
}

#[test]
fn the_stated_error_is_the_actual_one() {
    let mut ratios = Vec::new();
    for seed in 1..=4 {
        let (mut world, mut estimator) = settled(seed);
        for _ in 0..100 {
            world.run(&mut estimator, 1, 16.0);
            let stated = estimator.at(world.counter()).unwrap().error.as_secs_f64();
            ratios.push((world.error_s(&estimator) / stated).powi(2));
        }
    }
    let ratio = rms(&ratios);
    assert!((0.7..1.3).contains(&ratio), "{ratio}");
}

#[test]
fn the_stated_error_is_honest_for_queueing_that_is_anything_but_exponential() {
    let mut random = Random::new(1);
    for (seed, shape) in [(40, 0.0), (41, 0.5), (42, 1.5), (43, 2.5)] {
        let (mut world, mut estimator) = (World::lan(seed), estimator());
        for n in 0..160 {
            world.queueing_s = 20.0 * US * random.exponential().powf(shape);
            world.run(&mut estimator, 1, 16.0);
            let stated = estimator.at(world.counter()).unwrap().error.as_secs_f64();
            let error = world.error_s(&estimator);
            assert!(n < 64 || error.abs() < 5.0 * stated + US, "{shape} {n}: {error:e} {stated:e}");
        }
    }
}

#[test]
fn nothing_is_known_before_the_first_exchange_and_enough_after_it() {
    let mut estimator = estimator();
    assert_eq!(estimator.at(5), None);
    assert!(estimator.diagnosis().is_none() && estimator.saved().is_none());
    let mut world = World::lan(1);
    world.run(&mut estimator, 1, 1.0);
    let estimate = estimator.at(world.counter()).unwrap();
    assert!(world.error_s(&estimator).abs() < 200.0 * US);
    // Half the round trip, and a rate that has not been measured yet.
    assert!(
        estimate.error > Duration::from_micros(20) && estimate.error < Duration::from_millis(1)
    );
}

/// Lengthens one direction by 300 us, then goes back; `k` is the direction.
fn route_changes_and_returns(k: usize) {
    let (mut world, mut estimator) = settled(5);
    let other = 1 - k;
    world.minimum_s[k] += 300.0 * US;
    world.run(&mut estimator, 14, 16.0);
    let changes = estimator.changes();
    assert_eq!((changes.lengthened[k], changes.lengthened[other], changes.steps), (1, 0, 0));
    let delays = estimator.diagnosis().unwrap().minimum_delay;
    let asymmetry = delays[k] - delays[other];
    assert!((asymmetry - 300.0 * US).abs() < 15.0 * US, "{asymmetry:e}");
    let error = rms(&world.run(&mut estimator, 60, 16.0));
    assert!(error < 6.0 * US, "{error:e}");

    world.minimum_s[k] -= 300.0 * US;
    let error = rms(&world.run(&mut estimator, 60, 16.0));
    assert!(error < 6.0 * US, "{error:e}");
    let changes = estimator.changes();
    assert_eq!((changes.shortened[k], changes.shortened[other], changes.steps), (1, 0, 0));
    let delays = estimator.diagnosis().unwrap().minimum_delay;
    assert!((delays[0] - delays[1]).abs() < 2.0 * US, "the earlier route's asymmetry: {delays:?}");
}

#[test]
fn a_longer_way_there_moves_the_forward_minimum_only() {
    route_changes_and_returns(0);
}

#[test]
fn a_longer_way_back_moves_the_backward_minimum_only() {
    route_changes_and_returns(1);
}

#[test]
fn the_earlier_route_has_its_earlier_asymmetry_although_the_clock_wandered_meanwhile() {
    let (mut world, mut estimator) = settled(14);
    world.minimum_s[0] += 300.0 * US;
    world.run(&mut estimator, 20, 16.0);
    world.wander = 1e-7;
    world.run(&mut estimator, 20, 16.0);
    world.minimum_s[0] -= 300.0 * US;
    world.run(&mut estimator, 20, 16.0);
    let delays = estimator.diagnosis().unwrap().minimum_delay;
    assert!((delays[0] - delays[1]).abs() < US, "{delays:?}");
}

#[test]
fn both_ways_longer_by_different_amounts_move_both_minima() {
    for seed in 50..56 {
        let (mut world, mut estimator) = settled(seed);
        world.minimum_s = [330.0 * US, 130.0 * US];
        world.run(&mut estimator, 40, 16.0);
        let delays = estimator.diagnosis().unwrap().minimum_delay;
        let asymmetry = delays[0] - delays[1];
        assert!((asymmetry - 200.0 * US).abs() < 20.0 * US, "seed {seed}: {delays:?}");
    }
}

#[test]
fn a_shift_of_three_queueing_delays_is_found_by_its_minimum() {
    let (mut world, mut estimator) = settled(15);
    world.minimum_s[1] += 60.0 * US;
    world.run(&mut estimator, 36, 16.0);
    assert_eq!(estimator.changes().lengthened, [0, 1]);
    let error = rms(&world.run(&mut estimator, 40, 16.0));
    assert!(error < 8.0 * US, "{error:e}");
}

#[test]
fn queueing_is_as_before_after_a_route_change() {
    let (mut world, mut estimator) = settled(16);
    world.minimum_s[0] += 300.0 * US;
    // More than three quarters of the 256 newest round trips belong to the new route.
    world.run(&mut estimator, 215, 16.0);
    let queueing = estimator.diagnosis().unwrap().queueing;
    assert!(queueing.iter().all(|q| (10.0 * US..35.0 * US).contains(q)), "{queueing:?}");
}

#[test]
fn late_messages_around_a_short_burst_do_not_make_it_a_route_change() {
    let (mut world, mut estimator) = settled(17);
    for (late, count) in [(250.0 * US, 3), (1e-3, 8), (250.0 * US, 2), (0.0, 20)] {
        world.minimum_s[0] = 30.0 * US + late;
        world.run(&mut estimator, count, 16.0);
    }
    assert_eq!(estimator.changes(), Changes::default());
    assert!(world.error_s(&estimator).abs() < 10.0 * US);
}

#[test]
fn delays_that_avoid_the_minimum_are_left_to_the_expert_with_the_softer_edge() {
    let best_with = |erlang: bool| {
        let (mut world, mut estimator) = (World::lan(18), estimator());
        world.erlang = erlang;
        world.run(&mut estimator, 250, 16.0);
        best(&estimator)
    };
    assert_eq!((best_with(false), best_with(true)), (0, 1));
}

/// Index of the best expert.
fn best(estimator: &ShiftedExponential) -> usize {
    let merits: Vec<f64> = estimator.panel.members().map(|(_, merit)| merit).collect();
    (0..merits.len()).fold(0, |best, i| if merits[i] > merits[best] { i } else { best })
}

#[test]
fn minima_that_wander_together_move_no_clock() {
    // A satellite link; in the second case, its wave moves by a mean queueing delay per exchange.
    for queueing_s in [1e-3, 35.0 * US] {
        let (mut world, mut estimator) = (World::lan(50), estimator());
        world.queueing_s = queueing_s;
        let mut squares = Vec::new();
        for _ in 0..900 {
            let wave = 2e-3 * (core::f64::consts::TAU * world.now_s / 5400.0).sin();
            world.minimum_s = [20e-3 + wave; 2];
            squares.extend(world.run(&mut estimator, 1, 16.0));
        }
        let error = rms(&squares[300..]);
        assert!(error < 20.0 * US + 0.06 * queueing_s, "{queueing_s:e}: {error:e}");
        assert_eq!((best(&estimator), estimator.changes().steps), (2, 0));
    }
}

#[test]
fn a_route_that_changes_in_both_directions_moves_no_clock() {
    let routes = [[0.0, 0.0], [150.0, 0.0], [40.0, 200.0], [300.0, 40.0]];
    let (mut world, mut estimator) = settled(51);
    for n in 1..=16 {
        let [forward, backward] = routes[n % routes.len()];
        world.minimum_s = [(30.0 + forward) * US, (30.0 + backward) * US];
        world.run(&mut estimator, 44, 16.0);
        let error = rms(&world.run(&mut estimator, 20, 16.0));
        assert!(error < 20.0 * US, "change {n}: {error:e}");
    }
    assert_eq!(estimator.changes().steps, 0);
    // The first route is restored, and with it its asymmetry.
    let delays = estimator.diagnosis().unwrap().minimum_delay;
    assert!((delays[0] - delays[1]).abs() < 20.0 * US, "{delays:?}");
}

#[test]
fn a_shift_that_was_found_in_hindsight_costs_an_expert_little() {
    let (mut world, mut estimator) = settled(52);
    assert_eq!(best(&estimator), 0);
    world.minimum_s[1] += 300.0 * US;
    world.run(&mut estimator, 14, 16.0);
    assert_eq!((best(&estimator), estimator.changes().lengthened), (0, [0, 1]));
}

#[test]
fn the_first_round_trip_of_a_shorter_route_is_not_taken_for_queueing() {
    // Must hold for any phase between the change and the renewal of the statistics.
    let (mut world, mut estimator) = settled(53);
    world.minimum_s[0] += 3e-3;
    world.run(&mut estimator, 60, 16.0);
    for extra in 0..32 {
        let (mut world, mut estimator) = (World::lan(53), estimator.clone());
        world.minimum_s[0] += 3e-3;
        world.run(&mut estimator, 1 + extra, 16.0);
        world.minimum_s[0] -= 3e-3;
        world.run(&mut estimator, 1, 16.0);
        assert!(estimator.round_trips.queueing_s < 60.0 * US, "{extra}");
    }
}

#[test]
fn an_exchange_held_up_both_ways_changes_nothing() {
    let (mut world, mut estimator) = settled(19);
    let later = world.counter() + HZ;
    let before = estimator.at(later).unwrap().time;
    world.minimum_s = [280.0 * US; 2];
    world.run(&mut estimator, 1, 1.0);
    let moved = (estimator.at(later).unwrap().time - before).abs();
    assert!(moved < Duration::from_nanos(1), "{moved}");
}

#[test]
fn a_short_burst_is_no_route_change() {
    let (mut world, mut estimator) = settled(7);
    world.minimum_s[0] += 1e-3;
    world.run(&mut estimator, 7, 16.0);
    world.minimum_s[0] -= 1e-3;
    let error = rms(&world.run(&mut estimator, 60, 16.0));
    assert_eq!(estimator.changes(), Changes::default());
    assert!(error < 4.0 * US, "{error:e}");
}

#[test]
fn a_chance_delay_just_before_a_route_change_does_not_hide_its_size() {
    let (mut world, mut estimator) = settled(8);
    // Late enough to count as part of the run, but much less late than the new route.
    world.minimum_s[0] += 250.0 * US;
    world.run(&mut estimator, 1, 16.0);
    world.minimum_s[0] += 750.0 * US;
    world.run(&mut estimator, 13, 16.0);
    let delays = estimator.diagnosis().unwrap().minimum_delay;
    assert!((delays[0] - 1030.0 * US).abs() < 20.0 * US, "{delays:?}");
}

#[test]
fn a_step_is_followed_within_three_exchanges_and_signalled_once() {
    for step in [1e-3, -1e-3, 0.1, -1000.0, 1.7e9] {
        let (mut world, mut estimator) = settled(9);
        world.reference_error_s = step;
        let mut signalled = 0;
        for _ in 0..5 {
            world.run(&mut estimator, 1, 16.0);
            signalled += u32::from(estimator.diagnosis().unwrap().step);
        }
        assert_eq!(signalled, 1, "step {step}");
        let residual = |world: &World, estimator: &ShiftedExponential| {
            let estimate = estimator.at(world.counter()).unwrap().time;
            (estimate - (world.time() + Duration::from_secs_f64(step))).as_secs_f64()
        };
        assert!(residual(&world, &estimator).abs() < 60.0 * US, "step {step}");
        world.run(&mut estimator, 60, 16.0);
        assert!(residual(&world, &estimator).abs() < 10.0 * US, "step {step}");
        assert_eq!(estimator.changes().lengthened, [0, 0], "step {step}");
    }
}

/// Floats resolve 2e-7 s at 1.7e9 s: C has to follow.
#[test]
fn a_step_of_decades_costs_no_resolution() {
    let quiet = || {
        let mut world = World::lan(33);
        (world.wander, world.queueing_s, world.minimum_s) = (1e-10, 0.2 * US, [US; 2]);
        let mut estimator = estimator();
        world.run(&mut estimator, SETTLED, 16.0);
        (world, estimator)
    };
    let (mut world, mut estimator) = quiet();
    world.reference_error_s = 1.7e9;
    world.run(&mut estimator, 100, 16.0);
    let stepped = estimator.at(world.counter()).unwrap().time - Duration::from_secs(1_700_000_000);
    let (mut world, mut estimator) = quiet();
    world.run(&mut estimator, 100, 16.0);
    let apart = (stepped - estimator.at(world.counter()).unwrap().time).abs();
    assert!(apart < Duration::from_nanos(60), "{apart}");
}

#[test]
fn one_wrong_answer_moves_nothing() {
    let (mut world, mut estimator) = settled(10);
    for wrong in [3600.0, -3600.0] {
        world.reference_error_s = wrong;
        world.run(&mut estimator, 1, 16.0);
        world.reference_error_s = 0.0;
        assert!(world.error_s(&estimator).abs() < 15.0 * US);
        world.run(&mut estimator, 3, 16.0);
    }
    assert_eq!(estimator.changes(), Changes::default());
}

#[test]
fn a_step_during_the_start_begins_it_anew() {
    for before in [6, 20] {
        let (mut world, mut estimator) = (World::lan(11), estimator());
        world.run(&mut estimator, before, 16.0);
        world.reference_error_s = 50.0;
        world.run(&mut estimator, 44 - before, 16.0);
        let estimate = estimator.at(world.counter()).unwrap().time;
        let error = (estimate - world.time()).as_secs_f64() - 50.0;
        assert!(error.abs() < 20.0 * US, "{before}: {error:e}");
    }
}

#[test]
fn a_shorter_path_during_the_start_is_taken_for_what_it_is() {
    let (mut world, mut estimator) = (World::lan(34), estimator());
    world.minimum_s = [330.0 * US; 2];
    world.run(&mut estimator, 16, 16.0);
    world.minimum_s = [30.0 * US; 2];
    world.run(&mut estimator, 6, 16.0);
    let delays = estimator.diagnosis().unwrap().minimum_delay;
    assert!(delays[0] + delays[1] < 120.0 * US, "{delays:?}");
    assert!(world.error_s(&estimator).abs() < 30.0 * US);
}

#[test]
fn a_stronger_wander_is_noticed() {
    let (mut world, mut estimator) = settled(12);
    let walk = |estimator: &ShiftedExponential| -> f64 {
        let models = estimator.diagnosis().unwrap().models;
        assert!((models.iter().map(|m| m.weight).sum::<f64>() - 1.0).abs() < 1e-9);
        models.iter().map(|m| m.weight * m.random_walk.ln()).sum::<f64>().exp()
    };
    let before = walk(&estimator);
    world.wander = 1e-7;
    world.run(&mut estimator, 60, 16.0);
    let after = walk(&estimator);
    assert!(before < 5e-9 && after > 2e-8, "{before:e} {after:e}");
}

#[test]
fn days_of_silence_are_honest() {
    let (mut world, mut estimator) = settled(13);
    world.advance(3.0 * 86_400.0);
    let estimate = estimator.at(world.counter()).unwrap();
    let error = world.error_s(&estimator).abs();
    assert!(error < 5.0 * estimate.error.as_secs_f64(), "{error:e}, stated {}", estimate.error);
    world.run(&mut estimator, 10, 16.0);
    assert!(world.error_s(&estimator).abs() < 60.0 * US);
    assert_eq!(estimator.changes().lengthened, [0, 0]);
}

#[test]
fn a_restarted_estimator_is_as_good_as_one_that_went_on() {
    let (mut restarted_squares, mut squares) = (Vec::new(), Vec::new());
    for seed in 20..26 {
        let (mut world, mut went_on) = settled(seed);
        let saved = went_on.saved().unwrap();
        world.advance(60.0);
        let mut restarted =
            ShiftedExponential::resume(&Parameters::default(), nominal(), &saved).unwrap();
        let now = world.counter();
        let (a, b) = (went_on.at(now).unwrap(), restarted.at(now).unwrap());
        assert!((a.time - b.time).abs() < Duration::from_nanos(10), "{}", a.time - b.time);
        assert!(a.period.relative_to(b.period).abs() < 1e-12);
        for _ in 0..20 {
            let exchange = world.exchange();
            for estimator in [&mut went_on, &mut restarted] {
                estimator.observe(&exchange);
            }
            world.advance(16.0);
            squares.push(world.error_s(&went_on).powi(2));
            restarted_squares.push(world.error_s(&restarted).powi(2));
        }
    }
    let (with, without) = (rms(&restarted_squares), rms(&squares));
    assert!(with < 1.2 * without, "{with:e} against {without:e}");
}

#[test]
fn a_state_saved_with_another_nominal_period_goes_on_too() {
    let (mut world, estimator) = settled(27);
    let saved = estimator.saved().unwrap();
    let other = Period::from_bits(nominal().to_bits() / 10_000 * 10_001);
    let mut resumed = ShiftedExponential::resume(&Parameters::default(), other, &saved).unwrap();
    world.advance(60.0);
    assert!(world.error_s(&resumed).abs() < 10.0 * US, "{:e}", world.error_s(&resumed));
    world.run(&mut resumed, 5, 16.0);
    assert!(world.error_s(&resumed).abs() < 10.0 * US);
}

/// Found by fuzzing: the period derived from a lying reference was saved, and refused at the
/// restart.
#[test]
fn a_state_that_would_be_refused_is_not_saved() {
    let (mut world, wrong) = (World::lan(29), Period::from_bits(nominal().to_bits() / 500 * 501));
    let mut estimator = ShiftedExponential::new(&Parameters::default(), wrong);
    world.run(&mut estimator, 100, 16.0);
    let period = estimator.at(world.counter()).unwrap().period;
    assert!(period.relative_to(wrong).abs() > 1e-3, "the counter is 2000 ppm off: {period:?}");
    assert!(estimator.saved().is_none());
}

#[test]
fn impossible_saved_states_are_refused_by_name() {
    let (_, estimator) = settled(28);
    let good = estimator.saved().unwrap();
    let resume = |change: &dyn Fn(&mut Saved)| {
        let mut saved = good.clone();
        change(&mut saved);
        ShiftedExponential::resume(&Parameters::default(), nominal(), &saved).map(|_| ())
    };
    let field = |change: &dyn Fn(&mut Saved)| resume(change).unwrap_err().field;
    assert_eq!(resume(&|_| ()), Ok(()));
    assert_eq!(field(&|s| s.period_bits += s.period_bits / 500), "period_bits");
    assert_eq!(field(&|s| s.queueing_s = f64::NAN), "queueing_s");
    assert_eq!(field(&|s| s.exchanges = u64::MAX), "exchanges");
    assert_eq!(field(&|s| s.independence = 0.0), "independence");
    assert_eq!(field(&|s| s.experts[1].mean[1] = f64::INFINITY), "mean");
    assert_eq!(field(&|s| s.experts[0].covariance[0] = -1.0), "covariance");
    assert_eq!(field(&|s| s.experts[0].weights[3] += 0.5), "weights");
    assert_eq!(field(&|s| s.experts[1].merit = 1.0), "merit");
}

/// The daemon chooses the format; here it only has to compile.
#[cfg(feature = "serde")]
const _: () = {
    const fn readable_and_writable<T: serde::Serialize + serde::de::DeserializeOwned>() {}
    readable_and_writable::<Saved>();
};

#[test]
fn the_difference_clock_knows_the_rate() {
    let (mut world, estimator) = settled(30);
    let (counter, time) = (world.counter(), world.time());
    world.advance(1000.0);
    let elapsed = estimator.elapsed(counter, world.counter());
    let error = (elapsed - (world.time() - time)).as_secs_f64();
    // 1000 s at a rate known to some 10 ppb; the nominal rate would be off by 20 ms.
    assert!(error.abs() < 60.0 * US, "{error:e}");
    assert_eq!(elapsed, -estimator.elapsed(world.counter(), counter));
}

/// The same exchanges on another counter and at another time of history give the same estimates,
/// shifted accordingly.
#[test]
fn only_differences_matter_even_when_the_counter_wraps() {
    let (mut world, mut plain, mut moved) = (World::lan(31), estimator(), estimator());
    let ticks = u64::MAX - (world.counter() + 500 * HZ);
    let span = Duration::from_secs(-3_000_000_000);
    for _ in 0..100 {
        let exchange = world.exchange();
        world.advance(16.0);
        plain.observe(&exchange);
        moved.observe(&Exchange {
            ta: exchange.ta.wrapping_add(ticks),
            tb: exchange.tb + span,
            te: exchange.te + span,
            tf: exchange.tf.wrapping_add(ticks),
            ..exchange
        });
    }
    let now = world.counter();
    let (a, b) = (plain.at(now).unwrap(), moved.at(now.wrapping_add(ticks)).unwrap());
    assert_eq!((a.time + span, a.period, a.error), (b.time, b.period, b.error));
}

#[test]
fn the_state_fits_its_budget() {
    let inline = size_of::<ShiftedExponential>();
    let histories = parameters::EXPERTS * History::BYTES;
    let first = Parameters::default().start.exchanges * size_of::<Sighting>();
    assert!(inline + histories + first < 700 * 1024, "{inline} + {histories} + {first} bytes");
}

/// What must hold for any input.
fn assert_sane(estimator: &ShiftedExponential, now: u64) {
    if let Some(estimate) = estimator.at(now) {
        assert!(!estimate.error.is_negative());
        assert!(estimate.period.to_bits() > 0);
    }
    assert!(
        estimator.posterior.is_finite() || estimator.first.is_empty(),
        "{:?}",
        estimator.posterior
    );
    if !estimator.starting {
        for (expert, _) in estimator.panel.members() {
            let covariance = &expert.posterior().covariance;
            for i in [OFFSET, RATE, MINIMUM[0], MINIMUM[1]] {
                assert!(covariance.get(i, i) > 0.0, "{covariance:?}");
            }
            assert!(expert.filter().directions.iter().all(|d| d.queueing_s > 0.0));
        }
    }
}

#[test]
fn identical_exchanges_do_no_harm() {
    let mut estimator = estimator();
    let exchange = World::lan(32).exchange();
    for _ in 0..5000 {
        estimator.observe(&exchange);
    }
    assert_sane(&estimator, exchange.tf);
    let error = estimator.at(exchange.tf).unwrap().error;
    assert!(error > Duration::ZERO && error < Duration::from_micros(100), "{error}");
}

#[test]
fn a_counter_at_twice_its_nominal_rate_gives_numbers() {
    let mut estimator = estimator();
    for second in 0..400u64 {
        let tb = Instant::from_unix_nanos(i128::from(second) * 1_000_000_000);
        let ta = second * 2 * HZ;
        let exchange = Exchange { ta, tb, te: tb, tf: ta + 60_000, error: Duration::ZERO };
        estimator.observe(&exchange);
        assert_sane(&estimator, exchange.tf);
    }
}

/// An exchange of any size, mostly in order.
fn arbitrary_exchange() -> impl Strategy<Value = (u64, i128, u64, i128)> {
    let ticks = prop_oneof![0u64..100_000, 0u64..20_000_000_000, 0u64..1 << 50, any::<u64>()];
    let bits = |bits: u32| -(1i128 << bits)..(1i128 << bits);
    let span = prop_oneof![Just(0), bits(40), bits(55), bits(70), bits(90), bits(126)];
    let round_trip = prop_oneof![Just(0u64), 0u64..1_000_000, 0u64..10_000_000_000, 0u64..1 << 62];
    let residence = prop_oneof![Just(0i128), 0i128..1 << 55, 0i128..1 << 66, 0i128..1 << 100];
    (ticks, span, round_trip, residence)
}

/// Processes exchanges: counter ticks and reference time (2^-64 s) since the previous one, round
/// trip, residence time.
fn feed(exchanges: &[(u64, i128, u64, i128)]) {
    let mut estimator = estimator();
    let (mut counter, mut time, mut last) = (0u64, Instant::from_unix_nanos(0), None);
    for (ticks, span, round_trip, residence) in exchanges {
        counter = counter.wrapping_add(*ticks);
        time = time + nominal().span(*ticks) + Duration::from_bits(*span);
        let exchange = Exchange {
            ta: counter,
            tb: time,
            te: time + Duration::from_bits(*residence),
            tf: counter.wrapping_add(*round_trip),
            error: Duration::ZERO,
        };
        if exchange.check(last.as_ref(), 0).is_ok() {
            estimator.observe(&exchange);
            assert_sane(&estimator, exchange.tf);
            last = Some(exchange);
        }
    }
}

/// Found by the property test below: centuries between exchanges overflow the covariance of some
/// hypothesis.
#[test]
fn astronomical_spans_start_over() {
    let poll = 207_788_733_502;
    feed(&[
        (0, 0, 0, 1),
        (13_147_624_250_135_714_065, 0, 0, 0),
        (5_299_119_823_573_837_552, 0, 5_473_928_854, 0),
        (10_199_509_534_128_584_899, 0, 0, 0),
        (poll, 0, 60_000, 0),
        (8_285_537_773_729_500_834, -21_955_616_452_751_698_504_264_834_858_494_822_411, 0, 1),
        (519_361_017_369_658, -237_296_488_000, 3_417_256_100_144_522_522, 0),
        (934_660_947_435_023, 0, 3_520_542_131_987_721_040, 0),
        (0, 0, 0, 0),
        (poll, 0, 60_000, 0),
        (poll, 0, 60_000, 0),
        (poll, 0, 60_000, 0),
        (poll, 0, 60_000, 0),
        (1, 0, 57_278, 0),
    ]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_passes_the_checks_breaks_it(
        exchanges in prop::collection::vec((arbitrary_exchange(), any::<bool>()), 1..120),
        poll in 0u64..2_000_000_000_000,
    ) {
        let exchanges: Vec<_> = exchanges
            .into_iter()
            .map(|(any, ordinary)| if ordinary { (poll, 0, 60_000, 0) } else { any })
            .collect();
        feed(&exchanges);
    }
}
