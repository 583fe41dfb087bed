//! From where an arm stands to where the plan goes on, at rest at both ends, by rsruckig.

use rsruckig::prelude::*;

use crate::wire::JOINTS;

const SPEED: f64 = 0.5; // rad/s
const ACCELERATION: f64 = 2.0; // rad/s^2
const JERK: f64 = 20.0; // rad/s^3

/// A motion.
pub struct Approach {
    trajectory: Trajectory<JOINTS>,
    to: [f64; JOINTS],
}

impl std::fmt::Debug for Approach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Approach").field("to", &self.to).finish_non_exhaustive()
    }
}

impl Approach {
    /// A motion that takes so many seconds; an error says how many it needs at least.
    ///
    /// # Errors
    /// When it cannot be so short, or angles are no numbers.
    pub fn new(from: &[f64; JOINTS], to: &[f64; JOINTS], seconds: f64) -> Result<Self, String> {
        let mut otg = Ruckig::<JOINTS, ThrowErrorHandler>::new(None, 0.002);
        let mut input = InputParameter::new(None);
        for joint in 0..JOINTS {
            input.current_position[joint] = from[joint];
            input.target_position[joint] = to[joint];
            input.max_velocity[joint] = SPEED;
            input.max_acceleration[joint] = ACCELERATION;
            input.max_jerk[joint] = JERK;
        }
        input.minimum_duration = Some(seconds);
        let mut trajectory = Trajectory::new(None);
        otg.calculate(&input, &mut trajectory).map_err(|error| error.to_string())?;
        let takes = trajectory.get_duration();
        if takes > seconds + 1e-6 {
            return Err(format!("the way to the plan takes {takes:.2} s, not {seconds:.2} s"));
        }
        Ok(Self { trajectory, to: *to })
    }

    /// Angles and speeds so many seconds after its beginning.
    #[must_use]
    pub fn at(&self, seconds: f64) -> ([f64; JOINTS], [f64; JOINTS]) {
        if seconds >= self.trajectory.get_duration() {
            return (self.to, [0.0; JOINTS]);
        }
        let mut q = DataArrayOrVec::Stack([0.0; JOINTS]);
        let mut dq = DataArrayOrVec::Stack([0.0; JOINTS]);
        let at = seconds.max(0.0);
        self.trajectory.at_time(
            at,
            &mut Some(&mut q),
            &mut Some(&mut dq),
            &mut None,
            &mut None,
            &mut None,
        );
        (std::array::from_fn(|joint| q[joint]), std::array::from_fn(|joint| dq[joint]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_the_time_that_it_is_given_and_ends_at_rest() {
        let (from, mut to) = ([0.0; 6], [0.0; 6]);
        to[2] = 0.1;
        let approach = Approach::new(&from, &to, 1.0).unwrap();
        assert_eq!(approach.at(0.0), (from, [0.0; 6]));
        let (q, dq) = approach.at(0.5);
        assert!((q[2] - 0.05).abs() < 1e-6 && dq[2] > 0.0 && q[0] == 0.0, "{q:?}, {dq:?}");
        assert_eq!(approach.at(1.1), (to, [0.0; 6]));
        let (q, dq) = approach.at(0.999);
        assert!((q[2] - 0.1).abs() < 1e-4 && dq[2] < 0.01, "{q:?}, {dq:?}");
        let far = Approach::new(&from, &[1.0; 6], 0.5).unwrap_err();
        assert!(far.contains("not 0.50 s"), "{far}");
    }
}
