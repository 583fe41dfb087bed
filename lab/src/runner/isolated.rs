//! A test's process with its own PID, mount and network namespaces: its daemons see only its own
//! QEMUs, and neither tests nor a second lab on this machine interfere with each other.
//!
//! Inside, /proc is the namespace's, /run is empty, and loopback is the only network interface. The
//! cgroups remain the host's: tests that change them are exclusive, and a lock serializes the
//! exclusive tests of two labs.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_linux::cpuset::Cpusets;

use super::schedule::{Running, Start};
use super::{Outcome, Verdict, evidence};
use crate::command;
use crate::packages;
use crate::scenario::{Context, Need, Test};
use crate::scratch;

/// PID 1 of the namespaces; it reaps the processes that the test's programs leave behind. The test
/// is its child.
///
/// The machine's own /proc stays readable at `scratch::host_tid`.
const INIT: &str = "mount -t tmpfs -o mode=755 tmpfs /run && mkdir /run/lock /run/host-proc \
                    && mount --rbind /proc /run/host-proc && mount -t proc proc /proc \
                    && ip link set lo up && \"$@\"; status=$?; exit $status";
/// Lock file held by the lab that runs an exclusive test.
const LOCK: &str = "/run/lock/timevisor-lab";
/// How long a test may take to end after Ctrl-C.
const END: Duration = Duration::from_secs(60);
/// Longer than any test takes; a hanging test must not hang the lab.
const LIMIT: Duration = Duration::from_secs(90 * 60);
const VERDICT: &str = "verdict.json";
const OUTPUT: &str = "output.log";

/// Fails unless this process may create namespaces.
///
/// # Errors
/// When it is not allowed to.
pub fn check_possible() -> anyhow::Result<()> {
    ensure!(packages::is_root(), "lab tests need root; run `make lab` as root");
    command::output(Command::new("unshare").args(["--pid", "--mount", "--net", "--fork", "true"]))
        .map(drop)
        .context("this system gives no namespaces; run the lab outside of a container, or in a privileged one")
}

/// Fails if processors of this machine are set apart for a reservation, such as one of a daemon that was
/// killed: everything else, this lab included, would run on those that are left.
///
/// # Errors
/// When they are.
pub fn check_undivided() -> anyhow::Result<()> {
    let Ok(found) = Cpusets::find() else { return Ok(()) };
    // Another lab's exclusive test may reserve: it gives back what it took.
    let _lock = exclusive()?;
    let ours = found.ours().context("cannot read the cpusets")?;
    let names: Vec<_> = ours.iter().map(|path| path.display().to_string()).collect();
    ensure!(
        names.is_empty(),
        "a reservation sets processors of this machine apart: {}. End it (`timevisor reserve release --all`); if nothing \
         runs that made it, remove these folders with rmdir and, with cgroup v1, write 1 to cpuset.sched_load_balance beside them",
        names.join(", ")
    );
    Ok(())
}

/// Starts tests by executing this program again.
#[derive(Debug)]
pub struct Starter {
    program: PathBuf,
    lab_dir: PathBuf,
    kvm_usable: bool,
}

impl Starter {
    /// Creates a starter for tests whose logs go below `lab_dir`.
    ///
    /// # Errors
    /// When this program's path is unknown.
    pub fn new(lab_dir: &Path, kvm_usable: bool) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("where is this program?")?;
        Ok(Self { program, lab_dir: lab_dir.to_owned(), kvm_usable })
    }
}

impl Start for Starter {
    type Running = Process;

    fn start(&self, test: &Test, again: bool) -> anyhow::Result<Process> {
        let folder = self.lab_dir.join(test.name);
        if again {
            // The log may be the only trace of a rare defect.
            let aside = self.lab_dir.join(format!("{}.late", test.name));
            let _ = fs::remove_dir_all(&aside);
            fs::rename(&folder, aside)?;
        }
        let lock = test.needs.contains(&Need::ExclusiveCpu).then(exclusive).transpose()?;
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let output = File::create(folder.join(OUTPUT))?;
        let mut command = command::tethered("unshare");
        command
            .args(["--pid", "--mount", "--net", "--fork", "--kill-child", "sh", "-c", INIT, "sh"])
            .arg(&self.program)
            .arg("--dir")
            .arg(&self.lab_dir)
            .args(["test-one", test.name])
            .args(self.kvm_usable.then_some("--kvm"))
            .env(scratch::OWNER, std::process::id().to_string())
            .process_group(0)
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output);
        let child = command.spawn().context("cannot start unshare")?;
        Ok(Process { child, folder, started: Instant::now(), told: None, _lock: lock })
    }
}

/// Waits until no other lab runs an exclusive test.
fn exclusive() -> anyhow::Result<File> {
    fs::create_dir_all("/run/lock")?;
    let file = File::create(LOCK).with_context(|| format!("cannot create {LOCK}"))?;
    if file.try_lock().is_err() {
        println!("  another lab runs an exclusive test; waiting for its end");
        file.lock().with_context(|| format!("cannot lock {LOCK}"))?;
    }
    Ok(file)
}

/// A test's process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    folder: PathBuf,
    started: Instant,
    told: Option<Instant>,
    _lock: Option<File>,
}

impl Process {
    fn verdict(&self) -> Option<Outcome> {
        let text = fs::read_to_string(self.folder.join(VERDICT)).ok()?;
        Outcome::parse(&text)
    }
}

impl Running for Process {
    fn poll(&mut self) -> Option<Outcome> {
        if self.started.elapsed() > LIMIT || self.told.is_some_and(|told| told.elapsed() > END) {
            let _ = self.child.kill();
        }
        let status = match self.child.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let mut outcome = self.verdict().unwrap_or_else(|| {
            let output = fs::read_to_string(self.folder.join(OUTPUT)).unwrap_or_default();
            let text =
                format!("ended without a verdict ({status})\n{}", command::tail(&output, 12));
            Outcome { verdict: Verdict::Failed, text }
        });
        if outcome.verdict != Verdict::Ok {
            outcome.text.push_str(&evidence::of(&self.folder));
        }
        Some(outcome)
    }

    fn interrupt(&mut self) {
        self.told.get_or_insert_with(Instant::now);
        // unshare and PID 1 ignore the signal, the test does not.
        let _ = command::run("kill", &["-TERM", "--", &format!("-{}", self.child.id())]);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `test` in this process, which the runner started, and writes its verdict.
///
/// # Errors
/// When the verdict cannot be written.
pub fn run_one(test: &Test, lab_dir: &Path, kvm_usable: bool) -> anyhow::Result<()> {
    ensure!(scratch::in_test(), "`test-one` is for the runner alone; use `test {}`", test.name);
    let folder = lab_dir.join(test.name);
    let context = Context::new(lab_dir, test.name, kvm_usable)?;
    let result = (test.run)(&context);
    match &result {
        Ok(measured) => context.log(&format!("ok: {measured}")),
        Err(error) => context.log(&format!("failed: {error:?}")),
    }
    fs::write(folder.join(VERDICT), Outcome::of(&result).line()).context("cannot write the verdict")
}
