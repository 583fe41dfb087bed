//! The connection to timevisord. It carries requirements to the host, and page entries and refusals
//! back. It never carries time.
//!
//! | module | owns |
//! | --- | --- |
//! | [`stream`] | the byte streams: Unix socket, virtio-serial port, vsock |
//! | `worker` | the thread that serves the session: sends, keeps it alive, reconnects and rebinds |
//! | `leases` | the bindings, which a new session renews |
//!
//! The thread exists because leases must be kept alive while the program computes; it starts with
//! the first binding and ends with the last handle. After a fork, only the parent has it.

mod leases;
pub(crate) mod stream;
mod worker;

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use timevisor_clock_page::reader::epoch_of;
use timevisor_linux::event_fd::EventFd;
use timevisor_protocols::channel::{Achieved, Bind, Epoch, HostPage, TimelineRow};

use self::stream::ChannelAddress;
use crate::error::{BindError, TimelineError};
use crate::requirement::Requirement;
use crate::source::PageRef;
use crate::timeline::{Place, Timeline};
use crate::tried::Tried;
use crate::unpoisoned;

/// The channel that a client uses, and those that it skipped.
#[derive(Clone, Debug)]
pub struct ChannelChoice {
    /// Where timevisord is reached.
    pub address: ChannelAddress,
    /// The tenant as which the server identifies this client: `uid:1000`, `vm:web`.
    pub tenant: String,
    /// Channels that were tried before and are not used.
    pub passed_over: Vec<Tried>,
}

/// The parameters of a channel.
pub(crate) struct Setup {
    /// In the order of preference.
    pub(crate) addresses: Vec<ChannelAddress>,
    /// Program and version, for the operator.
    pub(crate) client: String,
    pub(crate) timeout: Duration,
    pub(crate) page: PageRef,
    pub(crate) page_path: std::path::PathBuf,
}

/// Whether a binding's requirement is in force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lease {
    /// It is in force on the host.
    Held,
    /// It is not in force on the host, for this reason. The library states it again as soon as it
    /// can.
    Lost(String),
}

/// The worker's answer to a bind.
pub(crate) struct Granted {
    pub(crate) key: u64,
    pub(crate) timeline: Timeline,
    pub(crate) epoch: Epoch,
    pub(crate) achieved: Achieved,
    pub(crate) lease: Arc<Mutex<Lease>>,
}

type Reply<T> = Sender<Result<T, BindError>>;

/// Requests from callers to the worker.
enum Command {
    Bind(Bind, Reply<Granted>),
    Update { key: u64, requirement: Option<Requirement>, best_effort: bool, reply: Reply<Achieved> },
    Unbind { key: u64, reply: Option<Reply<()>> },
    Timelines(Reply<Vec<TimelineRow>>),
    Stop,
}

/// The callers' end of the channel.
pub(crate) struct Channel {
    commands: Mutex<Sender<Command>>,
    wake: Arc<EventFd>,
    chosen: Arc<Mutex<Option<ChannelChoice>>>,
    patience: Duration,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

impl Channel {
    pub(crate) fn start(setup: Setup) -> Result<Self, BindError> {
        let failed = |error: std::io::Error| BindError::Channel(error.to_string());
        let wake = Arc::new(EventFd::new().map_err(failed)?);
        let chosen = Arc::default();
        let (commands, received) = mpsc::channel();
        // One reconnection, and an answer.
        let patience = setup.timeout.saturating_mul(2).saturating_add(Duration::from_secs(2));
        let worker = worker::Worker::new(setup, received, Arc::clone(&wake), Arc::clone(&chosen));
        let thread = std::thread::Builder::new()
            .name("timevisor".to_owned())
            .spawn(move || worker.run())
            .map_err(failed)?;
        Ok(Self {
            commands: Mutex::new(commands),
            wake,
            chosen,
            patience,
            thread: Some(thread),
            process: std::process::id(),
        })
    }

    pub(crate) fn chosen(&self) -> Option<ChannelChoice> {
        unpoisoned(self.chosen.lock()).clone()
    }

    pub(crate) fn bind(&self, bind: Bind) -> Result<Granted, BindError> {
        self.ask(|reply| Command::Bind(bind, reply))
    }

    pub(crate) fn update(
        &self,
        key: u64,
        requirement: Option<Requirement>,
        best_effort: bool,
    ) -> Result<Achieved, BindError> {
        self.ask(|reply| Command::Update { key, requirement, best_effort, reply })
    }

    pub(crate) fn unbind(&self, key: u64) -> Result<(), BindError> {
        self.ask(|reply| Command::Unbind { key, reply: Some(reply) })
    }

    /// Drops a binding without waiting for an answer.
    pub(crate) fn forget(&self, key: u64) {
        self.tell(Command::Unbind { key, reply: None });
    }

    pub(crate) fn timelines(&self) -> Result<Vec<TimelineRow>, BindError> {
        self.ask(Command::Timelines)
    }

    fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, BindError> {
        if self.is_forked() {
            let text =
                "it belongs to the process that this one was forked from; connect again here";
            return Err(BindError::Channel(text.to_owned()));
        }
        let (reply, answer) = mpsc::channel();
        self.tell(command(reply));
        match answer.recv_timeout(self.patience) {
            Ok(answer) => answer,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(BindError::TimedOut(self.patience)),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(BindError::Channel("its thread has ended".to_owned()))
            }
        }
    }

    /// Whether this is a child of the process that opened the channel. There, the thread does not
    /// exist, and the connection belongs to the parent.
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    fn tell(&self, command: Command) {
        if self.is_forked() {
            return;
        }
        // After a fork or a panic of the thread, nothing reads this; the caller notices the missing
        // answer.
        let _ = unpoisoned(self.commands.lock()).send(command);
        let _ = self.wake.set();
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_forked() {
            // Joining a thread that does not exist in this process would block forever.
            core::mem::forget(self.thread.take());
            return;
        }
        self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens an entry of this client's own page (always the case in a guest), or of another page that
/// the server named.
pub(crate) fn open_place(
    setup: &Setup,
    page: Option<&HostPage>,
    place: timevisor_protocols::channel::Place,
) -> Result<Place, TimelineError> {
    // In a container the same page has another name; the server's name does not exist there.
    let other = page.filter(|page| epoch_of(&setup.page) != page.epoch);
    let named = other.map_or(setup.page_path.as_path(), |page| std::path::Path::new(&page.path));
    // The host's other pages are files next to the first one.
    let path = match place.page {
        0 => named.to_owned(),
        number => std::path::PathBuf::from(format!("{}.{number}", named.display())),
    };
    let page = if path == setup.page_path {
        setup.page.clone()
    } else {
        let other =
            |why: crate::Tried| TimelineError::OtherPage(format!("{}: {}", why.place, why.why));
        crate::source::open(&path).map_err(other)?
    };
    let index = usize::from(place.entry);
    let counter = crate::source::counter_for(&page, index)?;
    Place::open(page, counter, index, Some(place.generation))
}
