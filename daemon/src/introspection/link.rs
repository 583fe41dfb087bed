//! A connection to a VM, as the driver of a backend uses it.

use anyhow::Result;
use timevisor_introspection::backend::{Action, Backend};

pub trait Link {
    /// Waits briefly, and passes what has arrived to the backend.
    ///
    /// # Errors
    /// When the link is lost; all trap points are then removed.
    fn turn(&mut self, backend: &mut dyn Backend) -> Result<Vec<Action>>;

    /// Whether every event that is lost is counted as dropped.
    fn counts_losses(&self) -> bool {
        true
    }

    /// Carries out an action of the backend: sends bytes, or changes the guest's code.
    ///
    /// # Errors
    /// When the action fails, or this kind of link does not support it.
    fn act(&mut self, action: Action, backend: &mut dyn Backend) -> Result<Vec<Action>>;
}
