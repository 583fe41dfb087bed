//! One direction of a network path: how long each packet takes, and which ones never arrive, or
//! arrive late or twice.
//!
//! Queueing is drawn per packet and independently; every distribution has a separate random stream,
//! so that adding one does not change the others' draws. Directions are separate; different
//! settings make a path asymmetric.
//!
//! What it does not do: model bandwidth, or packets that queue behind each other.

use serde::Deserialize;
use timevisor_time::Duration;

use crate::random::Random;

/// The delay distribution of one direction; all terms add up. Times are true seconds since the
/// start.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Direction {
    /// Minimum delay of every packet, us.
    pub minimum_us: f64,
    /// Mean of exponential queueing, us.
    pub exponential_us: f64,
    /// Gamma-distributed queueing: rarely no queue at all.
    pub gamma: Option<Gamma>,
    /// Normal jitter; negative values become zero.
    pub normal: Option<Normal>,
    /// A heavy tail.
    pub pareto: Option<Pareto>,
    /// Recurring congestion.
    pub bursts: Vec<Burst>,
    /// Route changes: lasting additions to the minimum.
    pub routes: Vec<Route>,
    /// A varying minimum, like that of a moving satellite.
    pub wave: Option<Wave>,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet arrives a second time, with a newly drawn queueing delay.
    pub duplicate: f64,
    /// Packets that take a detour, so that later ones overtake them.
    pub reorder: Option<Reorder>,
    /// Nothing gets through in these windows.
    pub outages: Vec<Window>,
}

/// A gamma distribution with mean `shape * scale_us`.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gamma {
    /// 1 is exponential, larger is rounder.
    pub shape: f64,
    /// Scale, us.
    pub scale_us: f64,
}

/// A normal distribution.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normal {
    /// Mean, us.
    pub mean_us: f64,
    /// Deviation, us.
    pub deviation_us: f64,
}

/// A Lomax distribution: P(more than x) = (1 + x / scale)^-shape.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pareto {
    /// Scale, us.
    pub scale_us: f64,
    /// Below 2 the variance is infinite, below 1 the mean too.
    pub shape: f64,
    /// Share of the packets that have it.
    #[serde(default = "all")]
    pub probability: f64,
}

/// `extra_us` while `from_s <= t mod period_s <= to_s`.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// Length of a cycle, s.
    pub period_s: f64,
    /// Start within the cycle, s.
    pub from_s: f64,
    /// End within the cycle, s.
    pub to_s: f64,
    /// Additional delay, us.
    pub extra_us: f64,
}

/// From `at_s` on, the route takes `extra_us` longer (shorter if negative) than without this entry.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The time of the change, s.
    pub at_s: f64,
    /// By how much, us.
    pub extra_us: f64,
}

/// A sine added to the minimum.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wave {
    /// Largest excursion to either side, us.
    pub amplitude_us: f64,
    /// Length of a cycle, s.
    pub period_s: f64,
}

impl Wave {
    fn us(&self, t_s: f64) -> f64 {
        self.amplitude_us * libm::sin(std::f64::consts::TAU * t_s / self.period_s)
    }
}

/// A detour.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// Share of the packets.
    pub probability: f64,
    /// How much longer it takes, us.
    pub extra_us: f64,
}

/// A time window from `from_s` up to `to_s`.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Start, s.
    pub from_s: f64,
    /// End, s.
    pub to_s: f64,
}

impl Window {
    /// Whether a time lies inside.
    #[must_use]
    pub fn contains(&self, t_s: f64) -> bool {
        self.from_s <= t_s && t_s < self.to_s
    }
}

fn all() -> f64 {
    1.0
}

impl Default for Direction {
    /// A local network: 30 us and exponential queueing of 20 us, as in the recorded traces.
    fn default() -> Self {
        Self {
            minimum_us: 30.0,
            exponential_us: 20.0,
            gamma: None,
            normal: None,
            pareto: None,
            bursts: Vec::new(),
            routes: Vec::new(),
            wave: None,
            loss: 0.0,
            duplicate: 0.0,
            reorder: None,
            outages: Vec::new(),
        }
    }
}

impl Direction {
    /// The shortest time that a packet can take at `t_s`, us, without queueing.
    #[must_use]
    pub fn floor_us(&self, t_s: f64) -> f64 {
        let routes: f64 = self.routes.iter().filter(|r| r.at_s <= t_s).map(|r| r.extra_us).sum();
        let inside = |b: &&Burst| (b.from_s..=b.to_s).contains(&(t_s % b.period_s));
        let bursts: f64 = self.bursts.iter().filter(inside).map(|b| b.extra_us).sum();
        let wave = self.wave.map_or(0.0, |wave| wave.us(t_s));
        self.minimum_us + routes + bursts + wave
    }
}

/// A direction with its random streams.
#[derive(Clone, Debug)]
pub struct Link {
    law: Direction,
    exponential: Random,
    jitter: Random,
    tail: Random,
    fate: Random,
}

impl Link {
    /// `name` distinguishes the world's links.
    #[must_use]
    pub fn new(law: Direction, seed: u64, name: &str) -> Self {
        let stream = |purpose| Random::stream(seed, &format!("{name} {purpose}"));
        Self {
            law,
            exponential: stream("exponential"),
            jitter: stream("jitter"),
            tail: stream("tail"),
            fate: stream("fate"),
        }
    }

    /// The arrival times of a packet that leaves at `t`: none, one or two.
    pub fn carry(&mut self, t: Duration) -> impl Iterator<Item = Duration> + use<> {
        let t_s = t.as_secs_f64();
        // All random outcomes are drawn for every packet, so that a changed probability does not
        // shift the rest of the stream.
        let lost = self.fate.chance(self.law.loss);
        let twice = self.fate.chance(self.law.duplicate);
        let detour = self.fate.uniform();
        let out = self.law.outages.iter().any(|w| w.contains(t_s));
        let detour =
            self.law.reorder.filter(|r| detour < r.probability).map_or(0.0, |r| r.extra_us);
        let first = t + self.delay(t) + micros(detour);
        let second = twice.then(|| t + self.delay(t));
        let arrivals = [Some(first), second];
        arrivals.into_iter().flatten().filter(move |_| !lost && !out)
    }

    /// One packet's delay, without detours.
    pub fn delay(&mut self, t: Duration) -> Duration {
        let mut us = self.law.floor_us(t.as_secs_f64());
        us += self.law.exponential_us * self.exponential.exponential();
        if let Some(gamma) = self.law.gamma {
            us += gamma.scale_us * self.jitter.gamma(gamma.shape);
        }
        if let Some(normal) = self.law.normal {
            us += (normal.mean_us + normal.deviation_us * self.jitter.normal()).max(0.0);
        }
        if let Some(pareto) = self.law.pareto {
            let (hit, size) =
                (self.tail.chance(pareto.probability), self.tail.pareto(pareto.shape));
            us += if hit { pareto.scale_us * size } else { 0.0 };
        }
        micros(us.max(0.0))
    }
}

/// A span of microseconds.
#[must_use]
pub(crate) fn micros(us: f64) -> Duration {
    Duration::from_secs_f64(us * 1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(law: Direction, n: u32) -> Vec<f64> {
        let mut link = Link::new(law, 1, "test");
        (0..n).map(|k| link.delay(Duration::from_secs(i64::from(k))).as_secs_f64() * 1e6).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    fn minimum(values: &[f64]) -> f64 {
        values.iter().copied().fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn a_lan_is_30_us_and_20_more_on_average() {
        let d = delays(Direction::default(), 50_000);
        assert!((30.0 - 1e-9..30.01).contains(&minimum(&d)), "{}", minimum(&d));
        assert!((mean(&d) - 50.0).abs() < 0.5, "{}", mean(&d));
    }

    #[test]
    fn jitter_and_tails_add_their_means() {
        let none = Direction { exponential_us: 0.0, ..Direction::default() };
        let gamma = Some(Gamma { shape: 4.0, scale_us: 10.0 });
        let normal = Some(Normal { mean_us: 100.0, deviation_us: 10.0 });
        let pareto = Some(Pareto { scale_us: 100.0, shape: 3.0, probability: 0.5 });
        for (law, wanted) in [
            (Direction { gamma, ..none.clone() }, 70.0),
            (Direction { normal, ..none.clone() }, 130.0),
            (Direction { pareto, ..none.clone() }, 55.0),
        ] {
            let d = delays(law, 50_000);
            assert!((mean(&d) / wanted - 1.0).abs() < 0.03, "{}, not {wanted}", mean(&d));
            assert!(minimum(&d) > 30.0 - 1e-9);
        }
    }

    #[test]
    fn bursts_and_routes_have_their_times() {
        let bursts = vec![Burst { period_s: 600.0, from_s: 300.0, to_s: 360.0, extra_us: 1000.0 }];
        let routes = vec![Route { at_s: 43_200.0, extra_us: 300.0 }];
        let law = Direction { bursts, routes, ..Direction::default() };
        for (t, floor) in
            [(299.0, 30.0), (300.0, 1030.0), (960.0, 1030.0), (961.0, 30.0), (43_200.0, 330.0)]
        {
            assert!((law.floor_us(t) - floor).abs() < 1e-9, "{t}: {}", law.floor_us(t));
        }
    }

    #[test]
    fn a_wave_swings_the_minimum_both_ways() {
        let wave = Some(Wave { amplitude_us: 10.0, period_s: 400.0 });
        let law = Direction { wave, ..Direction::default() };
        for (t, floor) in [(0.0, 30.0), (100.0, 40.0), (200.0, 30.0), (700.0, 20.0)] {
            assert!((law.floor_us(t) - floor).abs() < 1e-9, "{t}: {}", law.floor_us(t));
        }
    }

    #[test]
    fn losses_and_duplicates_have_their_shares() {
        let law = Direction { loss: 0.1, duplicate: 0.2, ..Direction::default() };
        let mut link = Link::new(law, 1, "test");
        let mut counts = [0.0_f64; 3];
        for k in 0..20_000 {
            counts[link.carry(Duration::from_secs(k)).count()] += 1.0 / 20_000.0;
        }
        for (share, wanted) in counts.iter().zip([0.1, 0.72, 0.18]) {
            assert!((share - wanted).abs() < 0.012, "{counts:?}");
        }
    }

    #[test]
    fn nothing_passes_an_outage_and_later_packets_overtake_a_detour() {
        let outages = vec![Window { from_s: 10.0, to_s: 20.0 }];
        let reorder = Some(Reorder { probability: 0.5, extra_us: 3e6 });
        let mut link = Link::new(Direction { outages, reorder, ..Direction::default() }, 1, "test");
        let arrivals: Vec<_> =
            (0..100).map(|k| link.carry(Duration::from_secs(k)).next()).collect();
        assert!(arrivals[10..20].iter().all(Option::is_none) && arrivals[20].is_some());
        assert!(arrivals[20..].is_sorted_by_key(Option::is_some));
        assert!(!arrivals[20..].is_sorted());
    }

    #[test]
    fn a_new_term_leaves_the_others_draws_alone() {
        let plain = delays(Direction::default(), 100);
        let pareto = Some(Pareto { scale_us: 10.0, shape: 1.5, probability: 0.1 });
        let tailed = delays(Direction { pareto, ..Direction::default() }, 100);
        let same = plain.iter().zip(&tailed).filter(|(a, b)| (*a - *b).abs() < 1e-9).count();
        assert!(same > 70 && same < 100, "{same}");
    }
}
