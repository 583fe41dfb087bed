//! [`Client`]: the page that time is read from and, from the first binding on, the channel to
//! timevisord.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use timevisor_clock_page::{HostCpuTime, Notice, Reader};
use timevisor_protocols::channel::{Bind, Epoch, TimelineRow, is_name};

use crate::binding::Binding;
use crate::channel::stream::ChannelAddress;
use crate::channel::{Channel, ChannelChoice, Setup};
use crate::error::{BindError, ConnectError, HostCpuTimeError, ReadError, TimelineError};
use crate::requirement::{Need, Requirement};
use crate::source::{self, CounterRef, PageChoice, PageRef};
use crate::timeline::{Place, Timeline};
use crate::unpoisoned;

/// How long the server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Where to look for the page and the channel. The defaults work on hosts and in guests.
///
/// ```no_run
/// let client = timevisor::Options::new().page("/srv/share/clock").connect()?;
/// # Ok::<(), timevisor::ConnectError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    page: Option<PathBuf>,
    channel: Option<ChannelAddress>,
    name: String,
    timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let program = std::env::args_os().next().map(PathBuf::from);
        let name = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
        Self {
            page: None,
            channel: None,
            name: printable(&name.to_string_lossy()),
            timeout: TIMEOUT,
        }
    }
}

impl Options {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads only this page: a page file, a vmclock device below /dev, or a PCI resource below
    /// /sys. The owner of such a file may truncate it, so [`crate::survive_truncation`] is called.
    #[must_use]
    pub fn page(mut self, path: impl Into<PathBuf>) -> Self {
        self.page = Some(path.into());
        self
    }

    /// Sends requirements only to this channel.
    #[must_use]
    pub fn channel(mut self, address: ChannelAddress) -> Self {
        self.channel = Some(address);
        self
    }

    /// Program and version as shown to the operator in `timevisor timelines`. Defaults to the
    /// program's name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = printable(name);
        self
    }

    /// How long timevisord may take to answer; 3 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Opens the page. The channel is opened at the first binding.
    ///
    /// # Errors
    /// When there is no page; the error lists what was tried.
    pub fn connect(self) -> Result<Client, ConnectError> {
        let (page, choice) = source::find(self.page.as_deref())?;
        Ok(Client {
            inner: Arc::new(Inner { page, choice, options: self, channel: Mutex::default() }),
        })
    }
}

/// Reduces a name to what the channel accepts: at most 64 bytes without control characters.
fn printable(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars().filter(|c| !c.is_control()) {
        if out.len() + c.len_utf8() > 64 {
            break;
        }
        out.push(c);
    }
    out
}

/// How to bind.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct BindOptions {
    /// The requirement; `None` to only read.
    pub requirement: Option<Requirement>,
    /// Bind even if the requirement cannot be met; readings then report this.
    pub best_effort: bool,
    /// Create the timeline with this epoch if none with this name exists.
    pub create: Option<Epoch>,
}

/// Reads timelines, and states requirements on them. Cheap to clone, and usable from any thread.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    page: PageRef,
    choice: PageChoice,
    options: Options,
    channel: Mutex<Option<Arc<Channel>>>,
}

impl core::fmt::Debug for Client {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Client").field("page", &self.inner.choice).finish_non_exhaustive()
    }
}

impl Client {
    /// Finds the page: /run/timevisor/clock, /dev/vmclock0, or an ivshmem device with a page. The
    /// first one that Timevisor fills is used.
    ///
    /// # Errors
    /// When there is no page; the error lists what was tried.
    pub fn connect() -> Result<Self, ConnectError> {
        Options::default().connect()
    }

    /// Which page is read, and why others are not.
    #[must_use]
    pub fn page(&self) -> &PageChoice {
        &self.inner.choice
    }

    /// Which channel is used, and why others are not; `None` before the first binding.
    #[must_use]
    pub fn channel(&self) -> Option<ChannelChoice> {
        let channel = unpoisoned(self.inner.channel.lock()).clone();
        channel.and_then(|channel| channel.chosen())
    }

    /// Opens a timeline of the page for reading only: sends no message and requires nothing.
    ///
    /// # Errors
    /// When the page has no such timeline; it may have to be bound first.
    pub fn timeline(&self, name: &str) -> Result<Timeline, TimelineError> {
        let page = &self.inner.page;
        let index = timevisor_clock_page::find(page, name).map_err(|error| match error {
            timevisor_clock_page::OpenError::NoSuchEntry => {
                TimelineError::NotFound(name.to_owned())
            }
            other => other.into(),
        })?;
        let counter = source::counter_for(page, index)?;
        let place = Place::open(page.clone(), counter, index, None)?;
        Ok(Timeline::new(name, place, Need::NONE, None))
    }

    /// How much processor time the host has given vCPU `index` of the VM that this program runs in,
    /// since the vCPU started there; `None` if this is not known, and on a host's own page. A
    /// guest's own clocks also count the time in which its vCPU waited.
    ///
    /// The value is updated every 100 ms. Between updates, the upper bound includes all the time
    /// that the vCPU may have run since. Compare two readings only if their `disruption` is the
    /// same.
    ///
    /// # Errors
    /// When the page cannot be read, or its writer died during an update.
    pub fn host_cpu_time(&self, index: usize) -> Result<Option<HostCpuTime>, HostCpuTimeError> {
        let page = &self.inner.page;
        let counter = source::counter_for(page, 0)?;
        let reader = Reader::open(page.clone(), counter, 0).map_err(TimelineError::from)?;
        let time = reader.host_cpu_time(index).map_err(ReadError::from)?;
        if page.is_lost() { Err(ReadError::Truncated.into()) } else { Ok(time) }
    }

    /// What the host announces: that this VM will be disrupted (moved, saved, stopped), or that this
    /// begins. One load of the page's memory once the page is found; ask as often as you like.
    ///
    /// # Errors
    /// When the page cannot be read.
    pub fn notice(&self) -> Result<Notice, TimelineError> {
        Ok(self.reader()?.notice())
    }

    /// The VM generation counter: another number tells that this VM was loaded from a saved state (a
    /// snapshot, a clone), so that what must be unique has to be made anew. A live migration keeps
    /// it. `None` where nobody counts, and until timevisord has noticed that the VM was loaded.
    ///
    /// # Errors
    /// When the page cannot be read.
    pub fn vm_generation(&self) -> Result<Option<u64>, TimelineError> {
        Ok(self.reader()?.vm_generation())
    }

    fn reader(&self) -> Result<Reader<PageRef, CounterRef>, TimelineError> {
        let page = &self.inner.page;
        Ok(Reader::open(page.clone(), source::counter_for(page, 0)?, 0)?)
    }

    /// Binds to a timeline and makes the host meet a requirement as long as the binding lives.
    ///
    /// # Errors
    /// [`BindError::CannotBeMet`] with what can be achieved, [`BindError::NoChannel`] with what was
    /// tried, or another refusal.
    pub fn bind(&self, name: &str, requirement: &Requirement) -> Result<Binding, BindError> {
        self.bind_with(name, &BindOptions { requirement: Some(*requirement), ..Default::default() })
    }

    /// As [`Self::bind`], with all options.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_with(&self, name: &str, options: &BindOptions) -> Result<Binding, BindError> {
        if !is_name(name) {
            return Err(BindError::Name(name.to_owned()));
        }
        if let Some(requirement) = &options.requirement {
            requirement.validate()?;
        }
        let channel = self.open_channel()?;
        let granted = channel.bind(Bind {
            timeline: name.to_owned(),
            create: options.create,
            requirement: options.requirement.map(Requirement::to_channel),
            best_effort: options.best_effort,
        })?;
        Ok(Binding::new(granted, channel))
    }

    /// The timelines that this client may bind to.
    ///
    /// # Errors
    /// As [`Self::bind`], except those about requirements.
    pub fn timelines(&self) -> Result<Vec<TimelineRow>, BindError> {
        self.open_channel()?.timelines()
    }

    fn open_channel(&self) -> Result<Arc<Channel>, BindError> {
        let mut channel = unpoisoned(self.inner.channel.lock());
        if let Some(channel) = &*channel {
            return Ok(Arc::clone(channel));
        }
        let inner = &self.inner;
        let addresses = match &inner.options.channel {
            Some(address) => vec![address.clone()],
            None => ChannelAddress::candidates(),
        };
        let started = Arc::new(Channel::start(Setup {
            addresses,
            client: inner.options.name.clone(),
            timeout: inner.options.timeout,
            page: inner.page.clone(),
            page_path: inner.choice.path.clone(),
        })?);
        *channel = Some(Arc::clone(&started));
        Ok(started)
    }
}
