//! When the audit log looks at what.

use super::Daemon;

impl Daemon {
    /// Before and after each publication.
    pub(super) fn sample_for_audit(&mut self) {
        if let Some(audit) = &mut self.audit {
            audit.sample(&self.clock, &self.config);
        }
    }

    /// Each second; `at_once` after a request, so that what is made and given back within a second is
    /// recorded, too.
    pub(super) fn look_for_audit(&mut self, at_once: bool) {
        if let Some(audit) = &mut self.audit {
            audit.look_at(&self.clock, &self.references, &self.vms, &self.reservations, at_once);
        }
    }
}
