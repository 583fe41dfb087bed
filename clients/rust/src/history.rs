//! [`History`]: recent publications of a page that is being read.
//!
//! A stamp from before the oldest kept publication is refused: the clock may have been disrupted in
//! between, and current rate limits say nothing about that time. [`crate::difference`] says what
//! the publications mean together; [`crate::recording`] keeps them for longer.

use crate::difference::{Between, Found, Stretch, is_before};
use crate::error::ConvertError;
use crate::snapshot::Snapshot;

/// Minimum number of publications kept: 17 minutes at one per second, the default. Up to twice as
/// many are kept, so that forgetting is cheap; a publication takes about 250 bytes.
const DEPTH: usize = 1024;

/// Publications of one timeline under one disruption marker, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    kept: Vec<Snapshot>,
    /// The base of the first one.
    since: u64,
    /// Whether the publication just before `since` had another disruption marker.
    disrupted: bool,
}

impl History {
    /// Adds the publication that is in force now, unless it is already there.
    pub(crate) fn note(&mut self, snapshot: Snapshot) {
        let before = self.kept.last().map(|last| last.said.disruption);
        if before.is_some_and(|marker| marker != snapshot.said.disruption)
            || !snapshot.said.has_estimate()
        {
            self.disrupted |= !self.kept.is_empty();
            self.kept.clear();
        }
        let last = self.kept.last();
        // Another thread may have added a newer one already.
        let is_late = last.is_some_and(|last| is_before(snapshot.lines.base, last.lines.base));
        if !snapshot.said.has_estimate() || last == Some(&snapshot) || is_late {
            return;
        }
        if self.kept.is_empty() {
            self.since = snapshot.lines.base;
        }
        if self.kept.len() == 2 * DEPTH {
            self.kept.drain(..DEPTH);
            self.since = self.kept[0].lines.base;
            self.disrupted = false;
        }
        self.kept.push(snapshot);
    }

    /// What all publications together imply about a counter stamp.
    pub(crate) fn convert(&self, stamp: u64) -> Result<Found<'_>, ConvertError> {
        let stretch = self.stretch()?;
        if is_before(stamp, self.since) {
            return Err(ConvertError::TooOld { since: self.since });
        }
        Ok(stretch.at(stamp)?)
    }

    /// What they imply about the time between two stamps, of which `from` is the earlier one.
    pub(crate) fn between(&self, from: u64, to: u64) -> Result<Between, ConvertError> {
        let stretch = self.stretch()?;
        if is_before(from, self.since) {
            let across = self.disrupted && !is_before(to, self.since);
            let since = self.since;
            return Err(if across {
                ConvertError::Disrupted { since }
            } else {
                ConvertError::TooOld { since }
            });
        }
        Ok(stretch.between(from, to)?)
    }

    fn stretch(&self) -> Result<Stretch<'_>, ConvertError> {
        Stretch::new(&self.kept).ok_or(ConvertError::Unknown)
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
