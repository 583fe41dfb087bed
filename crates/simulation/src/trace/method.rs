//! The estimator that is replayed.

use std::fmt;
use std::str::FromStr;

use timevisor_estimate::Estimator;
use timevisor_estimate::estimators::radclock::{Radclock, RadclockParameters};
use timevisor_estimate::estimators::shifted_exponential::{self, ShiftedExponential};
use timevisor_time::Period;

use super::last_sample::LastSample;

/// An estimator by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// What production publishes: its estimator inside its bounds.
    Default,
    /// Production's estimator without the bounds.
    ShiftedExponential,
    /// RADclock, `good` profile.
    Radclock,
    /// RADclock, `excellent` profile.
    RadclockExcellent,
    /// RADclock, `poor` profile.
    RadclockPoor,
    /// The newest exchange alone.
    LastSample,
}

/// No estimator has this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no estimator `{name}`; there are {}", Method::names())]
pub struct UnknownMethod {
    name: String,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Default,
        Self::ShiftedExponential,
        Self::Radclock,
        Self::RadclockExcellent,
        Self::RadclockPoor,
        Self::LastSample,
    ];

    /// The name on the command line and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::ShiftedExponential => "shifted-exponential",
            Self::Radclock => "radclock",
            Self::RadclockExcellent => "radclock-excellent",
            Self::RadclockPoor => "radclock-poor",
            Self::LastSample => "last-sample",
        }
    }

    /// All names, for messages.
    #[must_use]
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// A new estimator for a counter of this nominal period; `None` for [`Method::Default`], which
    /// is the production clock itself.
    #[must_use]
    pub fn estimator(self, nominal: Period) -> Option<Box<dyn Estimator>> {
        let radclock = |p: RadclockParameters| -> Option<Box<dyn Estimator>> {
            Some(Box::new(Radclock::new(&p, nominal)))
        };
        match self {
            Self::Default => None,
            Self::ShiftedExponential => {
                let parameters = shifted_exponential::Parameters::default();
                Some(Box::new(ShiftedExponential::new(&parameters, nominal)))
            }
            Self::Radclock => radclock(RadclockParameters::good()),
            Self::RadclockExcellent => radclock(RadclockParameters::excellent()),
            Self::RadclockPoor => radclock(RadclockParameters::poor()),
            Self::LastSample => Some(Box::new(LastSample::new(nominal))),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = UnknownMethod;
    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        let found = Self::ALL.into_iter().find(|method| method.name() == name);
        found.ok_or_else(|| UnknownMethod { name: name.to_owned() })
    }
}
