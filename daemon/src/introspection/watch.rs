//! One connection to QEMU's plugin, from finding the guest's kernel to the end.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use timevisor_guests::introspection::backend::{Action, Backend, Input, State};
use timevisor_guests::introspection::demand::{Need, Rules, need};
use timevisor_guests::introspection::event::RawEvent;
use timevisor_guests::introspection::guest_os::{self, GuestOs};
use timevisor_guests::introspection::image::{self, Image};
use timevisor_guests::introspection::tcg::Tcg;
use timevisor_linux::clock::monotonic;
use timevisor_linux::peer;
use timevisor_time::Duration;

use super::session::Shared;
use super::target::Target;

/// How soon a request to end is heeded.
const TURN: StdDuration = StdDuration::from_millis(20);
/// QEMU's vCPUs come to where points change within this, or never do.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is told of tasks is at most so old.
const TASKS_INTERVAL: Duration = Duration::from_nanos(20_000_000);

/// Until nobody wants it any more.
///
/// # Errors
/// What is in the way: the guest may not be up yet, or its kernel not known.
pub fn watch(
    target: &Target,
    image: Option<&Path>,
    shared: &Shared,
    rules: Option<&Rules>,
) -> Result<()> {
    let guest_os = match image {
        Some(path) => probe_image(target, path)?,
        None => probe(target)?,
    };
    shared.lock().guest = Some(guest_os.name());
    let dropped_before = shared.lock().dropped;
    let mut watch = Watch {
        stream: connect(target)?,
        backend: Tcg::default(),
        guest_os,
        shared,
        rules,
        needed: Need::Nothing,
        dropped_before,
        tasks_changed: false,
        tell_at: Duration::ZERO,
    };
    let hello = watch.backend.handle(Input::Connected, monotonic());
    watch.act(hello)?;
    let points = watch.guest_os.points().to_vec();
    let actions = watch.backend.attach(&points, monotonic())?;
    watch.act(actions)?;
    let late = monotonic() + PATIENCE;
    while !shared.lock().ended {
        watch.turn()?;
        let attached = watch.backend.state() == State::Attached;
        ensure!(attached || monotonic() < late, "QEMU does not set the trap points");
    }
    watch.detach()
}

/// The guest's kernel, in whichever part of QEMU's memory it is.
fn probe(target: &Target) -> Result<Box<dyn GuestOs>> {
    let mut reasons = Vec::new();
    for memory in target.memories()? {
        match guest_os::probe(&memory) {
            Ok(guest_os) => return Ok(guest_os),
            Err(why) => reasons.extend(why.iter().map(ToString::to_string)),
        }
    }
    bail!("{}", reasons.join("; "))
}

/// The guest that the file says it is, if that file is in some part of QEMU's memory.
fn probe_image(target: &Target, path: &Path) -> Result<Box<dyn GuestOs>> {
    let named = || path.display().to_string();
    // Not a pipe: opening one waits for its writer.
    ensure!(std::fs::metadata(path).with_context(named)?.is_file(), "{} is no file", named());
    let (mut bytes, most) = (Vec::new(), image::MOST_BYTES as u64 + 1);
    let file = File::open(path).with_context(named)?;
    file.take(most).read_to_end(&mut bytes).with_context(named)?;
    let image = Image::parse(&bytes).with_context(named)?;
    let guest_os = guest_os::probe_image(&image).map_err(|why| {
        let why: Vec<String> = why.iter().map(ToString::to_string).collect();
        anyhow!("{}", why.join("; ")).context(named())
    })?;
    let mut not = Vec::new();
    for memory in target.memories()? {
        match image.is_in(&memory) {
            Ok(()) => return Ok(guest_os),
            Err(why) => not.push(why.to_string()),
        }
    }
    bail!("{}: {}", named(), not.join("; "))
}

/// The plugin's socket, if it is this QEMU that listens.
fn connect(target: &Target) -> Result<UnixStream> {
    let path = target.socket.display();
    let stream =
        peer::connect(&target.socket).with_context(|| format!("cannot connect to {path}"))?;
    let (owner, pid) = (peer::peer_pid(&stream)?, target.process.pid());
    ensure!(owner == pid, "{path} belongs to process {owner}, not to {pid}");
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TURN))?;
    stream.set_write_timeout(Some(StdDuration::from_secs(5)))?;
    Ok(stream)
}

struct Watch<'a> {
    stream: UnixStream,
    backend: Tcg,
    guest_os: Box<dyn GuestOs>,
    shared: &'a Shared,
    rules: Option<&'a Rules>,
    needed: Need,
    /// By earlier connections.
    dropped_before: u64,
    tasks_changed: bool,
    tell_at: Duration,
}

impl Watch<'_> {
    fn turn(&mut self) -> Result<()> {
        let mut buffer = [0; 65536];
        if self.backend.may_read(monotonic()) {
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("QEMU has closed the connection"),
                Ok(len) => {
                    let actions = self.backend.handle(Input::Bytes(&buffer[..len]), monotonic());
                    self.act(actions)?;
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(anyhow!(e).context("the plugin's socket")),
            }
        } else {
            std::thread::sleep(StdDuration::from_millis(1));
        }
        let now = monotonic();
        let actions = self.backend.handle(Input::Timer, now);
        self.act(actions)?;
        self.tell_tasks(now);
        Ok(())
    }

    /// Does them. Nothing is sent under the lock: who asks must not wait for QEMU.
    fn act(&mut self, actions: Vec<Action>) -> Result<()> {
        for action in actions {
            match action {
                Action::Send(bytes) => {
                    self.stream.write_all(&bytes).context("the plugin's socket")?;
                }
                Action::Pause => self.shared.lock().pause = true,
                Action::Event(raw) => self.event(&raw),
                Action::Dropped(dropped) => {
                    self.shared.lock().dropped = self.dropped_before + dropped;
                }
                Action::Attached(points) => {
                    let mut told = self.shared.lock();
                    (told.attached, told.problem) = (Some(points), None);
                }
                Action::Detached => self.shared.lock().attached = None,
                // After a reboot, or when the guest traces itself.
                Action::Changed { point, found } => {
                    bail!("trap point {point}: the guest's kernel has {found:02x?} there now")
                }
                Action::Close(why) => bail!("{why}"),
            }
        }
        Ok(())
    }

    fn event(&mut self, raw: &RawEvent) {
        match self.guest_os.decode(raw) {
            Ok(event) => {
                self.tasks_changed = true;
                self.shared.lock().event(event);
            }
            Err(_) => self.shared.lock().senseless += 1,
        }
    }

    fn tell_tasks(&mut self, now: Duration) {
        if self.tasks_changed && now >= self.tell_at {
            (self.tasks_changed, self.tell_at) = (false, now + TASKS_INTERVAL);
            let tasks = self.guest_os.tasks().iter();
            let tasks = tasks.map(|task| serde_json::to_value(task).unwrap_or_default()).collect();
            self.shared.lock().tasks = tasks;
            // Here and not where the clock is kept: a guest may make it long.
            let needed = self.rules.map_or(Need::Nothing, |r| need(self.guest_os.tasks(), r));
            if needed != self.needed {
                self.needed = needed.clone();
                self.shared.lock().need = Some(needed);
            }
        }
    }

    /// Takes the points away; they go with the connection in any case.
    fn detach(&mut self) -> Result<()> {
        let actions = self.backend.detach(monotonic());
        self.act(actions)?;
        let late = monotonic() + PATIENCE;
        while self.backend.state() != State::Detached && monotonic() < late {
            self.turn()?;
        }
        Ok(())
    }
}
