//! One attachment to a guest: find its kernel, set trap points, report events, remove the points.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use timevisor_introspection::backend::RawEvent;
use timevisor_introspection::backend::choice::Choice;
use timevisor_introspection::backend::gdb::Gdb;
use timevisor_introspection::backend::kvm::Kvm;
use timevisor_introspection::backend::kvm::layout::KvmLayout;
use timevisor_introspection::backend::tcg::Tcg;
use timevisor_introspection::backend::{Action, Backend, Input, State};
use timevisor_introspection::memory::ram::{InProcess, Ram};
use timevisor_introspection::os::guest_os::{DecodeError, GuestOs};
use timevisor_introspection::os::pulse::{Pulse, Sign};
use timevisor_introspection::tasks::demand::demand;
use timevisor_introspection::tasks::event::Event;
use timevisor_introspection::tasks::initial_scan::{Looks, Verdict};
use timevisor_introspection::tasks::late::{Late, Lateness};
use timevisor_introspection::tasks::report::Report;
use timevisor_linux::clock::{monotonic, thread_cpu_time};
use timevisor_protocols::control::IntrospectSenseless;
use timevisor_time::Duration;

use super::known::Kept;
use super::kvm::{self, Where};
use super::link::Link;
use super::need::{Need, Rules, need};
use super::probe::{Found, another_runs, probe, surely_runs};
use super::searching::Searching;
use super::shared::{MOST_LATE, Shared};
use super::socket::Socket;
use super::stamps::Stamps;
use super::target::{Common, Target};

/// Maximum time to set or remove trap points: running vCPUs reach a place where points can change
/// within this time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two looks of the initial scan.
const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);

/// Attaches to a guest and reports what its tasks do, until the session ends or the guest is reset.
///
/// # Errors
/// When the guest has not booted yet, its kernel is unknown, or the connection is lost.
pub fn watch(
    target: &Target,
    common: &Common,
    shared: &Shared,
    rules: Option<&Rules>,
) -> Result<()> {
    shared.search();
    let before = thread_cpu_time();
    let found = probe(target, common, shared);
    ensure!(shared.has_found(thread_cpu_time() - before), "the session was ended");
    let Found { mut guest_os, memory, base, is_only, mut layout } = found?;
    if target.every_system_call {
        let needs_slot = matches!(target.choice, Choice::Kvm { .. });
        guest_os.every_system_call(needs_slot).map_err(anyhow::Error::msg)?;
    }
    shared.lock().guest = Some(guest_os.name());
    let dropped_before = shared.lock().dropped;
    let (link, backend) = open(target, common, &memory, base, &*guest_os, &mut layout)?;
    let mut watch = Watch {
        link,
        backend,
        guest_os,
        memory,
        shared,
        rules,
        needed: Need::Nothing,
        dropped_before,
        report: Report::default(),
        pulse: Pulse::default(),
        searching: Searching::new(monotonic(), shared.lock().searched),
        senseless: None,
        lateness: Lateness::default(),
        stamps: common.stamps.get_or_init(Stamps::measure).as_ref(),
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
    // The next session may reuse this kernel, unless the guest was reset or the kernel has more
    // points than usual.
    let is_usual = is_only && !target.every_system_call;
    if is_usual && !shared.lock().reset && watch.backend.state() == State::Detached {
        let Watch { guest_os, .. } = watch;
        common.known.keep(Kept { process: target.process, guest_os, base, layout });
    }
    Ok(())
}

/// Opens a link to this VM for the chosen backend.
fn open(
    target: &Target,
    common: &Common,
    memory: &Ram<InProcess>,
    base: u64,
    guest_os: &dyn GuestOs,
    layout: &mut Option<KvmLayout>,
) -> Result<(Box<dyn Link>, Box<dyn Backend>)> {
    match &target.choice {
        Choice::Plugin(socket) => {
            let link = Socket::connect(socket, target.process)?;
            Ok((Box::new(link), Box::new(Tcg::default())))
        }
        Choice::Gdb(socket) => {
            // Requires a running kernel: the stub would resume a VM that somebody else has paused.
            surely_runs(guest_os, memory)?;
            let link = Socket::debug(socket, target.process)?;
            Ok((Box::new(link), Box::new(Gdb::default())))
        }
        Choice::Kvm { trap, .. } => {
            let vm = Where { process: target.process, layout: target.layout.clone(), base };
            let prefixes = Arc::clone(&common.prefixes);
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
    /// Number of events that earlier connections dropped.
    dropped_before: u64,
    report: Report,
    pulse: Pulse,
    searching: Searching,
    /// Why the last event that could not be decoded could not.
    senseless: Option<DecodeError>,
    lateness: Lateness,
    stamps: Option<&'a Stamps>,
}

impl Watch<'_> {
    fn turn(&mut self) -> Result<()> {
        let actions = self.link.turn(&mut *self.backend)?;
        self.shared.lock().uncounted = !self.link.counts_losses();
        self.act(actions)?;
        self.report_tasks(monotonic());
        Ok(())
    }

    /// Checks that the same kernel still runs.
    ///
    /// # Errors
    /// When it does not run: the session has to find the new kernel.
    fn feel_pulse(&mut self, target: &Target, now: Duration) -> Result<()> {
        if !self.pulse.is_due(now) {
            return Ok(());
        }
        match self.pulse.take(self.guest_os.heartbeat(&self.memory), now) {
            Sign::Restarted => bail!("the guest's kernel has restarted, or is gone"),
            // Skipped if the user named an image: memory alone does not show which program runs.
            Sign::Silent if target.image.is_none() => {
                // A guest can fall silent again and again.
                let searched = self.shared.lock().searched;
                if self.searching.pause(now, searched).is_some() {
                    return Ok(());
                }
                let before = thread_cpu_time();
                let other = another_runs(&*self.guest_os, &self.memory);
                let took = thread_cpu_time() - before;
                let mut told = self.shared.lock();
                told.searched += took;
                drop(told);
                if let Some(other) = other {
                    bail!("another kernel runs in the guest now, {other}: a kexec?");
                }
            }
            Sign::Well | Sign::Silent => {}
        }
        Ok(())
    }

    /// Carries out the backend's actions. Nothing is sent while the lock is held: the main thread
    /// must not wait for QEMU.
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
                    let problem = self.scan_initially().err();
                    let mut told = self.shared.lock();
                    (told.attached, told.problem) = (Some(points), problem);
                }
                Action::Detached => {
                    self.guest_os.cleanup();
                    self.shared.lock().attached = None;
                }
                // The guest has rebooted, or it traces itself.
                Action::Changed { point, found } => {
                    bail!("trap point {point}: the guest's kernel has {found:02x?} there now")
                }
                Action::Close(why) => bail!("{why}"),
            }
        }
        Ok(())
    }

    /// Finds the tasks that started before the points were in place. Events wait meanwhile, and
    /// then report what has changed during the scan.
    fn scan_initially(&mut self) -> Result<(), String> {
        let mut looks = Looks::default();
        loop {
            match looks.take(self.guest_os.running(&self.memory)) {
                Verdict::Again => std::thread::sleep(LOOK_INTERVAL),
                Verdict::Known(tasks) => {
                    self.report.on_scan(tasks.len());
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
                self.report.on_event(&event);
                let late = self.late(&event);
                let mut told = self.shared.lock();
                if told.late.len() < MOST_LATE {
                    told.late.extend(late);
                }
                told.history.push(event);
            }
            Err(error) => {
                // A guest can cause any number of these: only a change is put into words.
                let is_new = self.senseless.replace(error) != Some(error);
                let last = is_new.then(|| self.lacks(error)).flatten();
                let mut told = self.shared.lock();
                told.senseless += 1;
                told.senseless_last = last.or(told.senseless_last.take());
            }
        }
    }

    /// The job that has ended with this event, if it was late.
    fn late(&mut self, event: &Event) -> Option<Late> {
        let at = self.stamps?.at(event.counter?);
        let declared = self.rules.map_or(&[][..], |rules| &rules.declared);
        self.lateness.on_event(event, at, self.guest_os.tasks(), declared)
    }

    /// Which read of which function failed.
    fn lacks(&self, error: DecodeError) -> Option<IntrospectSenseless> {
        let DecodeError::Read { point, read } = error else { return None };
        let name = self.guest_os.read_name(point, read).map(str::to_owned);
        let of = self.guest_os.points().iter().find(|of| of.id == point)?;
        let read = name.unwrap_or_else(|| read.to_string());
        Some(IntrospectSenseless { point: of.symbol.clone(), read })
    }

    fn report_tasks(&mut self, now: Duration) {
        if !self.report.take(now) {
            return;
        }
        let tasks = self.guest_os.tasks().iter();
        let tasks = tasks.map(|task| serde_json::to_value(task).unwrap_or_default()).collect();
        self.shared.lock().tasks = tasks;
        // Planned here and not on the clock's thread, because a guest can make planning slow.
        let needed = self.rules.map_or(Need::Nothing, |rules| {
            need(demand(self.guest_os.tasks(), &rules.declared), rules)
        });
        if needed != self.needed {
            self.needed = needed.clone();
            self.shared.lock().need = Some((needed, self.report.asked()));
        }
    }

    /// Removes the points. They are also removed when the connection ends.
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
