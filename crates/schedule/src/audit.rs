//! Whether a reservation got what was promised, from what the kernel counts of its thread: for how
//! long it ran, and for how long it could have run and did not (/proc/PID/task/TID/schedstat; a
//! throttled thread counts as one that could).
//!
//! What it cannot see: jobs. The promise begins again each time the thread wakes up, so a stretch
//! in which it slept has no promise as a whole; such a stretch is [`Finding::Unclear`], not
//! guessed.

use std::collections::VecDeque;

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
    /// It wanted to run all the time, and got so many ns less than it has reserved: the host has
    /// broken its promise.
    Broken(u64),
    /// It waited now and then, and slept now and then.
    Unclear,
}

/// Judges a stretch. `tick`: the kernel counts, and throttles, at its ticks; ns.
#[must_use]
pub fn find(stretch: &Stretch, reservation: &Reservation, tick: u64) -> Finding {
    if stretch.waited <= tick {
        return Finding::Satisfied;
    }
    let around = Around { stretch, reservation, tick };
    if around.slept() {
        return Finding::Unclear;
    }
    around.missing().map_or(Finding::Exhausted, Finding::Broken)
}

/// Why a job of the guest was late that was there during a whole stretch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The host gave the vCPU so many ns less than it has reserved.
    HostBroke(u64),
    /// The vCPU wanted to run all the time and got what it has reserved: the guest had more to do
    /// than was declared.
    GuestUnderDeclared,
    /// The vCPU slept although the job was there: the guest did not run it, and had a processor for
    /// it.
    GuestPolicy,
    /// The stretch is too short for any of these.
    Unclear,
}

/// Judges a job that missed its deadline, by what its vCPU got while it was there.
#[must_use]
pub fn cause(stretch: &Stretch, reservation: &Reservation, tick: u64) -> Cause {
    let around = Around { stretch, reservation, tick };
    if around.slept() {
        return Cause::GuestPolicy;
    }
    match around.missing() {
        Some(missing) => Cause::HostBroke(missing),
        None if stretch.length > 2 * around.slack() => Cause::GuestUnderDeclared,
        None => Cause::Unclear,
    }
}

/// A stretch and what was promised for it.
struct Around<'a> {
    stretch: &'a Stretch,
    reservation: &'a Reservation,
    tick: u64,
}

impl Around<'_> {
    /// Both ends of a stretch are between two ticks; and how long a thread has waited is counted
    /// when it runs again, so that a wait for the next budget may belong to another stretch.
    fn slack(&self) -> u64 {
        2 * self.tick + self.reservation.period() - self.reservation.budget()
    }

    /// Surely it did not want to run for some time.
    fn slept(&self) -> bool {
        let Stretch { length, ran, waited } = *self.stretch;
        ran.saturating_add(waited).saturating_add(self.slack()) < length
    }

    /// What is missing of the least that it has to have, having slept for the slack.
    fn missing(&self) -> Option<u64> {
        let supply = Ticked { supply: Worst(*self.reservation), tick: 2 * self.tick };
        let promised = supply.within(self.stretch.length.saturating_sub(self.slack()));
        promised.checked_sub(self.stretch.ran).filter(|missing| *missing > 0)
    }
}

/// What a thread had run and waited for at some time; ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// When.
    pub at: u64,
    /// Until then.
    pub ran: u64,
    /// Until then.
    pub waited: u64,
}

impl Sample {
    /// From this one to a later one.
    #[must_use]
    pub const fn until(&self, later: &Self) -> Stretch {
        Stretch {
            length: later.at.saturating_sub(self.at),
            ran: later.ran.saturating_sub(self.ran),
            waited: later.waited.saturating_sub(self.waited),
        }
    }
}

/// The last samples of a thread whose reservation stayed the same.
#[derive(Clone, Debug, Default)]
pub struct History(VecDeque<Sample>);

impl History {
    /// Adds one, and forgets the oldest beyond `most`.
    pub fn add(&mut self, sample: Sample, most: usize) {
        if self.0.len() >= most {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// The last one.
    #[must_use]
    pub fn last(&self) -> Option<Sample> {
        self.0.back().copied()
    }

    /// The longest stretch between two samples within `from` to `to`; nothing where `from` was
    /// before the first sample, or `to` is after the last one.
    #[must_use]
    pub fn within(&self, from: u64, to: u64) -> Option<Stretch> {
        if from < self.0.front()?.at || self.0.back()?.at < to {
            return None;
        }
        let first = self.0.partition_point(|sample| sample.at < from);
        let behind = self.0.partition_point(|sample| sample.at <= to);
        let (first, last) = (self.0.get(first)?, self.0.get(behind.checked_sub(1)?)?);
        (first.at < last.at).then(|| first.until(last))
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
        // It may have slept for 30 ms, unseen; and two ticks.
        let least =
            Worst(Reservation::shared(28 * MS, 50 * MS).unwrap()).within(970 * MS) - 2 * TICK;
        assert_eq!(least, 522 * MS);
        assert_eq!(found(1000, 480, 520), Finding::Broken(least - 480 * MS));
        assert_eq!(found(1000, 300, 300), Finding::Unclear);
        // Too short for any promise.
        assert_eq!(found(40, 0, 40), Finding::Exhausted);
    }

    #[test]
    fn why_a_job_was_late() {
        let reservation = Reservation::shared(28 * MS, 50 * MS).unwrap();
        let found = |length: u64, ran: u64, waited: u64| {
            let stretch = Stretch { length: length * MS, ran: ran * MS, waited: waited * MS };
            cause(&stretch, &reservation, TICK)
        };
        assert_eq!(found(200, 112, 88), Cause::GuestUnderDeclared);
        // It never waited, and never slept.
        assert_eq!(found(200, 199, 0), Cause::GuestUnderDeclared);
        assert_eq!(found(200, 60, 20), Cause::GuestPolicy);
        assert_eq!(found(200, 0, 0), Cause::GuestPolicy);
        assert!(matches!(found(200, 10, 190), Cause::HostBroke(_)));
        assert_eq!(found(50, 20, 30), Cause::Unclear);
    }

    #[test]
    fn a_history_knows_what_it_has_seen() {
        let mut history = History::default();
        assert_eq!(history.within(0, 1), None);
        for n in 0..10 {
            history.add(Sample { at: n * 20, ran: n * 12, waited: n * 8 }, 6);
        }
        // Of 80 to 180.
        assert_eq!(history.within(79, 170), None);
        assert_eq!(history.within(100, 181), None);
        assert_eq!(history.within(85, 165), Some(Stretch { length: 60, ran: 36, waited: 24 }));
        assert_eq!(history.within(100, 120), Some(Stretch { length: 20, ran: 12, waited: 8 }));
        assert_eq!(history.within(101, 139), None, "one sample");
        assert_eq!(history.last().unwrap().at, 180);
    }

    #[test]
    fn a_tally_counts_each() {
        let mut tally = Tally::default();
        let all = [Finding::Satisfied, Finding::Exhausted, Finding::Broken(1), Finding::Unclear];
        all.into_iter().chain([Finding::Broken(2)]).for_each(|finding| tally.count(finding));
        assert_eq!(tally, Tally { satisfied: 1, exhausted: 1, broken: 2, unclear: 1 });
    }
}
