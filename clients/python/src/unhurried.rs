//! [`Unhurried`]: a handle whose drop may take a while, because the last one joins the channel's
//! thread.
//!
//! After a fork (multiprocessing's, say) only the parent has that thread. Copies of the handles in
//! a child are not dropped, because joining the thread would block for ever.

use core::ops::Deref;

use pyo3::prelude::*;

/// Dropped without the GIL, and only in the process that made it.
pub struct Unhurried<T: Send> {
    handle: Option<T>,
    process: u32,
}

impl<T: Send> Unhurried<T> {
    pub fn new(handle: T) -> Self {
        Self { handle: Some(handle), process: std::process::id() }
    }

    /// Whether this is a copy in a child of the process that made it.
    pub fn is_a_forks_copy(&self) -> bool {
        self.process != std::process::id()
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.handle.as_mut().expect(THERE)
    }

    pub fn into_inner(mut self) -> T {
        self.handle.take().expect(THERE)
    }
}

const THERE: &str = "it is taken out only where it is consumed or dropped";

impl<T: Send> Deref for Unhurried<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.handle.as_ref().expect(THERE)
    }
}

impl<T: Send> Drop for Unhurried<T> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        if self.is_a_forks_copy() {
            core::mem::forget(handle);
        } else {
            // Where there is no interpreter any more, the closure is dropped, and the handle with
            // it.
            Python::try_attach(move |py| py.detach(move || drop(handle)));
        }
    }
}
