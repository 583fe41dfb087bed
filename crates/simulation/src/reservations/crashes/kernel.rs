//! What survives the daemon: settings, threads, and the journal.

use std::collections::{BTreeMap, BTreeSet};

use timevisor_reservation::Held;

use super::change::Change;

/// The cpuset of a thread that was never moved.
pub const ROOT: &str = "/";
/// Whether the root cpuset balances load over all cores.
pub const BALANCE: &str = "/balance";
/// How long KVM polls before it halts a vCPU.
pub const HALT_POLL: &str = "halt_poll_ns";

/// How a thread is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// SCHED_OTHER.
    Other,
    /// SCHED_FIFO.
    Fifo,
    /// SCHED_DEADLINE: budget, deadline and period, ns.
    Deadline(u64, u64, u64),
}

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Its process.
    pub pid: u32,
    /// When it started: a count, so that no two are equal.
    pub started: u64,
    /// It belongs to nobody who has a reservation: its policy and where it may run stay these.
    pub stranger: Option<(Policy, BTreeSet<usize>)>,
    /// How it is scheduled.
    pub policy: Policy,
    /// Its cpuset, or the cgroup that limits it.
    pub group: String,
    /// Where it may run.
    pub allowed: BTreeSet<usize>,
    /// The core that it ran on last.
    pub last_core: usize,
    /// Whether it wants to run.
    pub runnable: bool,
    /// Whether the kernel never schedules it (a simulated failure).
    pub frozen: bool,
    /// ns.
    pub ran: u64,
    /// ns.
    pub waited: u64,
}

/// A virtual machine; `pid` is the id of its process and of its main thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vm {
    /// QEMU.
    pub pid: u32,
    /// When it started.
    pub start_time: u64,
    /// The thread of each vCPU.
    pub vcpus: Vec<u32>,
    /// TCG.
    pub emulated: bool,
}

/// The host without its daemon.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// How many cores it has.
    pub cores: usize,
    /// ns.
    pub now: u64,
    /// Cpusets and cgroups, and who made them: those whose names begin with `timevisor-` are ours.
    pub folders: BTreeSet<String>,
    /// Control files and their content.
    pub files: BTreeMap<String, String>,
    /// By number.
    pub threads: BTreeMap<u32, Thread>,
    /// By name.
    pub vms: BTreeMap<String, Vm>,
    /// On disk.
    pub journal: Vec<Held<Change>>,
    next_id: u32,
    starts: u64,
}

impl Kernel {
    /// An unmodified host.
    #[must_use]
    pub fn new(cores: usize) -> Self {
        let files = [(BALANCE, "1"), (HALT_POLL, "200000")];
        Self {
            cores,
            now: 1_000_000_000,
            folders: BTreeSet::new(),
            files: files.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            threads: BTreeMap::new(),
            vms: BTreeMap::new(),
            journal: Vec::new(),
            next_id: 100,
            starts: 0,
        }
    }

    /// All cores.
    #[must_use]
    pub fn all_cores(&self) -> BTreeSet<usize> {
        (0..self.cores).collect()
    }

    /// Starts a VM. `joins` means that it has a cpuset that balances load over all cores, like
    /// libvirt's.
    pub fn start_vm(&mut self, name: &str, vcpus: usize, emulated: bool, joins: bool) {
        let pid = self.start_thread(None);
        let vcpus = (0..vcpus).map(|_| self.start_thread(Some(pid))).collect();
        let start_time = self.now;
        self.vms.insert(name.to_owned(), Vm { pid, start_time, vcpus, emulated });
        if joins {
            self.files.insert(cpuset_of(name), "1".to_owned());
        }
    }

    /// Starts a thread, which inherits where its main thread may run.
    pub fn start_thread(&mut self, pid: Option<u32>) -> u32 {
        let tid = self.next_id;
        self.next_id += 1;
        self.start_thread_as(tid, pid)
    }

    /// The same with this id, which no thread has now.
    fn start_thread_as(&mut self, tid: u32, pid: Option<u32>) -> u32 {
        self.starts += 1;
        let pid = pid.unwrap_or(tid);
        let main = self.threads.get(&pid);
        let allowed = main.map_or_else(|| self.all_cores(), |main| main.allowed.clone());
        let last_core = allowed.first().copied().unwrap_or(0);
        let thread = Thread {
            pid,
            started: self.starts,
            stranger: None,
            policy: Policy::Other,
            group: ROOT.to_owned(),
            allowed,
            last_core,
            runnable: true,
            frozen: false,
            ran: 0,
            waited: 0,
        };
        self.threads.insert(tid, thread);
        tid
    }

    /// Ends a VM.
    pub fn end_vm(&mut self, name: &str) {
        if let Some(vm) = self.vms.remove(name) {
            self.threads.retain(|_, thread| thread.pid != vm.pid);
            self.files.remove(&cpuset_of(name));
        }
    }

    /// Unplugs a vCPU and plugs it again: another thread runs it then.
    pub fn replace_vcpu(&mut self, name: &str, vcpu: usize) {
        let Some(vm) = self.vms.get(name) else { return };
        let (pid, old) = (vm.pid, vm.vcpus[vcpu]);
        self.threads.remove(&old);
        let new = self.start_thread(Some(pid));
        if let Some(vm) = self.vms.get_mut(name) {
            vm.vcpus[vcpu] = new;
        }
    }

    /// As [`Self::replace_vcpu`], and the new thread gets the id of the old one.
    pub fn replace_vcpu_by_its_id(&mut self, name: &str, vcpu: usize) {
        let Some(vm) = self.vms.get(name) else { return };
        let (pid, tid) = (vm.pid, vm.vcpus[vcpu]);
        self.threads.remove(&tid);
        self.start_thread_as(tid, Some(pid));
    }

    /// Unplugs the last vCPU of a VM that has several; with `reused`, a process of somebody else gets
    /// the id of its thread.
    pub fn unplug_vcpu(&mut self, name: &str, reused: bool) {
        let Some(vm) = self.vms.get_mut(name).filter(|vm| vm.vcpus.len() > 1) else { return };
        let Some(tid) = vm.vcpus.pop() else { return };
        self.threads.remove(&tid);
        if reused {
            self.start_thread_as(tid, None);
            let (policy, allowed) = (Policy::Fifo, BTreeSet::from([self.cores - 1]));
            if let Some(thread) = self.threads.get_mut(&tid) {
                (thread.policy, thread.allowed) = (policy, allowed.clone());
                thread.stranger = Some((policy, allowed));
            }
        }
    }

    /// A thread that sleeps is woken and sleeps on; it comes to a core that it may use.
    pub fn wake(&mut self, tid: u32) -> bool {
        let Some(thread) = self.threads.get_mut(&tid).filter(|thread| !thread.runnable) else {
            return false;
        };
        if !thread.allowed.contains(&thread.last_core) {
            thread.last_core = thread.allowed.first().copied().unwrap_or(0);
        }
        true
    }

    /// Lets time pass. Runnable threads get a third of it, unless they are frozen, and each moves
    /// to a core that it may use.
    pub fn pass(&mut self, ns: u64) {
        self.now += ns;
        for thread in self.threads.values_mut().filter(|thread| thread.runnable) {
            if thread.frozen {
                thread.waited += ns;
                continue;
            }
            (thread.ran, thread.waited) = (thread.ran + ns / 3, thread.waited + ns - ns / 3);
            if !thread.allowed.contains(&thread.last_core) {
                thread.last_core = thread.allowed.first().copied().unwrap_or(0);
            }
        }
    }

    /// Whether this core is a separate root domain: no cpuset balances load over it and others.
    #[must_use]
    pub fn is_isolated(&self, core: usize) -> bool {
        let own = format!("timevisor-cpu{core}");
        let balances =
            |(name, value): (&String, &String)| name.ends_with("balance") && value == "1";
        self.folders.contains(&own) && !self.files.iter().any(balances)
    }

    /// The differences between this host and one on which nothing was ever reserved.
    #[must_use]
    pub fn differences(&self) -> Vec<String> {
        let mut found = Vec::new();
        for folder in &self.folders {
            found.push(format!("cgroup {folder} is left"));
        }
        for (name, value) in &self.files {
            let initial = if name == HALT_POLL { "200000" } else { "1" };
            if value != initial {
                found.push(format!("{name} is {value}, was {initial}"));
            }
        }
        for (tid, thread) in &self.threads {
            let Thread { policy, group, allowed, .. } = thread;
            let usual = thread.stranger.clone().unwrap_or((Policy::Other, self.all_cores()));
            if (policy, allowed) != (&usual.0, &usual.1) || group != ROOT {
                found.push(format!("thread {tid}: {policy:?} in {group} on {allowed:?}"));
            }
        }
        found
    }
}

/// The control file by which the cpuset of a VM balances load.
#[must_use]
pub fn cpuset_of(vm: &str) -> String {
    format!("/machine/{vm}/balance")
}
