//! Introspects a guest as timevisord does: finds its memory, probes its kernel, and drives the
//! plugin over its socket.
//!
//! | file | owns |
//! | --- | --- |
//! | `emulated.rs` | emulated guests with the plugin, for a timevisord |
//! | `nested.rs` | guests under KVM on a host inside a guest, and their trap points |

pub mod emulated;
pub mod nested;

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration as StdDuration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use serde_json::json;
use timevisor_introspection::backend::tcg::Tcg;
use timevisor_introspection::backend::{Action, Backend, Input, State};
use timevisor_introspection::memory::GuestMemory;
use timevisor_introspection::memory::ram::{InProcess, Machine, Ram, RamLayout};
use timevisor_introspection::os::guest_os::GuestOs;
use timevisor_introspection::registry;
use timevisor_introspection::tasks::event::Event;
use timevisor_linux::process::{Process, ProcessMemory};
use timevisor_time::Duration;

use crate::command;
use crate::guest::Guest;
use crate::interrupt;
use crate::programs;

/// Builds the plugin (a no-op when it is up to date) and returns its path.
///
/// # Errors
/// When it does not build.
pub fn plugin(lab_dir: &Path) -> anyhow::Result<PathBuf> {
    let out = lab_dir.join("plugins");
    let source = programs::workspace()?.join("plugins/tcg");
    let out_is = format!("OUT={}", out.display());
    let source = source.display().to_string();
    command::run("make", &["--silent", "-C", &source, &out_is])?;
    Ok(out.join("libtimevisor-introspect.so"))
}

/// The address of a guest's memory in its QEMU process.
///
/// # Errors
/// When QEMU does not report it.
pub fn memory_base(guest: &mut Guest) -> anyhow::Result<u64> {
    let command = json!({"command-line": "gpa2hva 0"});
    let said = guest.qmp().execute("human-monitor-command", &command)?;
    let said = said.as_str().unwrap_or_default();
    let hex = said.trim().rsplit("0x").next().filter(|_| said.contains("is 0x"));
    let base = hex.and_then(|hex| u64::from_str_radix(hex, 16).ok());
    base.with_context(|| format!("QEMU says {said:?} to gpa2hva"))
}

/// The memory of a q35 guest with `mib` MiB, read through its QEMU's memory.
///
/// # Errors
/// When it cannot be read.
pub fn memory(pid: u32, base: u64, mib: u64) -> anyhow::Result<impl GuestMemory> {
    let layout = RamLayout::new(Machine::Q35, mib << 20, None)?;
    let process = Process::open(pid)?;
    Ok(Ram::new(layout, InProcess { memory: ProcessMemory::open(process)?, base }))
}

/// The operating system in this memory.
///
/// # Errors
/// When no plugin recognizes it.
pub fn probe(memory: &dyn GuestMemory) -> anyhow::Result<Box<dyn GuestOs>> {
    let mut found = registry::probe(memory).map_err(|reasons| {
        let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        anyhow!("{}", reasons.join("; "))
    })?;
    ensure!(found.len() == 1, "{} kernels in memory", found.len());
    Ok(found.remove(0))
}

/// One connection to the plugin, and everything received over it.
#[derive(Debug)]
pub struct Watcher {
    stream: UnixStream,
    backend: Tcg,
    guest_os: Box<dyn GuestOs>,
    began: Instant,
    /// The decoded events, in order.
    pub events: Vec<Event>,
    /// Number of dropped events, as the backend counts them.
    pub dropped: u64,
    /// How often the VM had to be paused.
    pub pauses: u32,
}

impl Watcher {
    /// Connects.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn connect(socket: &Path, guest_os: Box<dyn GuestOs>) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(StdDuration::from_millis(10)))?;
        let mut backend = Tcg::default();
        ensure!(backend.handle(Input::Connected, Duration::ZERO).is_empty(), "actions at once");
        let (began, events) = (Instant::now(), Vec::new());
        Ok(Self { stream, backend, guest_os, began, events, dropped: 0, pauses: 0 })
    }

    /// The guest's operating system.
    pub fn guest_os(&self) -> &dyn GuestOs {
        &*self.guest_os
    }

    /// The sequence number of the next event.
    pub fn sequence(&self) -> u64 {
        self.backend.sequence()
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(i64::try_from(self.began.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }

    /// Attaches, and waits until that is done.
    ///
    /// # Errors
    /// When it does not happen.
    pub fn attach(&mut self, vm: &mut dyn Pause) -> anyhow::Result<()> {
        let points = self.guest_os.points().to_vec();
        let actions = self.backend.attach(&points, self.now())?;
        self.act(actions, vm)?;
        self.until("attached", vm, |this| this.backend.state() == State::Attached)
    }

    /// Detaches, and waits until that is done.
    ///
    /// # Errors
    /// When it does not happen.
    pub fn detach(&mut self, vm: &mut dyn Pause) -> anyhow::Result<()> {
        let actions = self.backend.detach(self.now());
        self.act(actions, vm)?;
        self.until("detached", vm, |this| this.backend.state() == State::Detached)
    }

    /// Reads events until `done` returns true.
    ///
    /// # Errors
    /// When that takes longer than two minutes, or the connection ends.
    pub fn until(
        &mut self,
        what: &str,
        vm: &mut dyn Pause,
        done: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let found = interrupt::poll_until(StdDuration::from_secs(120), || {
            self.turn(vm)?;
            Ok(done(self).then_some(()))
        })?;
        found.with_context(|| {
            format!("not {what}: {:?}, {} events", self.backend.state(), self.events.len())
        })
    }

    fn turn(&mut self, vm: &mut dyn Pause) -> anyhow::Result<()> {
        let mut buffer = [0; 65536];
        if self.backend.may_read(self.now()) {
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("the plugin has closed the connection"),
                Ok(len) => {
                    let actions = self.backend.handle(Input::Bytes(&buffer[..len]), self.now());
                    self.act(actions, vm)?;
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let actions = self.backend.handle(Input::Timer, self.now());
        self.act(actions, vm)
    }

    fn act(&mut self, actions: Vec<Action>, vm: &mut dyn Pause) -> anyhow::Result<()> {
        for action in actions {
            match action {
                Action::Send(bytes) => self.stream.write_all(&bytes)?,
                Action::Pause => {
                    self.pauses += 1;
                    vm.pause()?;
                }
                Action::Event(raw) => self.events.push(self.guest_os.decode(&raw)?),
                Action::Dropped(dropped) => self.dropped = dropped,
                Action::Attached(_) | Action::Detached => {}
                Action::Changed { point, found } => bail!("{found:02x?} is at point {point}"),
                Action::Close(why) => bail!("{why}"),
                other @ (Action::Put(_) | Action::Take) => bail!("not of a plugin: {other:?}"),
            }
        }
        Ok(())
    }
}

/// A VM that can be paused briefly.
pub trait Pause {
    /// Pauses and resumes it.
    ///
    /// # Errors
    /// When QEMU refuses.
    fn pause(&mut self) -> anyhow::Result<()>;
}

impl Pause for Guest {
    fn pause(&mut self) -> anyhow::Result<()> {
        self.stop()?;
        self.cont()
    }
}

/// A VM that cannot be paused.
#[derive(Debug)]
pub struct Cannot;

impl Pause for Cannot {
    fn pause(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Attaches and prints every event until it is killed: `timevisor-lab watch SOCKET PID BASE MIB`.
///
/// # Errors
/// When it cannot attach, or the connection ends.
pub fn watch(socket: &Path, pid: u32, base: u64, mib: u64) -> anyhow::Result<()> {
    let guest_os = probe(&memory(pid, base, mib)?)?;
    let mut watcher = Watcher::connect(socket, guest_os)?;
    watcher.attach(&mut Cannot)?;
    println!("attached");
    loop {
        watcher.until("an event", &mut Cannot, |this| !this.events.is_empty())?;
        for event in watcher.events.drain(..) {
            println!("{}", serde_json::to_string(&event)?);
        }
    }
}
