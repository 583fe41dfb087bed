//! [`Together`]: the time in which all vCPUs of a guest run at once.
//!
//! A guest does not see that the host holds one of its vCPUs back: a job that its scheduler has put
//! on that vCPU waits, even where another vCPU runs something less urgent, or nothing. What counts
//! for a job is therefore the time in which no vCPU is held back. In `t` ns, each is held back for
//! at most `t - supply(t)`, and in the worst case never two at the same moment:
//!
//! ```text
//! together(t) = max over v <= t of (v - vcpus * (v - supply(v)))
//! ```
//!
//! A vCPU that sleeps is not held back. So the supply must hold for a vCPU that sleeps and wakes
//! within `t`, whenever it likes. A reservation that is alone on its core supplies that: it is only
//! held back when its budget is used up, and the whole budget comes before that. One that shares
//! its core does not: the kernel gives a vCPU that wakes a new deadline, behind others, each time.
//!
//! What it does not do: assume anything of the phases of the reservations.

use crate::reservation::Reservation;
use crate::supply::{Line, Supply, Worst};

/// Equal reservations of several vCPUs, each alone on its core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Together {
    /// Of each vCPU.
    pub of: Reservation,
    /// How late its supply begins, ns ([`Late`](crate::Late)).
    pub late: u64,
    /// What is missing once, ns ([`Ticked`](crate::Ticked)).
    pub once: u64,
    /// Number of vCPUs.
    pub vcpus: u16,
}

impl Together {
    /// What one period adds; nothing is supplied unless it is above 0.
    fn gain(&self) -> i128 {
        let (vcpus, of) = (i128::from(self.vcpus), self.of);
        vcpus * i128::from(of.budget()) - (vcpus - 1) * i128::from(of.period())
    }

    /// Whose end is the `k`-th moment at which a budget has just been supplied.
    fn end(&self, k: i128) -> i128 {
        let of = self.of;
        i128::from(self.late)
            + i128::from(of.blackout() + of.budget())
            + k * i128::from(of.period())
    }

    /// What is supplied by then.
    fn by_end(&self, k: i128) -> i128 {
        let vcpus = i128::from(self.vcpus);
        let each = (k + 1) * i128::from(self.of.budget()) - i128::from(self.once);
        vcpus * each - (vcpus - 1) * self.end(k)
    }
}

impl Supply for Together {
    fn within(&self, t: u64) -> u64 {
        if self.gain() <= 0 {
            return 0;
        }
        let vcpus = i128::from(self.vcpus);
        let each = Worst(self.of).within(t.saturating_sub(self.late));
        let now = vcpus * (i128::from(each) - i128::from(self.once)) - (vcpus - 1) * i128::from(t);
        let since = i128::from(t) - self.end(0);
        let before = if since < 0 { 0 } else { self.by_end(since / i128::from(self.of.period())) };
        u64::try_from(now.max(before).max(0)).unwrap_or(u64::MAX)
    }

    fn time_for(&self, work: u64) -> u64 {
        let gain = self.gain();
        if work == 0 {
            return 0;
        }
        if gain <= 0 {
            return u64::MAX;
        }
        // While budgets are supplied, every ns counts once.
        let work = i128::from(work);
        let missing = (work - self.by_end(0)).max(0);
        let k = (missing + gain - 1) / gain;
        u64::try_from(self.end(k) - (self.by_end(k) - work)).unwrap_or(u64::MAX)
    }

    fn line(&self) -> Line {
        // Of each: budget / period * (t - delay) - once.
        let (vcpus, of) = (u128::from(self.vcpus), self.of);
        let (budget, period) = (u128::from(of.budget()), u128::from(of.period()));
        let Ok(gain) = u64::try_from(self.gain().max(0)) else { return Line::NONE };
        if gain == 0 {
            return Line::NONE;
        }
        let delay = u128::from(self.late) + u128::from(of.blackout());
        let lost = vcpus * (budget * delay + period * u128::from(self.once));
        let delay = u64::try_from(lost.div_ceil(u128::from(gain))).unwrap_or(u64::MAX);
        Line { numerator: gain, denominator: of.period(), delay }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::supply::{Late, Ticked};

    fn together() -> impl Strategy<Value = Together> {
        (1..200u64, 0..60u64, 0..9u64, 0..30u64, 1..5u16).prop_map(
            |(budget, more, late, once, vcpus)| {
                let of = Reservation::alone(budget, budget + more).unwrap();
                Together { of, late, once, vcpus }
            },
        )
    }

    proptest! {
        #[test]
        fn it_is_what_its_definition_says(of in together(), t in 0..3000u64) {
            let each = Late { supply: Ticked { supply: Worst(of.of), tick: of.once }, by: of.late };
            let at = |v: u64| i128::from(v) - i128::from(of.vcpus) * i128::from(v - each.within(v));
            let most = u64::try_from((0..=t).map(at).max().unwrap().max(0)).unwrap();
            if of.gain() > 0 {
                prop_assert_eq!(of.within(t), most);
            } else {
                prop_assert_eq!(of.within(t), 0);
            }
        }

        #[test]
        fn time_is_the_inverse(of in together(), work in 1..500u64) {
            prop_assume!(of.gain() > 0);
            let t = of.time_for(work);
            prop_assert!(of.within(t) >= work && of.within(t - 1) < work, "{t}");
        }

        #[test]
        fn a_line_is_below(of in together(), t in 0..5000u64) {
            let Line { numerator, denominator, delay } = of.line();
            let by_line = u128::from(t.saturating_sub(delay)) * u128::from(numerator) / u128::from(denominator);
            prop_assert!(by_line <= u128::from(of.within(t)), "{by_line}");
        }

        #[test]
        fn of_one_vcpu_it_is_its_supply(of in together(), t in 0..3000u64) {
            let of = Together { vcpus: 1, ..of };
            let one = Late { supply: Ticked { supply: Worst(of.of), tick: of.once }, by: of.late };
            prop_assert_eq!(of.within(t), one.within(t));
            prop_assert_eq!(of.time_for(t), one.time_for(t));
        }
    }

    /// 9 of 10 alone. Of two vCPUs: held back 1 in 10 each, so 8 in 10 are left, the first after
    /// both were held back.
    #[test]
    fn two_of_them_by_hand() {
        let of = Reservation::alone(9, 10).unwrap();
        let two = Together { of, late: 0, once: 0, vcpus: 2 };
        let values: Vec<u64> = [1, 2, 3, 10, 11, 12, 13, 20].map(|t| two.within(t)).into();
        assert_eq!(values, [0, 0, 1, 8, 8, 8, 9, 16]);
        assert_eq!([1, 8, 9, 16].map(|work| two.time_for(work)), [3, 10, 13, 20]);
        // Half of a core each is never surely there at once.
        let half = Together { of: Reservation::alone(5, 10).unwrap(), ..two };
        assert_eq!((half.within(1_000_000), half.time_for(1)), (0, u64::MAX));
    }
}
