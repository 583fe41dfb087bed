//! How a publisher turns knowledge into page lines, and when: the rules that the daemon and the
//! simulation share.
//!
//! Elsewhere: the knowledge (crates/estimate), when references are asked, and writing
//! ([`crate::writer`]).

use timevisor_time::{Duration, Instant, Interval, Period, Tai};

use crate::lines::{Line, Lines, Slew, renewal};

/// The time in which the estimate closes a gap, at least ([`Policy::slew`]). It is shorter than a
/// poll interval.
const SLEW_HORIZON: Duration = Duration::from_secs(8);
/// A wider gap ahead is jumped: slewing it at the 15 ppm that bounds allow would take minutes.
const SLEW_JUMP: Duration = Duration::from_millis(1);
/// An estimate this far above the upper bound steps back as a disruption: slewing at 400 ppm would
/// take four minutes and more.
const STEP_BACK: Duration = Duration::from_millis(100);

/// Parameters of one publisher.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The counter's nominal period.
    pub nominal: Period,
    /// Readers take lines that are older than this for free running.
    pub validity: Duration,
}

/// What is known at one counter value.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// True time lies inside.
    pub interval: Interval<Tai>,
    /// Best guess; lies inside the interval.
    pub estimate: Instant<Tai>,
    /// Best guess of the period.
    pub period: Period,
    /// The periods at which `earliest` and `latest` move for at least [`Policy::validity`].
    pub slopes: (Period, Period),
    /// The shortest and the longest period at any time.
    pub limits: (Period, Period),
}

impl Policy {
    /// How the estimate moves to a new target.
    ///
    /// It takes at least as long as lines are in force, which is half of their validity at most: what
    /// closes a gap sooner goes on beyond it until the next lines, and theirs has farther to go back.
    /// Then a daemon that dies in the middle leaves a rate that is only slightly off, too.
    #[must_use]
    pub fn slew(&self) -> Slew {
        let horizon = SLEW_HORIZON.max(self.validity.half());
        Slew { horizon: self.nominal.ticks_in(horizon), jump: SLEW_JUMP }
    }

    /// When lines that are published at `now` expire.
    #[must_use]
    pub fn expiry(&self, now: u64) -> u64 {
        now.wrapping_add(self.nominal.ticks_in(self.validity))
    }

    /// The lines of what is known at `now`.
    #[must_use]
    pub fn lines(&self, now: u64, known: &Known) -> Lines<Tai> {
        let bits = |p: Period| p.to_bits();
        // Beyond the validity only the limits of the rate hold; the ends then move faster by this
        // much.
        let above = bits(known.limits.1).saturating_sub(bits(known.slopes.1));
        let below = bits(known.slopes.0).saturating_sub(bits(known.limits.0));
        Lines {
            base: now,
            expiry: self.expiry(now),
            earliest: Line { time: known.interval.earliest(), period: known.slopes.0 },
            estimate: Line { time: known.estimate, period: known.period },
            latest: Line { time: known.interval.latest(), period: known.slopes.1 },
            holdover: above.max(below),
        }
    }

    /// Earlier lines, when nothing was learned since. They still hold, and their ends move at the
    /// limits of the rate: `rate`, where those are known otherwise ([`Lines::free_running`]).
    #[must_use]
    pub fn free_running(
        &self,
        now: u64,
        before: &Lines<Tai>,
        rate: Option<(Period, Period)>,
    ) -> Lines<Tai> {
        Lines { expiry: self.expiry(now), ..before.free_running(now, rate) }
    }

    /// True when the clock must step, as a disruption. New knowledge can exclude everything that
    /// was published, for instance when a restarted daemon recovered lines that followed another
    /// reference. Continuing from such lines would hold the clock back for ever. Continuing from an
    /// estimate far above the upper bound would do so for minutes; that happens after the wrong one
    /// of two disagreeing references was believed.
    #[must_use]
    pub fn must_step(&self, in_force: &Lines<Tai>, target: &Lines<Tai>, now: u64) -> bool {
        let estimate = in_force.at(now).estimate;
        let (old, new) = (in_force.interval_at(now), target.interval_at(now));
        old.intersect(&new).is_none() || estimate - new.latest() > STEP_BACK
    }

    /// What to publish at `now`.
    #[must_use]
    pub fn next(&self, in_force: Option<&Lines<Tai>>, target: &Lines<Tai>, now: u64) -> Lines<Tai> {
        in_force.map_or_else(|| target.rebased(now), |old| old.continued(target, now, self.slew()))
    }

    /// How long until the lines in force must be renewed; later, readers take the page for
    /// abandoned. It is the middle of the time in which renewal is allowed
    /// ([`Lines::is_renewal_due`]).
    #[must_use]
    pub fn until_renewal<S>(&self, in_force: Option<&Lines<S>>, now: u64) -> Duration {
        let (next, slew) = (self.expiry(now), self.slew());
        match in_force {
            Some(lines) if !lines.is_renewal_due(now, next, slew) => {
                let early = renewal(now, next, slew) / 2;
                self.nominal.span(lines.expiry.wrapping_sub(now).saturating_sub(early))
            }
            _ => Duration::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_time::RateError;

    const HZ: u64 = 1_000_000_000;

    fn policy() -> Policy {
        Policy { nominal: Period::from_hz(HZ).unwrap(), validity: Duration::from_secs(10) }
    }

    fn known(at_ns: i128, half: Duration) -> Known {
        let nominal = policy().nominal;
        let within = |ppm| {
            let error = RateError::from_ppm(ppm);
            (nominal.slowest_time(error), nominal.fastest_time(error))
        };
        let estimate = Instant::from_unix_nanos(at_ns);
        Known {
            interval: Interval::around(estimate, half),
            estimate,
            period: nominal,
            slopes: within(1),
            limits: within(15),
        }
    }

    #[test]
    fn beyond_the_expiry_ends_move_at_the_limits_of_the_rate() {
        let lines = policy().lines(0, &known(0, Duration::from_micros(40)));
        let grown = |c: u64| (lines.at(c).latest - lines.at(c).estimate).ceil_nanos() - 40_000;
        assert!((10_000..=10_002).contains(&grown(10 * HZ)), "1 ppm for 10 s");
        assert!((160_000..=160_002).contains(&grown(20 * HZ)), "and 15 ppm for 10 s");
        let (shortest, longest) = lines.rate_limits();
        assert!(shortest <= known(0, Duration::ZERO).limits.0);
        assert!(longest >= known(0, Duration::ZERO).limits.1);
    }

    #[test]
    fn a_gap_closes_without_swinging_however_seldom_lines_are_written() {
        for (validity_s, every_s) in [(10, 1), (10, 3), (60, 20), (300, 100)] {
            let p = Policy { validity: Duration::from_secs(validity_s), ..policy() };
            let half = Duration::from_millis(5);
            let at = |seconds: u64| known(i128::from(seconds) * i128::from(HZ), half);
            let mut lines = p.lines(0, &at(0));
            // The estimate is 200 us ahead from now on.
            let mut gap = Duration::from_micros(201);
            for turn in 1..=20 {
                let now = turn * every_s;
                let true_ns = i128::from(now) * i128::from(HZ);
                let target = p.lines(now * HZ, &known(true_ns + 200_000, half));
                lines = p.next(Some(&lines), &target, now * HZ);
                let left = target.estimate.time - lines.at(now * HZ).estimate;
                assert!(
                    !left.is_negative() && left <= gap,
                    "every {every_s} s: {gap}, then {left}"
                );
                gap = left;
            }
            assert!(gap < Duration::from_micros(50), "every {every_s} s: {gap} are left");
        }
    }

    #[test]
    fn the_clock_steps_only_when_it_must() {
        let (p, half) = (policy(), Duration::from_micros(40));
        let old = p.lines(0, &known(0, half));
        assert!(!p.must_step(&old, &p.lines(0, &known(60_000, half)), 0), "they overlap");
        assert!(p.must_step(&old, &p.lines(0, &known(90_000, half)), 0));
        let wide = p.lines(0, &known(0, Duration::from_secs(1)));
        let back = p.lines(0, &known(-200_000_000, half));
        assert!(p.must_step(&wide, &back, 0), "200 ms would take minutes to slew");
    }

    #[test]
    fn lines_are_renewed_before_they_expire() {
        let p = policy();
        let lines = p.lines(0, &known(0, Duration::from_micros(40)));
        let soon = p.until_renewal(Some(&lines), 9 * HZ);
        assert!(soon > Duration::from_millis(900) && soon < Duration::from_secs(1), "{soon}");
        let then = 9 * HZ + p.nominal.ticks_in(soon);
        assert!(!lines.is_expired(then) && lines.is_renewal_due(then, p.expiry(then), p.slew()));
        assert_eq!(p.until_renewal::<Tai>(None, 0), Duration::MAX);
    }
}
