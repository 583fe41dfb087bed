//! The initial state, from the exchanges so far.
//!
//! The assumptions about the path (symmetric, minimum near half the best round trip) matter until
//! the delays are known. The filter therefore restarts from all exchanges a few times, each time
//! with a better guess.

use super::coordinates::Sighting;
use super::gaussian::{DRIFT, Gaussian, MINIMUM, N, OFFSET, RATE};
use super::parameters::{Parameters, Start};

/// Whether the filter restarts at exchange `number` (from 1).
pub fn begins_at(number: usize, parameters: &Parameters) -> bool {
    let Start { exchanges, again_at, .. } = &parameters.start;
    number == 1 || again_at.contains(&number) || number == *exchanges
}

/// How many of the first `sightings` took a longer path than the best one: enough of them, and all
/// later than queueing explains. They would indicate an asymmetry that no longer exists.
pub fn earlier_route(sightings: &[Sighting], queueing_s: f64, parameters: &Parameters) -> usize {
    let best = sightings.iter().map(|s| s.path_s).fold(f64::INFINITY, f64::min);
    let limit = best + 2.0 * parameters.delays.outlier_queueing * queueing_s;
    let longer = sightings.iter().take_while(|s| s.path_s > limit).count();
    if longer < parameters.changes.shift_exchanges { 0 } else { longer }
}

/// The state at the epoch of the first of `sightings` (at least one).
pub fn state(sightings: &[Sighting], queueing_s: f64, parameters: &Parameters) -> Gaussian {
    let (mut best, mut elapsed, mut until_best) = (&sightings[0], 0.0, 0.0);
    for sighting in &sightings[1..] {
        elapsed += sighting.since_s;
        if sighting.path_s < best.path_s {
            (best, until_best) = (sighting, elapsed);
        }
    }
    let round_trip = best.path_s;
    let (minimum, sigma) = match sightings {
        [_] => (round_trip * parameters.round_trips.few_share, queueing_s),
        _ => (
            round_trip / 2.0 - queueing_s / 2.0,
            queueing_s.max(parameters.start.least_share * round_trip),
        ),
    };
    let mut mean = [0.0; N];
    mean[OFFSET] = best.symmetric_offset_s();
    let mut state = Gaussian { mean, ..Gaussian::ZERO };
    let p = &mut state.covariance;
    let rate = parameters.oscillator.initial_rate.powi(2);
    p.set(OFFSET, OFFSET, round_trip.powi(2) + queueing_s.powi(2) + rate * until_best.powi(2));
    p.set(RATE, RATE, rate);
    p.set(DRIFT, DRIFT, parameters.oscillator.initial_drift.powi(2));
    for m in MINIMUM {
        state.mean[m] = minimum;
        p.set(m, m, sigma.powi(2));
    }
    p.set(MINIMUM[0], MINIMUM[1], sigma.powi(2) * (1.0 - parameters.start.symmetry));
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(since_s: f64, path_s: f64, offset_s: f64) -> Sighting {
        let one_way = path_s / 2.0;
        let delay_s = [one_way + offset_s, one_way - offset_s];
        Sighting { since_s, delay_s, lag_s: [one_way; 2], path_s }
    }

    #[test]
    fn the_best_round_trip_decides() {
        let parameters = Parameters::default();
        let sightings =
            [sighting(0.0, 200e-6, 5e-6), sighting(2.0, 80e-6, 1e-6), sighting(2.0, 90e-6, 9e-6)];
        let found = state(&sightings, 20e-6, &parameters);
        assert!((found.mean[OFFSET] - 1e-6).abs() < 1e-15);
        // The sum of both minima and the queueing that the best round trip still contained equals
        // that round trip.
        assert!((found.mean[MINIMUM[0]] + found.mean[MINIMUM[1]] + 20e-6 - 80e-6).abs() < 1e-15);
        // 2 s at 100 ppm from the beginning to the best exchange.
        let sigma = found.covariance.get(OFFSET, OFFSET).sqrt();
        assert!((200e-6..300e-6).contains(&sigma), "{sigma:e}");
        let correlation = found.covariance.get(MINIMUM[0], MINIMUM[1]);
        assert!(correlation / found.covariance.get(MINIMUM[0], MINIMUM[0]) > 0.999_999);
    }

    #[test]
    fn exchanges_of_a_longer_route_that_was_left_are_skipped() {
        let parameters = Parameters::default();
        let route = |long: usize| -> Vec<Sighting> {
            (0..64).map(|n| sighting(16.0, if n < long { 900e-6 } else { 60e-6 }, 0.0)).collect()
        };
        assert_eq!(earlier_route(&route(40), 20e-6, &parameters), 40);
        assert_eq!(earlier_route(&route(5), 20e-6, &parameters), 0, "a burst");
        assert_eq!(earlier_route(&route(40), 200e-6, &parameters), 0, "mere queueing");
    }

    #[test]
    fn it_begins_again_at_the_configured_moments() {
        let parameters = Parameters::default();
        let moments: Vec<_> = (1..100).filter(|n| begins_at(*n, &parameters)).collect();
        assert_eq!(moments, [1, 8, 32, 64]);
    }
}
