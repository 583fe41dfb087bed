//! Random worlds inside the assumptions: whatever the oscillator, the path, the polls and the
//! daemon's restarts do, truth never leaves bounds that are vouched for.
//!
//! Each world draws its parts from its seed. The oscillator's rate stays within what the bounds
//! assume of it, and changes by at most the wander floor; how it does so is random: ramps, an air
//! conditioner, a slow sine, ageing. Everything that is not covered by an assumption is arbitrary:
//! delays that differ by direction and change permanently, queueing distributions, losses, outages,
//! and servers that are as wrong as they claim.

use std::ops::AddAssign;

use timevisor_estimate::CRYSTAL_WANDER;

use crate::host::{HostModel, Restart};
use crate::link::{Burst, Direction, Gamma, Pareto, Reorder, Route, Wave, Window};
use crate::oscillator::{Hvac, OscillatorModel, Ramp, Sine};
use crate::random::Random;
use crate::scenario::{EstimateModel, Limits, ReferenceModel};
use crate::server::{ServerModel, Wobble};
use crate::{Scenario, run};

/// Share of the floor that the parts of the oscillator may use together. The rest is for the
/// simulated frequency, which is constant within each second.
const USED: f64 = 0.9;

/// The results of random worlds so far.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Worlds run.
    pub worlds: u64,
    /// Readings with a status that vouches for the bounds.
    pub readings: u64,
    /// Those with truth outside.
    pub outside: u64,
    /// Descriptions of worlds that broke a rule.
    pub wrong: Vec<String>,
}

impl AddAssign for Judged {
    fn add_assign(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.readings += other.readings;
        self.outside += other.outside;
        self.wrong.extend(other.wrong);
    }
}

/// Runs the world of `seed`.
#[must_use]
pub fn judge(seed: u64) -> Judged {
    let report = run(&world(seed));
    let failures = report.failures.iter().map(|f| format!("seed {seed}: {}: {}", f.limit, f.text));
    Judged {
        worlds: 1,
        readings: report.vouched,
        outside: report.uncovered,
        wrong: failures.collect(),
    }
}

/// The world of `seed`.
#[must_use]
pub fn world(seed: u64) -> Scenario {
    let mut dice = Random::stream(seed, "world");
    let duration_s = range(&mut dice, 3600.0, 14_400.0).round();
    let poll_s = log_range(&mut dice, 1.0, 64.0).round();
    let references = [1, 1, 1, 2, 3][pick(&mut dice, 5)];
    Scenario {
        name: format!("random {seed}"),
        description: "A random world inside the assumptions".to_owned(),
        seed,
        duration_s,
        warmup_s: 600.0,
        oscillator: oscillator(&mut dice, duration_s),
        host: host(&mut dice, duration_s, poll_s),
        estimate: EstimateModel {
            stale_after_s: Some((5.0 * poll_s).max(80.0)),
            ..EstimateModel::default()
        },
        references: (0..references).map(|_| reference(&mut dice, duration_s)).collect(),
        limits: Limits { disruptions: u64::MAX, ..Limits::default() },
        ..Scenario::default()
    }
}

fn oscillator(dice: &mut Random, duration_s: f64) -> OscillatorModel {
    let floor_ppb = CRYSTAL_WANDER * 1e9 * USED;
    let mut left = floor_ppb;
    let mut share = |dice: &mut Random| {
        let part = left * dice.uniform();
        left -= part;
        part
    };
    let ramps = (0..pick(dice, 5)).map(|_| {
        let slope = share(dice);
        let time_constant_s = log_range(dice, 20.0, 1800.0);
        // Together they stay well within the limit of the measured rate.
        let by_ppb = (slope * time_constant_s).min(1500.0) * sign(dice);
        Ramp { at_s: dice.uniform() * duration_s, by_ppb, time_constant_s }
    });
    let ramps = ramps.collect();
    let hvac = dice.chance(0.3).then(|| {
        let time_constant_s = log_range(dice, 20.0, 600.0);
        let amplitude_ppb = (share(dice) * time_constant_s / 2.0).min(1500.0);
        let half_period_s = log_range(dice, 60.0, 3600.0);
        Hvac { amplitude_ppb, half_period_s, time_constant_s }
    });
    let temperature = dice.chance(0.3).then(|| {
        let period_s = log_range(dice, 120.0, 86_400.0);
        let amplitude_ppb = (share(dice) * period_s / std::f64::consts::TAU).min(1500.0);
        Sine { amplitude_ppb, period_s }
    });
    OscillatorModel {
        frequency_ppm: range(dice, -80.0, 80.0),
        drift_ppb_per_day: range(dice, -20.0, 20.0),
        wander_ppb: 0.0,
        ramps,
        hvac,
        temperature,
        ..OscillatorModel::default()
    }
}

fn host(dice: &mut Random, duration_s: f64, poll_s: f64) -> HostModel {
    let restarts = match pick(dice, 3) {
        0 => vec![Restart {
            at_s: range(dice, 600.0, duration_s / 2.0),
            down_s: log_range(dice, 0.5, 600.0),
            warm: dice.chance(0.7),
        }],
        _ => Vec::new(),
    };
    HostModel {
        counter_hz: [19_200_000, 1_000_000_000, 2_999_999_977][pick(dice, 3)],
        counter_start: [0, 5_000_000_000, u64::MAX - 1_000_000_000_000][pick(dice, 3)],
        poll_s,
        burst_spacing_s: poll_s.min(2.0),
        stamp_noise_us: if dice.chance(0.3) { log_range(dice, 0.1, 50.0) } else { 0.0 },
        restarts,
        ..HostModel::default()
    }
}

fn reference(dice: &mut Random, duration_s: f64) -> ReferenceModel {
    let minimum_us = log_range(dice, 2.0, 20_000.0);
    let queueing_us = minimum_us * log_range(dice, 0.05, 3.0);
    let forward = direction(dice, duration_s, minimum_us, queueing_us);
    let backward_us = minimum_us * log_range(dice, 0.5, 2.0);
    let backward = direction(dice, duration_s, backward_us, queueing_us);
    let root_dispersion_us = if dice.chance(0.5) { log_range(dice, 1.0, 2000.0) } else { 0.0 };
    let wobble = dice.chance(0.5).then(|| Wobble {
        amplitude_us: root_dispersion_us * 0.9,
        period_s: log_range(dice, 600.0, 20_000.0),
    });
    let residence_us = if dice.chance(0.3) { log_range(dice, 1.0, 1000.0) } else { 0.0 };
    ReferenceModel {
        forward: Some(forward),
        backward: Some(backward),
        server: ServerModel {
            stratum: 2,
            root_dispersion_us,
            wobble,
            residence_us,
            ..ServerModel::default()
        },
        ..ReferenceModel::default()
    }
}

fn direction(dice: &mut Random, duration_s: f64, minimum_us: f64, queueing_us: f64) -> Direction {
    let pareto = Pareto { scale_us: queueing_us, shape: 1.5, probability: 0.05 };
    let gamma = Gamma { shape: 4.0, scale_us: queueing_us / 4.0 };
    let wave = Wave {
        amplitude_us: minimum_us * 0.2 * dice.uniform(),
        period_s: log_range(dice, 600.0, 20_000.0),
    };
    let bursts = Burst {
        period_s: 900.0,
        from_s: 300.0,
        to_s: 400.0,
        extra_us: queueing_us * log_range(dice, 1.0, 100.0),
    };
    // Longer, and perhaps shorter again, but never below the first minimum.
    let routes = (0..pick(dice, 3)).flat_map(|_| {
        let (from, to) = (dice.uniform() * duration_s, dice.uniform() * duration_s);
        let extra_us = minimum_us * log_range(dice, 0.05, 5.0);
        let longer = Route { at_s: from.min(to), extra_us };
        [longer, Route { at_s: from.max(to), extra_us: -extra_us }]
    });
    let mut routes: Vec<Route> = routes.collect();
    routes.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let from_s = dice.uniform() * duration_s;
    let outage = Window { from_s, to_s: from_s + log_range(dice, 60.0, 3600.0) };
    Direction {
        minimum_us,
        exponential_us: if dice.chance(0.8) { queueing_us } else { 0.0 },
        gamma: dice.chance(0.3).then_some(gamma),
        pareto: dice.chance(0.3).then_some(pareto),
        bursts: if dice.chance(0.2) { vec![bursts] } else { Vec::new() },
        routes,
        wave: dice.chance(0.2).then_some(wave),
        loss: if dice.chance(0.3) { 0.7 * dice.uniform() } else { 0.0 },
        duplicate: if dice.chance(0.2) { 0.3 } else { 0.0 },
        reorder: dice
            .chance(0.2)
            .then_some(Reorder { probability: 0.1, extra_us: 10.0 * queueing_us }),
        outages: if dice.chance(0.2) { vec![outage] } else { Vec::new() },
        ..Direction::default()
    }
}

fn range(dice: &mut Random, from: f64, to: f64) -> f64 {
    from + (to - from) * dice.uniform()
}

/// Draws equally often from every octave.
fn log_range(dice: &mut Random, from: f64, to: f64) -> f64 {
    from * libm::pow(to / from, dice.uniform())
}

fn pick(dice: &mut Random, of: u64) -> usize {
    usize::try_from(dice.bits() % of).unwrap_or(0)
}

fn sign(dice: &mut Random) -> f64 {
    if dice.chance(0.5) { 1.0 } else { -1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oscillator::Oscillator;
    use timevisor_time::Duration;

    #[test]
    fn random_oscillators_keep_the_assumptions() {
        let hz = 1_000_000_000;
        for seed in 0..40 {
            let model = world(seed).oscillator;
            let oscillator = Oscillator::new(&model, hz, 14_400, seed);
            let y = |s: i64| oscillator.frequency(Duration::from_secs(s), hz);
            let rates: Vec<f64> = (0..14_400).map(y).collect();
            let steepest = rates.windows(2).map(|w| (w[1] - w[0]).abs()).fold(0.0, f64::max);
            assert!(steepest <= CRYSTAL_WANDER, "seed {seed}: {steepest:e}");
            let (low, high) =
                rates.iter().fold((1.0_f64, -1.0_f64), |(l, h), y| (l.min(*y), h.max(*y)));
            assert!(high - low < 15e-6 && high.abs().max(low.abs()) < 100e-6, "seed {seed}");
        }
    }

    /// If these oscillators violate the stated assumption, truth is sometimes outside.
    #[test]
    fn the_check_can_fail() {
        let mut world = world(4);
        world.estimate.wander_floor = Some(1e-10);
        assert!(run(&world).uncovered > 0);
    }

    #[test]
    fn truth_stays_inside_in_random_worlds() {
        let mut all = Judged::default();
        for seed in 0..5 {
            all += judge(seed);
        }
        assert_eq!((all.outside, all.wrong.as_slice()), (0, &[][..]));
        assert!(all.readings > 50_000, "{all:?}");
    }
}
