//! One schedule.

use super::clock::{log_range, pick};
use crate::random::Random;

/// What one schedule does. Times are ns of true time since its begin.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many members.
    pub members: usize,
    /// When it ends.
    pub until_ns: u64,
    /// No member's bound is wider, ns.
    pub worst_bound_ns: u64,
    /// How likely a member's clock fails once.
    pub clock_fails: f64,
    /// When the timeline gets another origin.
    pub origin_changes: Option<u64>,
    /// How far the timeline jumps then.
    pub jump_ns: i64,
    /// The least delay between each two members, and the mean of what is added.
    pub delay_ns: u64,
    /// See above.
    pub queueing_ns: u64,
    /// How likely a message is lost, repeated, or seconds late.
    pub loss: f64,
    /// See above.
    pub repeated: f64,
    /// See above.
    pub late: f64,
    /// From when until when, and who is on the other side.
    pub partitions: Vec<(u64, u64, u64)>,
    /// Who stops when, and is back when.
    pub crashes: Vec<(usize, u64, Option<u64>)>,
    /// How likely a wake-up is late, and by how much at most.
    pub late_wake: f64,
    /// See above.
    pub late_wake_ns: u64,
    /// Who proposes when, and how far ahead.
    pub proposals: Vec<Proposed>,
    /// How likely a member accepts, and how long its application thinks at most.
    pub accepts: f64,
    /// See above.
    pub thinks_ns: u64,
    /// Who wants to lead; empty: nobody. Everybody votes.
    pub candidates: Vec<usize>,
    /// The term of a leader, ns.
    pub term_ns: u64,
    /// How many have to arrive at the barrier; 0 without one.
    pub parties: u32,
}

/// One proposal.
#[derive(Clone, Copy, Debug)]
pub struct Proposed {
    /// When it is made.
    pub when: u64,
    /// By whom.
    pub by: usize,
    /// How long before its time.
    pub lead_ns: u64,
    /// How late a wake-up may be.
    pub late_ns: u64,
    /// Who takes part beside the proposer, a bit for each member.
    pub among: u64,
}

impl Plan {
    /// The schedule of a seed. Every fourth has no faults at all.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let mut dice = Random::stream(seed, "schedule of a group");
        let is_calm = seed.is_multiple_of(4);
        let members = 2 + pick(&mut dice, 5);
        let until_ns = 8_000_000_000;
        let faults = if is_calm { 0.0 } else { 1.0 };
        let some = |dice: &mut Random, most: u64| if is_calm { 0 } else { dice.bits() % most };
        let partitions = (0..some(&mut dice, 4)).map(|_| {
            let from = dice.bits() % until_ns;
            (from, from + log_range(&mut dice, 1_000_000, 3_000_000_000), dice.bits())
        });
        let partitions: Vec<_> = partitions.collect();
        let crashes = (0..some(&mut dice, 3)).map(|_| {
            let at = dice.bits() % until_ns;
            let back =
                dice.chance(0.6).then(|| at + log_range(&mut dice, 1_000_000, 2_000_000_000));
            (pick(&mut dice, members), at, back)
        });
        let crashes: Vec<_> = crashes.collect();
        let proposals = (0..1 + dice.bits() % 4).map(|_| Proposed {
            when: dice.bits() % (until_ns / 2),
            by: pick(&mut dice, members),
            lead_ns: log_range(&mut dice, 3_000_000, 2_000_000_000),
            late_ns: log_range(&mut dice, 100_000, 100_000_000),
            among: if dice.chance(0.7) { u64::MAX } else { dice.bits() },
        });
        let proposals: Vec<_> = proposals.collect();
        let leads = dice.chance(0.4);
        let candidates = (0..members).filter(|_| leads && dice.chance(0.7)).collect();
        // Where leaders are elected, bounds as wide as leases show whether they are waited for.
        let worst = if is_calm {
            1_000_000
        } else if leads {
            300_000_000
        } else {
            20_000_000
        };
        Self {
            members,
            until_ns,
            worst_bound_ns: log_range(&mut dice, worst / 1_000, worst),
            clock_fails: faults * 0.3 * dice.uniform(),
            origin_changes: dice.chance(0.15 * faults).then(|| dice.bits() % until_ns),
            jump_ns: if dice.chance(0.5) { 3_600_000_000_000 } else { -500_000_000 },
            delay_ns: log_range(&mut dice, 10_000, if is_calm { 200_000 } else { 20_000_000 }),
            queueing_ns: log_range(&mut dice, 1_000, if is_calm { 50_000 } else { 10_000_000 }),
            loss: faults * 0.4 * dice.uniform() * dice.uniform(),
            repeated: faults * 0.2 * dice.uniform(),
            late: faults * 0.1 * dice.uniform(),
            partitions,
            crashes,
            late_wake: faults * 0.3 * dice.uniform(),
            late_wake_ns: log_range(&mut dice, 100_000, 200_000_000),
            proposals,
            accepts: if dice.chance(0.5) { 1.0 } else { 0.9 },
            thinks_ns: if is_calm { 200_000 } else { log_range(&mut dice, 1_000, 100_000_000) },
            candidates,
            term_ns: log_range(&mut dice, 50_000_000, 1_000_000_000),
            parties: if dice.chance(0.4) {
                2 + u32::try_from(pick(&mut dice, 5)).unwrap_or(0)
            } else {
                0
            },
        }
    }

    /// Whether nothing fails: then everybody agrees.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.loss == 0.0 && self.late_wake == 0.0 && self.clock_fails == 0.0
    }
}
