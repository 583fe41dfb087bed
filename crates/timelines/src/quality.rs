//! Whether an achieved quality meets a requirement, and the tightest of many requirements.
//!
//! A worst-case requirement compares the hard bounds, side by side. A probability p compares one
//! sigma of the estimate with the largest that keeps the error within both sides with probability p
//! ([`timevisor_protocols::channel::confidence`]). An unknown quality meets no requirement.
//!
//! What it does not do: measure a quality, or round in anyone's favour.

use timevisor_protocols::channel::confidence::largest_sigma_ns;
use timevisor_protocols::channel::{Achieved, Confidence, InvalidRequirement, Requirement};
use timevisor_time::Duration;

/// A checked requirement in whole numbers: converted once, compared at every publication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    error: Error,
    resolution_ns: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Error {
    /// The hard bounds, each side separately.
    Bounds { below_ns: u64, above_ns: u64 },
    /// One sigma of the estimate.
    Sigma { ns: u64 },
}

impl Needs {
    /// Converts a requirement.
    ///
    /// # Errors
    /// A requirement without meaning, such as a negative width.
    pub fn of(requirement: &Requirement) -> Result<Self, InvalidRequirement> {
        requirement.validate()?;
        let &Requirement { below_ns, above_ns, resolution_ns, confidence } = requirement;
        let error = match confidence {
            Confidence::WorstCase => Error::Bounds { below_ns, above_ns },
            Confidence::Probability(p) => {
                Error::Sigma { ns: largest_sigma_ns(below_ns, above_ns, p) }
            }
        };
        Ok(Self { error, resolution_ns })
    }

    /// True if `achieved` suffices.
    #[must_use]
    pub fn met_by(&self, achieved: &Achieved) -> bool {
        let within =
            |value: Option<u64>, limit: u64| matches!(value, Some(value) if value <= limit);
        let error = match self.error {
            Error::Bounds { below_ns, above_ns } => {
                within(achieved.below_ns, below_ns) && within(achieved.above_ns, above_ns)
            }
            Error::Sigma { ns } => within(achieved.estimated_error_ns, ns),
        };
        error && self.resolution_ns.is_none_or(|limit| within(achieved.resolution_ns, limit))
    }

    /// The smaller side of a worst-case requirement.
    #[must_use]
    pub const fn half_width_ns(&self) -> Option<u64> {
        match self.error {
            Error::Bounds { below_ns, above_ns } if below_ns < above_ns => Some(below_ns),
            Error::Bounds { above_ns, .. } => Some(above_ns),
            Error::Sigma { .. } => None,
        }
    }

    /// The largest sigma that a requirement with a probability allows.
    #[must_use]
    pub const fn sigma_ns(&self) -> Option<u64> {
        match self.error {
            Error::Bounds { .. } => None,
            Error::Sigma { ns } => Some(ns),
        }
    }
}

/// What references must deliver for all members together: the minimum of each kind of need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// The smallest half-width of the hard bounds that is needed.
    pub half_width_ns: Option<u64>,
    /// The smallest sigma that is needed.
    pub sigma_ns: Option<u64>,
}

impl Demand {
    /// The minima of many; `None` without a need.
    #[must_use]
    pub fn tightest(needs: impl IntoIterator<Item = Needs>) -> Option<Self> {
        let one = |needs: Needs| Self {
            half_width_ns: needs.half_width_ns(),
            sigma_ns: needs.sigma_ns(),
        };
        needs.into_iter().map(one).reduce(Self::and)
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let smaller = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            half_width_ns: smaller(self.half_width_ns, other.half_width_ns),
            sigma_ns: smaller(self.sigma_ns, other.sigma_ns),
        }
    }

    /// A half-width of the bounds that meets both needs: a value within +-h has a sigma of at most
    /// h. For a sigma this is more than needed; callers that can tell the two apart use the fields.
    #[must_use]
    pub fn sufficient_half_width(&self) -> Option<Duration> {
        let ns = self.half_width_ns.into_iter().chain(self.sigma_ns).min()?;
        Some(Duration::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
#[path = "quality_tests.rs"]
mod tests;
