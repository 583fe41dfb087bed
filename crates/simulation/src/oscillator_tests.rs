//! The noise distributions, and the counter and its inverse.

use proptest::prelude::*;

use super::*;

const HZ: u64 = 1_000_000_000;

fn quiet() -> OscillatorModel {
    OscillatorModel { frequency_ppm: 0.0, wander_ppb: 0.0, ..OscillatorModel::default() }
}

fn secs(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

/// Ticks beyond the nominal ones at whole second `s`, i.e. nanoseconds.
fn excess(oscillator: &Oscillator, s: u64) -> f64 {
    oscillator.ticks(Duration::from_secs(s.cast_signed())) as f64 - (s * HZ) as f64
}

/// Allan deviation at `m` seconds, ppb.
fn allan(oscillator: &Oscillator, m: u64, length: u64) -> f64 {
    let differences = (0..length / m - 2).map(|k| {
        let x = |n| excess(oscillator, (k + n) * m);
        (x(2) - 2.0 * x(1) + x(0)) / m as f64
    });
    let (n, sum) = differences.fold((0.0, 0.0), |(n, sum), d| (n + 1.0, sum + d * d));
    (sum / (2.0 * n)).sqrt()
}

#[test]
fn constant_drifting_and_stepping_frequency_are_exact() {
    let model = OscillatorModel {
        frequency_ppm: 20.0,
        steps: vec![FrequencyStep { at_s: 50.0, by_ppb: -30_000.0 }],
        ..quiet()
    };
    let o = Oscillator::new(&model, HZ, 100, 1);
    let near = |got: f64, wanted: f64| assert!((got - wanted).abs() <= 1.0, "{got}, not {wanted}");
    near(excess(&o, 50), 50.0 * 20_000.0);
    near(excess(&o, 100), 50.0 * 20_000.0 - 50.0 * 10_000.0);
    // Beyond the end, the last frequency continues.
    near(excess(&o, 1000), 50.0 * 20_000.0 - 950.0 * 10_000.0);

    let drifting =
        Oscillator::new(&OscillatorModel { drift_ppb_per_day: 86_400.0, ..quiet() }, HZ, 100, 1);
    // 1 ppb a second: the sum of 0 to 99 ns.
    near(excess(&drifting, 100), 4950.0);
}

#[test]
fn the_sine_returns_to_where_it_was() {
    let sine = Sine { amplitude_ppb: 500.0, period_s: 7200.0 };
    let o = Oscillator::new(&OscillatorModel { temperature: Some(sine), ..quiet() }, HZ, 7201, 1);
    // Half a cycle's integral is amplitude * period / pi.
    assert!((excess(&o, 3600) - 500.0 * 7200.0 / std::f64::consts::PI).abs() < 600.0);
    assert!(excess(&o, 7200).abs() < 600.0, "{}", excess(&o, 7200));
    assert!((o.frequency(secs(1800.0), HZ) - 500e-9).abs() < 1e-12);
}

#[test]
fn the_random_walk_obeys_its_variance_law() {
    // Var(y(t) - y(0)) = wander^2 t, over 300 realizations: its standard error is 8 %.
    let seconds = 400;
    let sum: f64 = (0..300)
        .map(|seed| {
            let model = OscillatorModel { wander_ppb: 10.0, ..quiet() };
            let o = Oscillator::new(&model, HZ, seconds + 1, seed);
            let at = |s| o.frequency(Duration::from_secs(s), HZ) * 1e9;
            (at(400) - at(0)).powi(2)
        })
        .sum();
    let ratio = sum / 300.0 / (100.0 * seconds as f64);
    assert!((0.7..1.3).contains(&ratio), "{ratio}");
}

#[test]
fn wander_changes_when_it_is_told_to() {
    let change = |at_s, wander_ppb| WanderChange { at_s, wander_ppb };
    let wander_changes = vec![change(100.0, 10.0), change(200.0, 0.0), change(300.0, 1.0)];
    let o = Oscillator::new(&OscillatorModel { wander_changes, ..quiet() }, HZ, 400, 1);
    let moved = |from: i64, to: i64| {
        let at = |s| o.frequency(Duration::from_secs(s), HZ) * 1e9;
        (from..to).filter(|s| (at(s + 1) - at(*s)).abs() > 0.01).count()
    };
    // Steady, walking, steady, walking; a step of 1 ppb is below 0.01 ppb in one of a hundred.
    assert_eq!([moved(0, 99), moved(200, 299)], [0, 0]);
    assert!(moved(99, 199) >= 98 && moved(299, 399) >= 95);
}

#[test]
fn white_and_flicker_noise_have_their_allan_deviations() {
    let length = 60_000;
    let white = Oscillator::new(&OscillatorModel { white_ppb: 50.0, ..quiet() }, HZ, 60_000, 3);
    for m in [1, 16, 100] {
        let ratio = allan(&white, m, length) / (50.0 / (m as f64).sqrt());
        assert!((0.85..1.15).contains(&ratio), "white at {m} s: {ratio}");
    }
    let flicker = Oscillator::new(&OscillatorModel { flicker_ppb: 50.0, ..quiet() }, HZ, 60_000, 3);
    for m in [16, 64, 256, 1024] {
        let ratio = allan(&flicker, m, length) / 50.0;
        assert!((0.75..1.25).contains(&ratio), "flicker at {m} s: {ratio}");
    }
}

#[test]
fn one_seed_has_one_walk_whatever_else_there_is() {
    let plain = Oscillator::new(&OscillatorModel { wander_ppb: 1.0, ..quiet() }, HZ, 1000, 7);
    let strong = Oscillator::new(
        &OscillatorModel { wander_ppb: 10.0, white_ppb: 0.0, ..quiet() },
        HZ,
        1000,
        7,
    );
    let ratio = excess(&strong, 1000) / excess(&plain, 1000);
    assert!((ratio - 10.0).abs() < 0.1, "{ratio}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn counter_and_time_are_inverses(
        seed in any::<u64>(), hz in 2_000_000_u64..4_000_000_000, at in 0.0..400.0_f64, ppm in -200.0..200.0_f64,
    ) {
        let model = OscillatorModel { frequency_ppm: ppm, white_ppb: 1000.0, wander_ppb: 100.0, ..quiet() };
        let o = Oscillator::new(&model, hz, 200, seed);
        let t = secs(at);
        let ticks = o.ticks(t);
        let back = o.time(ticks);
        // The tick had happened by t; it is visible at the returned instant, and not before.
        prop_assert!(back <= t);
        prop_assert_eq!(o.ticks(back), ticks);
        prop_assert!(ticks == 0 || o.ticks(back - Duration::EPSILON) < ticks);
        prop_assert!(o.time(ticks + 1) > t);
    }

    #[test]
    fn the_counter_never_goes_back(seed in any::<u64>(), a in 0.0..300.0_f64, b in 0.0..300.0_f64) {
        let o = Oscillator::new(&OscillatorModel { white_ppb: 1e5, ..OscillatorModel::default() }, HZ, 200, seed);
        prop_assert!(o.ticks(secs(a.min(b))) <= o.ticks(secs(a.max(b))));
    }
}

#[test]
fn ramps_and_air_conditioners_have_their_slopes() {
    let still = OscillatorModel { frequency_ppm: 0.0, wander_ppb: 0.0, ..Default::default() };
    let ramp = Ramp { at_s: 100.0, by_ppb: 200.0, time_constant_s: 60.0 };
    let frequencies = |model: &OscillatorModel| -> Vec<f64> {
        let oscillator = Oscillator::new(model, 1_000_000_000, 1000, 1);
        (0..1000).map(|s| oscillator.frequency(Duration::from_secs(s), 1_000_000_000)).collect()
    };
    let y = frequencies(&OscillatorModel { ramps: vec![ramp], ..still.clone() });
    assert!(y[100].abs() < 1e-12 && (y[160] * 1e9 - 126.4).abs() < 0.1, "{}", y[160]);
    let steepest = y.windows(2).map(|w| w[1] - w[0]).fold(0.0, f64::max);
    assert!((3.2e-9..3.34e-9).contains(&steepest), "{steepest}");
    let hvac = Hvac { amplitude_ppb: 100.0, half_period_s: 300.0, time_constant_s: 60.0 };
    let y = frequencies(&OscillatorModel { hvac: Some(hvac), ..still.clone() });
    assert!(y[299] > 0.98e-7 && y[599] < -0.98e-7, "{} {}", y[299], y[599]);
    let steepest = y.windows(2).map(|w| (w[1] - w[0]).abs()).fold(0.0, f64::max);
    assert!((3.2e-9..3.34e-9).contains(&steepest), "{steepest}");
    let y = frequencies(&OscillatorModel {
        hvac: Some(Hvac { time_constant_s: 0.0, ..hvac }),
        ..still
    });
    assert!((y[299] - 1e-7).abs() < 1e-12 && (y[300] + 1e-7).abs() < 1e-12);
}
