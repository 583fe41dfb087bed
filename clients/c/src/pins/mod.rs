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
use crate::types::timevisor_outcome;

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

/// Why an output was not changed, where the clock is the reason; and by how much it is too late.
fn not_changed(error: &PinError) -> Option<(timevisor_outcome, i64)> {
    let PinError::NotChanged(outcome) = error else { return None };
    match **outcome {
        AtOutcome::TooLate { by_ns, .. } => Some((timevisor_outcome::TooLate, by_ns)),
        AtOutcome::QotViolated { .. } => Some((timevisor_outcome::QotViolated, 0)),
        AtOutcome::Disrupted { .. } => Some((timevisor_outcome::Disrupted, 0)),
        AtOutcome::Fired { .. } => None,
    }
}
