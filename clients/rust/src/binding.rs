//! [`Binding`]: a requirement that the host has accepted, and its timeline.

use core::ops::Deref;
use std::sync::{Arc, Mutex};

use timevisor_protocols::channel::{Achieved, Epoch};

use crate::channel::{Channel, Granted, Lease};
use crate::error::BindError;
use crate::requirement::{Need, Requirement};
use crate::timeline::Timeline;
use crate::unpoisoned;

/// A timeline with a requirement in force. Dropping the binding withdraws the requirement, and so
/// does the end of the program in any form. The binding dereferences to a [`Timeline`], and reads
/// and waits like it. Clones of that timeline can still be read after the drop.
pub struct Binding {
    timeline: Timeline,
    channel: Arc<Channel>,
    key: u64,
    epoch: Epoch,
    achieved: Mutex<Achieved>,
    lease: Arc<Mutex<Lease>>,
    unbound: bool,
}

impl Binding {
    pub(crate) fn new(granted: Granted, channel: Arc<Channel>) -> Self {
        Self {
            timeline: granted.timeline,
            channel,
            key: granted.key,
            epoch: granted.epoch,
            achieved: Mutex::new(granted.achieved),
            lease: granted.lease,
            unbound: false,
        }
    }

    /// The timeline alone.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The timeline's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What the timeline achieved at the bind or the last update.
    #[must_use]
    pub fn achieved(&self) -> Achieved {
        unpoisoned(self.achieved.lock()).clone()
    }

    /// Whether the requirement is in force on the host now. After a lost connection, the library
    /// states it again; reading works in either case.
    #[must_use]
    pub fn lease(&self) -> Lease {
        unpoisoned(self.lease.lock()).clone()
    }

    /// Changes the requirement. If the host refuses, the old one stays in force.
    ///
    /// # Errors
    /// As [`crate::Client::bind`].
    pub fn update(&self, requirement: &Requirement) -> Result<Achieved, BindError> {
        self.update_with(Some(*requirement), false)
    }

    /// Changes the requirement; `None` drops it. With `best_effort` the host accepts it even if it
    /// cannot meet it.
    ///
    /// # Errors
    /// As [`crate::Client::bind_with`].
    pub fn update_with(
        &self,
        requirement: Option<Requirement>,
        best_effort: bool,
    ) -> Result<Achieved, BindError> {
        let need = Need::new(requirement.as_ref())?;
        let achieved = self.channel.update(self.key, requirement, best_effort)?;
        self.timeline.set_need(need);
        unpoisoned(self.achieved.lock()).clone_from(&achieved);
        Ok(achieved)
    }

    /// Withdraws the requirement and waits for the host's answer.
    ///
    /// # Errors
    /// When there is no answer in time; the requirement then ends with the connection.
    pub fn unbind(mut self) -> Result<(), BindError> {
        self.unbound = true;
        self.channel.unbind(self.key)
    }
}

impl Deref for Binding {
    type Target = Timeline;
    fn deref(&self) -> &Timeline {
        &self.timeline
    }
}

impl core::fmt::Debug for Binding {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Binding")
            .field("timeline", &self.timeline.name())
            .field("lease", &self.lease())
            .finish_non_exhaustive()
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        if !self.unbound {
            self.channel.forget(self.key);
        }
    }
}
