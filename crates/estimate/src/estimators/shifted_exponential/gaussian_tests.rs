//! Tests against closed-form solutions.

use super::*;

const FIXED: Wander = Wander { random_walk: 0.0, drift_walk: 0.0 };

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// Independent quantities with these variances.
fn diagonal(variances: [f64; N]) -> Gaussian {
    let mut state = Gaussian::ZERO;
    for (i, v) in variances.into_iter().enumerate() {
        state.covariance.set(i, i, v);
    }
    state
}

#[test]
fn a_mean_of_n_measurements_has_a_variance_over_n() {
    // Offset only: after n measurements with variance r and a prior variance p, the variance is 1 /
    // (1/p + n/r), and the mean is the weighted mean.
    let (p, r) = (1e-6, 4e-10);
    let mut state = diagonal([p, 0.0, 0.0, 0.0, 0.0]);
    let values = [3e-5, -1e-5, 2e-5, 4e-5];
    for value in values {
        let (mean, variance) = state.project(ARRIVAL[0]);
        state.condition(ARRIVAL[0], value - mean, variance + r, 0.0);
    }
    let expected = 1.0 / (1.0 / p + 4.0 / r);
    assert!(close(state.covariance.get(OFFSET, OFFSET), expected));
    assert!(close(state.mean[OFFSET], values.iter().sum::<f64>() / r * expected));
}

#[test]
fn two_offsets_a_time_apart_give_the_least_squares_rate() {
    // Without wander the filter is least squares: rate variance 2 r / dt^2 once the prior is
    // negligible.
    let (r, dt) = (1e-12, 100.0);
    let mut state = diagonal([1e-6, 1e-8, 0.0, 0.0, 0.0]);
    for value in [5e-6, 5e-6 + 2e-5 * dt] {
        let (mean, variance) = state.project(ARRIVAL[0]);
        state.condition(ARRIVAL[0], value - mean, variance + r, 0.0);
        state.predict(if value < 1e-5 { dt } else { 0.0 }, FIXED, 3000.0);
    }
    assert!((state.mean[RATE] / 2e-5 - 1.0).abs() < 1e-6, "{}", state.mean[RATE]);
    let ratio = state.covariance.get(RATE, RATE) / (2.0 * r / (dt * dt));
    assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");
}

#[test]
fn requests_and_answers_see_the_offset_with_opposite_signs() {
    let mut state = diagonal([1e-8, 0.0, 0.0, 4e-10, 9e-10]);
    state.mean = [1e-5, 0.0, 0.0, 3e-5, 5e-5];
    let (forward, variance) = state.project(ARRIVAL[0]);
    assert!(close(forward, 4e-5) && close(variance, 1e-8 + 4e-10));
    let (backward, variance) = state.project(ARRIVAL[1]);
    assert!(close(backward, 4e-5) && close(variance, 1e-8 + 9e-10));
    assert!(close(state.project(ROUND_TRIP).0, 8e-5) && close(state.project(ASYMMETRY).0, -2e-5));
    // Both arrivals are late by the same amount, and both minima are equally uncertain: the cause
    // is the path, not the clock.
    state.covariance.set(MINIMUM[1], MINIMUM[1], 4e-10);
    for arrival in ARRIVAL {
        let (mean, variance) = state.project(arrival);
        state.condition(arrival, 4e-5 + 1e-4 - mean, variance + 1e-12, 0.0);
    }
    assert!((state.mean[OFFSET] - 1e-5).abs() < 1e-6, "{:?}", state.mean);
    assert!((state.project(ROUND_TRIP).0 - 28e-5).abs() < 1e-6, "{:?}", state.mean);
}

#[test]
fn an_unexplained_delay_leaves_as_much_uncertainty() {
    // If the whole predictive variance is unexplained, nothing is learned.
    let mut state = diagonal([1e-8, 1e-12, 0.0, 4e-10, 9e-10]);
    let before = state;
    state.condition(ARRIVAL[0], 0.0, 2e-8, 2e-8);
    assert_eq!(state.covariance, before.covariance);
}

#[test]
fn prediction_in_two_halves_is_prediction_at_once() {
    let wander = Wander { random_walk: 1e-9, drift_walk: 1e-11 };
    let mut state = diagonal([1e-12, 1e-14, 1e-20, 1e-11, 1e-11]);
    state.mean = [1e-6, 2e-8, 3e-11, 3e-5, 3e-5];
    state.covariance.set(OFFSET, MINIMUM[1], 3e-12);
    state.covariance.set(RATE, MINIMUM[0], 2e-13);
    for dt in [16.0, 5000.0] {
        let (mut once, mut twice) = (state, state);
        once.predict(dt, wander, 3000.0);
        twice.predict(dt / 2.0, wander, 3000.0);
        twice.predict(dt / 2.0, wander, 3000.0);
        for i in 0..N {
            let relative = (once.mean[i] / twice.mean[i] - 1.0).abs();
            assert!(relative < 1e-3, "mean {i} over {dt}: {relative:e}");
            for j in i..N {
                let (a, b) = (once.covariance.get(i, j), twice.covariance.get(i, j));
                let scale = (once.covariance.get(i, i) * once.covariance.get(j, j)).sqrt();
                assert!((a - b).abs() <= 5e-3 * scale, "{i} {j} over {dt}: {a:e} {b:e}");
            }
        }
    }
}

#[test]
fn a_mixture_has_the_spread_of_its_parts() {
    let (mut a, mut b) = (diagonal([1.0; N]), diagonal([2.0; N]));
    a.mean[OFFSET] = -1.0;
    b.mean[OFFSET] = 3.0;
    let mixed = Gaussian::mixture(&[a, b], &[0.75, 0.25]);
    assert!(close(mixed.covariance.get(RATE, RATE), 1.25));
    // Variance within 1.25, between 0.75 * 1 + 0.25 * 9.
    assert!(mixed.mean[OFFSET].abs() < 1e-12 && close(mixed.covariance.get(OFFSET, OFFSET), 4.25));
    // Blending towards the mixture is the mixture of the two.
    let mut blended = a;
    blended.blend(0.4, &mixed);
    let direct = Gaussian::mixture(&[a, mixed], &[0.4, 0.6]);
    assert!(close(blended.mean[OFFSET], direct.mean[OFFSET]));
    assert!(close(blended.covariance.get(OFFSET, OFFSET), direct.covariance.get(OFFSET, OFFSET)));
}

#[test]
fn rounding_cannot_make_a_variance_negative_or_a_correlation_beyond_one() {
    let mut state = diagonal([1e6, 1.0, 0.0, 1e-14, 1e-14]);
    state.covariance.set(OFFSET, RATE, 999.999_999_999);
    for n in 0..50 {
        let (_, variance) = state.project(ARRIVAL[n % 2]);
        state.condition(ARRIVAL[n % 2], 0.0, variance + 1e-14, 0.0);
        for i in [OFFSET, RATE, MINIMUM[0], MINIMUM[1]] {
            let own = state.covariance.get(i, i);
            assert!(own > 0.0, "{i} after {n}");
            for j in 0..N {
                let limit = own * state.covariance.get(j, j) * (1.0 + 1e-9);
                assert!(state.covariance.get(i, j).powi(2) <= limit, "{i} {j} after {n}");
            }
        }
    }
}

#[test]
fn another_asymmetry_predicts_the_same_messages() {
    let mut state = diagonal([1e-10, 1e-16, 0.0, 1e-12, 1e-12]);
    state.mean = [3e-6, 1e-8, 0.0, 30e-6, 40e-6];
    let before = ARRIVAL.map(|pair| state.project(pair));
    state.shift_asymmetry(5e-6);
    assert!((state.project(ASYMMETRY).0 + 20e-6).abs() < 1e-18);
    for (pair, (mean, variance)) in ARRIVAL.into_iter().zip(before) {
        let (shifted, same) = state.project(pair);
        assert!((shifted - mean).abs() < 1e-18);
        assert_eq!(same, variance);
    }
}
