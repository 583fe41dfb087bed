//! The waypoints that a controller has got so far, and samples between them.

use std::collections::BTreeMap;

use crate::plan::Waypoint;
use crate::wire::{JOINTS, SetPoint};

/// What was passed by is kept for so long: an arm that holds looks there for where it stands.
const KEPT_NS: i64 = 1_000_000_000;
/// The plan is searched in steps of this.
const SEARCH_NS: usize = 1_000_000;

/// Waypoints by their number.
#[derive(Clone, Debug)]
pub struct Horizon {
    interval_ns: i64,
    waypoints: BTreeMap<i64, Waypoint>,
}

impl Horizon {
    /// None yet; their distance in ns.
    #[must_use]
    pub fn new(interval_ns: i64) -> Self {
        Self { interval_ns, waypoints: BTreeMap::new() }
    }

    /// From one waypoint to the next, ns.
    #[must_use]
    pub fn interval_ns(&self) -> i64 {
        self.interval_ns
    }

    /// Takes waypoints from number `first` on.
    pub fn extend(&mut self, first: i64, waypoints: Vec<Waypoint>) {
        self.waypoints.extend((first..).zip(waypoints));
    }

    /// What lies long before this plan time is not needed any more.
    pub fn forget_before(&mut self, plan_ns: i64) {
        let first = (plan_ns - KEPT_NS).div_euclid(self.interval_ns);
        self.waypoints = self.waypoints.split_off(&first);
    }

    /// Where the arm shall be at a plan time that passes at `rate` (1: as the clock). `None` where nothing is known
    /// of it.
    #[must_use]
    pub fn sample(&self, plan_ns: i64, rate: f64) -> Option<SetPoint> {
        let index = plan_ns.div_euclid(self.interval_ns);
        let (from, to) = (self.waypoints.get(&index)?, self.waypoints.get(&(index + 1))?);
        let h = self.interval_ns as f64 * 1e-9;
        let x = plan_ns.rem_euclid(self.interval_ns) as f64 * 1e-9;
        let mut point = SetPoint { q: [0.0; JOINTS], dq: [0.0; JOINTS], gripper: from.gripper };
        for joint in 0..JOINTS {
            let [q, dq] = quintic(from, to, joint, h, x);
            (point.q[joint], point.dq[joint]) = (q, dq * rate);
        }
        Some(point)
    }

    /// The plan time within `before` and `after` of `plan_ns` at which the plan is nearest to these angles.
    #[must_use]
    pub fn nearest(&self, q: &[f64; JOINTS], plan_ns: i64, before: i64, after: i64) -> Option<i64> {
        let times = (plan_ns - before..=plan_ns + after).step_by(SEARCH_NS);
        let distances = times.filter_map(|at| {
            let point = self.sample(at, 0.0)?;
            let square = |(a, b): (&f64, &f64)| (a - b) * (a - b);
            Some((at, point.q.iter().zip(q).map(square).sum::<f64>()))
        });
        distances.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
    }
}

/// The angle and the speed of the polynomial that meets both waypoints, `x` seconds after the first of them.
fn quintic(from: &Waypoint, to: &Waypoint, joint: usize, h: f64, x: f64) -> [f64; 2] {
    let (q, dq, ddq) = (from.q[joint], from.dq[joint], from.ddq[joint]);
    let way = to.q[joint] - q - dq * h - ddq * h * h / 2.0;
    let speed = to.dq[joint] - dq - ddq * h;
    let acceleration = to.ddq[joint] - ddq;
    let c3 = 10.0 * way / h.powi(3) - 4.0 * speed / h.powi(2) + acceleration / (2.0 * h);
    let c4 = -15.0 * way / h.powi(4) + 7.0 * speed / h.powi(3) - acceleration / h.powi(2);
    let c5 = 6.0 * way / h.powi(5) - 3.0 * speed / h.powi(4) + acceleration / (2.0 * h.powi(3));
    let position = q + x * (dq + x * (ddq / 2.0 + x * (c3 + x * (c4 + x * c5))));
    let slope = dq + x * (ddq + x * (3.0 * c3 + x * (4.0 * c4 + x * 5.0 * c5)));
    [position, slope]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::swing;
    use crate::wire::Arm;

    #[test]
    fn samples_follow_the_plan_and_end_where_it_is_not_known() {
        let plan = swing();
        let mut horizon = Horizon::new(plan.interval_ns);
        horizon.extend(0, (0..51).map(|index| plan.waypoint(Arm::A, index).clone()).collect());
        let at = horizon.sample(333_333_333, 0.5).expect("inside");
        let (x, w) = (0.333_333_333_f64, std::f64::consts::TAU / 4.0);
        assert!((at.q[0] - (w * x).cos()).abs() < 1e-9, "{at:?}");
        assert!((at.dq[0] + 0.5 * w * (w * x).sin()).abs() < 1e-7, "{at:?}");
        assert_eq!(horizon.sample(1_000_000_000, 1.0), None, "the next waypoint is not known");
        assert_eq!(horizon.sample(-1, 1.0), None);
        let near = horizon.nearest(&at.q, 400_000_000, 300_000_000, 100_000_000);
        assert!(near.expect("known").abs_diff(333_333_333) <= SEARCH_NS as u64);
        horizon.forget_before(1_500_000_000);
        assert_eq!(horizon.sample(480_000_000, 1.0), None);
        assert!(horizon.sample(520_000_000, 1.0).is_some());
    }
}
