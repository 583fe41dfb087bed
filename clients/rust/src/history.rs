//! [`History`]: recent publications, and what all of them together say about a counter stamp.
//!
//! Every publication is sound for all counter values since the last disruption: forwards by its
//! lines, backwards by the limits of the rate (`Lines::at`). So true time lies in their
//! intersection. A stamp from before the oldest publication with the present disruption marker is
//! refused, because the clock may have been disrupted in between.

use std::collections::VecDeque;

use timevisor_clock_page::ClockStatus;
use timevisor_clock_page::lines::At;
use timevisor_time::Local;

use crate::error::ConvertError;
use crate::snapshot::Snapshot;

/// How many publications are kept. A converted stamp gains from those on either side of it; older
/// ones add little.
const DEPTH: usize = 64;

/// Publications of one timeline under one disruption marker, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    ring: VecDeque<Snapshot>,
    /// The base of the first one, which may have left the ring.
    since: u64,
}

/// What is known about a stamp.
pub(crate) struct Found<'h> {
    pub(crate) at: At<Local>,
    /// The publication that was in force then, or the first one after.
    pub(crate) in_force: &'h Snapshot,
    pub(crate) status: ClockStatus,
}

impl History {
    /// Adds the publication that is in force now, unless it is already there.
    pub(crate) fn note(&mut self, snapshot: Snapshot) {
        let before = self.ring.back().map(|last| last.said.disruption);
        if before.is_some_and(|marker| marker != snapshot.said.disruption)
            || !snapshot.said.has_estimate()
        {
            self.ring.clear();
        }
        if !snapshot.said.has_estimate() || self.ring.back() == Some(&snapshot) {
            return;
        }
        if self.ring.is_empty() {
            self.since = snapshot.lines.base;
        }
        if self.ring.len() == DEPTH {
            self.ring.pop_front();
        }
        self.ring.push_back(snapshot);
    }

    /// The intersection of what all publications say about a counter stamp.
    pub(crate) fn convert(&self, stamp: u64) -> Result<Found<'_>, ConvertError> {
        let Some(first) = self.ring.front() else { return Err(ConvertError::Unknown) };
        if is_before(stamp, self.since) {
            return Err(ConvertError::TooOld { since: self.since });
        }
        let started = |snapshot: &&Snapshot| !is_before(stamp, snapshot.lines.base);
        let in_force = self.ring.iter().rev().find(started).unwrap_or(first);
        let mut at = in_force.lines.at(stamp);
        for snapshot in &self.ring {
            let other = snapshot.lines.at(stamp);
            at.earliest = at.earliest.max(other.earliest);
            at.latest = at.latest.min(other.latest);
        }
        if at.earliest.to_bits() > at.latest.to_bits() {
            return Err(ConvertError::Contradiction);
        }
        at.estimate = at.estimate.max(at.earliest).min(at.latest);
        let status = match in_force.said.status() {
            ClockStatus::Synchronized | ClockStatus::Initializing
                if in_force.lines.is_expired(stamp) =>
            {
                ClockStatus::FreeRunning
            }
            other => other,
        };
        Ok(Found { at, in_force, status })
    }
}

/// Signed distance: a counter may wrap.
fn is_before(a: u64, b: u64) -> bool {
    a.wrapping_sub(b) >> 63 != 0
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
