//! The distributions of the seven conditions, and the production bounds on them.

use super::*;
use crate::trace::{ReplayOptions, replay};

const POLL: Duration = Duration::from_secs(16);

fn hours(n: i64) -> Duration {
    Duration::from_secs(3600 * n)
}

/// Delay of every request, us.
fn forward_us(trace: &Trace) -> Vec<f64> {
    let delay = |row: &Row| (row.exchange.tb - row.truth.unwrap()[0]).as_secs_f64() * 1e6;
    trace.rows.iter().map(delay).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn delays_have_their_laws() {
    for (condition, minimum, expected, tolerance) in [
        (Condition::Lan, 30.0, 50.0, 3.0),
        (Condition::Wan, 10_000.0, 10_500.0, 60.0),
        (Condition::Burst, 30.0, 50.0 + 1000.0 / 10.0, 20.0),
        (Condition::Route, 30.0, 50.0 + 150.0, 3.0),
        (Condition::Vm, 30.0, 50.0 + 0.05 * 6000.0, 60.0),
        (Condition::Sine, 30.0, 50.0, 3.0),
    ] {
        let trace = condition.generate(3, hours(8), POLL);
        let delays = forward_us(&trace);
        assert_eq!(delays.len(), 1801);
        let least = delays.iter().copied().fold(f64::INFINITY, f64::min);
        // Stamps are whole nanoseconds.
        assert!(least > minimum - 0.002 && least < minimum * 1.01, "{}: {least}", trace.name);
        assert!((mean(&delays) - expected).abs() < tolerance, "{}: {}", trace.name, mean(&delays));
    }
}

#[test]
fn one_seed_is_one_oscillator_and_one_queue() {
    let of = |condition: Condition| condition.generate(4, hours(1), POLL);
    let (lan, burst, wander) = (of(Condition::Lan), of(Condition::Burst), of(Condition::Wander));
    let counters = |trace: &Trace| -> Vec<u64> {
        trace.truth.as_ref().unwrap().seconds().map(|(_, counter, _)| counter).collect()
    };
    assert_eq!(counters(&lan), counters(&burst));
    assert_ne!(counters(&lan), counters(&wander));
    let extra: Vec<_> =
        forward_us(&burst).iter().zip(forward_us(&lan)).map(|(b, l)| b - l).collect();
    let late = extra.iter().filter(|us| (**us - 1000.0).abs() < 0.01).count();
    let same = extra.iter().filter(|us| us.abs() < 0.01).count();
    assert_eq!(late + same, 226);
    assert!((18..=30).contains(&late), "{late}");
    assert_eq!(lan, of(Condition::Lan));
}

#[test]
fn truth_belongs_to_the_exchanges() {
    let trace = Condition::Wander.generate(9, hours(1), Duration::from_secs(1));
    let seconds: Vec<_> = trace.truth.as_ref().unwrap().seconds().collect();
    assert_eq!(seconds.len(), 3601);
    // One request leaves at every whole second.
    for ((_, counter, time), row) in seconds.iter().zip(&trace.rows) {
        assert_eq!((*counter, *time), (row.exchange.ta, row.truth.unwrap()[0]));
    }
}

#[test]
fn productions_bounds_cover_all_of_them() {
    for condition in Condition::ALL {
        let trace = condition.generate(5, hours(1), POLL);
        let options = ReplayOptions { skip: Duration::from_secs(600), ..ReplayOptions::default() };
        let readings = replay(&trace, &options).readings;
        assert_eq!(readings.len(), 3001);
        let uncovered = readings.iter().filter(|r| !r.interval.contains(r.truth.unwrap())).count();
        assert_eq!(uncovered, 0, "{}", trace.name);
    }
}
