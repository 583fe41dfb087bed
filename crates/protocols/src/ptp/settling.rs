//! Whether a measurement belongs to the master and the timescale that ptp4l now names.
//!
//! Three things in linuxptp's clock.c make the question necessary:
//!
//! - A change of the master leaves `master_offset` and meanPathDelay as they were. The first Sync of
//!   the new master renews `ingress_time`, but the offset only follows once a delay is measured: for
//!   a while a fresh time stands beside the old master's offset. A ptp4l that has just started says
//!   that its offset is 0.
//! - A change of the UTC offset takes effect at once, but the offset is measured with the new one
//!   only at the next Sync.
//! - Replies of one round are from different moments.
//!
//! So what is seen first only marks the beginning. A measurement counts if it is later than the
//! mark, and if its offset can only have been measured since: the port was already SLAVE at the
//! mark (ptp4l leaves that state when it loses its measurements), or the offset is another number.
//! TIME_STATUS_NP is asked first: what the other replies say held at the measurement if it also
//! held in the round before.
//!
//! The cost is one or two polls after a start or a change. What it does not do: judge the numbers.

use super::datasets::{Master, PortState, State};
use super::refusal::Refusal;

/// What a measurement is relative to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Basis {
    master: Master,
    ptp_timescale: bool,
    utc_offset: i16,
}

/// The measurement at which a basis was first seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mark {
    ingress_ns: i64,
    offset_ns: i64,
    locked: bool,
}

/// The progress from a change to the first measurement after it.
#[derive(Clone, Debug, Default)]
pub struct Settling {
    basis: Option<Basis>,
    mark: Option<Mark>,
    /// What is being waited for.
    reason: Option<Refusal>,
    was_locked: bool,
}

impl Settling {
    /// Processes a state; Ok if its measurement is relative to its master and timescale.
    ///
    /// # Errors
    /// What is being waited for.
    pub fn observe(&mut self, state: &State) -> Result<(), Refusal> {
        let locked = state.port == PortState::Slave;
        let lost_lock = std::mem::replace(&mut self.was_locked, locked) && !locked;
        if state.measured_grandmaster != state.master.grandmaster {
            // It changed between the replies; the next round is of one piece.
            self.mark = None;
            self.reason = Some(Refusal::NewMaster(state.master));
            return Err(Refusal::NewMaster(state.master));
        }
        let basis = Basis {
            master: state.master,
            ptp_timescale: state.time.ptp_timescale,
            utc_offset: state.applied_utc_offset(),
        };
        let changed = self.basis.replace(basis).filter(|before| *before != basis);
        if let Some(before) = changed {
            let is_same = before.master == basis.master;
            let reason =
                if is_same { Refusal::NewTimescale } else { Refusal::NewMaster(basis.master) };
            self.reason = Some(reason);
            self.mark = None;
        }
        if lost_lock {
            self.mark = None;
        }
        let now = Mark { ingress_ns: state.ingress_ns, offset_ns: state.master_offset_ns, locked };
        match &mut self.mark {
            // Done before; the mark is no longer needed to tell.
            Some(_) if self.reason.is_none() => return Ok(()),
            Some(mark) => {
                let later = now.ingress_ns != mark.ingress_ns && now.ingress_ns != 0;
                if later && (mark.locked || now.offset_ns != mark.offset_ns) {
                    self.reason = None;
                    return Ok(());
                }
                if locked && !mark.locked {
                    *mark = now;
                }
            }
            None => {
                self.mark = Some(now);
                self.reason.get_or_insert(Refusal::Unmeasured);
            }
        }
        Err(self.reason.unwrap_or(Refusal::Unmeasured))
    }

    /// Forgets the measurements, because the clock was stepped, or ptp4l was not heard for a while.
    /// The master stays known, so that a change is noticed.
    pub fn restart(&mut self) {
        self.mark = None;
        self.was_locked = false;
    }
}

#[cfg(test)]
#[path = "settling_tests.rs"]
mod tests;
