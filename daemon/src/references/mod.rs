//! References as the daemon sees them: what to wait for, when to act, which exchanges came of it.
//!
//! | file | reference |
//! | --- | --- |
//! | `system.rs` | this machine's CLOCK_REALTIME with the kernel's maxerror |
//! | `ntp.rs` | an NTP server |

mod ntp;
mod system;

use std::os::fd::BorrowedFd;

use timevisor_estimate::Exchange;
use timevisor_linux::counter::HostCounter;
use timevisor_protocols::control::Reference as Report;
use timevisor_time::{Duration, Period, RateError};

use crate::config::ReferenceConfig;
use crate::leap::Leap;

/// What a reference needs from the host to act.
pub struct Surroundings<'a> {
    /// The host's counter.
    pub counter: &'a HostCounter,
    /// Its period against CLOCK_MONOTONIC_RAW and how well that is known.
    pub calibration: (Period, RateError),
    /// For UTC references.
    pub leap: &'a Leap,
}

/// One configured reference.
pub enum Reference {
    System(system::System),
    Ntp(Box<ntp::Ntp>),
}

impl Reference {
    /// From its (already validated) configuration; nothing is contacted yet.
    pub fn new(config: &ReferenceConfig, now: Duration) -> anyhow::Result<Self> {
        Ok(match config {
            ReferenceConfig::System { assumed_max_error, poll } => {
                Self::System(system::System::new(
                    assumed_max_error.map(crate::config::span),
                    crate::config::span(*poll),
                    now,
                ))
            }
            ReferenceConfig::Ntp { address, .. } => {
                Self::Ntp(Box::new(ntp::Ntp::new(address, config.ntp_config()?, now)?))
            }
        })
    }

    /// When [`Self::on_timer`] next has something to do.
    pub fn poll_at(&self) -> Duration {
        match self {
            Self::System(r) => r.poll_at(),
            Self::Ntp(r) => r.poll_at(),
        }
    }

    /// The socket to wait for.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::System(_) => None,
            Self::Ntp(r) => r.fd(),
        }
    }

    /// Its time has come.
    pub fn on_timer(&mut self, now: Duration, around: &Surroundings<'_>) -> Option<Exchange> {
        match self {
            Self::System(r) => r.on_timer(now, around),
            Self::Ntp(r) => {
                r.on_timer(now, around);
                None
            }
        }
    }

    /// Its socket is ready.
    pub fn on_ready(&mut self, now: Duration, around: &Surroundings<'_>) -> Vec<Exchange> {
        match self {
            Self::System(_) => Vec::new(),
            Self::Ntp(r) => r.on_ready(now, around),
        }
    }

    /// Start over: the host was suspended, the past has lost its meaning.
    pub fn restart(&mut self, now: Duration) {
        match self {
            Self::System(r) => r.restart(now),
            Self::Ntp(r) => r.restart(now),
        }
    }

    /// For `timevisor status`; the caller adds what the estimate knows.
    pub fn report(&self, now: Duration) -> Report {
        match self {
            Self::System(r) => r.report(),
            Self::Ntp(r) => r.report(now),
        }
    }
}
