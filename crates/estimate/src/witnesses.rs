//! A vote in which references with one source of time have one voice.
//!
//! Servers that follow the same server err together. Two of them that are wrong must not outvote one
//! that is right, so the vote ([`agree`]) is among witnesses. A witness with several references
//! says what the majority of these agree on; without a majority, its references' hull, which
//! excludes least. A single witness without a majority among its references says nothing.

use std::collections::BTreeMap;

use timevisor_time::Interval;

use crate::selection::{Agreement, agree, default_faulty};

/// What one reference says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vote<S> {
    /// References with the same number have one source.
    pub(crate) witness: usize,
    /// Holds the time, according to the reference.
    pub(crate) interval: Interval<S>,
}

/// As [`agree`], among witnesses of which at most `faulty` are wrong; the members and falsetickers
/// are indices of `votes`.
pub(crate) fn agree_as_witnesses<S: Copy>(
    votes: &[Vote<S>],
    faulty: usize,
) -> Option<Agreement<S>> {
    let mut witnesses: BTreeMap<usize, Vec<Interval<S>>> = BTreeMap::new();
    for vote in votes {
        witnesses.entry(vote.witness).or_default().push(vote.interval);
    }
    let alone = witnesses.len() == 1;
    let mut intervals = Vec::with_capacity(witnesses.len());
    for of_one in witnesses.values() {
        let inner = agree(of_one, default_faulty(of_one.len())).map(|inner| inner.interval);
        let hull = || of_one.iter().copied().reduce(|a, b| a.hull(&b));
        // With one witness, its references are all that can be asked.
        intervals.push(if alone { inner? } else { inner.or_else(hull)? });
    }
    let outcome = agree(&intervals, faulty)?;
    let (members, falsetickers) =
        (0..votes.len()).partition(|i| outcome.interval.intersect(&votes[*i].interval).is_some());
    Some(Agreement { members, falsetickers, ..outcome })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use timevisor_time::{Instant, Tai};

    fn vote(witness: usize, a: i128, b: i128) -> Vote<Tai> {
        let ends = [a, b].map(Instant::from_bits);
        Vote { witness, interval: Interval::new(ends[0], ends[1]).unwrap() }
    }

    fn outcome(votes: &[Vote<Tai>], witnesses: usize) -> Option<(i128, i128, Vec<usize>)> {
        let found = agree_as_witnesses(votes, default_faulty(witnesses))?;
        let ends = (found.interval.earliest().to_bits(), found.interval.latest().to_bits());
        Some((ends.0, ends.1, found.falsetickers))
    }

    #[test]
    fn two_servers_with_one_source_do_not_outvote_a_third() {
        let votes = [vote(0, 100, 110), vote(0, 102, 112), vote(2, 0, 10)];
        assert_eq!(outcome(&votes, 2), None);
        // With a fourth that is independent, the honest two win.
        let votes = [vote(0, 100, 110), vote(0, 102, 112), vote(2, 0, 10), vote(3, 5, 12)];
        assert_eq!(outcome(&votes, 3), Some((5, 10, vec![0, 1])));
    }

    #[test]
    fn servers_with_one_source_are_as_tight_as_any_others() {
        assert_eq!(outcome(&[vote(0, 0, 10), vote(0, 5, 20)], 1), Some((5, 10, vec![])));
        // A server of the source that is wrong by itself is outvoted among its own.
        let votes = [vote(0, 0, 10), vote(0, 5, 20), vote(0, 100, 101)];
        assert_eq!(outcome(&votes, 1), Some((5, 10, vec![2])));
        assert_eq!(outcome(&[vote(0, 0, 10), vote(0, 100, 101)], 1), None);
    }

    proptest! {
        /// Truth is 0. Whole witnesses may be wrong, as many as the vote allows.
        #[test]
        fn truth_is_inside_when_at_most_f_witnesses_are_wrong(
            right in prop::collection::vec(
                prop::collection::vec((0i128..100, 0i128..100), 1..4), 2..5),
            wrong in prop::collection::vec(
                prop::collection::vec((1i128..500, 0i128..100), 1..4), 0..2),
        ) {
            let mut votes = Vec::new();
            for (n, of_one) in right.iter().enumerate() {
                votes.extend(of_one.iter().map(|(a, b)| vote(n, -a, *b)));
            }
            for (n, of_one) in wrong.iter().enumerate() {
                votes.extend(of_one.iter().map(|(a, w)| vote(100 + n, *a, a + w)));
            }
            let found = agree_as_witnesses(&votes, wrong.len()).unwrap();
            prop_assert!(found.interval.contains(Instant::from_bits(0)));
        }

        /// Where each reference is a witness of its own, nothing is different.
        #[test]
        fn independent_references_vote_as_before(
            ends in prop::collection::vec((-100i128..100, 0i128..50), 1..7), faulty in 0usize..3,
        ) {
            let votes: Vec<_> =
                ends.iter().enumerate().map(|(n, (a, w))| vote(n, *a, a + w)).collect();
            let plain: Vec<_> = votes.iter().map(|v| v.interval).collect();
            prop_assert_eq!(agree_as_witnesses(&votes, faulty), agree(&plain, faulty));
        }
    }
}
