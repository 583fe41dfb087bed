//! One QMP connection, as the daemon uses it: commands go to the helper that speaks QMP, and news
//! come from there. Here is what survives a connection, and what is to be asked when.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use timevisor_linux::clock::monotonic;
use timevisor_linux::peer::{connect, peer_pid};
use timevisor_protocols::qmp::{
    Command, CpuThread, MigrationStatus, News as Said, QueryStatus, VmEvent,
};
use timevisor_time::Duration;

use super::qmp::{Line, QmpHelpers};

/// How long to wait for QEMU's greeting, which arrives at once unless another client holds the
/// socket.
const GREETING: Duration = Duration::from_secs(2);

/// What QEMU has reported.
pub enum News {
    /// An event of the VM.
    Event(VmEvent),
    /// The answer to a status query.
    Status(QueryStatus),
    /// How the latest migration stands, and why it failed.
    Migration(MigrationStatus, Option<String>),
    /// A requested migration did not start, or failed, for this reason.
    NotMigrated(String),
    /// The connection cannot be used any more.
    Lost(String),
}

/// Requests that are pending at QEMU. They survive a lost connection, also when it was lost before
/// QEMU has answered.
#[derive(Clone, Default)]
pub struct Wanted {
    /// Send `cont` when the page is ready.
    pub resume: bool,
    /// Have QEMU await the VM's migration at this address.
    pub awaited: Option<String>,
}

/// A connection to a QMP socket through which nobody speaks yet.
pub struct Connected {
    path: PathBuf,
    stream: UnixStream,
    wanted: Wanted,
}

impl Connected {
    /// Connects to a QMP socket.
    pub fn connect(path: &Path, wanted: Wanted) -> Result<Self> {
        let stream = connect(path).map_err(|error| explain(path, error))?;
        Ok(Self { path: path.to_owned(), stream, wanted })
    }

    /// Connects only if the monitor belongs to process `pid`: the owner of the socket's path could
    /// point it at another VM's monitor.
    pub fn connect_to(path: &Path, pid: u32, wanted: Wanted) -> Result<Self> {
        let connected = Self::connect(path, wanted)?;
        let owner = connected.pid()?;
        ensure!(owner == pid, "{} belongs to process {owner}, not to {pid}", path.display());
        Ok(connected)
    }

    /// The process of this monitor.
    pub fn pid(&self) -> Result<u32> {
        peer_pid(&self.stream).with_context(|| {
            format!("{} does not tell whose it is; give --pid", self.path.display())
        })
    }

    /// Has this user's helper begin. `shared`: the page is in memory that QEMU shares with us, which
    /// must not migrate: it would overwrite the destination's page, or crash QEMU there if that page
    /// is mapped read-only.
    pub fn begin(self, helpers: &mut QmpHelpers, user: u32, shared: bool) -> Monitor {
        let now = monotonic();
        let line = helpers.open(user, self.stream.into(), shared, now);
        if let Some(uri) = &self.wanted.awaited {
            line.order(Command::Await(uri.clone()));
        }
        Monitor::new(self.path, line, self.wanted, now)
    }
}

/// A connection through which a helper speaks.
pub struct Monitor {
    path: PathBuf,
    line: Line,
    wanted: Wanted,
    cpus: Vec<CpuThread>,
    /// Why QEMU would migrate memory that it shares with us.
    immovable: Option<String>,
    /// `cont` was sent, and is not answered.
    resuming: bool,
    /// QEMU has reported the state of the vCPUs, so it reports events too.
    ready: bool,
    /// What is odd about QEMU's answers, not yet taken.
    remarks: Vec<String>,
    /// When to complain that QEMU does not answer.
    complain_at: Option<Duration>,
}

impl Monitor {
    fn new(path: PathBuf, line: Line, wanted: Wanted, now: Duration) -> Self {
        Self {
            path,
            line,
            wanted,
            cpus: Vec::new(),
            immovable: None,
            resuming: false,
            ready: false,
            remarks: Vec::new(),
            complain_at: Some(now + GREETING),
        }
    }

    /// Whether QEMU reports stops and resumes on this connection.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Which news of [`QmpHelpers::take_news`] are this connection's.
    pub fn number(&self) -> u64 {
        self.line.number()
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

    /// The requests that are pending.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Where to reconnect, and the requests that are still pending.
    pub fn into_wanted(self) -> (PathBuf, Wanted) {
        (self.path, self.wanted)
    }

    /// Takes in what the helper has said of this connection. Returns what matters to the VM.
    pub fn take(&mut self, said: Said) -> Vec<News> {
        match said {
            Said::Greeted(version) => {
                tracing::debug!("{}: QEMU {version}", self.path.display());
                vec![]
            }
            Said::Event(event) => {
                if event == VmEvent::Resume {
                    self.resumed();
                }
                vec![News::Event(event)]
            }
            Said::Status(status) => {
                self.ready = true;
                vec![News::Status(status)]
            }
            Said::Migration { status, why } => vec![News::Migration(status, why)],
            Said::Cpus(cpus) => {
                self.cpus = cpus;
                vec![]
            }
            Said::Resumed => {
                self.resumed();
                vec![]
            }
            Said::Awaits => {
                self.wanted.awaited = None;
                vec![]
            }
            Said::Migrates => vec![],
            Said::NotMigrated(why) => {
                self.wanted.awaited = None;
                vec![News::NotMigrated(why)]
            }
            Said::Immovable(why) => {
                self.remark(&format!("this VM must not migrate: {why}"));
                self.immovable = Some(why);
                vec![]
            }
            Said::Movable => {
                self.immovable = None;
                vec![]
            }
            Said::Remark(what) => {
                self.remark(&what);
                vec![]
            }
            // Whether a migration that was asked for has begun is asked at the next connection.
            Said::Lost(reason) => vec![News::Lost(reason)],
        }
    }

    fn remark(&mut self, what: &str) {
        self.remarks.push(format!("{}: {what}", self.path.display()));
    }

    /// What was odd about QEMU's answers since the last call, for the log.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Asks for the state of the VM; the answer comes as [`News::Status`].
    pub fn ask_status(&mut self) {
        self.line.order(Command::AskStatus);
    }

    /// Asks how the latest migration stands; the answer comes as [`News::Migration`].
    pub fn ask_migration(&mut self) {
        self.line.order(Command::AskMigration);
    }

    /// Asks for the threads of the vCPUs. QEMU does not report when one is plugged or unplugged.
    pub fn ask_cpus(&mut self) {
        self.line.order(Command::AskCpus);
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
            self.ask_status();
        }
    }

    /// Takes over what was pending at another connection to the same VM.
    pub fn take_over(&mut self, pending: Wanted) {
        self.wanted.resume |= pending.resume;
        if let (None, Some(uri)) = (&self.wanted.awaited, pending.awaited) {
            self.await_migration(&uri);
        }
    }

    /// Records that the VM runs as requested; a later stop is intentional.
    pub fn runs_already(&mut self) {
        self.wanted.resume = false;
    }

    /// Resumes the VM once, if requested. Until QEMU has answered, the request is pending: another
    /// connection repeats it.
    pub fn resume_if_asked(&mut self) {
        if self.wanted.resume && !std::mem::replace(&mut self.resuming, true) {
            self.line.order(Command::Resume);
        }
    }

    fn resumed(&mut self) {
        if std::mem::take(&mut self.resuming) {
            self.wanted.resume = false;
        }
    }

    /// Stops and resumes the VM.
    pub fn pause_for_a_moment(&mut self) {
        self.line.order(Command::PauseForAMoment);
    }

    /// Why the VM must not migrate, if so: the destination's QEMU would crash if the page is mapped
    /// read-only there.
    pub fn immovable(&self) -> Option<&str> {
        self.immovable.as_deref()
    }

    /// Asks QEMU again to exclude shared memory from migration.
    pub fn try_sharing_again(&mut self) {
        self.line.order(Command::IgnoreShared);
    }

    /// Migrates the VM to `uri`. Events report the outcome.
    pub fn migrate(&mut self, uri: &str) {
        self.line.order(Command::Migrate(uri.to_owned()));
    }

    /// Makes QEMU wait for the VM at `uri`, now or after it has told its state.
    pub fn await_migration(&mut self, uri: &str) {
        self.wanted.awaited = Some(uri.to_owned());
        self.line.order(Command::Await(uri.to_owned()));
    }

    /// Cancels a migration; the VM stays.
    pub fn cancel_migration(&mut self) {
        self.line.order(Command::CancelMigration);
    }

    /// Asks why a migration failed.
    pub fn ask_why(&mut self) {
        self.line.order(Command::AskWhy);
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

#[cfg(test)]
mod cut_tests;
#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_protocols::qmp::RunState;

    fn monitor(wanted: Wanted) -> Monitor {
        Monitor::new(PathBuf::from("qmp"), Line::dead(1), wanted, Duration::ZERO)
    }

    fn lost(monitor: &mut Monitor) -> Vec<News> {
        monitor.take(Said::Lost("gone".to_owned()))
    }

    #[test]
    fn a_resume_is_pending_until_qemu_has_answered() {
        let paused = QueryStatus { running: false, state: RunState::Paused };
        for answer in [None, Some(Said::Resumed), Some(Said::Event(VmEvent::Resume))] {
            let mut monitor = monitor(Wanted { resume: true, awaited: None });
            monitor.take(Said::Status(paused.clone()));
            assert!(monitor.is_ready());
            monitor.resume_if_asked();
            let answered = answer.is_some();
            answer.map(|answer| monitor.take(answer));
            assert!(matches!(lost(&mut monitor)[..], [News::Lost(_)]));
            assert_eq!(monitor.into_wanted().1.resume, !answered);
        }
    }

    /// Somebody else resumed it before its page was ready, and may stop it again.
    #[test]
    fn a_resume_that_we_did_not_ask_for_answers_nothing() {
        let mut monitor = monitor(Wanted { resume: true, awaited: None });
        monitor.take(Said::Event(VmEvent::Resume));
        assert!(monitor.wanted.resume);
        monitor.runs_already();
        assert!(!monitor.wanted.resume);
    }

    #[test]
    fn a_wait_for_a_migration_survives_unless_it_was_answered() {
        for answer in [None, Some(Said::Awaits), Some(Said::NotMigrated("no".to_owned()))] {
            let mut monitor = monitor(Wanted::default());
            monitor.await_migration("tcp:0:1");
            let answered = answer.is_some();
            answer.map(|answer| monitor.take(answer));
            lost(&mut monitor);
            assert_eq!(monitor.into_wanted().1.awaited.is_none(), answered);
        }
    }

    #[test]
    fn silence_is_complained_of_once() {
        let mut monitor = monitor(Wanted::default());
        assert_eq!(monitor.complaint(Duration::from_secs(1)), None);
        assert!(monitor.complaint(GREETING).is_some_and(|text| text.contains("nobody answers")));
        assert_eq!(monitor.complaint(Duration::from_secs(9)), None);
    }
}
