//! A link to a VM, as a backend's driver uses it.

use anyhow::Result;
use timevisor_introspection::backend::{Action, Backend};

pub trait Link {
    /// Waits for a moment, and passes what has arrived to the backend.
    ///
    /// # Errors
    /// When the link is lost; all trap points go with it.
    fn turn(&mut self, backend: &mut dyn Backend) -> Result<Vec<Action>>;

    /// Carries out an action of the backend: sends bytes, or changes the guest's code.
    ///
    /// # Errors
    /// When the action fails, or this kind of link does not support it.
    fn act(&mut self, action: Action, backend: &mut dyn Backend) -> Result<Vec<Action>>;
}
