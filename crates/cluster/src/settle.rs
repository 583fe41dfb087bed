//! When a burst of questions ends.
//!
//! With mean queueing `q` in each direction, the best of `m` answers is late by some `q / m`: one
//! more gains `q / m - q / (m + 1)`, which is about `q / m^2`. Meanwhile the bounds grow by the width of
//! the counter's rate limits. Another question is worth it while it gains more than that costs.

use timevisor_time::Duration;

/// Limits of a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The width that somebody wants; narrower is not asked for.
    pub wanted: Option<Duration>,
    /// At most so many answers.
    pub most: u32,
}

/// Whether to ask again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Ask again.
    Another,
    /// The wanted width is reached.
    Wanted,
    /// Another answer would gain less than waiting for it costs.
    NoGain,
    /// As many answers as are allowed.
    Enough,
}

/// Answers that leave the mean queueing unknown: with one, nothing was compared.
const FEW: u32 = 2;

/// One burst.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Settle {
    answers: u32,
    shortest_s: f64,
    sum_s: f64,
}

impl Settle {
    /// Takes an answer in: its round trip, the width of the bounds after it, and by how much they
    /// grow until the next one.
    pub fn answer(
        &mut self,
        round_trip: Duration,
        width: Duration,
        growth: Duration,
        limits: &Limits,
    ) -> Verdict {
        let round_trip = round_trip.as_secs_f64();
        self.shortest_s =
            if self.answers == 0 { round_trip } else { self.shortest_s.min(round_trip) };
        self.sum_s += round_trip;
        self.answers += 1;
        if limits.wanted.is_some_and(|wanted| width <= wanted) {
            return Verdict::Wanted;
        }
        if self.answers >= limits.most {
            return Verdict::Enough;
        }
        if self.answers >= FEW && self.gain() <= growth {
            return Verdict::NoGain;
        }
        Verdict::Another
    }

    /// By how much the next answer would narrow the bounds, on both sides together.
    fn gain(&self) -> Duration {
        let m = f64::from(self.answers);
        // Of both directions, and seen from the best of m round trips, which is late itself.
        let queueing = (self.sum_s / m - self.shortest_s) * m / (m - 1.0).max(1.0);
        Duration::from_secs_f64(queueing / (m * (m + 1.0)))
    }

    /// Answers so far.
    #[must_use]
    pub fn answers(&self) -> u32 {
        self.answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { wanted: None, most: 16 };

    fn micros(us: i64) -> Duration {
        Duration::from_micros(us)
    }

    fn burst(round_trips: &[i64], growth: Duration, limits: &Limits) -> (u32, Verdict) {
        let mut settle = Settle::default();
        for round_trip in round_trips {
            let verdict = settle.answer(micros(*round_trip), micros(*round_trip), growth, limits);
            if verdict != Verdict::Another {
                return (settle.answers(), verdict);
            }
        }
        (settle.answers(), Verdict::Another)
    }

    #[test]
    fn a_quiet_path_needs_two_answers() {
        assert_eq!(burst(&[60; 16], Duration::from_nanos(30), &LIMITS), (2, Verdict::NoGain));
    }

    #[test]
    fn a_noisy_path_is_asked_until_it_is_not_worth_it() {
        let noisy = [200, 110, 90, 150, 80, 170, 100, 85, 120, 95, 130, 88, 140, 99, 105, 111];
        let (answers, verdict) = burst(&noisy, Duration::from_nanos(30), &LIMITS);
        assert_eq!((answers, verdict), (16, Verdict::Enough));
        // Waiting costs as much as a seventh answer gains.
        let (answers, verdict) = burst(&noisy, Duration::from_nanos(900), &LIMITS);
        assert!((4..12).contains(&answers) && verdict == Verdict::NoGain, "{answers} {verdict:?}");
    }

    #[test]
    fn what_is_wanted_is_enough() {
        let limits = Limits { wanted: Some(micros(100)), most: 16 };
        assert_eq!(burst(&[200, 90, 80], Duration::ZERO, &limits), (2, Verdict::Wanted));
    }
}
