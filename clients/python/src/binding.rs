//! `Binding`: a `Timeline` with a requirement that the host has accepted.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use timevisor::Lease;

use crate::errors::{self, OrRaise};
use crate::requirement::Requirement;
use crate::timeline::Timeline;
use crate::unhurried::Unhurried;
use crate::words::{self, Object};

type Held = Arc<Unhurried<timevisor::Binding>>;

/// A timeline with a requirement in force, as a context manager: leaving it withdraws the
/// requirement.
#[pyclass(frozen, extends = Timeline, module = "timevisor")]
pub struct Binding {
    epoch: timevisor::Epoch,
    /// None: withdrawn. Locked briefly, never during a request to the server.
    held: Mutex<Option<Held>>,
}

pub fn object(py: Python<'_>, bound: timevisor::Binding) -> PyResult<Py<Binding>> {
    let timeline = Timeline(bound.timeline().clone());
    let epoch = bound.epoch();
    let held = Mutex::new(Some(Arc::new(Unhurried::new(bound))));
    Py::new(py, PyClassInitializer::from(timeline).add_subclass(Binding { epoch, held }))
}

impl Binding {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&Unhurried<timevisor::Binding>) -> PyResult<T>,
    ) -> PyResult<T> {
        let held = self.lock().clone();
        match held {
            Some(binding) => look(&binding),
            None => Err(errors::withdrawn(py)),
        }
    }
}

#[pymethods]
impl Binding {
    /// What the timeline counts from.
    #[getter]
    fn epoch<'py>(&self, py: Python<'py>) -> Object<'py> {
        words::epoch(py, self.epoch)
    }

    /// What the timeline gave at the bind or the last update.
    #[getter]
    fn achieved<'py>(&self, py: Python<'py>) -> Object<'py> {
        self.with(py, |binding| words::achieved(py, &binding.achieved()))
    }

    /// Whether the requirement is in force on the host now.
    #[getter]
    fn lease<'py>(&self, py: Python<'py>) -> Object<'py> {
        self.with(py, |binding| {
            let of_the_parent =
                || Lease::Lost("it is the parent's, which forked this process".to_owned());
            let lease = if binding.is_a_forks_copy() { of_the_parent() } else { binding.lease() };
            words::lease(py, &lease)
        })
    }

    /// Changes the requirement; None drops it. If the host refuses, the old one stays in force.
    #[pyo3(signature = (requirement, *, best_effort=false))]
    fn update<'py>(
        &self,
        py: Python<'py>,
        requirement: Option<Requirement>,
        best_effort: bool,
    ) -> Object<'py> {
        let requirement = requirement.map(|requirement| requirement.0);
        self.with(py, |binding| {
            if binding.is_a_forks_copy() {
                return Err(errors::forked(py));
            }
            let achieved =
                py.detach(|| binding.update_with(requirement, best_effort)).or_raise(py)?;
            words::achieved(py, &achieved)
        })
    }

    /// Withdraws the requirement and waits for the host's answer. A second time does nothing.
    fn unbind(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.lock().take();
        // Another thread that is inside `update` withdraws it when it is done.
        match held.and_then(Arc::into_inner) {
            Some(binding) if !binding.is_a_forks_copy() => {
                py.detach(|| binding.into_inner().unbind()).or_raise(py)
            }
            _ => Ok(()),
        }
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    /// After an exception it does not wait for the host's answer.
    fn __exit__(
        &self,
        py: Python<'_>,
        exception: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if exception.is_none() {
            return self.unbind(py);
        }
        let held = self.lock().take();
        drop(held);
        Ok(())
    }

    fn __repr__(this: &Bound<'_, Self>) -> String {
        format!("<timevisor.Binding to {:?}>", this.as_super().get().0.name())
    }
}
