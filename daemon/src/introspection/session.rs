//! The session of one VM: its thread (because a search for a kernel in memory takes seconds), and
//! the rows and events that users see.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use timevisor_introspection::backend::choice::Choice;
use timevisor_introspection::tasks::follow::{Attempt, Follow};
use timevisor_linux::clock::monotonic;
use timevisor_linux::process::Process;
use timevisor_protocols::control::{
    IntrospectBackend, IntrospectEvents, IntrospectReserved, IntrospectRow, IntrospectState,
};

use super::need::{Need, Rules};
use super::shared::Shared;
use super::target::Target;
use super::watch::watch;
use crate::announce::Budget;

/// Time between a failure and the next attempt to attach.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Log lines an hour that a guest may cause.
const LINES: usize = 20;

pub struct Session {
    process: Process,
    choice: Choice,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// [`Target::image`].
    pub image: Option<PathBuf>,
    /// [`Target::every_system_call`].
    pub every_system_call: bool,
    /// The rules by which a reservation follows the tasks, if one does.
    pub rules: Option<Rules>,
    /// The reservation that was made, or why it was refused.
    pub reserved: IntrospectReserved,
    /// Number of resets of the VM so far.
    resets: u64,
    pub follow: Follow<Need>,
    /// How many lines the guest's tasks may still cause.
    pub told: Budget,
}

impl Session {
    /// Starts the thread. It first waits for the thread of the previous session, which may still
    /// have trap points in place.
    pub fn start(
        target: Target,
        rules: Option<Rules>,
        resets: u64,
        former: Option<JoinHandle<()>>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (process, choice, theirs) =
            (target.process, target.choice.clone(), Arc::clone(&shared));
        let (image, every_system_call) = (target.image.clone(), target.every_system_call);
        let thread = std::thread::Builder::new().name("introspect".to_owned());
        let ours = rules.clone();
        let thread = thread.spawn(move || {
            former.map(JoinHandle::join);
            run(&target, &theirs, ours.as_ref());
        })?;
        let reserved = IntrospectReserved::default();
        let thread = Some(thread);
        Ok(Self {
            process,
            choice,
            shared,
            thread,
            image,
            every_system_call,
            rules,
            reserved,
            resets,
            follow: Follow::default(),
            told: Budget::hourly(LINES),
        })
    }

    /// Tells the thread to remove its trap points and to exit.
    pub fn end(mut self) -> Option<JoinHandle<()>> {
        self.shared.lock().ended = true;
        self.thread.take()
    }

    pub fn is_alive(&self) -> bool {
        self.process.is_running()
    }

    /// Whether the thread requests a short pause of the VM. Each request is returned once.
    pub fn take_pause(&self) -> bool {
        std::mem::take(&mut self.shared.lock().pause)
    }

    /// What its tasks need, if that has changed. Each change is returned once.
    pub fn take_need(&self) -> Option<Attempt<Need>> {
        self.shared.lock().need.take()
    }

    /// Whether it uses this backend; without a backend, any matches.
    pub fn is_by(&self, backend: Option<IntrospectBackend>) -> bool {
        backend.is_none_or(|asked| asked == self.choice.backend())
    }

    /// Why the VM must not migrate, if so.
    pub fn holds(&self) -> Option<&'static str> {
        self.choice.holds()
    }

    /// Updates the number of the VM's resets.
    pub fn set_resets(&mut self, resets: u64) {
        if std::mem::replace(&mut self.resets, resets) != resets {
            let mut told = self.shared.lock();
            (told.reset, told.was_reset) = (true, true);
        }
    }

    pub fn row(&self, vm: &str) -> IntrospectRow {
        let told = self.shared.lock();
        let (backend, reason) = self.choice.name();
        IntrospectRow {
            vm: vm.to_owned(),
            backend: backend.to_owned(),
            reason: reason.to_owned(),
            state: match told.attached {
                Some(_) => IntrospectState::Attached,
                None => IntrospectState::Waiting,
            },
            problem: told.problem.clone(),
            guest: told.guest.clone(),
            points: told.attached.unwrap_or(0),
            events: told.history.count(),
            dropped: told.dropped,
            senseless: told.senseless,
            reserved: self.rules.as_ref().map(|_| self.reserved.clone()),
            tasks: told.tasks.clone(),
        }
    }

    /// The events from number `from` on.
    pub fn events(&self, from: Option<u64>) -> IntrospectEvents {
        let told = self.shared.lock();
        let part = told.history.part(from);
        let value = |event| serde_json::to_value(event).unwrap_or_default();
        let events = part.events.into_iter().map(value).collect();
        IntrospectEvents { events, next: part.next, forgotten: part.forgotten }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
    }
}

fn run(target: &Target, shared: &Shared, rules: Option<&Rules>) {
    let mut budget = Budget::hourly(LINES);
    while !shared.lock().ended && target.process.is_running() {
        shared.lock().reset = false;
        let ended = watch(target, shared, rules);
        let mut told = shared.lock();
        told.attached = None;
        told.tasks.clear();
        // The tasks are unknown after a reset, so nothing is needed.
        told.need = Some((Need::Nothing, None));
        if let Err(error) = ended {
            let text = format!("{error:#}");
            if told.problem.as_ref() != Some(&text) && budget.take(monotonic()) {
                tracing::info!("introspection of process {}: {text}", target.process.pid());
            }
            told.problem = Some(text);
            drop(told);
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
}
