//! The real-time tasks of a guest, as its events report them. Bounded, because a guest may create
//! any number of them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::tasks::event::{Attributes, Event, Kind, Policy, Thread};

/// Maximum number of tasks that are remembered for a guest.
pub const MOST: usize = 1024;

/// One task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Task {
    /// The thread.
    pub thread: Thread,
    /// The attributes of its latest request if one was seen; otherwise those that the initial scan
    /// found.
    pub attributes: Option<Attributes>,
    /// Number of jobs that have ended so far, by yield or sleep.
    pub jobs: u64,
    /// Number of jobs that the guest has given up so far. They are not among `jobs`.
    pub aborted: u64,
    /// The counter at the last event, if the backend reported it.
    pub counter: Option<u64>,
}

/// All tasks, by thread.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tasks {
    all: BTreeMap<u32, Task>,
    forgotten: u64,
}

impl Tasks {
    /// All tasks, ascending by tid.
    pub fn iter(&self) -> impl Iterator<Item = &Task> {
        self.all.values()
    }

    /// The task with this tid.
    #[must_use]
    pub fn get(&self, tid: u32) -> Option<&Task> {
        self.all.get(&tid)
    }

    /// Number of tasks that did not fit in the table.
    #[must_use]
    pub const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Updates the table with an event.
    pub fn on_event(&mut self, event: &Event) {
        match &event.kind {
            Kind::SetScheduler { target, attributes } => {
                let mut attributes = *attributes;
                if attributes.policy == Policy::Keep {
                    attributes.policy = target.policy;
                }
                if attributes.policy.is_real_time() {
                    if let Some(task) = self.task(target, event.counter) {
                        task.attributes = Some(attributes);
                    }
                } else {
                    self.all.remove(&target.tid);
                }
            }
            Kind::Yield | Kind::Sleep { .. } if event.thread.policy.is_real_time() => {
                if let Some(task) = self.task(&event.thread, event.counter) {
                    task.jobs += 1;
                }
            }
            Kind::Abort if event.thread.policy.is_real_time() => {
                if let Some(task) = self.task(&event.thread, event.counter) {
                    task.aborted += 1;
                }
            }
            Kind::SystemCall { .. } | Kind::ChooseScheduler { .. } => {}
            // The task has exited, or the kernel has rejected its request.
            Kind::Exit { .. } | Kind::Yield | Kind::Sleep { .. } | Kind::Abort => {
                drop(self.all.remove(&event.thread.tid));
            }
        }
    }

    /// Adds the tasks of the initial scan. A task that an event has already reported stays as it
    /// is.
    pub fn begun(&mut self, tasks: Vec<Task>) {
        for task in tasks {
            if !self.all.contains_key(&task.thread.tid) && self.has_room(task.thread.tid) {
                self.all.insert(task.thread.tid, task);
            }
        }
    }

    /// Whether there is room for this task; if not, counts it.
    fn has_room(&mut self, tid: u32) -> bool {
        let room = self.all.len() < MOST || self.all.contains_key(&tid);
        self.forgotten += u64::from(!room);
        room
    }

    fn task(&mut self, thread: &Thread, counter: Option<u64>) -> Option<&mut Task> {
        if !self.has_room(thread.tid) {
            return None;
        }
        let new =
            || Task { thread: thread.clone(), attributes: None, jobs: 0, aborted: 0, counter };
        let task = self.all.entry(thread.tid).or_insert_with(new);
        task.thread = thread.clone();
        task.counter = counter;
        Some(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::event::Scheduler;

    fn event(tid: u32, policy: Policy, kind: Kind) -> Event {
        let thread = Thread { tid, pid: tid, comm: "rt".into(), policy };
        Event {
            sequence: 0,
            counter: Some(u64::from(tid)),
            counter_error: 0,
            vcpu: 0,
            thread,
            kind,
        }
    }

    fn set(tid: u32, policy: Policy, asked: Policy) -> Event {
        let target = Thread { tid, pid: tid, comm: "rt".into(), policy };
        let attributes = Attributes { policy: asked, priority: 5, ..Attributes::default() };
        event(1, Policy::Normal, Kind::SetScheduler { target, attributes })
    }

    #[test]
    fn a_task_comes_and_goes() {
        let mut tasks = Tasks::default();
        tasks.on_event(&set(7, Policy::Normal, Policy::Fifo));
        tasks.on_event(&event(7, Policy::Fifo, Kind::Yield));
        tasks.on_event(&set(7, Policy::Fifo, Policy::Keep));
        let task = tasks.iter().next().unwrap();
        assert_eq!((task.thread.tid, task.jobs), (7, 1));
        assert_eq!(task.attributes.unwrap().policy, Policy::Fifo, "sched_setparam keeps it");
        tasks.on_event(&event(7, Policy::Fifo, Kind::Exit { status: 0 }));
        assert_eq!(tasks.iter().count(), 0);
        tasks.on_event(&set(8, Policy::Normal, Policy::Deadline));
        tasks.on_event(&event(8, Policy::Normal, Kind::Yield));
        assert_eq!(tasks.iter().count(), 0, "it has been refused");
    }

    #[test]
    fn a_job_is_aborted() {
        let mut tasks = Tasks::default();
        tasks.on_event(&set(7, Policy::Normal, Policy::Deadline));
        let before = tasks.get(7).unwrap().attributes;
        tasks.on_event(&event(7, Policy::Deadline, Kind::Yield));
        tasks.on_event(&event(7, Policy::Deadline, Kind::Abort));
        let choice =
            Kind::ChooseScheduler { scheduler: Scheduler::Edf, priority: 0, processors: 0 };
        tasks.on_event(&event(0, Policy::Normal, choice));
        let task = tasks.get(7).unwrap();
        assert_eq!((task.jobs, task.aborted, task.attributes), (1, 1, before));
        tasks.on_event(&event(8, Policy::Normal, Kind::Abort));
        assert_eq!(tasks.iter().count(), 1, "its beginning was not seen");
    }

    #[test]
    fn one_that_had_begun() {
        let found = |tid| {
            let Kind::SetScheduler { target, attributes } =
                set(tid, Policy::Fifo, Policy::Fifo).kind
            else {
                panic!("another kind")
            };
            Task {
                thread: target,
                attributes: Some(attributes),
                jobs: 0,
                aborted: 0,
                counter: None,
            }
        };
        let mut tasks = Tasks::default();
        tasks.on_event(&set(7, Policy::Normal, Policy::Deadline));
        tasks.begun(vec![found(7), found(8), found(9)]);
        assert_eq!(tasks.get(7).unwrap().attributes.unwrap().policy, Policy::Deadline);
        tasks.on_event(&event(8, Policy::Fifo, Kind::Yield));
        assert_eq!((tasks.get(8).unwrap().jobs, tasks.iter().count()), (1, 3));
        tasks.on_event(&event(8, Policy::Fifo, Kind::Exit { status: 0 }));
        tasks.on_event(&set(9, Policy::Fifo, Policy::Normal));
        assert_eq!(tasks.iter().map(|task| task.thread.tid).collect::<Vec<_>>(), [7]);
        tasks.begun((100..5000).map(found).collect());
        assert_eq!((tasks.iter().count(), tasks.forgotten()), (MOST, 4901 - MOST as u64));
    }

    #[test]
    fn a_guest_cannot_fill_memory() {
        let mut tasks = Tasks::default();
        for tid in 0..5000 {
            tasks.on_event(&set(tid, Policy::Normal, Policy::Fifo));
        }
        assert_eq!((tasks.iter().count(), tasks.forgotten()), (MOST, 5000 - MOST as u64));
    }
}
