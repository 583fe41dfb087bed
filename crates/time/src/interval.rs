//! Error intervals: true time lies between `earliest` and `latest`.

use core::fmt;

use crate::{Duration, Instant};

/// How two intervals lie to each other. There is no `Ord` on intervals: most pairs have no order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Comparison {
    /// The first one ended before the second one began, whatever the true times are.
    Before,
    /// The first one began after the second one ended, whatever the true times are.
    After,
    /// The intervals overlap: their order is not known.
    Uncertain,
}

/// The closed interval that holds true time; `earliest <= latest` always.
#[derive(PartialEq, Eq, Hash)]
pub struct Interval<S> {
    earliest: Instant<S>,
    latest: Instant<S>,
}

impl<S> Clone for Interval<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Interval<S> {}

impl<S> Interval<S> {
    /// The interval that excludes nothing: what is published when nothing is known.
    pub const UNKNOWN: Self = Self { earliest: Instant::MIN, latest: Instant::MAX };

    /// `None` when `earliest` is after `latest`: an empty interval is a contradiction, not a value.
    #[must_use]
    pub fn new(earliest: Instant<S>, latest: Instant<S>) -> Option<Self> {
        (earliest.to_bits() <= latest.to_bits()).then_some(Self { earliest, latest })
    }

    /// Everything within `radius` of `centre`; a negative radius counts as zero.
    #[must_use]
    pub fn around(centre: Instant<S>, radius: Duration) -> Self {
        let radius = radius.max(Duration::ZERO);
        Self { earliest: centre - radius, latest: centre + radius }
    }

    /// The lower end.
    #[must_use]
    pub fn earliest(&self) -> Instant<S> {
        self.earliest
    }

    /// The upper end.
    #[must_use]
    pub fn latest(&self) -> Instant<S> {
        self.latest
    }

    /// `latest - earliest`.
    #[must_use]
    pub fn width(&self) -> Duration {
        self.latest - self.earliest
    }

    /// True when `t` is inside, the ends included.
    #[must_use]
    pub fn contains(&self, t: Instant<S>) -> bool {
        self.earliest.to_bits() <= t.to_bits() && t.to_bits() <= self.latest.to_bits()
    }

    /// What both intervals allow; `None` when they contradict each other.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        Self::new(self.earliest.max(other.earliest), self.latest.min(other.latest))
    }

    /// The smallest interval that holds both.
    #[must_use]
    pub fn hull(&self, other: &Self) -> Self {
        Self { earliest: self.earliest.min(other.earliest), latest: self.latest.max(other.latest) }
    }

    /// The interval with `by` added on both sides; a negative `by` counts as zero.
    #[must_use]
    pub fn widen(&self, by: Duration) -> Self {
        let by = by.max(Duration::ZERO);
        Self { earliest: self.earliest - by, latest: self.latest + by }
    }

    /// Is this interval surely before, surely after, or neither?
    #[must_use]
    pub fn compare(&self, other: &Self) -> Comparison {
        if self.latest.to_bits() < other.earliest.to_bits() {
            Comparison::Before
        } else if other.latest.to_bits() < self.earliest.to_bits() {
            Comparison::After
        } else {
            Comparison::Uncertain
        }
    }
}

impl<S> fmt::Debug for Interval<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:?}, {:?}]", self.earliest, self.latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tai;
    use proptest::prelude::*;

    fn interval() -> impl Strategy<Value = Interval<Tai>> {
        (-1000i128..1000, 0i128..1000).prop_map(|(a, w)| {
            Interval::new(Instant::from_bits(a), Instant::from_bits(a + w)).unwrap()
        })
    }

    proptest! {
        #[test]
        fn comparison_is_antisymmetric(a in interval(), b in interval()) {
            let back = match a.compare(&b) {
                Comparison::Before => Comparison::After,
                Comparison::After => Comparison::Before,
                Comparison::Uncertain => Comparison::Uncertain,
            };
            prop_assert_eq!(b.compare(&a), back);
        }

        #[test]
        fn order_is_claimed_only_when_every_pair_has_it(a in interval(), b in interval()) {
            let overlap = a.intersect(&b).is_some();
            prop_assert_eq!(a.compare(&b) == Comparison::Uncertain, overlap);
        }

        #[test]
        fn intersection_and_hull_are_sound(a in interval(), b in interval(), t in -2000i128..2000) {
            let t = Instant::from_bits(t);
            let both = a.contains(t) && b.contains(t);
            prop_assert_eq!(a.intersect(&b).is_some_and(|i| i.contains(t)), both);
            if a.contains(t) || b.contains(t) { prop_assert!(a.hull(&b).contains(t)); }
        }
    }

    #[test]
    fn an_empty_interval_is_refused() {
        assert!(Interval::<Tai>::new(Instant::from_bits(1), Instant::from_bits(0)).is_none());
    }
}
