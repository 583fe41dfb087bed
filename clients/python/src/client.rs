//! `connect` and `Client`: which page time is read from, which channel takes requirements.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use timevisor::{BindOptions, ChannelAddress, Epoch, Options};

use crate::arguments::Span;
use crate::binding::{self, Binding};
use crate::errors::{self, OrRaise};
use crate::group::{AnyBus, Bus, Group, JoinOptions, Key};
use crate::records;
use crate::requirement::Requirement;
use crate::timeline::Timeline;
use crate::unhurried::Unhurried;
use crate::words::{self, Object};

/// Reads timelines, and states requirements of them; for any thread.
#[pyclass(frozen, module = "timevisor")]
pub struct Client(Unhurried<timevisor::Client>);

/// Finds the clock page, or opens the one that was named.
#[pyfunction]
#[pyo3(signature = (page=None, channel=None, *, name=None, timeout_ns=None))]
pub fn connect(
    py: Python<'_>,
    page: Option<PathBuf>,
    channel: Option<PathBuf>,
    name: Option<&str>,
    timeout_ns: Option<Span>,
) -> PyResult<Client> {
    let mut options = Options::new();
    if let Some(page) = page {
        options = options.page(page);
    }
    if let Some(channel) = channel {
        options = options.channel(ChannelAddress::parse(&channel.to_string_lossy()));
    }
    if let Some(timeout) = timeout_ns {
        options = options.timeout(timeout.0);
    }
    // argv[0] is the interpreter here.
    options = match name {
        Some(name) => options.name(name),
        None => options.name(&program(py).unwrap_or_default()),
    };
    py.detach(|| options.connect()).or_raise(py).map(|client| Client(Unhurried::new(client)))
}

/// Survives the truncation of any page from now on.
#[pyfunction]
pub fn survive_truncation() -> PyResult<()> {
    timevisor::survive_truncation().map_err(PyErr::from)
}

/// The script's file name.
fn program(py: Python<'_>) -> PyResult<String> {
    let script: PathBuf = py.import("sys")?.getattr("argv")?.get_item(0)?.extract()?;
    Ok(script.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default())
}

#[pymethods]
impl Client {
    /// Which page is read, and why others are not.
    #[getter]
    fn page<'py>(&self, py: Python<'py>) -> Object<'py> {
        let page = self.0.page();
        words::make(py, "PageChoice", (page.path.as_os_str(), words::tried(py, &page.passed_over)?))
    }

    /// Which channel is used, and why others are not; None before the first binding.
    #[getter]
    fn channel<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(channel) = self.0.channel() else { return Ok(None) };
        let passed_over = words::tried(py, &channel.passed_over)?;
        let fields = (channel.address.to_string(), channel.tenant, passed_over);
        words::make(py, "ChannelChoice", fields).map(Some)
    }

    /// Opens a timeline of the page for reading only: sends no message and requires nothing.
    fn timeline(&self, py: Python<'_>, name: &str) -> PyResult<Timeline> {
        py.detach(|| self.0.timeline(name)).or_raise(py).map(Timeline)
    }

    /// Binds to a timeline and has the host meet a requirement for as long as the binding lives.
    #[pyo3(signature = (name, requirement=None, *, best_effort=false, create=None))]
    fn bind(
        &self,
        py: Python<'_>,
        name: &str,
        requirement: Option<Requirement>,
        best_effort: bool,
        create: Option<&str>,
    ) -> PyResult<Py<Binding>> {
        let create = create.map(parse_epoch).transpose()?;
        let requirement = requirement.map(|requirement| requirement.0);
        let options = BindOptions { requirement, best_effort, create };
        self.check_channel(py)?;
        let bound = py.detach(|| self.0.bind_with(name, &options)).or_raise(py)?;
        binding::object(py, bound)
    }

    /// Joins a group, and has the host meet a requirement for as long as the membership lives.
    #[pyo3(signature = (group, member, requirement=None, *, timeline="tai", bus=None, authority=None, key=None, lease_ns=None))]
    #[expect(
        clippy::too_many_arguments,
        clippy::needless_pass_by_value,
        reason = "keywords in Python"
    )]
    fn join(
        &self,
        py: Python<'_>,
        group: &str,
        member: &str,
        requirement: Option<Requirement>,
        timeline: &str,
        bus: Option<AnyBus>,
        authority: Option<PathBuf>,
        key: Option<Key>,
        lease_ns: Option<Span>,
    ) -> PyResult<Group> {
        if requirement.is_some() {
            self.check_channel(py)?;
        }
        let options = JoinOptions {
            requirement,
            bus: Bus::new(py, bus, authority.as_deref())?,
            key,
            lease: lease_ns,
        }
        .into_rust(timeline);
        py.detach(|| self.0.join_with(group, member, &options)).or_raise(py).map(Group::of)
    }

    /// What this client may bind to.
    fn timelines<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.check_channel(py)?;
        let rows = py.detach(|| self.0.timelines()).or_raise(py)?;
        rows.into_iter().map(|row| records::row(py, row)).collect()
    }

    /// What the host has given a vCPU of this VM.
    fn host_cpu_time<'py>(
        &self,
        py: Python<'py>,
        vcpu: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(time) = py.detach(|| self.0.host_cpu_time(vcpu)).or_raise(py)? else {
            return Ok(None);
        };
        words::make(py, "HostCpuTime", (time.least_ns, time.most_ns, time.disruption)).map(Some)
    }

    /// What the host announces.
    fn notice<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let notice = py.detach(|| self.0.notice()).or_raise(py)?;
        words::make(py, "Notice", (notice.name(),))
    }

    /// The VM generation counter.
    fn vm_generation(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        py.detach(|| self.0.vm_generation()).or_raise(py)
    }

    fn __repr__(&self) -> String {
        format!("<timevisor.Client of {}>", self.0.page().path.display())
    }
}

impl Client {
    /// A client that forked before its first binding has none yet, and may open its own.
    fn check_channel(&self, py: Python<'_>) -> PyResult<()> {
        let copied = self.0.is_a_forks_copy() && self.0.channel().is_some();
        if copied { Err(errors::forked(py)) } else { Ok(()) }
    }
}

fn parse_epoch(word: &str) -> PyResult<Epoch> {
    match word {
        "tai" => Ok(Epoch::Tai),
        "utc" => Ok(Epoch::Utc),
        "local" => Ok(Epoch::Local),
        _ => Err(PyValueError::new_err(format!(
            "'{word}' is no epoch: give 'tai', 'utc' or 'local'"
        ))),
    }
}
