//! What the planner publishes, and when it proposes that the motion goes on. Pure.

use crate::message::{Commands, Doing, Status};
use crate::plan::Plan;
use crate::start::Start;
use crate::wire::{Arm, JOINTS};

/// So far ahead of the clock waypoints are published.
const AHEAD_NS: i64 = 600_000_000;
/// How often.
const EVERY_NS: i64 = 100_000_000;
/// What a controller said longer ago than this is not known any more.
const FRESH_NS: i64 = 500_000_000;
/// Between a proposal and the time that it is about: messages have to go round.
const SOON_NS: i64 = 400_000_000;
/// How long the way to the plan may take: with the part in both hands it is millimetres.
const APPROACH_NS: i64 = 2_500_000_000;
const APPROACH_GRIPPING_NS: i64 = 600_000_000;
const RAMP_NS: i64 = 400_000_000;
/// Arms that hold the part must hold it at the same place of the plan.
const APART_NS: i64 = 30_000_000;
/// Where the plan stands nearly still, a pose does not tell the time: this near, rad, any time is as good.
const APART: f64 = 0.005;
/// A start that nobody has followed by then is over.
const BEGUN_NS: i64 = 1_000_000_000;

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Publish these.
    Publish(Commands),
    /// Propose this start.
    Propose(Start),
}

/// The planner.
#[derive(Debug)]
pub struct Planner {
    plan: Plan,
    arms: [Option<(Status, i64)>; 2],
    run: u64,
    proposed: Option<Start>,
    start: Option<Start>,
    /// The first waypoint that was not published yet.
    next: i64,
    publish_at: i64,
    /// Why it does not go on.
    pub waits_for: String,
}

impl Planner {
    /// It knows nobody yet.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            arms: [None, None],
            run: 0,
            proposed: None,
            start: None,
            next: 0,
            publish_at: 0,
            waits_for: String::new(),
        }
    }

    /// What a controller says of itself.
    pub fn status(&mut self, status: Status, elapsed_ns: i64) {
        if let Some(place) = self.arms.get_mut(status.arm) {
            *place = Some((status, elapsed_ns));
        }
    }

    /// What came of the proposal.
    pub fn decided(&mut self, agreed: bool) {
        let proposed = self.proposed.take();
        self.start = proposed.filter(|_| agreed);
    }

    /// The start that is followed.
    #[must_use]
    pub fn start(&self) -> Option<&Start> {
        self.start.as_ref()
    }

    /// What is due. `now_ns` is the clock, `None` where it is not known well enough to plan by.
    pub fn on_timer(&mut self, now_ns: Option<i64>, elapsed_ns: i64) -> Vec<Action> {
        let Some(now_ns) = now_ns else {
            "the planner's clock".clone_into(&mut self.waits_for);
            return Vec::new();
        };
        if let Some(start) = self.start {
            if self.is_over(&start, now_ns, elapsed_ns) {
                self.start = None;
                return Vec::new();
            }
            return self.publish(&start, now_ns, elapsed_ns);
        }
        if self.proposed.is_some() {
            return Vec::new();
        }
        match self.next_start(now_ns, elapsed_ns) {
            Ok(start) => {
                self.run = start.run;
                self.proposed = Some(start);
                self.waits_for.clear();
                // So that both know the way before they are asked.
                self.next = start.from_ns.div_euclid(self.plan.interval_ns);
                let last = start.from_ns + AHEAD_NS;
                vec![Action::Publish(self.commands(start.run, last, None)), Action::Propose(start)]
            }
            Err(why) => {
                self.waits_for = why;
                Vec::new()
            }
        }
    }

    fn is_over(&self, start: &Start, now_ns: i64, elapsed_ns: i64) -> bool {
        if now_ns < start.at_ns + BEGUN_NS.min(start.approach_ns) {
            return false;
        }
        self.arms.iter().any(|arm| {
            arm.as_ref().is_none_or(|(status, at)| {
                elapsed_ns - at > FRESH_NS
                    || status.run != start.run
                    || status.doing != Doing::Moves
            })
        })
    }

    fn next_start(&self, now_ns: i64, elapsed_ns: i64) -> Result<Start, String> {
        let mut arms = Vec::new();
        for (arm, known) in [Arm::A, Arm::B].into_iter().zip(&self.arms) {
            let fresh = known.as_ref().filter(|(_, at)| elapsed_ns - at <= FRESH_NS);
            let (status, _) = fresh.ok_or_else(|| format!("arm {} says nothing", arm.name()))?;
            if status.doing != Doing::Stands {
                return Err(format!("arm {}: {:?}", arm.name(), status.doing));
            }
            if !status.met {
                return Err(format!("arm {}: its clock", arm.name()));
            }
            arms.push(status);
        }
        let [a, b] = arms[..] else { return Err("both arms".to_owned()) };
        let grips = a.grips && b.grips;
        if grips
            && (a.plan_ns - b.plan_ns).abs() > APART_NS
            && self.spread(a.plan_ns.min(b.plan_ns), a.plan_ns.max(b.plan_ns)) > APART
        {
            return Err("both arms hold the part, at different places of the plan".to_owned());
        }
        // Alone, each can go back to where the other one is.
        let (from_ns, approach_ns) = if grips {
            (a.plan_ns.midpoint(b.plan_ns), APPROACH_GRIPPING_NS)
        } else {
            (a.plan_ns.min(b.plan_ns), APPROACH_NS)
        };
        // A planner that was restarted counts on.
        let run = self.run.max(a.run).max(b.run) + 1;
        Ok(Start { run, at_ns: now_ns + SOON_NS, approach_ns, ramp_ns: RAMP_NS, from_ns })
    }

    /// How far the plan moves any joint between two of its times, rad; at least that.
    fn spread(&self, from_ns: i64, to_ns: i64) -> f64 {
        let interval_ns = self.plan.interval_ns;
        let indices = from_ns.div_euclid(interval_ns)..=to_ns.div_euclid(interval_ns) + 1;
        let mut widest: f64 = 0.0;
        for arm in [Arm::A, Arm::B] {
            for joint in 0..JOINTS {
                let at = |index: i64| self.plan.waypoint(arm, index).q[joint];
                let least = indices.clone().map(at).fold(f64::INFINITY, f64::min);
                let most = indices.clone().map(at).fold(f64::NEG_INFINITY, f64::max);
                widest = widest.max(most - least);
            }
        }
        widest
    }

    fn publish(&mut self, start: &Start, now_ns: i64, elapsed_ns: i64) -> Vec<Action> {
        if elapsed_ns < self.publish_at {
            return Vec::new();
        }
        self.publish_at = elapsed_ns + EVERY_NS;
        let last = start.plan_time(now_ns).at_ns + AHEAD_NS;
        // Twice each: what is lost once comes again.
        self.next -= EVERY_NS / self.plan.interval_ns;
        let base = start.moves_ns() + start.ramp_ns / 2 - start.from_ns;
        vec![Action::Publish(self.commands(start.run, last, Some(base)))]
    }

    /// Waypoints up to this plan time; `base_ns` is the clock's time at plan time 0.
    fn commands(&mut self, run: u64, last_ns: i64, base_ns: Option<i64>) -> Commands {
        let interval_ns = self.plan.interval_ns;
        let (first, end) = (self.next, last_ns.div_euclid(interval_ns) + 2);
        let part = |arm| (first..end).map(|index| self.plan.waypoint(arm, index).clone()).collect();
        let arms = [part(Arm::A), part(Arm::B)];
        self.next = end.max(first);
        let at_ns = base_ns.map(|base| base + first * interval_ns);
        Commands { run, first, at_ns, interval_ns, arms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::swing;

    const MS: i64 = 1_000_000;

    fn status(arm: usize, doing: Doing, run: u64, plan_ns: i64, grips: bool) -> Status {
        Status { arm, doing, run, plan_ns, grips, met: true, why: String::new() }
    }

    #[test]
    fn arms_that_hold_the_part_may_be_apart_in_time_where_the_plan_stands() {
        let proposes = |a_ms: i64, b_ms: i64| {
            let mut planner = Planner::new(swing());
            planner.status(status(0, Doing::Stands, 0, a_ms * MS, true), 0);
            planner.status(status(1, Doing::Stands, 0, b_ms * MS, true), 0);
            !planner.on_timer(Some(0), 0).is_empty()
        };
        // The plan's end of a swing, and its fastest place.
        assert!(proposes(0, 35) && proposes(985, 1_010));
        assert!(!proposes(980, 1_015) && !proposes(0, 200));
    }

    #[test]
    fn it_proposes_when_both_stand_and_publishes_ahead_until_one_holds() {
        let mut planner = Planner::new(swing());
        assert!(
            planner.on_timer(Some(0), 0).is_empty() && planner.waits_for == "arm a says nothing"
        );
        planner.status(status(0, Doing::Stands, 7, 0, false), 0);
        planner.status(status(1, Doing::Holds, 0, 0, false), 0);
        assert!(planner.on_timer(Some(0), 0).is_empty() && planner.waits_for == "arm b: Holds");
        planner.status(status(1, Doing::Stands, 0, 0, false), 0);
        assert!(planner.on_timer(None, 0).is_empty(), "its own clock");
        let actions = planner.on_timer(Some(0), 0);
        let [Action::Publish(commands), Action::Propose(start)] = &actions[..] else {
            panic!("{actions:?}")
        };
        let start = *start;
        assert_eq!((commands.run, commands.first, start.run, start.from_ns), (8, 0, 8, 0));
        assert!(planner.on_timer(Some(MS), MS).is_empty(), "one at a time");
        planner.decided(true);
        let mut known = 0;
        for tick in 0..600 {
            let now = tick * 10 * MS;
            let doing = |arm| status(arm, Doing::Moves, 8, 0, false);
            planner.status(doing(0), now);
            planner.status(doing(1), now);
            for action in planner.on_timer(Some(now), now) {
                let Action::Publish(commands) = action else { panic!("{action:?}") };
                let count = i64::try_from(commands.arms[0].len()).unwrap();
                assert!(commands.first <= known || known == 0, "a gap");
                known = commands.first + count;
                let at = commands.at_ns.unwrap();
                let plan = start.plan_time(at);
                assert!(plan.rate < 1.0 || plan.at_ns == commands.first * commands.interval_ns);
            }
            let needed = start.plan_time(now + 400 * MS).at_ns;
            assert!((known - 1) * 20 * MS >= needed, "{known} at {now}");
        }
        planner.status(status(1, Doing::Holds, 8, 1_000 * MS, true), 6_000 * MS);
        assert!(
            planner.on_timer(Some(6_000 * MS), 6_000 * MS).is_empty() && planner.start().is_none()
        );
    }

    #[test]
    fn with_the_part_in_both_hands_they_go_on_from_the_middle_else_from_the_earlier_place() {
        for (grips, from, approach) in [(true, 1_005, 600), (false, 1_000, 2_500)] {
            let mut planner = Planner::new(swing());
            planner.status(status(0, Doing::Stands, 0, 1_000 * MS, grips), 0);
            planner.status(status(1, Doing::Stands, 0, 1_010 * MS, grips), 0);
            let actions = planner.on_timer(Some(0), 0);
            let [_, Action::Propose(start)] = &actions[..] else { panic!("{actions:?}") };
            assert_eq!((start.from_ns, start.approach_ns), (from * MS, approach * MS));
            planner.decided(false);
            assert_eq!(planner.on_timer(Some(0), 0).len(), 2, "again");
        }
        let mut planner = Planner::new(swing());
        planner.status(status(0, Doing::Stands, 0, 0, true), 0);
        planner.status(status(1, Doing::Stands, 0, 100 * MS, true), 0);
        assert!(
            planner.on_timer(Some(0), 0).is_empty()
                && planner.waits_for.contains("different places")
        );
    }
}
