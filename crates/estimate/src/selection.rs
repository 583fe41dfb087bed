//! Which references agree: Marzullo's hull of the points that at least N - f intervals cover
//! (docs/explanation/bounds.md).

use timevisor_time::{Instant, Interval};

/// The outcome of a vote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreement<S> {
    /// Holds true time if at most `faulty` references are wrong.
    pub interval: Interval<S>,
    /// Indices of the references that overlap it.
    pub members: Vec<usize>,
    /// Indices of those that do not: falsetickers.
    pub falsetickers: Vec<usize>,
}

/// How many of `n` references may be wrong by default: less than half of them.
#[must_use]
pub fn default_faulty(n: usize) -> usize {
    n.saturating_sub(1) / 2
}

/// The hull of all points that at least `intervals.len() - faulty` intervals cover; `None` when
/// there is no such point.
#[must_use]
pub fn agree<S>(intervals: &[Interval<S>], faulty: usize) -> Option<Agreement<S>> {
    let needed = intervals.len().checked_sub(faulty).filter(|n| *n > 0)?;
    // A point that is covered often enough exists iff some interval's lower end is such a point,
    // and the hull runs from the first such lower end to the last such upper end.
    let covered = |t: Instant<S>| intervals.iter().filter(|i| i.contains(t)).count() >= needed;
    let ends =
        |end: fn(&Interval<S>) -> Instant<S>| intervals.iter().map(end).filter(|t| covered(*t));
    let earliest = ends(Interval::earliest).min_by_key(|t| t.to_bits())?;
    let latest = ends(Interval::latest).max_by_key(|t| t.to_bits())?;
    let interval = Interval::new(earliest, latest)?;
    let (members, falsetickers) =
        (0..intervals.len()).partition(|i| interval.intersect(&intervals[*i]).is_some());
    Some(Agreement { interval, members, falsetickers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use timevisor_time::Tai;

    fn interval(a: i128, b: i128) -> Interval<Tai> {
        Interval::new(Instant::from_bits(a), Instant::from_bits(b)).unwrap()
    }

    #[test]
    fn a_liar_among_three_is_named() {
        let votes = [interval(0, 10), interval(5, 12), interval(100, 101)];
        let outcome = agree(&votes, default_faulty(3)).unwrap();
        assert_eq!(
            outcome,
            Agreement { interval: interval(5, 10), members: vec![0, 1], falsetickers: vec![2] }
        );
    }

    #[test]
    fn two_that_disagree_have_no_majority() {
        assert_eq!(agree(&[interval(0, 1), interval(2, 3)], default_faulty(2)), None);
        assert_eq!(agree::<Tai>(&[], 0), None);
    }

    proptest! {
        #[test]
        fn truth_is_inside_when_at_most_f_are_wrong(
            right in prop::collection::vec((0i128..100, 0i128..100), 2..6),
            wrong in prop::collection::vec((1i128..500, 0i128..100), 0..2),
        ) {
            // Truth is 0; right intervals hold it, wrong ones lie above it.
            let mut votes: Vec<_> = right.iter().map(|(a, b)| interval(-a, *b)).collect();
            votes.extend(wrong.iter().map(|(a, w)| interval(*a, a + w)));
            let outcome = agree(&votes, wrong.len()).unwrap();
            prop_assert!(outcome.interval.contains(Instant::from_bits(0)));
            for index in 0..right.len() { prop_assert!(outcome.members.contains(&index)); }
        }
    }
}
