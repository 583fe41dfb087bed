//! Events at pins, and outputs at a time: GPIO lines, and the pins of PTP clocks.
//!
//! | module | owns |
//! | --- | --- |
//! | `types` | structures and enumerations |
//! | `events` | edges as readings of a timeline |
//! | `output` | a GPIO line that changes at a time, or not at all |
//! | `ptp` | functions of PTP pins, and a pulse at a time; not tested on hardware |

// In the order of the header.
mod types;

mod events;

mod output;

mod ptp;

use core::ffi::c_int;

use timevisor::AtOutcome;
use timevisor::pins::{Edges, PinError};

use self::types::timevisor_edge;
use crate::conversions::no_such;
use crate::error::Failure;
use crate::types::{timevisor_outcome, timevisor_reading};

fn edges_from(code: c_int) -> Result<Edges, Failure> {
    const RISING: c_int = timevisor_edge::Rising as c_int;
    const FALLING: c_int = timevisor_edge::Falling as c_int;
    const BOTH: c_int = timevisor_edge::Both as c_int;
    match code {
        RISING => Ok(Edges::Rising),
        FALLING => Ok(Edges::Falling),
        BOTH => Ok(Edges::Both),
        _ => Err(no_such("timevisor_edge that can be asked for", code)),
    }
}

/// What is told of an output or a pulse that was refused, or may have been late.
struct Refused {
    error: PinError,
    /// A timevisor_outcome, or -1: the function's own code says why.
    outcome: i32,
    too_late_by_ns: i64,
    first: u64,
    last: u64,
}

impl Refused {
    fn new(error: PinError) -> Self {
        let (outcome, too_late_by_ns) = match &error {
            PinError::NotChanged(outcome) => match **outcome {
                AtOutcome::TooLate { by_ns, .. } => (timevisor_outcome::TooLate as i32, by_ns),
                AtOutcome::QotViolated { .. } => (timevisor_outcome::QotViolated as i32, 0),
                AtOutcome::Disrupted { .. } => (timevisor_outcome::Disrupted as i32, 0),
                AtOutcome::Fired { .. } => (-1, 0),
            },
            _ => (-1, 0),
        };
        let (first, last) = match error {
            PinError::Undated { first, last, .. }
            | PinError::NotTaken { first, last }
            | PinError::MayHaveChanged { first, last, .. } => (first, last),
            _ => (0, 0),
        };
        Self { error, outcome, too_late_by_ns, first, last }
    }

    /// The reading because of which.
    fn put_reading(&self, to: *mut timevisor_reading) -> Result<(), Failure> {
        self.error.reading().map_or(Ok(()), |reading| timevisor_reading::put(to, reading))
    }

    /// What the function returns.
    fn code(self) -> Result<c_int, Failure> {
        if self.outcome < 0 { Err(self.error.into()) } else { Ok(self.outcome) }
    }
}
