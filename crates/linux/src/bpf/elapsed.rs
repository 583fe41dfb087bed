//! Loads the programs, passes them the cores' counters, attaches them, and registers threads.

use core::ptr::NonNull;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::Path;
use std::sync::Mutex;

use aya::maps::{Map, MapData};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};

use super::call;
use super::core_counter::{CoreCounter, measured};
use super::error::BpfError;
use super::record::{self, CORES, Core, FineAge, Record, TASKS, Task};
use crate::affinity;
use crate::mapping::{Access, SharedMapping};

/// The object that build.rs compiled from bpf/elapsed.bpf.c; empty if that failed.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/elapsed.bpf.o"));
/// Why the compilation failed.
const MISSING: &str = env!("TIMEVISOR_BPF_MISSING");

const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Name of the program that returns the calling thread's id.
const OWN_PID: &str = "own_pid";
const TRACEPOINTS: [&str; 3] = ["cpu_frequency", "sched_migrate_task", "sched_switch"];

/// Ages of cores and threads, kept by programs in the kernel while this value lives.
#[derive(Debug)]
pub struct ElapsedBpf {
    // Dropped first, which detaches the programs.
    ebpf: Ebpf,
    shared: Shared,
    places: Mutex<Places>,
    // The programs read these.
    counters: Vec<CoreCounter>,
}

/// The maps that are accessed through shared memory.
#[derive(Debug)]
pub(super) struct Shared {
    cores: SharedMapping,
    tasks: SharedMapping,
}

/// The thread records in use. The record that has been free the longest is used next, so that no
/// program still writes to it for an ended thread.
#[derive(Debug)]
struct Places {
    taken: [bool; TASKS],
    next: usize,
}

/// An event with all the data that the programs would normally obtain themselves, for
/// [`ElapsedBpf::feed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Core `by` reports a new frequency of core `of`.
    Frequency {
        /// The new frequency.
        khz: u64,
        /// The core that has it.
        of: u32,
        /// The core that reports it.
        by: u32,
        /// That core's counter.
        count: u64,
        /// CLOCK_MONOTONIC, ns.
        now: u64,
    },
    /// A thread is about to move to another core.
    Migrate {
        /// The thread.
        pid: u32,
    },
    /// A core switches to another thread.
    Switch {
        /// The thread that ran; 0 if it is not registered.
        from: u32,
        /// The thread that runs.
        to: u32,
        /// The core.
        core: u32,
        /// Its counter.
        count: u64,
        /// CLOCK_MONOTONIC, ns.
        now: u64,
    },
}

impl ElapsedBpf {
    /// Starts everything: measures all online cores (100 ms), and follows their events from then
    /// on.
    ///
    /// # Errors
    /// What prevents this on this machine, with the next step.
    pub fn start() -> Result<Self, BpfError> {
        let mut this = Self::load()?;
        let online = affinity::online().map_err(|e| BpfError::of("tell its cores", e))?;
        if let Some(core) = online.iter().find(|core| **core >= CORES) {
            return Err(BpfError::TooManyCores(*core));
        }
        // One thread per core, all in parallel.
        let threads: Vec<_> = online
            .into_iter()
            .map(|core| (core, std::thread::spawn(move || measured(core))))
            .collect();
        for (core, thread) in threads {
            let failed = || io::Error::other("the thread that measures it panicked");
            let (counter, measured) = thread
                .join()
                .unwrap_or_else(|_| Err(failed()))
                .map_err(|source| BpfError::NoCounter { core, source })?;
            let index = u32::try_from(core).unwrap_or(u32::MAX);
            let fd = u32::try_from(counter.fd().as_raw_fd()).unwrap_or(u32::MAX);
            call::update(this.map("counters")?, index, fd)
                .map_err(|source| BpfError::NoCounter { core, source })?;
            this.set_core(index, &measured);
            this.counters.push(counter);
        }
        for name in TRACEPOINTS {
            this.program(name)?.attach(name).map_err(|e| BpfError::of("attach BPF programs", e))?;
        }
        this.program(OWN_PID)?;
        Ok(this)
    }

    /// Loads empty maps and unattached programs, for [`Self::feed`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn load() -> Result<Self, BpfError> {
        if OBJECT.is_empty() {
            return Err(BpfError::NotBuilt(MISSING));
        }
        if !Path::new(TYPES).exists() {
            return Err(BpfError::NoTypes);
        }
        let ebpf = EbpfLoader::new().load(OBJECT).map_err(|e| BpfError::of("load BPF maps", e))?;
        let shared =
            Shared { cores: mapped(&ebpf, "cores", CORES)?, tasks: mapped(&ebpf, "tasks", TASKS)? };
        let places = Mutex::new(Places { taken: [false; TASKS], next: 0 });
        Ok(Self { ebpf, shared, places, counters: Vec::new() })
    }

    /// Overwrites a core's record. Not allowed while the programs are attached.
    pub fn set_core(&self, core: u32, state: &Core) {
        if let Some(record) = self.shared.core(u64::from(core)) {
            record::write_core(record, state);
        }
    }

    /// The record of a core.
    #[must_use]
    pub fn core(&self, core: u32) -> Option<Core> {
        record::core(self.shared.core(u64::from(core))?).map(|(_, core)| core)
    }

    /// The record of the thread at `place`.
    #[must_use]
    pub fn task(&self, place: u32) -> Option<Task> {
        record::task(self.shared.task(place)).map(|(_, task)| task)
    }

    /// This thread's id in the initial pid namespace, which is what the programs see; in a
    /// container, gettid(2) returns a different one.
    pub(super) fn own_pid(&self) -> Result<u32, BpfError> {
        let what = "tell a thread its number";
        let program = self.ebpf.program(OWN_PID);
        let program = program.ok_or_else(|| io::Error::other("the object has no such program"));
        let program: &RawTracePoint = program
            .and_then(|p| p.try_into().map_err(io::Error::other))
            .map_err(|e| BpfError::of(what, e))?;
        let fd = program.fd().map_err(|e| BpfError::of(what, e))?;
        call::test_run(fd.as_fd(), &[0; 5], None).map_err(|e| BpfError::of(what, e))
    }

    /// Assigns a record to a thread, and returns its place; the age starts when the thread next
    /// runs. `pid` is an id in the initial pid namespace. Threads that read their own age use
    /// [`Self::register_self`].
    ///
    /// # Errors
    /// When all places are taken.
    pub fn register(&self, pid: u32, age: FineAge) -> Result<u32, BpfError> {
        let mut places = self.places.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let order = (0..TASKS).map(|i| (places.next + i) % TASKS);
        let place = order.into_iter().find(|i| !places.taken[*i]).ok_or(BpfError::Full)?;
        places.next = (place + 1) % TASKS;
        let index = u32::try_from(place).unwrap_or(u32::MAX);
        record::write_new_task(self.shared.task(index), pid, age);
        call::update(self.map("places")?, pid, index)
            .map_err(|e| BpfError::of("register a thread", e))?;
        places.taken[place] = true;
        Ok(index)
    }

    pub(super) fn forget(&self, place: u32, pid: u32) {
        let mut places = self.places.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Ok(map) = self.map("places") {
            // If there is no such element, the record is free anyway.
            let _ = call::delete(map, pid);
        }
        record::write_new_task(self.shared.task(place), 0, FineAge::default());
        if let Some(taken) = places.taken.get_mut(place as usize) {
            *taken = false;
        }
    }

    /// Runs the programs' own code for an event, with BPF_PROG_TEST_RUN.
    ///
    /// # Errors
    /// When the kernel does not support it (before 5.10) or does not permit it.
    pub fn feed(&mut self, event: &Event) -> Result<(), BpfError> {
        let wide = u64::from;
        let (program, arguments) = match *event {
            Event::Frequency { khz, of, by, count, now } => {
                ("fed_cpu_frequency", [khz, wide(of), wide(by), count, now])
            }
            Event::Migrate { pid } => ("fed_sched_migrate_task", [wide(pid), 0, 0, 0, 0]),
            Event::Switch { from, to, core, count, now } => {
                ("fed_sched_switch", [wide(from), wide(to), wide(core), count, now])
            }
        };
        self.test_run(program, &arguments, None)
    }

    /// Runs the attached program `cpu_frequency` for core `of` on core `by`, with the real counter
    /// and clock.
    ///
    /// # Errors
    /// As [`Self::feed`], or when there is no such core.
    pub fn announce_frequency(&mut self, khz: u64, of: u32, by: u32) -> Result<(), BpfError> {
        self.test_run("cpu_frequency", &[khz, u64::from(of), 0, 0, 0], Some(by))
    }

    fn test_run(
        &mut self,
        name: &'static str,
        arguments: &[u64; 5],
        core: Option<u32>,
    ) -> Result<(), BpfError> {
        let program = self.program(name)?;
        let fd = program.fd().map_err(|e| BpfError::of("keep BPF programs", e))?;
        call::test_run(fd.as_fd(), arguments, core)
            .map(drop)
            .map_err(|e| BpfError::of("run BPF programs on trial", e))
    }

    /// The program, loaded into the kernel on first use.
    fn program(&mut self, name: &'static str) -> Result<&mut RawTracePoint, BpfError> {
        let missing = || io::Error::other(format!("the object has no program {name}"));
        let program = self.ebpf.program_mut(name).ok_or_else(missing);
        let program: &mut RawTracePoint = program
            .map_err(|e| BpfError::of("load BPF programs", e))?
            .try_into()
            .map_err(|e| BpfError::of("load BPF programs", e))?;
        if program.fd().is_err() {
            program.load().map_err(|e| BpfError::of("load BPF programs", e))?;
        }
        Ok(program)
    }

    fn map(&self, name: &'static str) -> Result<BorrowedFd<'_>, BpfError> {
        Ok(data(&self.ebpf, name)?.fd().as_fd())
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Shared {
    pub(super) fn core(&self, core: u64) -> Option<&Record> {
        let index = usize::try_from(core).ok().filter(|index| *index < CORES)?;
        Some(Self::record(&self.cores, index))
    }

    pub(super) fn task(&self, place: u32) -> &Record {
        Self::record(&self.tasks, (place as usize).min(TASKS - 1))
    }

    fn record(mapping: &SharedMapping, index: usize) -> &Record {
        let first: NonNull<Record> = mapping.as_ptr().cast();
        // SAFETY: the index is below the map's number of elements, each of which is a record, and
        // the mapping holds them all and lives as long as the reference. It is aligned to a page,
        // all access is atomic, and atomics need no valid value.
        unsafe { first.add(index).as_ref() }
    }
}

fn mapped(ebpf: &Ebpf, name: &'static str, records: usize) -> Result<SharedMapping, BpfError> {
    let fd = data(ebpf, name)?.fd().as_fd().try_clone_to_owned();
    let file = File::from(fd.map_err(|e| BpfError::of("map BPF maps", e))?);
    SharedMapping::new(file, records * size_of::<Record>(), Access::ReadWrite)
        .map_err(|e| BpfError::of("map BPF maps", e))
}

fn data<'a>(ebpf: &'a Ebpf, name: &'static str) -> Result<&'a MapData, BpfError> {
    match ebpf.map(name) {
        Some(Map::Array(data) | Map::HashMap(data) | Map::PerfEventArray(data)) => Ok(data),
        _ => {
            let missing = io::Error::other(format!("the object has no map {name}"));
            Err(BpfError::of("load BPF maps", missing))
        }
    }
}
