//! One thing's age over everything that happens to it: the elapsed clock and the birth that it goes
//! on from.
//!
//! Between two disruptions of the counter the age is an [`ElapsedClock`]'s, confined by the global
//! clock. After one, it is the global clock's distance from the birth. Whoever was never told the
//! time has no birth, and begins anew.

use crate::birth::{Birth, Global};
use crate::elapsed::{Age, ElapsedClock, Rate};

/// An elapsed clock that outlives its counter.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Lifetime {
    clock: Option<ElapsedClock>,
    birth: Option<Birth>,
}

impl Lifetime {
    /// It was born then, as somebody noted. What was noted first stays.
    pub fn born(&mut self, birth: Birth) {
        self.birth.get_or_insert(birth);
    }

    /// The counter was disturbed, or is another one.
    pub fn lose_counter(&mut self) {
        self.clock = None;
    }

    /// The age as a function of the counter; `None` while it cannot be said.
    #[must_use]
    pub fn clock(&self) -> Option<&ElapsedClock> {
        self.clock.as_ref()
    }

    /// When it was born, once that is known.
    #[must_use]
    pub fn birth(&self) -> Option<Birth> {
        self.birth
    }

    /// Takes in what is known at counter value `now`: the counter's rate and, where it may be
    /// relied on, the global clock. Returns the birth when that has just become known.
    pub fn update(&mut self, now: u64, rate: Rate, global: Option<&Global>) -> Option<Birth> {
        match (&mut self.clock, self.birth, global) {
            (None, None, _) => self.clock = Some(ElapsedClock::new(now, Age::ZERO, rate)),
            (None, Some(birth), Some(global)) => {
                self.clock = Some(ElapsedClock::new(now, birth.age(global), rate));
            }
            // It was born, and how long ago cannot be said yet.
            (None, Some(_), None) => return None,
            (Some(clock), _, _) => clock.change_rate(now, rate),
        }
        let (clock, global) = (self.clock.as_mut()?, global?);
        match self.birth {
            Some(birth) => {
                let known = birth.age(global);
                clock.confine(now, known.earliest, known.latest);
                None
            }
            None => {
                self.birth = Some(Birth::of(&clock.at(now), global));
                self.birth
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use timevisor_time::{Duration, Instant, Period};

    use super::*;
    use crate::rate::RateLimits;

    fn rate() -> Rate {
        let period = Period::from_hz(1_000_000_000).unwrap();
        Rate::new(period, RateLimits { shortest: period, longest: period }).unwrap()
    }

    fn global(seconds: i64) -> Global {
        let at = |ns: i64| Instant::from_bits(Duration::from_nanos(ns).to_bits());
        let ns = (1_700_000_000 + seconds) * 1_000_000_000;
        Global { earliest: at(ns - 100), estimate: at(ns), latest: at(ns + 100) }
    }

    fn seconds(lifetime: &Lifetime, counter: u64) -> Option<f64> {
        lifetime.clock().map(|clock| clock.at(counter).estimate.as_secs_f64())
    }

    #[test]
    fn an_age_goes_on_from_the_birth_when_its_counter_is_lost() {
        let mut age = Lifetime::default();
        assert_eq!(age.update(0, rate(), None), None, "no time, no birth");
        assert_eq!(seconds(&age, 1_000_000_000), Some(1.0));
        let born = age.update(2_000_000_000, rate(), Some(&global(2))).expect("now it is known");
        assert_eq!(age.update(2_000_000_001, rate(), Some(&global(2))), None, "only once");

        age.lose_counter();
        assert_eq!(age.update(7, rate(), None), None);
        assert_eq!(seconds(&age, 7), None, "born, and nobody knows how long ago");
        age.update(7, rate(), Some(&global(60)));
        assert!((seconds(&age, 7).unwrap() - 60.0).abs() < 1e-9);
        assert_eq!(age.birth(), Some(born));
    }
}
