//! One attachment, from finding the guest's kernel to the end.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use timevisor_introspection::backend::gdb::Gdb;
use timevisor_introspection::backend::kvm::Kvm;
use timevisor_introspection::backend::kvm::layout::KvmLayout;
use timevisor_introspection::backend::tcg::Tcg;
use timevisor_introspection::backend::{Action, Backend, Input, State};
use timevisor_introspection::memory::ram::{InProcess, Ram};
use timevisor_introspection::os::guest_os::GuestOs;
use timevisor_introspection::os::pulse::{Pulse, Sign};
use timevisor_introspection::tasks::demand::{Need, Rules, need};
use timevisor_introspection::tasks::event::{Kind, RawEvent};
use timevisor_introspection::tasks::initial_scan::{Looks, Verdict};
use timevisor_linux::clock::monotonic;
use timevisor_time::Duration;

use super::known::Kept;
use super::kvm::{self, Where};
use super::link::Link;
use super::probe::{Found, another_runs, probe, surely_runs};
use super::session::Shared;
use super::socket::Socket;
use super::target::{Target, Way};

/// vCPUs come to where points change within this, or never do.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is told of tasks is at most so old.
const TASKS_INTERVAL: Duration = Duration::from_nanos(20_000_000);
/// How often its heartbeat is read.
const PULSE_INTERVAL: Duration = Duration::from_nanos(1_000_000_000);
/// Between two looks at the tasks that have begun.
const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);

/// Until nobody wants it any more.
///
/// # Errors
/// What is in the way: the guest may not be up yet, or its kernel not known.
pub fn watch(target: &Target, shared: &Shared, rules: Option<&Rules>) -> Result<()> {
    let Found { mut guest_os, memory, base, is_only, mut layout } = probe(target, shared)?;
    if target.every_system_call {
        let needs_slot = matches!(target.way, Way::Kvm { .. });
        guest_os.every_system_call(needs_slot).map_err(anyhow::Error::msg)?;
    }
    shared.lock().guest = Some(guest_os.name());
    let dropped_before = shared.lock().dropped;
    let (link, backend) = way(target, &memory, base, &*guest_os, &mut layout)?;
    let mut watch = Watch {
        link,
        backend,
        guest_os,
        memory,
        shared,
        rules,
        needed: Need::Nothing,
        dropped_before,
        tasks_changed: false,
        asked: None,
        tell_at: Duration::ZERO,
        pulse: Pulse::default(),
        pulse_at: Duration::ZERO,
    };
    let hello = watch.backend.handle(Input::Connected, monotonic());
    watch.act(hello)?;
    let points = watch.guest_os.points().to_vec();
    let actions = watch.backend.attach(&points, monotonic())?;
    watch.act(actions)?;
    let late = monotonic() + PATIENCE;
    while !shared.lock().is_over() {
        watch.turn()?;
        watch.feel_pulse(target, monotonic())?;
        let attached = watch.backend.state() == State::Attached;
        ensure!(attached || monotonic() < late, "the trap points are not set");
    }
    watch.detach()?;
    // A kernel that was reset is another one; one with more points than others are to find is of no use to them.
    let is_usual = is_only && !target.every_system_call;
    if is_usual && !shared.lock().reset && watch.backend.state() == State::Detached {
        let Watch { guest_os, .. } = watch;
        target.common.known.keep(Kept { process: target.process, guest_os, base, layout });
    }
    Ok(())
}

/// The way to trap in this VM.
fn way(
    target: &Target,
    memory: &Ram<InProcess>,
    base: u64,
    guest_os: &dyn GuestOs,
    layout: &mut Option<KvmLayout>,
) -> Result<(Box<dyn Link>, Box<dyn Backend>)> {
    match &target.way {
        Way::Plugin(socket) => {
            let link = Socket::connect(socket, target.process)?;
            Ok((Box::new(link), Box::new(Tcg::default())))
        }
        Way::Gdb(socket) => {
            // The stub lets a VM go on, whoever has paused it.
            surely_runs(guest_os, memory)?;
            let link = Socket::debug(socket, target.process)?;
            Ok((Box::new(link), Box::new(Gdb::default())))
        }
        Way::Kvm { trap, .. } => {
            let vm = Where { process: target.process, layout: target.layout.clone(), base };
            let prefixes = Arc::clone(&target.common.prefixes);
            let (link, sites, ratio) =
                kvm::Kvm::new(vm, memory, guest_os, layout, *trap, prefixes)?;
            Ok((Box::new(link), Box::new(Kvm::new(sites, ratio))))
        }
    }
}

struct Watch<'a> {
    link: Box<dyn Link>,
    backend: Box<dyn Backend>,
    guest_os: Box<dyn GuestOs>,
    memory: Ram<InProcess>,
    shared: &'a Shared,
    rules: Option<&'a Rules>,
    needed: Need,
    /// By earlier connections.
    dropped_before: u64,
    tasks_changed: bool,
    /// The host's counter when the guest last asked for something else.
    asked: Option<u64>,
    tell_at: Duration,
    pulse: Pulse,
    pulse_at: Duration,
}

impl Watch<'_> {
    fn turn(&mut self) -> Result<()> {
        let actions = self.link.turn(&mut *self.backend)?;
        self.act(actions)?;
        self.tell_tasks(monotonic());
        Ok(())
    }

    /// Whether it is still this kernel that runs.
    ///
    /// # Errors
    /// When it is not: it has to be looked for anew.
    fn feel_pulse(&mut self, target: &Target, now: Duration) -> Result<()> {
        if now < self.pulse_at {
            return Ok(());
        }
        self.pulse_at = now + PULSE_INTERVAL;
        match self.pulse.take(self.guest_os.heartbeat(&self.memory), now) {
            Sign::Anew => bail!("the guest's kernel has begun anew, or is gone"),
            // Only those that are found by memory alone: an image's guest is what its operator says.
            Sign::Silent if target.image.is_none() => {
                if let Some(other) = another_runs(&*self.guest_os, &self.memory) {
                    bail!("another kernel runs in the guest now, {other}: a kexec?");
                }
            }
            Sign::Well | Sign::Silent => {}
        }
        Ok(())
    }

    /// Does them. Nothing is sent under the lock: who asks must not wait for QEMU.
    fn act(&mut self, actions: Vec<Action>) -> Result<()> {
        for action in actions {
            match action {
                Action::Send(_) | Action::Put(_) | Action::Take => {
                    let more = self.link.act(action, &mut *self.backend)?;
                    self.act(more)?;
                }
                Action::Pause => self.shared.lock().pause = true,
                Action::Event(raw) => self.event(&raw),
                Action::Dropped(dropped) => {
                    self.shared.lock().dropped = self.dropped_before + dropped;
                }
                Action::Attached(points) => {
                    let problem = self.find_begun().err();
                    let mut told = self.shared.lock();
                    (told.attached, told.problem) = (Some(points), problem);
                }
                Action::Detached => {
                    self.guest_os.cleanup();
                    self.shared.lock().attached = None;
                }
                // After a reboot, or when the guest traces itself.
                Action::Changed { point, found } => {
                    bail!("trap point {point}: the guest's kernel has {found:02x?} there now")
                }
                Action::Close(why) => bail!("{why}"),
            }
        }
        Ok(())
    }

    /// The tasks that began before the points were there. Events wait meanwhile: whatever changes during these looks is told by them afterwards.
    fn find_begun(&mut self) -> Result<(), String> {
        let mut looks = Looks::default();
        loop {
            match looks.take(self.guest_os.running(&self.memory)) {
                Verdict::Again => std::thread::sleep(LOOK_INTERVAL),
                Verdict::Known(tasks) => {
                    self.tasks_changed |= !tasks.is_empty();
                    self.guest_os.tasks_mut().begun(tasks);
                    return Ok(());
                }
                Verdict::NotKnown(None) => return Ok(()),
                Verdict::NotKnown(Some(why)) => {
                    return Err(format!("tasks from before are not known: {why}; attach again"));
                }
            }
        }
    }

    fn event(&mut self, raw: &RawEvent) {
        match self.guest_os.decode(raw) {
            Ok(event) => {
                self.tasks_changed = true;
                if matches!(event.kind, Kind::SetScheduler { .. } | Kind::Exit { .. }) {
                    self.asked = event.counter;
                }
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
                let mut told = self.shared.lock();
                (told.need, told.asked) = (Some(needed), self.asked);
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
