//! The daemon's view of the simulated host, and the moment of its death.

use std::collections::BTreeSet;

use timevisor_reservation::{
    Because, Core, Guarantee, Guests, Held, Host, Level, Moved, Reason, Refusal, Restore, Severity,
    Step, Target, Unmade, Usage, Wanted,
};
use timevisor_schedule::Reservation;

use super::change::{Change, Refused, root_balances};
use super::kernel::{BALANCE, HALT_POLL, Kernel, Policy};

/// The host as one daemon sees it.
#[derive(Debug)]
pub struct SimulatedHost {
    /// What survives the daemon.
    pub kernel: Kernel,
    /// After this many more effects the daemon is dead: no further effect happens.
    pub lives_for: Option<u32>,
    /// The reported messages, only those of the highest severity.
    pub warnings: Vec<String>,
    /// Whether a sleeping thread can be woken: not while a debugger has it.
    pub can_wake: bool,
    /// Making a change for this core fails.
    pub broken_core: Option<usize>,
    /// We lack the right to change policies.
    pub powerless: bool,
    /// The main thread's policy cannot be changed.
    pub broken_main: bool,
    /// How many policies were to be changed.
    pub policies_tried: u32,
}

impl SimulatedHost {
    /// A host with a living daemon.
    #[must_use]
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            lives_for: None,
            warnings: Vec::new(),
            can_wake: true,
            broken_core: None,
            powerless: false,
            broken_main: false,
            policies_tried: 0,
        }
    }

    /// Whether the daemon has died.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.lives_for == Some(0)
    }

    /// Whether one more effect still happens.
    fn acts(&mut self) -> bool {
        match &mut self.lives_for {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                *left > 0
            }
        }
    }
}

const DEAD: &str = "the daemon is dead";

fn policy(of: &Reservation) -> Policy {
    Policy::Deadline(of.budget(), of.deadline(), of.period())
}

/// Changes that move other threads of a process off a core.
fn off_core(kernel: &Kernel, pid: u32, tid: u32, core: usize) -> Vec<Change> {
    let mut changes = Vec::new();
    for (other, thread) in &kernel.threads {
        let deadline = matches!(thread.policy, Policy::Deadline(..));
        let (before, mut allow) = (thread.allowed.clone(), thread.allowed.clone());
        let narrowed = allow.remove(&core) && !allow.is_empty();
        if *other != tid && thread.pid == pid && !deadline && narrowed {
            changes.push(Change::Affinity { tid: *other, allow, before });
        }
    }
    changes
}

impl Restore for SimulatedHost {
    type Change = Change;

    fn is_alive(&self, pid: u32, start_time: u64, _: u32) -> bool {
        self.kernel.vms.values().any(|vm| (vm.pid, vm.start_time) == (pid, start_time))
    }

    fn is_thread(&self, pid: u32, tid: u32, started: Option<u64>) -> bool {
        let found = self.kernel.threads.get(&tid).filter(|thread| thread.pid == pid);
        found.is_some_and(|thread| started.is_none_or(|then| then == thread.started))
    }

    fn thread_started(&self, pid: u32, tid: u32) -> Option<u64> {
        let found = self.kernel.threads.get(&tid).filter(|thread| thread.pid == pid);
        found.map(|thread| thread.started)
    }

    fn thread(&self, change: &Change) -> Option<u32> {
        change.tid()
    }

    fn undo(&mut self, change: &Change) -> Result<(), String> {
        if !self.acts() {
            return Err(DEAD.to_owned());
        }
        change.undo(&mut self.kernel).map_err(|refused| format!("{refused:?}"))
    }

    fn widen(&mut self, pid: u32, undone: &[Step<Change>]) {
        for (_, change) in undone.iter().rev() {
            let Change::Affinity { tid, allow, before } = change else { continue };
            if *tid != pid || !self.acts() {
                continue;
            }
            let inherited =
                |thread: &&mut super::kernel::Thread| thread.pid == pid && thread.allowed == *allow;
            for thread in self.kernel.threads.values_mut().filter(inherited) {
                thread.allowed.clone_from(before);
            }
        }
    }
}

impl Host for SimulatedHost {
    type Group = String;

    fn now(&self) -> u64 {
        self.kernel.now
    }

    fn write(&mut self, held: &[Held<Change>]) -> Result<(), String> {
        if !self.acts() {
            return Err(DEAD.to_owned());
        }
        self.kernel.journal = held.to_vec();
        Ok(())
    }

    fn cores(&self, tid: Option<u32>) -> Vec<Core> {
        let thread = tid.and_then(|tid| self.kernel.threads.get(&tid));
        let allowed = thread.map(|thread| thread.allowed.clone());
        let is_allowed = |core: &usize| allowed.as_ref().is_none_or(|all| all.contains(core));
        let of = |core| Core { is_allowed: is_allowed(&core), ..Core::plain(core) };
        (0..self.kernel.cores).map(of).collect()
    }

    /// The plan that crates/linux makes with cgroup v1.
    fn plan(
        &self,
        wanted: &Wanted,
        isolated: &BTreeSet<usize>,
    ) -> Result<Vec<Step<Change>>, Unmade> {
        let Target { pid, tid, emulated, .. } = wanted.target;
        let kernel = &self.kernel;
        let gone = || Unmade { cause: Because::Anything, why: "the thread has ended".to_owned() };
        let thread = kernel.threads.get(&tid).ok_or_else(gone)?;
        let file = |name: String, value: &str| Change::File(name, value.to_owned(), None);
        if wanted.guarantee == Guarantee::Limit {
            let own = format!("timevisor-limit-{tid}");
            let moved = Change::Moved { tid, to: own.clone(), from: thread.group.clone() };
            let quota = file(format!("{own}/quota"), &wanted.reservation.budget().to_string());
            let changes = [Change::Folder(own), quota, moved];
            return Ok(changes.map(|change| (Level::Thread, change)).into());
        }
        let mut planned = Vec::new();
        if let Guarantee::Core(core) = wanted.guarantee {
            let mut rest = kernel.all_cores();
            rest.retain(|other| *other != core && !isolated.contains(other));
            if rest.is_empty() {
                let why = "one core must be left for everything else".to_owned();
                return Err(Unmade::of_core(why));
            }
            let allowed = thread.allowed.clone();
            let same = Change::Affinity { tid, allow: allowed.clone(), before: allowed };
            planned.push((Level::Thread, same));
            let of_rest = "timevisor-rest".to_owned();
            if !kernel.folders.contains(&of_rest) {
                planned.push((Level::Host, Change::Folder(of_rest)));
            }
            let own = format!("timevisor-cpu{core}");
            if !kernel.folders.contains(&own) {
                planned.push((Level::Processor, Change::Folder(own.clone())));
                planned.push((Level::Processor, file(format!("{own}/cpus"), &core.to_string())));
            }
            if root_balances(kernel) {
                let off = Change::File(BALANCE.to_owned(), "0".to_owned(), Some("1".to_owned()));
                planned.push((Level::Host, off));
            }
            let others = self.separating(&[core]).map_err(Unmade::of_core)?;
            planned.extend(others.into_iter().map(|change| (Level::Host, change)));
            let from = thread.group.clone();
            planned.push((Level::Thread, Change::Moved { tid, to: own, from }));
            let others = off_core(kernel, pid, tid, core);
            planned.extend(others.into_iter().map(|change| (Level::Thread, change)));
            if !emulated && kernel.files[HALT_POLL] != "0" {
                let before = Some(kernel.files[HALT_POLL].clone());
                let off = Change::File(HALT_POLL.to_owned(), "0".to_owned(), before);
                planned.push((Level::Host, off));
            }
        }
        let set = match wanted.guarantee {
            Guarantee::Fifo => Policy::Fifo,
            _ => policy(&wanted.reservation),
        };
        planned.push((Level::Thread, Change::Policy { tid, set, before: thread.policy }));
        if emulated {
            let before = kernel.threads[&pid].policy;
            let main = Change::Policy { tid: pid, set: Policy::Fifo, before };
            planned.push((Level::Thread, main));
        }
        Ok(planned)
    }

    fn strays(&self, held: &Held<Change>) -> Result<Vec<Change>, String> {
        let off = |core| off_core(&self.kernel, held.pid, held.tid, core);
        Ok(held.core().map(off).unwrap_or_default())
    }

    fn make(&mut self, held: &Held<Change>, change: &Change) -> Result<(), Unmade> {
        if !self.acts() {
            return Err(Unmade::of_core(DEAD.to_owned()));
        }
        let is_file = matches!(change, Change::File(..));
        if is_file && held.core().is_some() && held.core() == self.broken_core {
            return Err(Unmade::of_core("that core is broken".to_owned()));
        }
        self.policies_tried += u32::from(self.sets_policy(change));
        if self.broken_main && self.sets_policy(change) && change.tid() == Some(held.pid) {
            return Err(Unmade::of_core("the main thread's policy stays".to_owned()));
        }
        if self.powerless && self.sets_policy(change) {
            let why = "CAP_SYS_NICE is missing".to_owned();
            return Err(Unmade { cause: Because::Anything, why });
        }
        change.make(&mut self.kernel).map_err(|refused| {
            let elsewhere = |core| self.kernel.threads[&held.tid].last_core != core;
            let asleep = refused == Refused::NotPermitted
                && change.tid() == Some(held.tid)
                && held.core().is_some_and(elsewhere);
            let cause = if asleep { Because::Asleep } else { Because::Core };
            Unmade { cause, why: format!("{change}: {refused:?}") }
        })
    }

    fn wake(&mut self, held: &Held<Change>) -> bool {
        self.can_wake && self.acts() && self.kernel.wake(held.tid)
    }

    fn is_on_core(&self, held: &Held<Change>) -> bool {
        let thread = self.kernel.threads.get(&held.tid);
        thread.is_some_and(|thread| held.core().is_none_or(|core| thread.last_core == core))
    }

    fn check(&self, held: &Held<Change>, change: &Change) -> Result<(), String> {
        let in_force = match change {
            Change::Policy { tid, set, .. } => {
                self.kernel.threads.get(tid).is_some_and(|thread| thread.policy == *set)
            }
            Change::Moved { tid, to, .. } if held.guarantee == Guarantee::Limit => {
                self.kernel.threads.get(tid).is_some_and(|thread| thread.group == *to)
            }
            _ => true,
        };
        in_force.then_some(()).ok_or_else(|| format!("{change}: not in force"))
    }

    fn sets_policy(&self, change: &Change) -> bool {
        matches!(change, Change::Policy { .. })
    }

    fn sets_the_same(&self, one: &Change, other: &Change) -> bool {
        match (one, other) {
            (
                Change::Affinity { tid, allow, .. },
                Change::Affinity { tid: same, allow: equal, .. },
            ) => (tid, allow) == (same, equal),
            _ => false,
        }
    }

    fn with_reservation(&self, change: &Change, reservation: &Reservation) -> Option<Change> {
        match change {
            Change::Policy { tid, set: Policy::Deadline(..), before } => {
                Some(Change::Policy { tid: *tid, set: policy(reservation), before: *before })
            }
            _ => None,
        }
    }

    fn rebase(&self, pid: u32, gone: &Change, later: &Change) -> Option<Change> {
        match (gone, later) {
            (
                Change::Affinity { tid, allow, before },
                Change::Affinity { tid: same, allow: later, before: then },
            ) if (tid == same || *tid == pid) && allow == then => {
                let allow = if later == then { before } else { later };
                Some(Change::Affinity { tid: *same, allow: allow.clone(), before: before.clone() })
            }
            (
                Change::Policy { tid, set, before },
                Change::Policy { tid: same, set: later, before: then },
            ) if tid == same && set == then => {
                Some(Change::Policy { tid: *tid, set: *later, before: *before })
            }
            _ => None,
        }
    }

    fn moved(&self, change: &Change) -> Option<Moved<String>> {
        let Change::Moved { tid, to, from } = change else { return None };
        Some(Moved { tid: *tid, to: to.clone(), from: from.clone() })
    }

    fn moving(&self, Moved { tid, to, from }: Moved<String>) -> Change {
        Change::Moved { tid, to, from }
    }

    fn usage(&self, _: u32, tid: u32) -> Option<Usage> {
        let thread = self.kernel.threads.get(&tid)?;
        Some(Usage { ran: thread.ran, waited: thread.waited })
    }

    fn is_runnable(&self, _: u32, tid: u32) -> Option<bool> {
        self.kernel.threads.get(&tid).map(|thread| thread.runnable)
    }

    fn accounting_lag(&self) -> u64 {
        10_000_000
    }

    fn separating(&self, _: &[usize]) -> Result<Vec<Change>, String> {
        let files = self.kernel.files.iter();
        let joins = files.filter(|(name, value)| name.starts_with("/machine/") && *value == "1");
        Ok(joins.map(|(name, _)| Change::Unbalanced(name.clone())).collect())
    }

    fn settle(&mut self, _: &[usize]) -> Result<(), String> {
        self.acts().then_some(()).ok_or_else(|| DEAD.to_owned())
    }

    fn is_moot(&self, change: &Change) -> bool {
        matches!(change, Change::Unbalanced(name) if !self.kernel.files.contains_key(name))
    }

    fn tell(&mut self, severity: Severity, text: &str) {
        if severity != Severity::Info {
            self.warnings.push(text.to_owned());
        }
    }
}

impl Guests for Kernel {
    fn process(&self, vm: &str) -> Option<(u32, u64)> {
        self.vms.get(vm).map(|vm| (vm.pid, vm.start_time))
    }

    fn vcpu(&self, vm: &str, vcpu: u32) -> Result<Target, Refusal> {
        let found = self.vms.get(vm).and_then(|vm| {
            let tid = *vm.vcpus.get(usize::try_from(vcpu).ok()?)?;
            let (pid, start_time) = (vm.pid, vm.start_time);
            Some(Target { pid, start_time, tid, emulated: vm.emulated })
        });
        found.ok_or_else(|| Refusal::new(Reason::NotFound, "no such vCPU".to_owned(), "look"))
    }

    fn vcpus(&self, vm: &str) -> Option<usize> {
        self.vms.get(vm).map(|vm| vm.vcpus.len())
    }
}
