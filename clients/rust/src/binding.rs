//! [`Binding`]: a requirement that the host has taken on, and the timeline that it is about.

use core::ops::Deref;
use std::sync::{Arc, Mutex};

use timevisor_protocols::channel::{Achieved, Epoch};

use crate::channel::{Channel, Granted, Lease};
use crate::error::BindError;
use crate::requirement::{Need, Requirement};
use crate::timeline::Timeline;
use crate::unpoisoned;

/// A timeline with a requirement in force. Dropping it withdraws the requirement; so does the end of the program, however it
/// ends. It reads and waits like the [`Timeline`] that it dereferences to; clones of that one go on reading afterwards.
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

    /// What the timeline counts from.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What the timeline gave at the bind or the last update.
    #[must_use]
    pub fn achieved(&self) -> Achieved {
        unpoisoned(self.achieved.lock()).clone()
    }

    /// Whether the host has the requirement at this moment. It is told again by itself after a lost connection; reading works
    /// either way.
    #[must_use]
    pub fn lease(&self) -> Lease {
        unpoisoned(self.lease.lock()).clone()
    }

    /// Changes the requirement. Where that is refused, the old one stays in force.
    ///
    /// # Errors
    /// As [`crate::Client::bind`].
    pub fn update(&self, requirement: &Requirement) -> Result<Achieved, BindError> {
        self.update_with(Some(*requirement), false)
    }

    /// Changes the requirement; `None`: nothing is needed any more. With `best_effort` it is taken even if it cannot be met.
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
    /// No answer in time; the requirement then ends with the connection.
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
