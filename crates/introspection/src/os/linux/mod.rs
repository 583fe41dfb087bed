//! Stock Linux kernels on x86-64, from 5.18 on; tested with Debian's 6.1, 6.12 and 7.3. Needs
//! kallsyms and BTF.
//!
//! | file | owns |
//! | --- | --- |
//! | `layout.rs` | offsets in this kernel's structures, from its symbols and types |
//! | `points.rs` | which functions are trapped, and what is read there |
//! | `slot.rs` | the NOP that a trap replaces |
//! | `decode.rs` | bytes into events |
//! | `running.rs` | the real-time threads that are running now |
//! | `kernel_identity.rs` | whether an earlier-found kernel is still in memory |
//!
//! What it does not do: read user memory, follow kernel modules' symbols, or see a system call's
//! return value.

mod decode;
mod kernel_identity;
mod layout;
mod points;
mod running;
mod slot;

use crate::backend::RawEvent;
use crate::memory::{GuestMemory, PageTables};
use crate::os::guest_os::{DecodeError, GuestOs};
use crate::point::Point;
use crate::symbols::btf::Btf;
use crate::symbols::kallsyms::{self, Kernel, Version};
use crate::tasks::event::Event;
use crate::tasks::table::{Task, Tasks};

use kernel_identity::Mark;
use running::Running;

pub use layout::{Layout, MEMBERS};

/// Finds every supported Linux kernel in memory, including one that ran before a reset.
///
/// # Errors
/// When there is no supported kernel.
pub fn probe(memory: &dyn GuestMemory) -> Result<Vec<Box<dyn GuestOs>>, String> {
    let kernels = kallsyms::find_all(memory).map_err(|e| e.to_string())?;
    let (mut found, mut why) = (Vec::new(), String::new());
    for kernel in kernels {
        match Linux::new(memory, &kernel) {
            Ok(linux) => found.push(Box::new(linux) as Box<dyn GuestOs>),
            Err(reason) => why = reason,
        }
    }
    if found.is_empty() { Err(why) } else { Ok(found) }
}

/// The Linux kernel of a guest.
#[derive(Debug)]
pub struct Linux {
    release: String,
    tables: PageTables,
    bases: Option<u64>,
    linear: Option<u64>,
    /// Guest-physical address of jiffies_64.
    ticks: Option<u64>,
    /// Finds running tasks, or says why it cannot.
    running: Result<Running, String>,
    points: Vec<Point>,
    /// Points for all system calls: the one at their common entry (or why there is none), and those
    /// at each entry.
    every: (Result<Point, String>, Vec<Point>),
    mark: Mark,
    tasks: Tasks,
}

impl Linux {
    /// Recognizes a kernel that has been found in memory.
    ///
    /// # Errors
    /// What the kernel lacks.
    pub fn new(memory: &dyn GuestMemory, kernel: &Kernel) -> Result<Self, String> {
        if kernel.version < Version(5, 18) {
            return Err(format!("Linux {} is older than 5.18", kernel.release));
        }
        let btf = Btf::of_kernel(memory, kernel).map_err(|e| e.to_string())?;
        let layout = Layout::new(&kernel.symbols, &btf)?;
        let points = points::all(memory, kernel, &layout).map_err(|e| e.to_string())?;
        let entry = points::system_call_entry(memory, kernel, &layout);
        let each = points::system_calls(memory, kernel, &layout);
        let every = (entry.map_err(|e| e.to_string()), each);
        let release = kernel.release.clone();
        let bases = kernel.symbols.address("__per_cpu_offset").ok();
        let linear = linear(memory, kernel);
        let ticks = kernel.symbols.address("jiffies_64").ok();
        let ticks = ticks.and_then(|address| kernel.physical(address).ok());
        let running = Running::new(kernel, &btf);
        let mark = Mark::of(memory, kernel).map_err(|e| e.to_string())?;
        let (tables, tasks) = (kernel.tables, Tasks::default());
        Ok(Self { release, tables, bases, linear, ticks, running, points, every, mark, tasks })
    }
}

/// The start of the direct map (Documentation/arch/x86/x86_64/mm.rst), if the page tables map the
/// kernel's code there too. The next region starts more than a terabyte later, so none of its
/// addresses is mistaken for memory of a smaller guest.
fn linear(memory: &dyn GuestMemory, kernel: &Kernel) -> Option<u64> {
    let mut base = [0; 8];
    kernel.read(memory, kernel.symbols.address("page_offset_base").ok()?, &mut base).ok()?;
    let base = u64::from_le_bytes(base);
    let text = kernel.physical(kernel.symbols.address("_text").ok()?).ok()?;
    let is = kernel.tables.translate(memory, base.checked_add(text)?).ok()?;
    (is == text).then_some(base)
}

impl GuestOs for Linux {
    fn name(&self) -> String {
        format!("Linux {}", self.release)
    }

    fn address_space(&self) -> Option<PageTables> {
        Some(self.tables)
    }

    fn processor_bases(&self) -> Option<u64> {
        self.bases
    }

    fn linear(&self) -> Option<u64> {
        self.linear
    }

    fn heartbeat(&self, memory: &dyn GuestMemory) -> Option<u64> {
        let mut bytes = [0; 8];
        memory.read(self.ticks?, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn running(&self, memory: &dyn GuestMemory) -> Result<Option<Vec<Task>>, String> {
        self.running.clone()?.tasks(memory, self.tables).map(Some)
    }

    fn is_there(&self, memory: &dyn GuestMemory) -> bool {
        self.mark.is_there(memory, &self.tables, &self.points)
    }

    fn points(&self) -> &[Point] {
        &self.points
    }

    fn every_system_call(&mut self, needs_slot: bool) -> Result<(), String> {
        if needs_slot && self.every.1.is_empty() {
            return Err("no system call of this kernel begins with a NOP for ftrace".to_owned());
        }
        let every = if needs_slot { self.every.1.clone() } else { vec![self.every.0.clone()?] };
        self.points.extend(every);
        Ok(())
    }

    fn event(&self, raw: &RawEvent) -> Result<Event, DecodeError> {
        decode::event(raw)
    }

    fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    fn tasks_mut(&mut self) -> &mut Tasks {
        &mut self.tasks
    }
}
