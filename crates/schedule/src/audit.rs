//! Whether a reservation got what was promised, from what the kernel counts of its thread: for how long it ran, and for how long it
//! could have run and did not (/proc/PID/task/TID/schedstat; a throttled thread counts as one that could).
//!
//! What it cannot see: jobs. A thread that has slept in between has begun anew with every waking, so that nothing was promised for
//! the whole; such a stretch is [`Finding::Unclear`], not guessed.

use crate::reservation::Reservation;
use crate::supply::{Supply, Ticked, Worst};

/// A stretch of time; ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// How long it was.
    pub length: u64,
    /// How long the thread ran in it.
    pub ran: u64,
    /// How long it could have run and did not.
    pub waited: u64,
}

/// What a stretch shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// It ran whenever it wanted to.
    Satisfied,
    /// It wanted to run all the time, and got what it has reserved: its guest wants more than that.
    Exhausted,
    /// It wanted to run all the time, and got so many ns less than it has reserved: the host has broken its promise.
    Broken(u64),
    /// It waited now and then, and slept now and then.
    Unclear,
}

/// Judges a stretch. `tick`: the kernel counts, and throttles, at its ticks; ns.
#[must_use]
pub fn find(stretch: &Stretch, reservation: &Reservation, tick: u64) -> Finding {
    let Stretch { length, ran, waited } = *stretch;
    if waited <= tick {
        return Finding::Satisfied;
    }
    // Both ends of the stretch are between two ticks.
    let wanted = ran.saturating_add(waited).saturating_add(2 * tick);
    if wanted < length {
        return Finding::Unclear;
    }
    let promised = Ticked { supply: Worst(*reservation), tick: 2 * tick }.within(length);
    match promised.checked_sub(ran) {
        None | Some(0) => Finding::Exhausted,
        Some(missing) => Finding::Broken(missing),
    }
}

/// What was found so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// How many stretches were [`Finding::Satisfied`].
    pub satisfied: u64,
    /// [`Finding::Exhausted`].
    pub exhausted: u64,
    /// [`Finding::Broken`].
    pub broken: u64,
    /// [`Finding::Unclear`].
    pub unclear: u64,
}

impl Tally {
    /// Counts one more.
    pub fn count(&mut self, finding: Finding) {
        let counted = match finding {
            Finding::Satisfied => &mut self.satisfied,
            Finding::Exhausted => &mut self.exhausted,
            Finding::Broken(_) => &mut self.broken,
            Finding::Unclear => &mut self.unclear,
        };
        *counted += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const TICK: u64 = 4 * MS;

    fn found(length: u64, ran: u64, waited: u64) -> Finding {
        let reservation = Reservation::shared(28 * MS, 50 * MS).unwrap();
        let stretch = Stretch { length: length * MS, ran: ran * MS, waited: waited * MS };
        find(&stretch, &reservation, TICK)
    }

    #[test]
    fn each_finding() {
        assert_eq!(found(1000, 0, 0), Finding::Satisfied);
        assert_eq!(found(1000, 990, 3), Finding::Satisfied);
        assert_eq!(found(1000, 560, 440), Finding::Exhausted);
        // 19 whole budgets and 6 ms, after the longest time without one.
        let promised = Worst(Reservation::shared(28 * MS, 50 * MS).unwrap()).within(1000 * MS);
        assert_eq!(promised, 538 * MS);
        assert_eq!(found(1000, 532, 466), Finding::Exhausted);
        assert_eq!(found(1000, 500, 500), Finding::Broken(30 * MS));
        assert_eq!(found(1000, 300, 300), Finding::Unclear);
        // Too short for any promise.
        assert_eq!(found(40, 0, 40), Finding::Exhausted);
    }

    #[test]
    fn a_tally_counts_each() {
        let mut tally = Tally::default();
        let all = [Finding::Satisfied, Finding::Exhausted, Finding::Broken(1), Finding::Unclear];
        all.into_iter().chain([Finding::Broken(2)]).for_each(|finding| tally.count(finding));
        assert_eq!(tally, Tally { satisfied: 1, exhausted: 1, broken: 2, unclear: 1 });
    }
}
