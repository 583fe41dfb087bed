//! One QMP connection: bytes in, events out. crates/protocols has the codec and its state machine.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use timevisor_linux::clock::monotonic;
use timevisor_linux::peer::{connect, peer_pid};
use timevisor_protocols::qmp::{CpuThread, QmpItem, QueryStatus, Session, VmEvent, cpu_threads};
use timevisor_time::Duration;

/// How long to wait for QEMU's greeting, which arrives at once unless another client holds the
/// socket.
const GREETING: Duration = Duration::from_secs(2);

/// How many bytes a QEMU may send at once, and each second after that. A busy one sends some
/// kilobytes.
const BURST_BYTES: f64 = 1024.0 * 1024.0;
const BYTES_A_SECOND: f64 = 128.0 * 1024.0;
/// How many bytes are read at once, before others have their turn.
const AT_ONCE: usize = 64 << 10;

/// What QEMU has reported.
pub enum News {
    /// An event of the VM.
    Event(VmEvent),
    /// The answer to the initial status query.
    Status(QueryStatus),
    /// A requested migration did not start, or failed, for this reason.
    NotMigrated(String),
    /// The connection cannot be used any more.
    Lost(String),
}

/// Requests that are pending at QEMU. They survive a lost connection.
#[derive(Clone, Default)]
pub struct Wanted {
    /// Send `cont` when the page is ready.
    pub resume: bool,
    /// Have QEMU await the VM's migration at this address.
    pub awaited: Option<String>,
}

pub struct Monitor {
    path: PathBuf,
    stream: UnixStream,
    session: Session,
    status_query: Option<u64>,
    cpus_query: Option<u64>,
    cpus: Vec<CpuThread>,
    /// Ids of the last migration command, and of the query why it failed.
    migration: Option<u64>,
    why: Option<u64>,
    /// The page is in memory that QEMU shares with us, not in QEMU's private memory.
    shared: bool,
    /// Id of the command that excludes such memory from migration, and why QEMU rejected it.
    sharing: Option<u64>,
    immovable: Option<String>,
    wanted: Wanted,
    /// QEMU has reported the state of the vCPUs, so it reports events too.
    ready: bool,
    /// What is odd about QEMU's answers, not yet taken.
    remarks: Vec<String>,
    /// When to complain that QEMU does not answer.
    complain_at: Option<Duration>,
    /// How many bytes QEMU may still send, and when that was.
    allowance: f64,
    counted: Duration,
}

impl Monitor {
    /// Connects; [`Self::read`] then waits for QEMU's greeting.
    pub fn connect(path: &Path, wanted: Wanted) -> Result<Self> {
        let stream = connect(path).map_err(|error| explain(path, error))?;
        Ok(Self {
            path: path.to_owned(),
            stream,
            // Answers to an earlier connection's commands must not be mistaken for ours.
            session: Session::with_first_id(monotonic().ceil_nanos().unsigned_abs()),
            status_query: None,
            cpus_query: None,
            cpus: Vec::new(),
            migration: None,
            why: None,
            shared: false,
            sharing: None,
            immovable: None,
            wanted,
            ready: false,
            remarks: Vec::new(),
            complain_at: Some(monotonic() + GREETING),
            allowance: BURST_BYTES,
            counted: monotonic(),
        })
    }

    /// Connects only if the monitor belongs to process `pid`: the owner of the socket's path could
    /// point it at another VM's monitor.
    pub fn connect_to(path: &Path, pid: u32, wanted: Wanted) -> Result<Self> {
        let monitor = Self::connect(path, wanted)?;
        let owner = monitor.pid()?;
        ensure!(owner == pid, "{} belongs to process {owner}, not to {pid}", path.display());
        Ok(monitor)
    }

    /// The process of this monitor.
    pub fn pid(&self) -> Result<u32> {
        peer_pid(&self.stream).with_context(|| {
            format!("{} does not tell whose it is; give --pid", self.path.display())
        })
    }

    /// Whether QEMU reports stops and resumes on this connection.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// A complaint that QEMU does not answer; returned once, after a while.
    pub fn complaint(&mut self, now: Duration) -> Option<String> {
        let silent = self.complain_at.is_some_and(|at| now >= at) && !self.ready;
        silent.then(|| {
            self.complain_at = None;
            format!(
                "nobody answers at the QMP socket {}: if another program holds it, add one for timevisord",
                self.path.display()
            )
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where to reconnect, and the requests that are still pending.
    pub fn into_wanted(self) -> (PathBuf, Wanted) {
        (self.path, self.wanted)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Reads what has arrived, up to a limit: the rest makes the descriptor readable again.
    pub fn read(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        let mut buffer = [0u8; 16 << 10];
        for _ in 0..AT_ONCE / buffer.len() {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    news.push(News::Lost("QEMU closed its QMP socket".to_owned()));
                    return news;
                }
                Ok(count) if !self.may_send(count) => {
                    let text = "QEMU sends more on its QMP socket than any monitor does";
                    news.push(News::Lost(text.to_owned()));
                    return news;
                }
                Ok(count) => {
                    for item in self.session.on_bytes(&buffer[..count]) {
                        if let Some(found) = self.take(item) {
                            let lost = matches!(found, News::Lost(_));
                            news.push(found);
                            if lost {
                                return news;
                            }
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return news,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    news.push(News::Lost(format!("the QMP socket failed: {error}")));
                    return news;
                }
            }
        }
        news
    }

    /// Counts so many bytes more.
    fn may_send(&mut self, count: usize) -> bool {
        let now = monotonic();
        let more = (now - self.counted).as_secs_f64() * BYTES_A_SECOND;
        #[expect(clippy::cast_precision_loss, reason = "below 2^16")]
        let count = count as f64;
        self.allowance = (self.allowance + more).min(BURST_BYTES) - count;
        self.counted = now;
        self.allowance >= 0.0
    }

    fn take(&mut self, item: QmpItem) -> Option<News> {
        match item {
            QmpItem::Send(bytes) => self.send(&bytes),
            QmpItem::Ready { version } => {
                tracing::debug!("{}: QEMU {version}", self.path.display());
                // QEMU sends MIGRATION events only on request.
                let (_, mut sent) = self.set_capability("events");
                if self.shared {
                    sent = sent.or_else(|| self.ignore_shared());
                }
                // QEMU answers in order: once the state is known, the capabilities are set.
                sent.or_else(|| self.ask_status()).or_else(|| self.ask_cpus())
            }
            QmpItem::Event(event) => Some(News::Event(VmEvent::from(&event))),
            QmpItem::Reply { id, result } => self.reply(id, result),
            QmpItem::Fault(fault) => Some(News::Lost(format!("QMP: {fault}"))),
        }
    }

    fn reply(
        &mut self,
        id: u64,
        result: Result<serde_json::Value, timevisor_protocols::qmp::QmpError>,
    ) -> Option<News> {
        let is_status = self.status_query == Some(id);
        let is_cpus = self.cpus_query.take_if(|query| *query == id).is_some();
        let is_why = self.why.take_if(|query| *query == id).is_some();
        let is_sharing = self.sharing.take_if(|command| *command == id).is_some();
        let is_migration = self.migration.take_if(|command| *command == id).is_some();
        match result {
            Ok(value) if is_why => {
                let why = value["error-desc"].as_str().unwrap_or("QEMU does not say why");
                Some(News::NotMigrated(why.to_owned()))
            }
            Ok(value) if is_cpus => {
                match cpu_threads(&value) {
                    Ok(cpus) => self.cpus = cpus,
                    Err(error) => self.remark(&error),
                }
                None
            }
            Err(error) if is_migration => Some(News::NotMigrated(error.to_string())),
            Ok(value) if is_status => {
                self.status_query = None;
                self.ready = true;
                if let Some(News::NotMigrated(why)) = self.begin_to_await() {
                    self.remark(&why);
                }
                match QueryStatus::from_reply(&value) {
                    Ok(status) => Some(News::Status(status)),
                    Err(error) => Some(News::Lost(error.to_string())),
                }
            }
            Ok(_) => {
                self.immovable.take_if(|_| is_sharing);
                None
            }
            Err(error) if is_sharing => {
                let why = format!(
                    "QEMU refuses x-ignore-shared ({error}), and would copy over the other host's page"
                );
                self.remark(&format!("this VM must not migrate: {why}"));
                self.immovable = Some(why);
                None
            }
            Err(error) => {
                self.remark(&format!("QEMU refused a command: {error}"));
                None
            }
        }
    }

    fn remark(&mut self, what: &dyn std::fmt::Display) {
        self.remarks.push(format!("{}: {what}", self.path.display()));
    }

    /// What was odd about QEMU's answers since the last call, for the log.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Asks for the state of the VM; the answer comes as [`News::Status`].
    pub fn ask_status(&mut self) -> Option<News> {
        let (id, bytes) = self.session.command("query-status", None);
        self.status_query = Some(id);
        self.send(&bytes)
    }

    /// Asks for the threads of the vCPUs. QEMU does not report when one is plugged or unplugged.
    pub fn ask_cpus(&mut self) -> Option<News> {
        let (id, bytes) = self.session.command("query-cpus-fast", None);
        self.cpus_query = Some(id);
        self.send(&bytes)
    }

    /// The latest answer to [`Self::ask_cpus`].
    pub fn cpus(&self) -> &[CpuThread] {
        &self.cpus
    }

    /// Requests that the VM be resumed as soon as its page is ready. QEMU's next report of the VM's
    /// state triggers the resume.
    pub fn want_resume(&mut self) {
        self.wanted.resume = true;
        if self.ready {
            let _ = self.ask_status();
        }
    }

    /// Records that the VM runs as requested; a later stop is intentional.
    pub fn runs_already(&mut self) {
        self.wanted.resume = false;
    }

    /// Resumes the VM once, if requested.
    pub fn resume_if_asked(&mut self) {
        if std::mem::take(&mut self.wanted.resume) {
            let (_, bytes) = self.session.command("cont", None);
            if let Some(News::Lost(reason)) = self.send(&bytes) {
                tracing::warn!("{}: {reason}", self.path.display());
            }
        }
    }

    /// Stops and resumes the VM.
    pub fn pause_for_a_moment(&mut self) {
        for command in ["stop", "cont"] {
            let (_, bytes) = self.session.command(command, None);
            if let Some(News::Lost(reason)) = self.send(&bytes) {
                tracing::warn!("{}: {reason}", self.path.display());
            }
        }
    }

    /// Sets whether the page is in memory that QEMU shares with us; may be called before QEMU's
    /// greeting.
    pub fn set_shared(&mut self, shared: bool) {
        self.shared = shared;
        if shared && self.ready {
            let _ = self.ignore_shared();
        }
    }

    /// Tells QEMU not to migrate memory that it shares with us. It would overwrite the
    /// destination's page, or crash there if that page is mapped read-only.
    fn ignore_shared(&mut self) -> Option<News> {
        let (id, sent) = self.set_capability("x-ignore-shared");
        self.sharing = Some(id);
        sent
    }

    /// Why the VM must not migrate, if so: the destination's QEMU would crash if the page is mapped
    /// read-only there.
    pub fn immovable(&self) -> Option<&str> {
        self.immovable.as_deref()
    }

    /// Asks QEMU again to exclude shared memory from migration.
    pub fn try_sharing_again(&mut self) {
        let _ = self.ignore_shared();
    }

    fn set_capability(&mut self, name: &str) -> (u64, Option<News>) {
        let arguments = json!({"capabilities": [{"capability": name, "state": true}]});
        let (id, bytes) = self.session.command("migrate-set-capabilities", Some(arguments));
        (id, self.send(&bytes))
    }

    /// Migrates the VM to `uri`. Events report the outcome.
    pub fn migrate(&mut self, uri: &str) -> Option<News> {
        let (id, bytes) = self.session.command("migrate", Some(json!({"uri": uri})));
        self.migration = Some(id);
        self.send(&bytes)
    }

    /// Makes QEMU wait for the VM at `uri`, now or after its greeting.
    pub fn await_migration(&mut self, uri: &str) {
        self.wanted.awaited = Some(uri.to_owned());
        if self.ready {
            let _ = self.begin_to_await();
        }
    }

    fn begin_to_await(&mut self) -> Option<News> {
        let uri = self.wanted.awaited.take()?;
        if let Some(why) = &self.immovable {
            return Some(News::NotMigrated(format!("it is not awaited: {why}")));
        }
        let (id, bytes) = self.session.command("migrate-incoming", Some(json!({"uri": uri})));
        self.migration = Some(id);
        self.send(&bytes)
    }

    /// Cancels a migration; the VM stays.
    pub fn cancel_migration(&mut self) -> Option<News> {
        let (_, bytes) = self.session.command("migrate_cancel", None);
        self.send(&bytes)
    }

    /// Asks why a migration failed.
    pub fn ask_why(&mut self) -> Option<News> {
        let (id, bytes) = self.session.command("query-migrate", None);
        self.why = Some(id);
        self.send(&bytes)
    }

    fn send(&mut self, bytes: &[u8]) -> Option<News> {
        match self.stream.write_all(bytes) {
            Ok(()) => None,
            Err(error) => Some(News::Lost(format!("the QMP socket failed: {error}"))),
        }
    }
}

fn explain(path: &Path, error: io::Error) -> anyhow::Error {
    let path = path.display();
    let text = if error.kind() == ErrorKind::WouldBlock {
        format!("the queue of the QMP socket {path} is full: another program holds it")
    } else {
        format!("cannot connect to the QMP socket {path}; is the VM running?")
    };
    anyhow::Error::new(error).context(text)
}
