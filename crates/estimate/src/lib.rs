//! From exchanges with references to a clock with hard bounds: pure functions and state machines.
//!
//! | module | owns |
//! | --- | --- |
//! | [`exchange`] | [`Exchange`]: one comparison of our counter with a reference, and why one is discarded |
//! | [`parameters`] | [`Parameters`]: every tunable with unit and reason |
//! | [`bounds`] | hard bounds: level 1, level 2 and the guard (docs/explanation/bounds.md) |
//! | [`rate`] | what the bounds prove about the counter's rate |
//! | [`estimators`] | [`estimators::Estimator`]: from exchanges to a best guess |
//! | [`mod@reference`] | [`ReferenceClock`]: the above for one reference, with contradiction handling |
//! | `witnesses` | a vote in which references with one source have one voice |
//! | [`selection`] | which references agree: the hull of the majority |
//! | [`polling`] | how often a server is asked, from what is required and what is known |
//! | [`steering`] | the control law that keeps CLOCK_REALTIME with the estimate |
//! | [`combination`] | one estimate from several references, without jumps |
//! | [`birth`] | when an elapsed clock read 0, for whoever goes on with it |
//! | [`survey`] | [`survey::Survey`]: how fast an oscillator was seen to change |
//! | [`elapsed`] | [`ElapsedClock`]: how long something has run, over changes of counter and rate (RVEC) |
//! | [`lifetime`] | [`Lifetime`]: an elapsed clock that outlives its counter |
//! | [`ensemble`] | [`Ensemble`]: all references together, and the status that is published |
//!
//! What it does not do: talk to references, read counters, write pages.
#![forbid(unsafe_code)]

pub mod birth;
pub mod bounds;
pub mod combination;
pub mod elapsed;
pub mod ensemble;
pub mod estimators;
pub mod exchange;
pub mod lifetime;
pub mod parameters;
pub mod polling;
pub mod rate;
pub mod reference;
pub mod selection;
pub mod steering;
pub mod survey;
mod witnesses;

pub use birth::{Birth, Global};
pub use bounds::Bounds;
pub use elapsed::ElapsedClock;
pub use ensemble::{Ensemble, Falseticker, Knowledge, Quality, Slot};
pub use estimators::{Estimate, Estimator};
pub use exchange::{Discard, Exchange};
pub use lifetime::Lifetime;
pub use parameters::{BoundParameters, CRYSTAL_WANDER, OCXO_WANDER, Parameters, TCXO_WANDER};
pub use rate::RateLimits;
pub use reference::{Observation, ReferenceClock};
