//! What a backend's driver needs of the way to a VM: something to wait on, and what can be done there.

use anyhow::Result;
use timevisor_introspection::backend::{Action, Backend};

pub trait Link {
    /// Waits for a moment, and tells the backend what came.
    ///
    /// # Errors
    /// When the way is gone; all trap points are gone with it.
    fn turn(&mut self, backend: &mut dyn Backend) -> Result<Vec<Action>>;

    /// Does what only this kind of link can: sending bytes, changing the guest's code.
    ///
    /// # Errors
    /// When it cannot.
    fn act(&mut self, action: Action, backend: &mut dyn Backend) -> Result<Vec<Action>>;
}
