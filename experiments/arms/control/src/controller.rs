//! One arm: it stands, moves or holds. Pure: clock readings, the plant's states and messages in, set-points out.
//!
//! ```text
//!   silent --0.15 s--> standing --start agreed--> moving --anything wrong--> silent
//! ```
//!
//! Whoever holds sends nothing: the plant's drives then stand still, and where both arms grip the part they do so in the
//! same step. After a while the controller offers the pose in which its arm stands, which the drives take.

use crate::approach::Approach;
use crate::horizon::Horizon;
use crate::message::{Commands, Doing, Status};
use crate::start::Start;
use crate::wire::{Arm, JOINTS, SetPoint, State};

/// Longer than the plant waits for set-points before it lets go.
const SILENT_NS: i64 = 150_000_000;
/// So long the drives may not follow before this is a hold. The plant lets both go on in motion within 6 ms.
const UNFOLLOWED_NS: i64 = 20_000_000;
/// A plant that answers nothing for so long is gone.
const UNANSWERED_NS: i64 = 200_000_000;
/// So long the clock may not be read: a cycle that is left out is late and not wrong. The drives go on for as long.
const UNREAD_NS: i64 = 10_000_000;
/// A start that is learned of late begins in the middle of its approach. Farther from where the arm stands it is not
/// followed, rad.
const JUMP: f64 = 0.002;
/// With the part in both hands the other arm must have said so long after the start that it moves, too.
const BESIDE_NS: i64 = 150_000_000;
/// What the other arm said last must not be older.
const OTHER_NS: i64 = 1_000_000_000;
/// An arm whose joints are slower stands, rad/s.
const STILL: f64 = 0.02;
/// Where the plan is searched for the pose in which an arm stands: it held before and brakes after what it sampled last.
const BEFORE_NS: i64 = 50_000_000;
const AFTER_NS: i64 = 150_000_000;

/// What the clock says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock {
    /// The best guess, ns on the group's timeline.
    pub now_ns: i64,
    /// It meets the requirement, and may be trusted.
    pub met: bool,
    /// Another number: what was said before is void.
    pub disruption: u64,
}

#[derive(Debug)]
enum Mode {
    Silent { until_ns: i64 },
    Standing { q: Option<[f64; JOINTS]> },
    Moving { start: Start, approach: Box<Approach>, from: [f64; JOINTS], disruption: u64 },
}

/// One arm's controller. Times in `elapsed_ns` are of a clock of its own that never stops.
#[derive(Debug)]
pub struct Controller {
    arm: Arm,
    horizon: Horizon,
    /// Whose waypoints these are.
    planned: u64,
    mode: Mode,
    state: Option<(State, i64)>,
    follows_ns: i64,
    /// When it last had a cycle.
    elapsed_ns: i64,
    /// When the clock could be read the last time.
    read_ns: i64,
    other: Option<(Status, i64)>,
    run: u64,
    plan_ns: i64,
    gripper: f64,
    met: bool,
    why: String,
    /// Something to be said at once.
    has_news: bool,
    /// How often it held, by reason.
    pub holds: std::collections::BTreeMap<String, u64>,
}

impl Controller {
    /// It knows nothing yet.
    #[must_use]
    pub fn new(arm: Arm) -> Self {
        Self {
            arm,
            horizon: Horizon::new(1),
            planned: 0,
            mode: Mode::Standing { q: None },
            state: None,
            follows_ns: 0,
            elapsed_ns: 0,
            read_ns: 0,
            other: None,
            run: 0,
            plan_ns: 0,
            gripper: 0.0,
            met: false,
            why: "just started".to_owned(),
            has_news: true,
            holds: std::collections::BTreeMap::new(),
        }
    }

    /// The plant's answer.
    pub fn state(&mut self, state: State, elapsed_ns: i64) {
        if state.follows {
            self.follows_ns = elapsed_ns;
        }
        if state.is_stopped && self.state.is_none_or(|(before, _)| !before.is_stopped) {
            self.hold("protective stop", elapsed_ns);
        }
        self.state = Some((state, elapsed_ns));
    }

    /// Waypoints have come.
    pub fn commands(&mut self, commands: Commands) {
        if commands.interval_ns <= 0 || commands.run < self.planned {
            return;
        }
        if commands.run != self.planned {
            // Where it stands is searched for in what was planned before, until it moves again.
            self.planned = commands.run;
            if self.horizon.interval_ns() != commands.interval_ns {
                self.horizon = Horizon::new(commands.interval_ns);
            }
        }
        if let (Mode::Moving { start, .. }, Some(at_ns)) = (&self.mode, commands.at_ns) {
            // Times are on the timeline: a planner that means others than this start says is not followed.
            let expected = start.plan_time(at_ns).at_ns - commands.first * commands.interval_ns;
            if start.run == commands.run
                && start.plan_time(at_ns).rate >= 1.0
                && expected.abs() > 1_000
            {
                return;
            }
        }
        let [a, b] = commands.arms;
        let own = if self.arm == Arm::A { a } else { b };
        self.horizon.extend(commands.first, own);
    }

    /// What the other arm says of itself.
    pub fn other(&mut self, status: Status, elapsed_ns: i64) {
        let holds = !matches!(status.doing, Doing::Moves);
        if let Mode::Moving { start, .. } = &self.mode
            && holds
            && status.run >= start.run
        {
            self.hold("the other arm holds", elapsed_ns);
        }
        self.other = Some((status, elapsed_ns));
    }

    /// Something forbids to go on.
    pub fn must_hold(&mut self, why: &str, elapsed_ns: i64) {
        self.hold(why, elapsed_ns);
    }

    /// Whether a start could be followed; else why not.
    ///
    /// # Errors
    /// What is missing.
    pub fn may_start(&self, start: &Start) -> Result<(), String> {
        let Mode::Standing { q: Some(q) } = &self.mode else {
            return Err("it does not stand".to_owned());
        };
        if !self.stands() {
            return Err("the drives do not follow".to_owned());
        }
        if !self.met {
            return Err("its clock does not meet its requirement".to_owned());
        }
        self.approach(q, start).map(drop)
    }

    fn approach(&self, q: &[f64; JOINTS], start: &Start) -> Result<Approach, String> {
        let to = self.horizon.sample(start.from_ns, 0.0).ok_or("the plan has not come")?;
        Approach::new(q, &to.q, start.approach_ns as f64 * 1e-9)
    }

    /// The start was agreed.
    pub fn start(&mut self, start: Start, clock: &Clock) {
        let Mode::Standing { q: Some(q) } = self.mode else { return };
        let Ok(approach) = self.approach(&q, &start) else { return };
        if clock.now_ns >= start.moves_ns() {
            return;
        }
        let late = (clock.now_ns - start.at_ns) as f64 * 1e-9;
        if late > 0.0 && approach.at(late).0.iter().zip(&q).any(|(a, b)| (a - b).abs() > JUMP) {
            return;
        }
        (self.run, self.plan_ns) = (start.run, start.from_ns);
        self.why.clear();
        self.has_news = true;
        let approach = Box::new(approach);
        self.mode = Mode::Moving { start, approach, from: q, disruption: clock.disruption };
    }

    /// One cycle in which the clock could not be read.
    pub fn leave_out(&mut self, elapsed_ns: i64) {
        self.elapsed_ns = elapsed_ns;
        if elapsed_ns - self.read_ns > UNREAD_NS {
            self.met = false;
            self.hold("the clock cannot be read", elapsed_ns);
        }
    }

    /// One cycle: the set-point to send now, if any.
    pub fn step(&mut self, clock: Option<&Clock>, elapsed_ns: i64) -> Option<SetPoint> {
        (self.elapsed_ns, self.read_ns) = (elapsed_ns, elapsed_ns);
        self.met = clock.is_some_and(|clock| clock.met);
        match &self.mode {
            Mode::Silent { until_ns } => {
                if elapsed_ns < *until_ns {
                    return None;
                }
                // What was measured before it braked is not where it stands.
                self.state = None;
                self.mode = Mode::Standing { q: None };
                self.stand(elapsed_ns)
            }
            Mode::Standing { .. } => self.stand(elapsed_ns),
            Mode::Moving { start, disruption, .. } => {
                let wrong = self.wrong(clock, start, *disruption, elapsed_ns);
                let point = match wrong {
                    None => clock.and_then(|clock| self.moving(clock.now_ns)),
                    Some(why) => return self.hold(&why, elapsed_ns),
                };
                if point.is_none() {
                    return self.hold("no commands for this time", elapsed_ns);
                }
                point
            }
        }
    }

    /// Why it must not move on.
    fn wrong(
        &self,
        clock: Option<&Clock>,
        start: &Start,
        disruption: u64,
        elapsed_ns: i64,
    ) -> Option<String> {
        let Some(clock) = clock else { return Some("the clock is not known".to_owned()) };
        if clock.disruption != disruption {
            return Some("the clock was disrupted".to_owned());
        }
        if !clock.met {
            return Some("the clock does not meet its requirement".to_owned());
        }
        if self.state.is_none_or(|(_, at)| elapsed_ns - at > UNANSWERED_NS) {
            return Some("the plant does not answer".to_owned());
        }
        if elapsed_ns - self.follows_ns > UNFOLLOWED_NS {
            return Some("the drives hold".to_owned());
        }
        // Who begins alone pulls the part apart.
        let grips = self.state.is_some_and(|(state, _)| state.grips);
        let alone_until_ns = if grips { start.at_ns + BESIDE_NS } else { start.moves_ns() };
        if clock.now_ns >= alone_until_ns.min(start.moves_ns()) {
            let beside = self.other.as_ref().is_some_and(|(status, at)| {
                status.run == start.run
                    && status.doing == Doing::Moves
                    && elapsed_ns - at <= OTHER_NS
            });
            if !beside {
                return Some("the other arm does not move".to_owned());
            }
        }
        None
    }

    fn moving(&mut self, now_ns: i64) -> Option<SetPoint> {
        let Mode::Moving { start, approach, from, .. } = &self.mode else { return None };
        if now_ns < start.moves_ns() {
            let seconds = (now_ns - start.at_ns) as f64 * 1e-9;
            let (q, dq) = if seconds > 0.0 { approach.at(seconds) } else { (*from, [0.0; JOINTS]) };
            return Some(SetPoint { q, dq, gripper: self.gripper });
        }
        let plan = start.plan_time(now_ns);
        let point = self.horizon.sample(plan.at_ns, plan.rate)?;
        self.horizon.forget_before(plan.at_ns);
        (self.plan_ns, self.gripper) = (plan.at_ns, point.gripper);
        Some(point)
    }

    /// The pose in which the arm stands, which the drives take when it is near enough.
    fn stand(&mut self, elapsed_ns: i64) -> Option<SetPoint> {
        let measured = self.state.filter(|(_, at)| elapsed_ns - at < UNANSWERED_NS);
        let measured = measured.map(|(state, _)| state);
        let measured = measured.filter(|state| state.dq.iter().all(|dq| dq.abs() < STILL));
        let measured = measured.map(|state| state.q);
        let stands = self.stands();
        let Mode::Standing { q } = &mut self.mode else { return None };
        if !stands || q.is_none() {
            *q = measured.or(*q);
        }
        // Before the first answer, and while the arm brakes, any pose far away will do: the answer tells the real one.
        let q = q.unwrap_or([0.0; JOINTS]);
        Some(SetPoint { q, dq: [0.0; JOINTS], gripper: self.gripper })
    }

    fn stands(&self) -> bool {
        let is_fresh = |at: i64| self.elapsed_ns - at <= UNANSWERED_NS;
        self.state.is_some_and(|(state, at)| state.follows && !state.is_stopped && is_fresh(at))
    }

    fn hold(&mut self, why: &str, elapsed_ns: i64) -> Option<SetPoint> {
        if matches!(self.mode, Mode::Moving { .. }) {
            *self.holds.entry(why.to_owned()).or_default() += 1;
            why.clone_into(&mut self.why);
            self.has_news = true;
            self.mode = Mode::Silent { until_ns: elapsed_ns + SILENT_NS };
        }
        None
    }

    /// What it does.
    #[must_use]
    pub fn doing(&self) -> Doing {
        match &self.mode {
            _ if self.state.is_some_and(|(state, _)| state.is_stopped) => Doing::Stopped,
            Mode::Moving { .. } => Doing::Moves,
            Mode::Standing { .. } if self.stands() => Doing::Stands,
            Mode::Standing { .. } | Mode::Silent { .. } => Doing::Holds,
        }
    }

    /// What it says of itself.
    #[must_use]
    pub fn status(&self) -> Status {
        let (state, doing) = (self.state.map(|(state, _)| state), self.doing());
        let stands = state.filter(|_| doing == Doing::Stands).map(|state| state.q);
        let near = stands.and_then(|q| self.horizon.nearest(&q, self.plan_ns, BEFORE_NS, AFTER_NS));
        Status {
            arm: self.arm.index(),
            doing,
            run: self.run,
            plan_ns: near.unwrap_or(self.plan_ns),
            grips: state.is_some_and(|state| state.grips),
            met: self.met,
            why: self.why.clone(),
        }
    }

    /// Whether something is to be said at once.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
