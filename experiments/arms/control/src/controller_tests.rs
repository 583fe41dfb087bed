use super::*;
use crate::plan::tests::swing;

const MS: i64 = 1_000_000;

/// A controller, its plant that does what it is told, and another arm that does the same.
struct World {
    controller: Controller,
    plant: State,
    elapsed_ns: i64,
    clock: Clock,
    other_moves: bool,
}

impl World {
    fn new() -> Self {
        let mut q = [0.0; JOINTS];
        q[0] = 0.99;
        let dq = [0.0; JOINTS];
        let plant = State { follows: false, is_stopped: false, grips: false, q, dq };
        let clock = Clock { now_ns: 5_000 * MS, met: true, disruption: 0 };
        let mut it = Self {
            controller: Controller::new(Arm::A),
            plant,
            elapsed_ns: 0,
            clock,
            other_moves: true,
        };
        it.publish(1, 0, 100);
        it
    }

    fn publish(&mut self, run: u64, first: i64, count: i64) {
        let plan = swing();
        let part = |arm| (first..first + count).map(|at| plan.waypoint(arm, at).clone()).collect();
        let arms = [part(Arm::A), part(Arm::B)];
        self.controller.commands(Commands {
            run,
            first,
            at_ns: None,
            interval_ns: plan.interval_ns,
            arms,
        });
    }

    fn step(&mut self) -> Option<SetPoint> {
        self.elapsed_ns += 2 * MS;
        self.clock.now_ns += 2 * MS;
        let doing = if self.other_moves { Doing::Moves } else { Doing::Stands };
        let run = self.controller.run;
        let other =
            Status { arm: 1, doing, run, plan_ns: 0, grips: false, met: true, why: String::new() };
        self.controller.other(other, self.elapsed_ns);
        let point = self.controller.step(Some(&self.clock), self.elapsed_ns);
        let near =
            |point: &SetPoint| point.q.iter().zip(&self.plant.q).all(|(a, b)| (a - b).abs() < 0.02);
        match &point {
            Some(point) => {
                self.plant.follows |= near(point);
                if self.plant.follows {
                    self.plant.q = point.q;
                }
                self.controller.state(self.plant, self.elapsed_ns);
            }
            None => self.plant.follows = false,
        }
        point
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step();
        }
    }

    fn start(&mut self, run: u64, from_ns: i64) -> Start {
        let at_ns = self.clock.now_ns + 100 * MS;
        let start = Start { run, at_ns, approach_ns: 1_000 * MS, ramp_ns: 400 * MS, from_ns };
        self.controller.may_start(&start).unwrap();
        self.controller.start(start, &self.clock);
        start
    }

    fn holds(&self, why: &str) {
        assert_eq!(self.controller.doing(), Doing::Holds);
        assert_eq!(self.controller.status().why, why);
    }
}

#[test]
fn it_stands_approaches_and_follows_the_plan_by_the_clock() {
    let mut it = World::new();
    it.steps(5);
    assert_eq!(it.controller.doing(), Doing::Stands);
    let start = it.start(1, 0);
    it.steps(400);
    let plan = start.plan_time(it.clock.now_ns);
    assert_eq!(plan.rate, 0.0, "it still approaches");
    it.steps(400);
    let plan = start.plan_time(it.clock.now_ns);
    let (x, w) = (plan.at_ns as f64 * 1e-9, std::f64::consts::TAU / 4.0);
    assert!(plan.rate > 0.0 && (it.plant.q[0] - (w * x).cos()).abs() < 1e-8);
    // A cycle that is late samples its own time.
    it.clock.now_ns += 7 * MS;
    it.steps(1);
    let x = start.plan_time(it.clock.now_ns).at_ns as f64 * 1e-9;
    assert!((it.plant.q[0] - (w * x).cos()).abs() < 1e-8);
}

#[test]
fn a_cycle_in_which_the_clock_cannot_be_read_is_left_out() {
    let mut it = moving();
    for _ in 0..5 {
        it.elapsed_ns += 2 * MS;
        it.clock.now_ns += 2 * MS;
        it.controller.leave_out(it.elapsed_ns);
    }
    assert_eq!(it.controller.doing(), Doing::Moves);
    it.steps(1);
    assert_eq!(it.controller.doing(), Doing::Moves);
    it.elapsed_ns += 11 * MS;
    it.controller.leave_out(it.elapsed_ns);
    it.holds("the clock cannot be read");
}

fn moving() -> World {
    let mut it = World::new();
    it.steps(5);
    it.start(1, 0);
    it.steps(800);
    assert_eq!(it.controller.doing(), Doing::Moves);
    it
}

#[test]
fn it_holds_where_its_clock_is_not_good_enough_and_goes_on_from_there() {
    let mut it = moving();
    it.clock.met = false;
    assert_eq!(it.step(), None);
    it.holds("the clock does not meet its requirement");
    it.steps(100);
    assert_eq!(it.controller.doing(), Doing::Stands);
    let status = it.controller.status();
    let again =
        Start { run: 2, at_ns: 0, approach_ns: 500 * MS, ramp_ns: 1, from_ns: status.plan_ns };
    assert!(it.controller.may_start(&again).unwrap_err().contains("clock"));
    it.clock.met = true;
    it.step();
    assert_eq!(it.controller.status().plan_ns, status.plan_ns);
    it.start(2, status.plan_ns);
    it.steps(800);
    assert_eq!(it.controller.doing(), Doing::Moves);
}

#[test]
fn it_stands_where_the_arm_stands_and_not_where_it_was_before_it_braked() {
    let mut it = moving();
    let before = it.plant.q;
    it.clock.met = false;
    assert_eq!(it.step(), None);
    // The arm brakes while nothing is sent, and is slow to come to rest.
    it.plant.q[0] += 0.015;
    it.plant.dq[0] = 0.5;
    for _ in 0..100 {
        let point = it.step();
        assert!(point.is_none_or(|point| point.q != before), "back to where it was");
        assert_ne!(it.controller.doing(), Doing::Stands);
    }
    it.plant.dq[0] = 0.0;
    it.steps(3);
    assert_eq!(it.controller.doing(), Doing::Stands);
    assert!((it.plant.q[0] - before[0] - 0.015).abs() < 1e-9);
}

#[test]
fn whatever_is_wrong_it_holds() {
    let mut it = moving();
    it.clock.disruption += 1;
    it.step();
    it.holds("the clock was disrupted");

    let mut it = moving();
    it.controller.step(None, it.elapsed_ns);
    it.holds("the clock is not known");

    let mut it = moving();
    it.other_moves = false;
    it.step();
    it.holds("the other arm holds");

    let mut it = moving();
    it.clock.now_ns += 2_000 * MS;
    it.step();
    it.holds("no commands for this time");

    let mut it = moving();
    it.elapsed_ns += 300 * MS;
    it.step();
    it.holds("the plant does not answer");

    let mut it = moving();
    it.plant.is_stopped = true;
    it.step();
    it.step();
    assert_eq!(it.controller.doing(), Doing::Stopped);
}

#[test]
fn it_does_not_begin_alone() {
    let mut it = World::new();
    it.steps(5);
    it.start(1, 0);
    it.steps(300);
    it.controller.other = None;
    let start = it.clock.now_ns + 1_000 * MS;
    while it.clock.now_ns < start && it.controller.doing() == Doing::Moves {
        it.elapsed_ns += 2 * MS;
        it.clock.now_ns += 2 * MS;
        it.controller.step(Some(&it.clock), it.elapsed_ns);
        it.controller.state(it.plant, it.elapsed_ns);
    }
    it.holds("the other arm does not move");
}

#[test]
fn with_the_part_in_both_hands_it_does_not_approach_alone() {
    for (grips, holds) in [(false, false), (true, true)] {
        let mut it = World::new();
        it.plant.grips = grips;
        it.steps(5);
        it.start(1, 0);
        let run = it.controller.run;
        // The other one has not got this start.
        for _ in 0..150 {
            it.elapsed_ns += 2 * MS;
            it.clock.now_ns += 2 * MS;
            it.controller.other.as_mut().unwrap().0.run = run - 1;
            it.controller.step(Some(&it.clock), it.elapsed_ns);
            it.controller.state(it.plant, it.elapsed_ns);
        }
        assert_eq!(it.controller.doing() != Doing::Moves, holds, "{}", it.controller.why);
    }
}

#[test]
fn a_start_in_the_middle_of_its_approach_is_not_followed() {
    let start = |late_ns: i64| {
        let mut it = World::new();
        it.steps(5);
        let (run, at_ns) = (1, it.clock.now_ns - late_ns);
        let start =
            Start { run, at_ns, approach_ns: 1_000 * MS, ramp_ns: 400 * MS, from_ns: 300 * MS };
        it.controller.start(start, &it.clock);
        it.controller.doing()
    };
    assert_eq!(start(10 * MS), Doing::Moves);
    assert_eq!(start(200 * MS), Doing::Stands);
    assert_eq!(start(2_000 * MS), Doing::Stands);
}

#[test]
fn a_planner_that_means_other_times_is_not_followed() {
    let mut it = moving();
    let plan = swing();
    let first = 60;
    let base = match &it.controller.mode {
        Mode::Moving { start, .. } => start.moves_ns() + start.ramp_ns / 2 - start.from_ns,
        _ => unreachable!(),
    };
    let part = |arm| (first..first + 90).map(|at| plan.waypoint(arm, at).clone()).collect();
    let commands = |late_ns: i64| Commands {
        run: 1,
        first,
        at_ns: Some(base + first * plan.interval_ns + late_ns),
        interval_ns: plan.interval_ns,
        arms: [part(Arm::A), part(Arm::B)],
    };
    it.controller.commands(commands(1_000_000));
    let known = |it: &World| it.controller.horizon.sample(2_400 * MS, 1.0).is_some();
    assert!(!known(&it));
    it.controller.commands(commands(0));
    assert!(known(&it));
}
