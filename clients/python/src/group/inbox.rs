//! `Messages`, `Reports`, `Proposals`: what a group has for the program, in queues with a descriptor
//! each.

use std::os::fd::{AsFd, BorrowedFd, RawFd};

use pyo3::prelude::*;
use timevisor::group::{GroupError, Inbox, Message, Proposed, Reported};

use crate::arguments::Span;
use crate::errors::OrRaise;
use crate::group::records;
use crate::wait::{Cancel, Patience, Shared, Source};
use crate::words::Object;

/// A queue whose descriptor is known to be there.
struct Queue<T>(Inbox<T>);

impl<T> AsFd for Queue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor().expect("it was there when this was made")
    }
}

impl<T: Send> Source for Queue<T> {
    type Outcome = T;
    type Error = GroupError;

    fn on_ready(&mut self) -> Result<Option<T>, GroupError> {
        match self.0.try_next() {
            None if self.0.is_forked() => Err(GroupError::Forked),
            None if self.0.is_over() => Err(GroupError::Left),
            next => Ok(next),
        }
    }
}

/// What the three queues have in common.
struct Entries<T> {
    queue: Shared<Queue<T>>,
    tell: fn(Python<'_>, T) -> Object<'_>,
}

impl<T: Send> Entries<T> {
    fn new(
        py: Python<'_>,
        inbox: Inbox<T>,
        tell: fn(Python<'_>, T) -> Object<'_>,
    ) -> PyResult<Self> {
        inbox.descriptor().map_err(GroupError::from).or_raise(py)?;
        Ok(Self { queue: Shared::new(Queue(inbox)), tell })
    }

    fn get<'py>(&self, py: Python<'py>, patience: &Patience) -> Object<'py> {
        (self.tell)(py, self.queue.block(py, patience)?)
    }

    /// `None` ends an iteration: the member has left.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.get(py, &Patience::new(None, None, None)) {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if is_end(py, &error)? => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn on_ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.queue.on_ready(py)?.map(|entry| (self.tell)(py, entry)).transpose()
    }

    fn dropped(&self) -> PyResult<u64> {
        self.queue.with(|queue| Ok(queue.0.dropped()))
    }
}

fn is_end(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    let left = py.import("timevisor._errors")?.getattr("Left")?;
    Ok(error.is_instance(py, &left))
}

macro_rules! inboxes {
    ($($(#[$doc:meta])* $name:ident: $entry:ty, $tell:path;)*) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "timevisor.group")]
        pub struct $name(Entries<$entry>);

        impl $name {
            pub fn new(py: Python<'_>, inbox: Inbox<$entry>) -> PyResult<Self> {
                Entries::new(py, inbox, $tell).map(Self)
            }
        }

        #[pymethods]
        impl $name {
            fn __iter__(this: Py<Self>) -> Py<Self> {
                this
            }

            fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
                self.0.next(py)
            }

            /// Waits for the next entry.
            #[pyo3(signature = (timeout_ns=None, *, cancel=None))]
            fn get<'py>(
                &self,
                py: Python<'py>,
                timeout_ns: Option<Span>,
                cancel: Option<Cancel>,
            ) -> Object<'py> {
                self.0.get(py, &Patience::new(None, timeout_ns, cancel))
            }

            fn fileno(&self) -> PyResult<RawFd> {
                self.0.queue.fileno()
            }

            /// Takes the next entry; None: there is none, poll again.
            fn on_ready<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
                self.0.on_ready(py)
            }

            /// How many entries were dropped since the last call, because nobody took them.
            fn dropped(&self) -> PyResult<u64> {
                self.0.dropped()
            }

            fn close(&self) -> PyResult<()> {
                self.0.queue.close()
            }
        }
    )*};
}

inboxes! {
    /// A topic's messages.
    Messages: Message, records::message;
    /// What happens to the group and its messages.
    Reports: Reported, records::reported;
    /// What happens to proposals.
    Proposals: Proposed, records::proposed;
}
