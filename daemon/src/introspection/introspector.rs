//! The introspector: a process that reads guests' memory and places trap points, so that neither
//! the daemon's memory nor its rights are at stake when a guest has prepared something for it.
//!
//! One process for all VMs that root has attached, with a thread for each. It ends with the daemon,
//! and removes its trap points first, also when the daemon was killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use timevisor_linux::clock::monotonic;
use timevisor_linux::helper::Parent;
use timevisor_linux::introspector::confine_introspector;
use timevisor_linux::poll::{PollFd, wait};
use timevisor_linux::signals::Signals;

use super::in_place::Prefixes;
use super::message::{News, Order, Report, State, bounded, parts};
use super::need::{Need, Rules, rules};
use super::searching::Searching;
use super::shared::Shared;
use super::target::{Common, Target};
use super::watch::watch;
use crate::announce::Budget;

/// The argument that makes timevisord an introspector.
pub const ARGUMENT: &str = "--introspector";

/// How soon the daemon hears of a change.
const PUMP: Duration = Duration::from_millis(10);
/// How often it looks whether trap points have to be removed that could not be removed before.
const RETRIES: Duration = Duration::from_millis(200);
/// Time between a failure and the next attempt to attach.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Log lines an hour that a guest may cause.
const LINES: usize = 20;
/// Parts of the events (each [`timevisor_introspection::tasks::history::ANSWER`]) in one turn.
const MOST_PARTS: usize = 4;
/// Guests' symbols and page tables take some megabytes each.
const ADDRESS_SPACE: u64 = 4 << 30;
/// Held by the introspector: that of a daemon which was killed ends first.
const LOCK: &str = "introspection.lock";

/// The life of the introspector.
///
/// # Errors
/// When it was not started by timevisord, or cannot be confined.
pub fn be_introspector() -> Result<()> {
    let parent = Parent::from_standard_input()?;
    // systemd ends all processes of a service at once; this one ends after the daemon, in order.
    let _signals = Signals::install().context("cannot install signal handlers")?;
    let Some(directory) = first_order(&parent)? else { return Ok(()) };
    confine_introspector(ADDRESS_SPACE)?;
    let _lock = alone(&directory)?;
    let mut all = Introspector {
        parent,
        common: Common {
            prefixes: Arc::new(Prefixes::start(&directory)),
            known: Arc::default(),
            broken: Arc::default(),
            stamps: Arc::default(),
        },
        workers: BTreeMap::new(),
        ending: Vec::new(),
        stuck: None,
    };
    let ended = all.run();
    all.end();
    ended
}

fn first_order(parent: &Parent) -> Result<Option<PathBuf>> {
    let Some(packet) = parent.receive()? else { return Ok(None) };
    match serde_json::from_slice(&packet) {
        Ok(Order::Begin { directory }) => Ok(Some(directory)),
        _ => bail!("the first order is another one: is this the same timevisord?"),
    }
}

/// Waits until the introspector of an earlier daemon has removed its trap points.
fn alone(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

struct Introspector {
    parent: Parent,
    common: Common,
    workers: BTreeMap<u64, Worker>,
    /// Threads of ended sessions, whose trap points may still be in place.
    ending: Vec<Ending>,
    /// The processes whose trap points cannot be removed, as the daemon has heard; `None` if it has heard
    /// nothing yet.
    stuck: Option<Vec<(u32, String)>>,
}

/// A session that was told to end.
struct Ending {
    number: u64,
    pid: u32,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Ending {
    /// Nothing of it is in the guest's code, and nothing gets there any more.
    fn is_over(&self) -> bool {
        self.thread.is_finished() || self.shared.lock().searches
    }
}

/// One session: its thread, and what the daemon has heard of it.
struct Worker {
    pid: u32,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    said: State,
    tasks: Vec<serde_json::Value>,
    /// The number of the next event to tell.
    next: u64,
}

impl Introspector {
    /// Until the daemon ends.
    fn run(&mut self) -> Result<()> {
        loop {
            // First of all what an earlier introspector has left.
            self.tell_of_ended()?;
            let is_busy = !(self.workers.is_empty() && self.ending.is_empty());
            let is_stuck = self.stuck.as_ref().is_some_and(|stuck| !stuck.is_empty());
            let retries = is_stuck.then_some(RETRIES);
            let timeout = if is_busy { Some(PUMP) } else { retries };
            let mut fds = [PollFd::readable(self.parent.fd())];
            wait(&mut fds, timeout).context("poll failed")?;
            let ready = fds[0].ready();
            if ready.readable || ready.hangup || ready.error {
                let Some(packet) = self.parent.receive()? else { return Ok(()) };
                let order = serde_json::from_slice(&packet).context("an order")?;
                if let Err(error) = self.obey(order) {
                    tracing::error!("introspection: {error:#}");
                }
            }
            for (number, worker) in &mut self.workers {
                worker.report(*number, &self.parent)?;
            }
        }
    }

    fn obey(&mut self, order: Order) -> Result<()> {
        match order {
            Order::Begin { .. } => {}
            Order::Attach { number, qemu, asked, automatic, plugins } => {
                let target = Target::new(&qemu, asked.backend, automatic)?;
                let image = asked.image.clone();
                let every_system_call = asked.every_system_call;
                let target = Target { image, plugins, every_system_call, ..target };
                let rules = asked.reserve.as_ref().map(rules);
                let pid = target.process.pid();
                // Of an earlier session of the same VM, which may still have trap points in place.
                let is_its = |of: &mut Ending| of.pid == pid;
                let former = self.ending.extract_if(.., is_its).map(|of| of.thread).collect();
                let worker = Worker::start(target, rules, self.common.clone(), former)?;
                self.workers.insert(number, worker);
            }
            Order::Reset { number } => {
                if let Some(worker) = self.workers.get(&number) {
                    let mut told = worker.shared.lock();
                    (told.reset, told.was_reset) = (true, true);
                }
            }
            Order::Detach { number } => match self.workers.remove(&number) {
                Some(Worker { pid, shared, thread, .. }) => {
                    shared.lock().ended = true;
                    self.ending.push(Ending { number, pid, shared, thread });
                }
                // Of an introspector before this one. What it left in the guest was removed at the
                // start.
                None => {
                    self.tell_of_stuck()?;
                    self.parent.send(&Report { number, news: News::Ended }.to_bytes())?;
                }
            },
        }
        Ok(())
    }

    /// Tries again what could not be removed, and tells which sessions have ended.
    fn tell_of_ended(&mut self) -> Result<()> {
        self.common.prefixes.try_again(monotonic());
        let ended: Vec<_> = self.ending.extract_if(.., |of| of.is_over()).collect();
        // First what is left of them.
        self.tell_of_stuck()?;
        for Ending { number, .. } in ended {
            self.parent.send(&Report { number, news: News::Ended }.to_bytes())?;
        }
        Ok(())
    }

    fn tell_of_stuck(&mut self) -> Result<()> {
        let stuck = bounded(self.common.prefixes.stuck());
        if self.stuck.as_ref() != Some(&stuck) {
            self.stuck = Some(stuck.clone());
            self.parent.send(&Report { number: 0, news: News::Stuck(stuck) }.to_bytes())?;
        }
        Ok(())
    }

    /// Waits until no trap is left in any guest. Threads that still look for a kernel have none in any,
    /// and end with this process.
    fn end(self) {
        let mut threads = Vec::new();
        for worker in self.workers.into_values() {
            let mut told = worker.shared.lock();
            told.ended = true;
            if !told.searches {
                drop(told);
                threads.push(worker.thread);
            }
        }
        let ending = self.ending.into_iter().filter(|of| !of.is_over());
        for thread in threads.into_iter().chain(ending.map(|of| of.thread)) {
            // A thread that panicked has already removed its traps while unwinding.
            let _ = thread.join();
        }
    }
}

impl Worker {
    /// Starts the thread. It first waits for the threads of the sessions before it.
    fn start(
        target: Target,
        rules: Option<Rules>,
        common: Common,
        former: Vec<JoinHandle<()>>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (pid, theirs) = (target.process.pid(), Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("introspect".to_owned());
        let thread = thread.spawn(move || {
            for thread in former {
                let _ = thread.join();
            }
            follow(&target, &common, &theirs, rules.as_ref());
        })?;
        Ok(Self { pid, shared, thread, said: State::default(), tasks: Vec::new(), next: 0 })
    }

    /// Tells the daemon what has changed. The lock is not held meanwhile.
    fn report(&mut self, number: u64, parent: &Parent) -> Result<()> {
        let mut all = Vec::new();
        {
            let mut told = self.shared.lock();
            if std::mem::take(&mut told.pause) {
                all.push(News::Pause);
            }
            let state = State {
                attached: told.attached,
                problem: told.problem.clone(),
                guest: told.guest.clone(),
                dropped: told.dropped,
                senseless: told.senseless,
                senseless_last: told.senseless_last.clone(),
                uncounted: told.uncounted,
            };
            let state = state.bounded();
            if state != self.said {
                self.said = state.clone();
                all.push(News::State(state));
            }
            if told.tasks != self.tasks {
                self.tasks.clone_from(&told.tasks);
                let parts = parts(told.tasks.iter().cloned()).into_iter().enumerate();
                all.extend(parts.map(|(n, tasks)| News::Tasks { first: n == 0, tasks }));
            }
            if !told.late.is_empty() {
                all.push(News::Late(std::mem::take(&mut told.late)));
            }
            if let Some((need, asked)) = told.need.take() {
                all.push(News::Need { need: need.into(), asked });
            }
            // Not all at once: the daemon has other things to do.
            for _ in 0..MOST_PARTS {
                if told.history.count() == self.next {
                    break;
                }
                let part = told.history.part(Some(self.next));
                let value = |event: &&_| serde_json::to_value(event).unwrap_or_default();
                let events = parts(part.events.iter().map(value));
                self.next = part.next;
                let mut forgotten = part.forgotten;
                all.extend(events.into_iter().map(|events| News::Events {
                    forgotten: std::mem::take(&mut forgotten),
                    events,
                }));
            }
        }
        for news in all {
            parent.send(&Report { number, news }.to_bytes())?;
        }
        Ok(())
    }
}

/// A session's thread: attaches again and again until it is ended.
fn follow(target: &Target, common: &Common, shared: &Shared, rules: Option<&Rules>) {
    let mut budget = Budget::hourly(LINES);
    let mut searching = Searching::new(monotonic(), shared.lock().searched);
    let mut last = String::new();
    while !shared.lock().ended && target.process.is_running() {
        let searched = shared.lock().searched;
        if let Some(pause) = searching.pause(monotonic(), searched) {
            let text = format!("{last}; its memory is searched again in {} s", pause.as_secs() + 1);
            shared.lock().problem = Some(text);
            std::thread::sleep(RETRY_INTERVAL);
            continue;
        }
        shared.lock().reset = false;
        let ended = watch(target, common, shared, rules);
        let mut told = shared.lock();
        told.attached = None;
        told.tasks.clear();
        // The tasks are unknown after a reset, so nothing is needed.
        told.need = Some((Need::Nothing, None));
        if let Err(error) = ended {
            let text = format!("{error:#}");
            if last != text && budget.take(monotonic()) {
                tracing::info!("introspection of process {}: {text}", target.process.pid());
            }
            last.clone_from(&text);
            told.problem = Some(text);
            drop(told);
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
}
