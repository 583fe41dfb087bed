//! One VM: a thread of its own, because finding a kernel in memory takes seconds, and what it tells.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use timevisor_introspection::tasks::demand::{Need, Rules};
use timevisor_introspection::tasks::event::Event;
use timevisor_linux::process::Process;
use timevisor_protocols::control::{
    IntrospectBackend, IntrospectEvents, IntrospectReserved, IntrospectRow, IntrospectState,
};

use super::target::{Target, Way};
use super::watch::watch;

/// So many events are remembered for those who ask.
const REMEMBERED: usize = 8192;
/// So many in one answer.
const AT_ONCE: usize = 256;
/// After a problem it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// What the thread and those who ask have in common.
pub struct Shared(Mutex<Told>);

/// What is known.
#[derive(Default)]
pub struct Told {
    /// Nobody wants it any more.
    pub ended: bool,
    /// The guest was reset: what was found in it is another one's.
    pub reset: bool,
    /// At some time: an earlier kernel may be in memory.
    pub was_reset: bool,
    /// The VM has to be paused for a moment.
    pub pause: bool,
    pub attached: Option<usize>,
    pub problem: Option<String>,
    pub guest: Option<String>,
    pub dropped: u64,
    pub senseless: u64,
    pub tasks: Vec<Value>,
    /// What the tasks need, since it was taken last.
    pub need: Option<Need>,
    /// The host's counter when the guest asked for that.
    pub asked: Option<u64>,
    events: VecDeque<Event>,
    /// The number of the next event.
    next: u64,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    /// Whether trap points have to go.
    pub fn is_over(&self) -> bool {
        self.ended || self.reset
    }

    pub fn event(&mut self, event: Event) {
        if self.events.len() >= REMEMBERED {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.next += 1;
    }
}

pub struct Session {
    process: Process,
    pub way: Way,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The file that its operator gave.
    pub image: Option<PathBuf>,
    /// Every system call is trapped, too.
    pub every_system_call: bool,
    /// How a reservation follows the tasks, if one does.
    pub rules: Option<Rules>,
    /// What came of that.
    pub reserved: IntrospectReserved,
    /// How often the VM had been reset.
    resets: u64,
    /// What was refused, and when to try it again: others may have given back what is missing.
    pub refused: Option<(Need, timevisor_time::Duration)>,
}

impl Session {
    /// Begins, after the thread of a former one has taken away what it had in place.
    pub fn start(
        target: Target,
        rules: Option<Rules>,
        resets: u64,
        former: Option<JoinHandle<()>>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared(Mutex::default()));
        let (process, way, theirs) = (target.process, target.way.clone(), Arc::clone(&shared));
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
            way,
            shared,
            thread,
            image,
            every_system_call,
            rules,
            reserved,
            resets,
            refused: None,
        })
    }

    /// Ends it; its thread takes away what it has in place.
    pub fn end(mut self) -> Option<JoinHandle<()>> {
        self.shared.lock().ended = true;
        self.thread.take()
    }

    pub fn is_alive(&self) -> bool {
        self.process.is_running()
    }

    /// Whether the VM has to be paused for a moment; once.
    pub fn take_pause(&self) -> bool {
        std::mem::take(&mut self.shared.lock().pause)
    }

    /// What its tasks need, if that has changed, and the host's counter when the guest asked for it; once.
    pub fn take_need(&self) -> Option<(Need, Option<u64>)> {
        let mut told = self.shared.lock();
        let asked = told.asked.take();
        told.need.take().map(|need| (need, asked))
    }

    /// Whether that is how it was asked for.
    pub fn is_by(&self, backend: Option<IntrospectBackend>) -> bool {
        backend.is_none_or(|asked| asked == self.way.backend())
    }

    /// Why the VM must not leave this host, if so.
    pub fn holds(&self) -> Option<&'static str> {
        self.way.holds()
    }

    /// How often the VM has been reset.
    pub fn set_resets(&mut self, resets: u64) {
        if std::mem::replace(&mut self.resets, resets) != resets {
            let mut told = self.shared.lock();
            (told.reset, told.was_reset) = (true, true);
        }
    }

    pub fn row(&self, vm: &str) -> IntrospectRow {
        let told = self.shared.lock();
        let (backend, reason) = self.way.name();
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
            events: told.next,
            dropped: told.dropped,
            senseless: told.senseless,
            reserved: self.rules.as_ref().map(|_| self.reserved.clone()),
            tasks: told.tasks.clone(),
        }
    }

    /// From event `from` on.
    pub fn events(&self, from: Option<u64>) -> IntrospectEvents {
        let told = self.shared.lock();
        let first = told.next - told.events.len() as u64;
        let from = from.unwrap_or(told.next).min(told.next);
        let begin = from.max(first);
        let skip = usize::try_from(begin - first).unwrap_or(usize::MAX);
        let events = told.events.iter().skip(skip).take(AT_ONCE);
        let events: Vec<Value> =
            events.map(|event| serde_json::to_value(event).unwrap_or_default()).collect();
        let next = begin + events.len() as u64;
        IntrospectEvents { events, next, forgotten: begin - from }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
    }
}

fn run(target: &Target, shared: &Shared, rules: Option<&Rules>) {
    while !shared.lock().ended && target.process.is_running() {
        shared.lock().reset = false;
        let ended = watch(target, shared, rules);
        let mut told = shared.lock();
        told.attached = None;
        told.tasks.clear();
        // What is not known is not needed: a guest that has been reset has no tasks.
        (told.need, told.asked) = (Some(Need::Nothing), None);
        if let Err(error) = ended {
            let text = format!("{error:#}");
            if told.problem.as_ref() != Some(&text) {
                tracing::info!("introspection of process {}: {text}", target.process.pid());
            }
            told.problem = Some(text);
            drop(told);
            std::thread::sleep(AGAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(sequence: u64) -> Event {
        use timevisor_introspection::tasks::event::{Kind, Thread};
        Event {
            sequence,
            counter: None,
            counter_error: 0,
            vcpu: 0,
            thread: Thread::default(),
            kind: Kind::Yield,
        }
    }

    #[test]
    fn events_are_given_in_parts_and_forgotten_in_the_end() {
        let shared = Arc::new(Shared(Mutex::default()));
        let process = Process::open(std::process::id()).unwrap();
        let reserved = IntrospectReserved::default();
        let (way, theirs) = (Way::Plugin("/x".into()), Arc::clone(&shared));
        let session = Session {
            process,
            way,
            shared: theirs,
            thread: None,
            image: None,
            every_system_call: false,
            rules: None,
            reserved,
            resets: 0,
            refused: None,
        };
        for n in 0..REMEMBERED as u64 + 10 {
            shared.lock().event(event(n));
        }
        let all = REMEMBERED as u64 + 10;
        let now = session.events(None);
        assert_eq!((now.events.len(), now.next, now.forgotten), (0, all, 0));
        let first = session.events(Some(3));
        assert_eq!(
            (first.events.len(), first.next, first.forgotten),
            (AT_ONCE, 10 + AT_ONCE as u64, 7)
        );
        assert_eq!(first.events[0]["sequence"], 10);
        let last = session.events(Some(all - 1));
        assert_eq!((last.events.len(), last.next), (1, all));
        // Of another daemon's.
        assert_eq!(session.events(Some(u64::MAX)).next, all);
        assert_eq!(session.row("web").events, all);
    }
}
