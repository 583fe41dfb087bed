//! Loads the programs, passes them the cores' counters, attaches them, and registers threads.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

use aya::maps::{Map, MapData};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};

use super::call;
use super::core_counter::{CoreCounter, measured};
use super::error::BpfError;
use super::reader::Records;
use super::record::{self, CORES, Core, FineAge, Service, TASKS, Task};
use crate::affinity;
use crate::mapping::Access;

/// The object that build.rs compiled from bpf/elapsed.bpf.c; empty if that failed.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/elapsed.bpf.o"));
/// Why the compilation failed.
const MISSING: &str = env!("TIMEVISOR_BPF_MISSING");

const TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Name of the program that returns the calling thread's id.
const OWN_PID: &str = "own_pid";
/// Name of the program that writes a thread's record.
const ENROLL: &str = "enroll";
/// Name of the program that says that somebody looks after the records.
const ATTEND: &str = "attend";
/// The maps that readers map.
const SHARED: [&str; 2] = ["cores", "tasks"];
const TRACEPOINTS: [&str; 3] = ["cpu_frequency", "sched_migrate_task", "sched_switch"];

/// Ages of cores and threads, kept by programs in the kernel while this value lives.
#[derive(Debug)]
pub struct ElapsedBpf {
    // Dropped first, which detaches the programs.
    ebpf: Ebpf,
    records: Records,
    places: Mutex<Places>,
    // The programs read these.
    counters: Vec<CoreCounter>,
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
        this.freeze()?;
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
        let records = records(&ebpf, Access::ReadWrite)?;
        let places = Mutex::new(Places { taken: [false; TASKS], next: 0 });
        let mut this = Self { ebpf, records, places, counters: Vec::new() };
        for name in [OWN_PID, ENROLL, ATTEND] {
            this.program(name)?;
        }
        Ok(this)
    }

    /// Leaves the records to the programs alone: this process, and all to whom it gives the maps,
    /// can only read them.
    fn freeze(&mut self) -> Result<(), BpfError> {
        // The kernel freezes no map that is mapped for writing.
        self.records = records(&self.ebpf, Access::ReadOnly)?;
        for name in SHARED {
            call::freeze(self.map(name)?).map_err(|e| BpfError::of("freeze BPF maps", e))?;
        }
        Ok(())
    }

    /// Descriptors of the two maps of records, for a client ([`Records::read_only`]), who cannot
    /// write them because they are frozen. Descriptors that BPF_F_RDONLY makes would be no use: the
    /// kernel does not map them (`bpf_map_mmap` wants VM_SHARED, which mmap(2) takes from a file
    /// that cannot be written).
    ///
    /// # Errors
    /// When descriptors have run out, or the programs are not attached.
    pub fn descriptors(&self) -> Result<[OwnedFd; 2], BpfError> {
        let failed = |e| BpfError::of("give descriptors of maps", e);
        if self.records.are_writable() {
            return Err(failed(io::Error::other("the maps can still be written")));
        }
        let of = |name| self.map(name)?.try_clone_to_owned().map_err(failed);
        Ok([of(SHARED[0])?, of(SHARED[1])?])
    }

    /// Tells readers that somebody looks after the records, and whether they may rely on them.
    /// From the first call on it has to be called within [`super::reader::ATTENDED_WITHIN`].
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn attend(&self, state: Service) -> Result<(), BpfError> {
        self.run(ATTEND, &[state.word(), 0, 0, 0, 0]).map(drop)
    }

    /// Overwrites a core's record. Does nothing once the programs are attached.
    pub fn set_core(&self, core: u32, state: &Core) {
        if let Some(record) = self.records.core(u64::from(core))
            && self.records.are_writable()
        {
            record::write_core(record, state);
        }
    }

    /// The record of a core.
    #[must_use]
    pub fn core(&self, core: u32) -> Option<Core> {
        record::core(self.records.core(u64::from(core))?).map(|(_, core)| core)
    }

    /// The record of the thread at `place`.
    #[must_use]
    pub fn task(&self, place: u32) -> Option<Task> {
        record::task(self.records.task(place)).map(|(_, task)| task)
    }

    /// This thread's id in the initial pid namespace, which is what the programs see; in a
    /// container, gettid(2) returns a different one.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub fn own_pid(&self) -> Result<u32, BpfError> {
        self.run(OWN_PID, &[0; 5])
    }

    /// Runs a program that is not attached to anything.
    fn run(&self, name: &'static str, arguments: &[u64; 5]) -> Result<u32, BpfError> {
        let what = "run BPF programs on trial";
        let program = self.ebpf.program(name);
        let missing = || io::Error::other(format!("the object has no program {name}"));
        let program: &RawTracePoint = program
            .ok_or_else(missing)
            .and_then(|p| p.try_into().map_err(io::Error::other))
            .map_err(|e| BpfError::of(what, e))?;
        let fd = program.fd().map_err(|e| BpfError::of(what, e))?;
        call::test_run(fd.as_fd(), arguments, None).map_err(|e| BpfError::of(what, e))
    }

    /// Writes the record of a thread that has not run yet; `pid` 0 frees it.
    fn enroll(&self, place: u32, pid: u32, age: FineAge) -> Result<(), BpfError> {
        let [ns, fraction] = age.words();
        match self.run(ENROLL, &[u64::from(place), u64::from(pid), ns, fraction, 0])? {
            0 => Err(BpfError::of("register a thread", io::Error::other("its record is in use"))),
            _ => Ok(()),
        }
    }

    /// Assigns a record to a thread, and returns its place; the age starts when the thread next
    /// runs. `pid` is an id in the initial pid namespace. Threads that read their own age use
    /// [`Self::register_self`].
    ///
    /// # Errors
    /// When all places are taken, or the kernel refuses.
    pub fn register(&self, pid: u32, age: FineAge) -> Result<u32, BpfError> {
        let mut places = self.places.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let order = (0..TASKS).map(|i| (places.next + i) % TASKS);
        let place = order.into_iter().find(|i| !places.taken[*i]).ok_or(BpfError::Full)?;
        places.next = (place + 1) % TASKS;
        let index = u32::try_from(place).unwrap_or(u32::MAX);
        self.enroll(index, pid, age)?;
        call::update(self.map("places")?, pid, index)
            .map_err(|e| BpfError::of("register a thread", e))?;
        places.taken[place] = true;
        Ok(index)
    }

    /// Takes a place back. `pid` is the thread that had it.
    pub fn release(&self, place: u32, pid: u32) {
        let mut places = self.places.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Ok(map) = self.map("places") {
            // If there is no such element, the record is free anyway.
            let _ = call::delete(map, pid);
        }
        // If that fails, the record stays another thread's, which nobody reads.
        let _ = self.enroll(place, 0, FineAge::default());
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

    pub(super) fn map(&self, name: &'static str) -> Result<BorrowedFd<'_>, BpfError> {
        Ok(data(&self.ebpf, name)?.fd().as_fd())
    }

    /// The maps of records.
    #[must_use]
    pub fn records(&self) -> &Records {
        &self.records
    }
}

/// Maps the two maps of records.
fn records(ebpf: &Ebpf, access: Access) -> Result<Records, BpfError> {
    let fd = |name| {
        let fd = data(ebpf, name)?.fd().as_fd().try_clone_to_owned();
        fd.map_err(|e| BpfError::of("map BPF maps", e))
    };
    Records::map(fd("cores")?, fd("tasks")?, access).map_err(|e| BpfError::of("map BPF maps", e))
}

/// Announces a frequency of core `of` on core `by` to the programs of another process, for tests:
/// runs every loaded program `cpu_frequency` once (BPF_PROG_TEST_RUN), and returns their number.
///
/// # Errors
/// Without CAP_SYS_ADMIN, or when there is no such core.
pub fn announce_frequency_to_all(khz: u64, of: u32, by: u32) -> io::Result<usize> {
    let programs = call::programs_named("cpu_frequency")?;
    for program in &programs {
        call::test_run(program.as_fd(), &[khz, u64::from(of), 0, 0, 0], Some(by))?;
    }
    Ok(programs.len())
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
