//! `Group`: a member of a group, and what it can do. `Pending`: a proposal that was made.
#![expect(clippy::needless_pass_by_value, reason = "lists out of Python's sequences")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use timevisor::group::{Accept, Order, ProposalId};

use crate::arguments::{InstantNs, Span};
use crate::errors::OrRaise;
use crate::group::errors;
use crate::group::inbox::{Messages, Proposals, Reports};
use crate::group::options::{AnyBus, Bus, JoinOptions, Key, span_or};
use crate::group::records;
use crate::group::waiting::{GroupWait, Waiting, block};
use crate::requirement::Requirement;
use crate::timeline::Timeline;
use crate::unhurried::Unhurried;
use crate::wait::{Cancel, Patience};
use crate::words::Object;

/// How long a silent member holds up messages in the order of time.
const HOLD: Duration = Duration::from_millis(500);

/// How late members that fire may be.
const LATE_AT_MOST: Duration = Duration::from_millis(10);

const NO_PAYLOAD: &[u8] = &[];

type Held = Arc<Unhurried<timevisor::group::Group>>;

/// A member of a group, as a context manager: leaving it leaves the group.
#[pyclass(frozen, module = "timevisor.group")]
pub struct Group {
    id: timevisor::group::Id,
    /// None: left. Locked briefly, never while something is waited for.
    held: Mutex<Option<Held>>,
}

impl Group {
    pub fn of(group: timevisor::group::Group) -> Self {
        Self { id: group.id(), held: Mutex::new(Some(Arc::new(Unhurried::new(group)))) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, py: Python<'_>) -> PyResult<Held> {
        let held = self.lock().clone().ok_or_else(|| errors::left(py))?;
        if held.is_a_forks_copy() { Err(errors::forked(py)) } else { Ok(held) }
    }
}

#[pymethods]
impl Group {
    /// Joins a group with any timeline. The timeline's name is the group's.
    #[staticmethod]
    #[pyo3(signature = (timeline, group, member, requirement=None, *, bus=None, authority=None, key=None, lease_ns=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn join(
        py: Python<'_>,
        timeline: &Timeline,
        group: &str,
        member: &str,
        requirement: Option<Requirement>,
        bus: Option<AnyBus>,
        authority: Option<PathBuf>,
        key: Option<Key>,
        lease_ns: Option<Span>,
    ) -> PyResult<Self> {
        let options = JoinOptions {
            requirement,
            bus: Bus::new(py, bus, authority.as_deref())?,
            key,
            lease: lease_ns,
        };
        let options = options.into_rust(timeline.0.name());
        let join = || timevisor::group::Group::join(&timeline.0, group, member, &options);
        py.detach(join).or_raise(py).map(Self::of)
    }

    /// Who this member is.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Object<'py> {
        records::id(py, self.id)
    }

    /// All members as far as is known.
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let group = self.held(py)?;
        let members = py.detach(|| group.members());
        members.iter().map(|info| records::info(py, info)).collect()
    }

    /// What happens to the group and its messages, from now on.
    fn watch(&self, py: Python<'_>) -> PyResult<Reports> {
        let group = self.held(py)?;
        Reports::new(py, py.detach(|| group.watch()))
    }

    /// Waits until so many members are there whose clocks meet their requirements.
    #[pyo3(signature = (count, *, timeout_ns=None, cancel=None))]
    fn wait_for(
        &self,
        py: Python<'_>,
        count: usize,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> PyResult<()> {
        let wait = self.held(py)?.wait_for_fd(count).or_raise(py)?;
        block(py, Waiting::Members(wait), &Patience::new(None, timeout_ns, cancel)).map(drop)
    }

    /// Waits until these members are there, whose clocks meet their requirements.
    #[pyo3(signature = (names, *, timeout_ns=None, cancel=None))]
    fn wait_for_names(
        &self,
        py: Python<'_>,
        names: Vec<String>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> PyResult<()> {
        let wait = self.held(py)?.wait_for_names_fd(&texts(&names)).or_raise(py)?;
        block(py, Waiting::Members(wait), &Patience::new(None, timeout_ns, cancel)).map(drop)
    }

    /// The same as a descriptor for an event loop.
    fn wait_for_fd(&self, py: Python<'_>, count: usize) -> PyResult<GroupWait> {
        let wait = self.held(py)?.wait_for_fd(count).or_raise(py)?;
        Ok(GroupWait::new(Waiting::Members(wait)))
    }

    /// The same as a descriptor for an event loop.
    fn wait_for_names_fd(&self, py: Python<'_>, names: Vec<String>) -> PyResult<GroupWait> {
        let wait = self.held(py)?.wait_for_names_fd(&texts(&names)).or_raise(py)?;
        Ok(GroupWait::new(Waiting::Members(wait)))
    }

    /// Publishes a message with the time of now.
    fn publish(&self, py: Python<'_>, topic: &str, payload: &[u8]) -> PyResult<()> {
        let group = self.held(py)?;
        py.detach(|| group.publish(topic, payload)).or_raise(py)
    }

    /// Gets a topic's messages, those that were published before first.
    #[pyo3(signature = (topic, order="arrival", *, history=0, hold_ns=None))]
    fn subscribe(
        &self,
        py: Python<'_>,
        topic: &str,
        order: &str,
        history: u32,
        hold_ns: Option<Span>,
    ) -> PyResult<Messages> {
        let order = match order {
            "arrival" => Order::Arrival,
            "time" => Order::Time { hold: span_or(hold_ns, HOLD) },
            other => {
                let text = format!("'{other}' is no order: give 'arrival' or 'time'");
                return Err(PyValueError::new_err(text));
            }
        };
        let group = self.held(py)?;
        Messages::new(py, py.detach(|| group.subscribe(topic, order, history)).or_raise(py)?)
    }

    /// Which proposals of others are accepted from now on.
    fn accept(&self, py: Python<'_>, accept: &str) -> PyResult<()> {
        let accept = match accept {
            "all" => Accept::All,
            "nothing" => Accept::Nothing,
            "ask" => Accept::Ask,
            other => {
                let text = format!("'{other}' cannot be accepted: give 'all', 'nothing' or 'ask'");
                return Err(PyValueError::new_err(text));
            }
        };
        let group = self.held(py)?;
        py.detach(|| group.accept(accept));
        Ok(())
    }

    /// Proposals to be answered, what is to be done because of proposals, and what came of them.
    fn proposals(&self, py: Python<'_>) -> PyResult<Proposals> {
        let group = self.held(py)?;
        Proposals::new(py, py.detach(|| group.proposals()))
    }

    /// Answers a proposal.
    fn answer(&self, py: Python<'_>, id: &Bound<'_, PyAny>, accepts: bool) -> PyResult<()> {
        let proposer = id.getattr("proposer")?;
        let name: String = proposer.getattr("name")?.extract()?;
        let name = name.parse().map_err(|_| PyValueError::new_err("no member has such a name"))?;
        let incarnation = proposer.getattr("incarnation")?.extract()?;
        let proposer = timevisor::group::Id { name, incarnation };
        let id = ProposalId { proposer, number: id.getattr("number")?.extract()? };
        let group = self.held(py)?;
        py.detach(|| group.answer(id, accepts));
        Ok(())
    }

    /// Proposes that all members, or these, fire at a time.
    #[pyo3(signature = (at_ns, payload=NO_PAYLOAD, *, members=None, late_at_most_ns=None),
        text_signature = "($self, at_ns, payload=b'', *, members=None, late_at_most_ns=None)")]
    fn propose(
        &self,
        py: Python<'_>,
        at_ns: InstantNs,
        payload: &[u8],
        members: Option<Vec<String>>,
        late_at_most_ns: Option<Span>,
    ) -> PyResult<Pending> {
        let members = members.as_deref().map(texts);
        let late_at_most = span_or(late_at_most_ns, LATE_AT_MOST);
        let group = self.held(py)?;
        let propose = || group.propose_with(at_ns.0, payload, members.as_deref(), late_at_most);
        py.detach(propose).or_raise(py).map(Pending)
    }

    /// Waits at a barrier until so many members have arrived, and returns how late this one was.
    #[pyo3(signature = (name, parties, *, timeout_ns=None, cancel=None))]
    fn barrier<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        parties: u32,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        let wait = self.held(py)?.barrier_fd(name, parties).or_raise(py)?;
        block(py, Waiting::Barrier(wait), &Patience::new(None, timeout_ns, cancel))
    }

    /// The same as a descriptor for an event loop. Closed before the release, this member does not wait
    /// any more.
    fn barrier_fd(&self, py: Python<'_>, name: &str, parties: u32) -> PyResult<GroupWait> {
        let wait = self.held(py)?.barrier_fd(name, parties).or_raise(py)?;
        Ok(GroupWait::new(Waiting::Barrier(wait)))
    }

    /// Wants to lead.
    fn stand(
        &self,
        py: Python<'_>,
        office: &str,
        voters: Vec<String>,
        term_ns: Span,
    ) -> PyResult<()> {
        let group = self.held(py)?;
        py.detach(|| group.stand(office, &texts(&voters), term_ns.0)).or_raise(py)
    }

    /// Does not want to lead any more.
    fn resign(&self, py: Python<'_>, office: &str) -> PyResult<()> {
        let group = self.held(py)?;
        py.detach(|| group.resign(office));
        Ok(())
    }

    /// Whether this member leads now.
    fn leads(&self, py: Python<'_>, office: &str) -> PyResult<bool> {
        let group = self.held(py)?;
        Ok(py.detach(|| group.leads(office)))
    }

    /// Leaves, and waits until the bus has been told. A second time does nothing.
    fn leave(&self, py: Python<'_>) {
        let held = self.lock().take();
        // It leaves in the drop, without the GIL; another thread that is inside a call drops it then.
        py.detach(|| drop(held));
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.leave(py);
    }

    fn __repr__(&self) -> String {
        format!("<timevisor.group.Group, member {:?}>", self.id.name.as_str())
    }
}

/// A proposal that was made.
#[pyclass(frozen, module = "timevisor.group")]
pub struct Pending(timevisor::group::Pending);

#[pymethods]
impl Pending {
    /// Which one.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Object<'py> {
        records::proposal_id(py, self.0.id())
    }

    /// Waits until it is decided: True if everybody is to fire.
    #[pyo3(signature = (*, timeout_ns=None, cancel=None))]
    fn decided<'py>(
        &self,
        py: Python<'py>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        let wait = self.0.decided_fd().or_raise(py)?;
        block(py, Waiting::Decision(wait), &Patience::new(None, timeout_ns, cancel))
    }

    /// Waits for the outcome.
    #[pyo3(signature = (*, timeout_ns=None, cancel=None))]
    fn wait<'py>(
        &self,
        py: Python<'py>,
        timeout_ns: Option<Span>,
        cancel: Option<Cancel>,
    ) -> Object<'py> {
        let wait = self.0.wait_fd().or_raise(py)?;
        block(py, Waiting::Outcome(wait), &Patience::new(None, timeout_ns, cancel))
    }

    /// The same as a descriptor for an event loop.
    fn decided_fd(&self, py: Python<'_>) -> PyResult<GroupWait> {
        self.0.decided_fd().or_raise(py).map(|wait| GroupWait::new(Waiting::Decision(wait)))
    }

    /// The same as a descriptor for an event loop.
    fn wait_fd(&self, py: Python<'_>) -> PyResult<GroupWait> {
        self.0.wait_fd().or_raise(py).map(|wait| GroupWait::new(Waiting::Outcome(wait)))
    }
}

fn texts(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}
