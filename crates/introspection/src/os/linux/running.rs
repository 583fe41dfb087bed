//! Finds the real-time threads that are running now, through the kernel's list of processes and
//! each process's list of threads.
//!
//! The guest runs while its lists are read, and may write anything into them. So a walk follows at
//! most [`MOST_THREADS`] entries, each entry has to point back to its predecessor, and a single
//! walk is not trusted ([`crate::tasks::initial_scan`]). Kernel threads are left out, because no
//! program requested their policy. Exiting threads are left out, because their exit may have
//! preceded the trap points.

use crate::memory::{GuestMemory, MemoryError, PageTables};
use crate::os::reads::name;
use crate::symbols::btf::Btf;
use crate::symbols::kallsyms::Kernel;
use crate::tasks::event::{Attributes, Policy, Thread};
use crate::tasks::table::Task;

/// Maximum number of processes and threads together that a walk follows.
const MOST_THREADS: usize = 16_384;
/// PF_EXITING and PF_KTHREAD (include/linux/sched.h).
const LEFT_OUT: u32 = 0x4 | 0x0020_0000;

/// The members that a walk reads, each with the size in bytes that it must have.
const MEMBERS: [(&str, &str, u32); 15] = [
    ("task_struct", "tasks", 16),
    ("task_struct", "signal", 8),
    ("signal_struct", "thread_head", 16),
    ("task_struct", "thread_node", 16),
    ("task_struct", "flags", 4),
    ("task_struct", "exit_state", 4),
    ("task_struct", "policy", 4),
    ("task_struct", "pid", 4),
    ("task_struct", "tgid", 4),
    ("task_struct", "comm", 16),
    ("task_struct", "rt_priority", 4),
    ("task_struct", "dl.flags", 4),
    ("task_struct", "dl.dl_runtime", 8),
    ("task_struct", "dl.dl_deadline", 8),
    ("task_struct", "dl.dl_period", 8),
];

/// The offsets of these members.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    /// Address of init_task.
    first: u64,
    /// Offsets of [`MEMBERS`], in the same order.
    offsets: [u64; MEMBERS.len()],
}

impl Running {
    /// Computes the offsets from the kernel's symbols and types.
    ///
    /// # Errors
    /// When a member is missing or has an unexpected size.
    pub(super) fn new(kernel: &Kernel, btf: &Btf) -> Result<Self, String> {
        let mut offsets = [0; MEMBERS.len()];
        for (place, (structure, member, size)) in offsets.iter_mut().zip(MEMBERS) {
            let is = btf.member(structure, member).map_err(|e| e.to_string())?;
            if is.size != size {
                return Err(format!("{structure}.{member} has {} bytes, not {size}", is.size));
            }
            *place = is.offset.into();
        }
        let first = kernel.symbols.address("init_task").map_err(|e| e.to_string())?;
        Ok(Self { first, offsets })
    }

    /// Walks the lists once; ascending by tid.
    ///
    /// # Errors
    /// When the lists are inconsistent or too long.
    pub(super) fn tasks(
        &self,
        memory: &dyn GuestMemory,
        tables: PageTables,
    ) -> Result<Vec<Task>, String> {
        let mut walk = Walk { memory, tables, left: MOST_THREADS };
        let [tasks, signal, thread_head, thread_node, members @ ..] = self.offsets;
        let mut all = Vec::new();
        for process in walk.list(self.first.wrapping_add(tasks))? {
            let process = process.wrapping_sub(tasks);
            let signal = walk.long(process.wrapping_add(signal))?;
            for thread in walk.list(signal.wrapping_add(thread_head))? {
                all.extend(walk.task(thread.wrapping_sub(thread_node), members)?);
            }
        }
        all.sort_unstable_by_key(|task| task.thread.tid);
        Ok(all)
    }
}

struct Walk<'a> {
    memory: &'a dyn GuestMemory,
    tables: PageTables,
    /// Number of list entries that may still be followed.
    left: usize,
}

impl Walk<'_> {
    /// The entries of a list_head, without its head.
    fn list(&mut self, head: u64) -> Result<Vec<u64>, String> {
        let mut all = Vec::new();
        let (mut before, mut at) = (head, self.long(head)?);
        while at != head {
            self.left = self
                .left
                .checked_sub(1)
                .ok_or_else(|| format!("more than {MOST_THREADS} processes and threads"))?;
            // The fields next and prev.
            let [next, back] = [self.long(at)?, self.long(at.wrapping_add(8))?];
            if back != before {
                return Err("its list of threads changes".to_owned());
            }
            all.push(at);
            (before, at) = (at, next);
        }
        Ok(all)
    }

    /// A thread, if a program has made it a real-time thread.
    fn task(&self, at: u64, members: [u64; 11]) -> Result<Option<Task>, String> {
        let at = members.map(|offset| at.wrapping_add(offset));
        let [flags, exit_state, policy, pid, tgid, comm, priority, deadline @ ..] = at;
        let policy = Policy::new(self.word(policy)?);
        let left_out = self.word(flags)? & LEFT_OUT != 0 || self.word(exit_state)? != 0;
        if left_out || !policy.is_real_time() {
            return Ok(None);
        }
        let mut attributes = Attributes { policy, ..Attributes::default() };
        if policy == Policy::Deadline {
            let [flags, runtime, deadline, period] = deadline;
            attributes.flags = self.word(flags)?.into();
            attributes.runtime_ns = self.long(runtime)?;
            attributes.deadline_ns = self.long(deadline)?;
            attributes.period_ns = self.long(period)?;
        } else {
            attributes.priority = self.word(priority)?;
        }
        let comm = name(&self.bytes::<16>(comm)?);
        let thread = Thread { tid: self.word(pid)?, pid: self.word(tgid)?, comm, policy };
        Ok(Some(Task { thread, attributes: Some(attributes), jobs: 0, aborted: 0, counter: None }))
    }

    fn word(&self, at: u64) -> Result<u32, String> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn long(&self, at: u64) -> Result<u64, String> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    fn bytes<const LEN: usize>(&self, at: u64) -> Result<[u8; LEN], String> {
        let mut bytes = [0; LEN];
        let read = self.tables.read(self.memory, at, &mut bytes);
        read.map_err(|error: MemoryError| error.to_string())?;
        Ok(bytes)
    }
}

#[cfg(test)]
#[path = "running_tests.rs"]
mod tests;
