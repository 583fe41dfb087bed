use proptest::prelude::*;

use super::*;

/// The kernel's clock (kernel/time/ntp.c) and an oscillator, in seconds. Floats suffice: spans of
/// minutes to 1e-9.
struct Plant {
    /// CLOCK_REALTIME minus true time.
    error: f64,
    /// True seconds per raw second, minus one.
    oscillator: f64,
    /// What the kernel's rounding of ticks adds.
    rounding: f64,
    rate: f64,
    /// Phase still to be worked off, and the part of it that this second's ticks carry.
    phase: f64,
    chunk: f64,
    /// True time, and when the kernel's next second begins.
    now: f64,
    next_second: f64,
    fastest: f64,
}

impl Plant {
    fn new(error: f64, oscillator: f64, rounding: f64) -> Self {
        Self {
            error,
            oscillator,
            rounding,
            rate: 0.0,
            phase: 0.0,
            chunk: 0.0,
            now: 0.3,
            next_second: 1.0,
            fastest: 0.0,
        }
    }

    fn run(&mut self, seconds: f64) {
        let end = self.now + seconds;
        while self.now < end {
            let until = end.min(self.next_second);
            let span = until - self.now;
            let natural = (1.0 + self.rate + self.rounding) / (1.0 + self.oscillator) - 1.0;
            self.error += (natural + self.chunk) * span;
            self.fastest = self.fastest.max(self.chunk.abs());
            self.now = until;
            if self.now >= self.next_second {
                self.next_second += 1.0;
                // second_overflow: an eighth of what is left goes into this second.
                self.chunk = self.phase / 8.0;
                self.phase -= self.chunk;
            }
        }
    }

    fn obey(&mut self, command: &Command) {
        self.error += command.step.as_secs_f64();
        self.rate = command.rate.ratio();
        self.phase = command.phase.as_secs_f64();
    }

    fn input(&self, elapsed: f64, noise: f64) -> Input {
        Input {
            offset: Duration::from_secs_f64(-self.error + noise),
            half_width: Duration::from_micros(50),
            base: self.oscillator,
            elapsed: Duration::from_secs_f64(elapsed),
        }
    }
}

fn simulate(plant: &mut Plant, steering: &mut Steering, updates: u32, every: f64) -> Vec<f64> {
    let mut errors = Vec::new();
    for _ in 0..updates {
        plant.obey(&steering.update(&plant.input(every, 0.0)));
        plant.run(every);
        errors.push(plant.error);
    }
    errors
}

#[test]
fn it_converges_without_overshoot() {
    // The kernel's rounding (50 ppb) is what the integral has to find.
    for (start, oscillator) in [(2e-3, 30e-6), (-2e-3, -80e-6), (3e-4, 0.0)] {
        let mut plant = Plant::new(start, oscillator, 50e-9);
        let mut steering = Steering::new(Parameters::default());
        let errors = simulate(&mut plant, &mut steering, 1200, 1.0);
        // 2 ms at an eighth a second is below a microsecond after 8 * ln(2000) = 61 s, with a
        // second's delay.
        assert!(errors[80].abs() < 1.5e-6, "{}", errors[80]);
        let overshoot = errors.iter().map(|e| -e * start.signum()).fold(0.0, f64::max);
        assert!(overshoot < 1e-6, "{overshoot} from {start}");
        assert!(errors.last().unwrap().abs() < 20e-9, "{:?}", errors.last());
    }
}

#[test]
fn it_never_slews_faster_than_allowed() {
    let parameters = Parameters { max_slew_ppm: 200, ..Parameters::default() };
    let mut plant = Plant::new(0.1, 20e-6, 0.0);
    let mut steering = Steering::new(parameters);
    let errors = simulate(&mut plant, &mut steering, 700, 1.0);
    assert!(plant.fastest <= 200e-6 * 1.000_001, "{}", plant.fastest);
    // 100 ms at 200 ppm take 500 s.
    assert!(errors[450] > 1e-3 && errors[650].abs() < 1e-6, "{} {}", errors[450], errors[650]);
    assert!(errors.iter().all(|e| *e > -1e-6));
}

#[test]
fn a_daemon_that_dies_leaves_the_right_rate() {
    let mut plant = Plant::new(50e-3, 40e-6, 0.0);
    let mut steering = Steering::new(Parameters::default());
    simulate(&mut plant, &mut steering, 10, 1.0);
    let before = plant.error;
    plant.run(600.0);
    // The kernel finishes what it was given, 4 ms at most, and the rate stays true.
    assert!((before - plant.error) <= 4.1e-3 && plant.error < before, "{before} {}", plant.error);
    let settled = plant.error;
    plant.run(600.0);
    assert!((plant.error - settled).abs() < 10e-9, "{}", plant.error - settled);
}

#[test]
fn late_updates_are_harmless() {
    let mut plant = Plant::new(1e-3, 10e-6, 0.0);
    let mut steering = Steering::new(Parameters::default());
    let errors = simulate(&mut plant, &mut steering, 60, 7.3);
    assert!(errors.iter().all(|e| *e > -1e-6), "{errors:?}");
    assert!(errors.last().unwrap().abs() < 1e-6);
}

#[test]
fn steps_only_as_the_rule_allows() {
    let never =
        Steering::new(Parameters::default()).update(&Plant::new(-10.0, 0.0, 0.0).input(1.0, 0.0));
    assert_eq!(never.step, Duration::ZERO);
    assert_eq!(never.phase, Duration::from_millis(4));
    let rule = Parameters { step_threshold: Some(Duration::from_secs(1)), ..Parameters::default() };
    let mut steering = Steering::new(rule);
    let far = Plant::new(-10.0, 0.0, 0.0).input(1.0, 0.0);
    let stepped = steering.update(&far);
    assert_eq!((stepped.step, stepped.phase), (Duration::from_secs(10), Duration::ZERO));
    // 1.2 s with a bound of 300 ms may be 0.9 s.
    let vague = Input {
        offset: Duration::from_millis(1200),
        half_width: Duration::from_millis(300),
        ..far
    };
    assert_eq!(steering.update(&vague).step, Duration::ZERO);
    assert_ne!(steering.update(&far).step, Duration::ZERO);
    // The fourth update.
    assert_eq!(steering.update(&far).step, Duration::ZERO);
}

#[test]
fn the_kernels_words() {
    assert_eq!(KernelRate::nearest(0.0), KernelRate { tick_us: 10_000, frequency: 0 });
    assert_eq!(KernelRate::nearest(-10e-6), KernelRate { tick_us: 10_000, frequency: -655_360 });
    assert_eq!(KernelRate::nearest(730e-6), KernelRate { tick_us: 10_007, frequency: 30 << 16 });
    assert_eq!(KernelRate::nearest(-1.0), KernelRate { tick_us: 9_000, frequency: -500 << 16 });
    assert_eq!(KernelRate::nearest(f64::NAN).frequency, 0);
}

#[test]
fn nonsense_is_refused_by_name() {
    assert_eq!(Parameters::default().validate(), Ok(()));
    let fast = Parameters { max_slew_ppm: 60_000, ..Parameters::default() };
    assert_eq!(fast.validate().unwrap_err().name, "max_slew_ppm");
    let tiny =
        Parameters { step_threshold: Some(Duration::from_micros(1)), ..Parameters::default() };
    assert_eq!(tiny.validate().unwrap_err().name, "step_threshold");
}

proptest! {
    #[test]
    fn rates_round_trip(ppm in -99_000.0_f64..99_000.0) {
        let rate = KernelRate::nearest(ppm * 1e-6);
        prop_assert!((rate.ratio() * 1e6 - ppm).abs() < 1e-5, "{rate:?}");
        prop_assert!((9_000..=11_000).contains(&rate.tick_us) && rate.frequency.abs() <= 500 << 16);
    }

    /// Any start, any oscillator, noisy estimates, irregular updates: it gets there and stays
    /// there.
    #[test]
    fn it_converges_from_anywhere(
        start in -20e-3_f64..20e-3, oscillator in -400e-6_f64..400e-6, rounding in -60e-9_f64..60e-9,
        noise in proptest::collection::vec(-2e-6_f64..2e-6, 64), every in 0.2_f64..2.0,
    ) {
        let mut plant = Plant::new(start, oscillator, rounding);
        let mut steering = Steering::new(Parameters::default());
        for index in 0..600_usize {
            plant.obey(&steering.update(&plant.input(every, noise[index % noise.len()])));
            plant.run(every);
        }
        prop_assert!(plant.error.abs() < 4e-6, "{}", plant.error);
        prop_assert!(plant.fastest <= 500.001e-6, "{}", plant.fastest);
    }
}
