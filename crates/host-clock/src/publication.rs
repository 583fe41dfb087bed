//! What a clock says, and what all pages of a host are written from.

use timevisor_clock_page::{ClockStatus, Known, Lines, Slew, Update};
use timevisor_estimate::ensemble::Clock;
use timevisor_estimate::{Quality, RateLimits};
use timevisor_time::{Duration, Local, Tai};

use crate::leap::LeapState;

/// What one clock says, as a function of the host's counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockState {
    /// The lines in force; `None` while nothing is known.
    pub lines: Option<Lines<Tai>>,
    /// How far they may be trusted.
    pub status: ClockStatus,
    /// One sigma of the estimate; [`Duration::MAX`] where it is not known.
    pub estimated_error: Duration,
    /// Host counter value of the newest reference fact.
    pub as_of: u64,
    /// A count that grows whenever what was published before is void.
    pub disruptions: u64,
    /// Which clock it is, the same number on every host that has it; 0: this host's own, TAI or UTC.
    pub origin: u64,
}

/// What all pages are written from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Publication {
    /// What the host's own page says. Its estimate already moves monotonically, so other pages only
    /// have to make up for being written nanoseconds later.
    pub clock: ClockState,
    /// TAI - UTC and leap seconds.
    pub leap: LeapState,
    /// Host counter value at which `leap` was decided.
    pub at: u64,
    /// Other pages' estimates follow the host's within this many host ticks.
    pub slew_horizon: u64,
}

/// What a page that follows the host's page is written from, on the host's counter.
#[derive(Clone, Copy, Debug)]
pub struct PageUpdate {
    /// What it says, or the status to show without time and bounds.
    pub update: Result<Update, ClockStatus>,
    /// A number that changes whenever what was published before is void.
    pub disruptions: u64,
}

impl Publication {
    /// For a page on TAI.
    #[must_use]
    pub fn tai(&self) -> PageUpdate {
        let lines = self.clock.lines.ok_or(self.clock.status);
        PageUpdate {
            update: lines.map(|lines| self.update(lines.shifted(Duration::ZERO))),
            disruptions: self.clock.disruptions,
        }
    }

    /// For a page on UTC.
    #[must_use]
    pub fn utc(&self) -> PageUpdate {
        let lines = self.clock.lines.as_ref().ok_or(self.clock.status);
        let utc = self.leap.utc(lines, self.clock.disruptions, self.at);
        PageUpdate {
            update: utc.lines.map(|lines| self.update(lines)),
            disruptions: utc.disruptions,
        }
    }

    fn update(&self, target: Lines<Local>) -> Update {
        Update {
            target,
            status: self.clock.status,
            estimated_error: self.clock.estimated_error,
            as_of: self.clock.as_of,
            tai_offset: self.leap.tai_offset,
            slew: Slew { horizon: self.slew_horizon, jump: Duration::ZERO },
        }
    }
}

/// The status that a page shows for knowledge of this quality.
#[must_use]
pub fn page_status(quality: Quality) -> ClockStatus {
    match quality {
        Quality::Nothing => ClockStatus::Unknown,
        Quality::Initializing => ClockStatus::Initializing,
        Quality::Synchronized => ClockStatus::Synchronized,
        Quality::FreeRunning => ClockStatus::FreeRunning,
        Quality::Unreliable => ClockStatus::Unreliable,
    }
}

/// The estimate's knowledge in the terms of the page's policy.
#[must_use]
pub fn known(clock: &Clock) -> Known {
    let pair = |limits: &RateLimits| (limits.shortest, limits.longest);
    Known {
        interval: clock.interval,
        estimate: clock.estimate,
        period: clock.period,
        slopes: pair(&clock.slopes),
        limits: pair(&clock.limits),
    }
}
