//! One estimate from those of several references that agree.
//!
//! Each estimate weighs as much as it can be relied on: 1 / (sigma^2 + (half-width)^2 / 3). The
//! half-width stands for the asymmetry of the path, which no estimator sees: uniform within the
//! bounds. Weights are smoothed over `handover`, or the mean would follow the half-widths, which
//! rise from one exchange to the next and fall with it.
//!
//! Continuity: paths differ in asymmetry, so whenever voices join or leave, their mean jumps
//! although no clock did. The jump goes into a bridge, an offset that is added to the mean and
//! decays (parameter `handover`). Only a disruption, where continuity has no meaning, removes it at
//! once.
//!
//! Not here: who may speak ([`crate::selection`]) and the bounds.

use timevisor_time::{Duration, Instant, Period, Tai};

use crate::rate::RateLimits;
use crate::reference::View;

/// The mean.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Combined {
    /// Best guess of true time.
    pub time: Instant<Tai>,
    /// Best guess of the period.
    pub period: Period,
    /// One sigma: of the heaviest voice (errors of paths are not independent enough to average),
    /// with how far the voices differ and with what the bridge still has to work off.
    pub error: Duration,
    /// Newest exchange of all voices.
    pub as_of: u64,
    /// Rate limits of the heaviest voice.
    pub limits: RateLimits,
}

/// What was published last, and what is being worked off.
#[derive(Clone, Debug)]
pub struct Combination {
    handover: Duration,
    /// Who spoke last, with their smoothed weights.
    voices: Vec<(usize, f64)>,
    heaviest: Option<usize>,
    last: Option<(u64, Instant<Tai>, Period)>,
    /// Offset beyond the mean, and the counter value at which it was that large.
    bridge: (Duration, u64),
    disruptions: u64,
}

impl Combination {
    /// Nobody has spoken yet; bridges decay to 1/e in `handover`.
    #[must_use]
    pub fn new(handover: Duration) -> Self {
        Self {
            handover,
            voices: Vec::new(),
            heaviest: None,
            last: None,
            bridge: (Duration::ZERO, 0),
            disruptions: 0,
        }
    }

    /// The index of the voice that weighed most.
    #[must_use]
    pub fn heaviest(&self) -> Option<usize> {
        self.heaviest
    }

    /// Voice `index` is somebody else's from now on.
    pub fn forget(&mut self, index: usize) {
        self.voices.retain(|(i, _)| *i != index);
    }

    /// The weight of voice `index` among those that spoke last, 0 to 1; `None` if it did not speak.
    #[must_use]
    pub fn share(&self, index: usize) -> Option<f64> {
        let own = self.voices.iter().find(|(i, _)| *i == index)?.1;
        let total: f64 = self.voices.iter().map(|(_, weight)| weight).sum();
        Some(own / total)
    }

    /// Voices have other numbers from now on; those without one are gone.
    pub fn renumber(&mut self, new_number: impl Fn(usize) -> Option<usize>) {
        let kept = self.voices.iter().filter_map(|(i, weight)| Some((new_number(*i)?, *weight)));
        self.voices = kept.collect();
        self.voices.sort_by_key(|(i, _)| *i);
        self.heaviest = self.heaviest.and_then(&new_number);
    }

    /// The mean of `voices` (at least one) at `now`. `disruptions` counts the moments at which
    /// continuity ended.
    ///
    /// # Panics
    /// Without a voice.
    pub fn combine(&mut self, now: u64, voices: &[(usize, View)], disruptions: u64) -> Combined {
        let weights = self.smoothed(now, voices);
        let heaviest = (0..voices.len())
            .max_by(|a, b| weights[*a].total_cmp(&weights[*b]))
            .expect("an agreement has a member");
        let (index, first) = &voices[heaviest];
        let total: f64 = weights.iter().sum();
        let mean = |of: &dyn Fn(&View) -> f64| -> f64 {
            voices.iter().zip(&weights).map(|((_, v), w)| of(v) * w).sum::<f64>() / total
        };
        let offset = mean(&|v| (v.estimate - first.estimate).as_secs_f64());
        let period = first.period.scaled(mean(&|v| v.period.relative_to(first.period)));
        let time = first.estimate + Duration::from_secs_f64(offset);
        let spoken = voices.iter().zip(&weights).map(|((i, _), w)| (*i, *w)).collect();
        self.rebuild_bridge(now, time, spoken, disruptions);
        let bridge = self.bridge_at(now, period);
        let bridged = time + bridge;
        let apart = mean(&|v| (v.estimate - time).as_secs_f64().powi(2));
        let own = first.estimated_error.as_secs_f64();
        let error = (own.powi(2) + apart + bridge.as_secs_f64().powi(2)).sqrt();
        self.heaviest = Some(*index);
        self.last = Some((now, bridged, period));
        Combined {
            time: bridged,
            period,
            error: Duration::from_secs_f64(error),
            as_of: voices.iter().map(|(_, v)| v.as_of).max().unwrap_or(first.as_of),
            limits: first.limits,
        }
    }

    /// A voice's weight moves to what it should be now; a new voice has it at once, for the bridge
    /// takes the jump.
    fn smoothed(&self, now: u64, voices: &[(usize, View)]) -> Vec<f64> {
        let share = self.last.map_or(1.0, |(at, _, period)| {
            let span = period.span(now.wrapping_sub(at)).as_secs_f64();
            1.0 - (-span / self.handover.as_secs_f64()).exp()
        });
        let smooth = |(index, view): &(usize, View)| {
            let wanted = weight(view);
            let before = self.voices.iter().find(|v| v.0 == *index);
            before.map_or(wanted, |(_, w)| w + (wanted - w) * share)
        };
        voices.iter().map(smooth).collect()
    }

    fn rebuild_bridge(
        &mut self,
        now: u64,
        mean: Instant<Tai>,
        voices: Vec<(usize, f64)>,
        disruptions: u64,
    ) {
        let disrupted = disruptions != self.disruptions;
        let changed = !voices.iter().map(|v| v.0).eq(self.voices.iter().map(|v| v.0));
        self.voices = voices;
        self.disruptions = disruptions;
        match self.last {
            Some((at, time, period)) if changed && !disrupted => {
                let expected = time + period.span(now.wrapping_sub(at));
                self.bridge = (expected - mean, now);
            }
            None => self.bridge = (Duration::ZERO, now),
            Some(_) if disrupted => self.bridge = (Duration::ZERO, now),
            Some(_) => {}
        }
    }

    fn bridge_at(&self, now: u64, period: Period) -> Duration {
        let (offset, since) = self.bridge;
        let age = period.span(now.wrapping_sub(since)).as_secs_f64() / self.handover.as_secs_f64();
        Duration::from_secs_f64(offset.as_secs_f64() * (-age).exp())
    }
}

fn weight(view: &View) -> f64 {
    let half = view.interval.width().half().as_secs_f64();
    let sigma = view.estimated_error.as_secs_f64();
    1.0 / (sigma * sigma + half * half / 3.0).max(1e-24)
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_time::{Interval, RateError};

    const HZ: u64 = 1_000_000_000;

    fn voice(second: u64, offset_ns: i128, half: Duration) -> View {
        let period = Period::from_hz(HZ).unwrap();
        let estimate = Instant::from_unix_nanos(i128::from(second * HZ) + offset_ns);
        let limits = RateLimits::around(period, RateError::from_ppm(15));
        View {
            interval: Interval::around(estimate, half),
            slopes: limits,
            limits,
            estimate,
            period,
            estimated_error: Duration::from_micros(2),
            as_of: second * HZ,
            trusted: true,
        }
    }

    /// In ns, to the nearest.
    fn offset(c: &Combined, second: u64) -> i64 {
        let exact = c.time - Instant::from_unix_nanos(i128::from(second * HZ));
        (exact + Duration::from_nanos(1).half()).floor_nanos()
    }

    #[test]
    fn a_narrow_interval_weighs_more() {
        let mut c = Combination::new(Duration::from_secs(600));
        let near = (0, voice(1, 0, Duration::from_micros(40)));
        let far = (1, voice(1, 400_000, Duration::from_millis(4)));
        let both = c.combine(HZ, &[far, near], 0);
        assert!((0..100).contains(&offset(&both, 1)), "{}", offset(&both, 1));
        assert_eq!(c.heaviest(), Some(0));
    }

    #[test]
    fn a_voice_that_leaves_takes_its_asymmetry_along_slowly() {
        let mut c = Combination::new(Duration::from_secs(600));
        let half = Duration::from_micros(40);
        let pair = |s| [(0, voice(s, 0, half)), (1, voice(s, 30_000, half))];
        assert_eq!(offset(&c.combine(HZ, &pair(1), 0), 1), 15_000);
        // Somebody else in the same place is a change, too.
        let mut replaced = c.clone();
        replaced.forget(0);
        let strangers = [(0, voice(2, 90_000, half)), (1, voice(2, 30_000, half))];
        let with_stranger = offset(&replaced.combine(2 * HZ, &strangers, 0), 2);
        assert!((with_stranger - 15_000).abs() <= 1, "a jump to {with_stranger}");
        let alone = |s| [(1, voice(s, 30_000, half))];
        let after = offset(&c.combine(2 * HZ, &alone(2), 0), 2);
        assert!((after - 15_000).abs() <= 1, "a jump to {after}");
        let half_way = offset(&c.combine(418 * HZ, &alone(418), 0), 418);
        assert!((half_way - 22_500).abs() < 10, "{half_way}");
        let later = offset(&c.combine(6000 * HZ, &alone(6000), 0), 6000);
        assert!((later - 30_000).abs() < 10, "{later}");
    }

    #[test]
    fn half_widths_that_rise_and_fall_between_exchanges_do_not_move_the_mean() {
        let mut c = Combination::new(Duration::from_secs(600));
        let mut offsets = Vec::new();
        for s in 1..200 {
            // Each is narrow when the other one is wide.
            let half =
                |phase: u64| Duration::from_micros(40 + 3 * ((s + phase) % 16).cast_signed());
            let pair = [(0, voice(s, 0, half(0))), (1, voice(s, 100_000, half(8)))];
            offsets.push(offset(&c.combine(s * HZ, &pair, 0), s));
        }
        let steps = offsets.windows(2).map(|w| (w[1] - w[0]).abs());
        assert!(steps.max().unwrap() < 200, "{offsets:?}");
    }

    #[test]
    fn a_disruption_ends_continuity() {
        let mut c = Combination::new(Duration::from_secs(600));
        let half = Duration::from_micros(40);
        c.combine(HZ, &[(0, voice(1, 0, half))], 0);
        let after = c.combine(2 * HZ, &[(1, voice(2, 30_000, half))], 1);
        assert_eq!(offset(&after, 2), 30_000);
    }

    #[test]
    fn differences_between_voices_and_the_bridge_count_as_errors() {
        let mut c = Combination::new(Duration::from_secs(600));
        let half = Duration::from_micros(40);
        let us = |c: &Combined| c.error.as_secs_f64() * 1e6;
        let agreeing = [(0, voice(1, 0, half)), (1, voice(1, 0, half))];
        assert!((us(&c.clone().combine(HZ, &agreeing, 0)) - 2.0).abs() < 1e-3);
        // 15 us to each side, and 2 us of its own.
        let pair = [(0, voice(1, 0, half)), (1, voice(1, 30_000, half))];
        assert!((us(&c.combine(HZ, &pair, 0)) - 15.133).abs() < 1e-2);
        // Alone, with 15 us left to go, and nearly there.
        let alone = |s| [(1, voice(s, 30_000, half))];
        assert!((us(&c.combine(2 * HZ, &alone(2), 0)) - 15.133).abs() < 1e-2);
        assert!((us(&c.combine(6000 * HZ, &alone(6000), 0)) - 2.0).abs() < 1e-2);
    }
}
