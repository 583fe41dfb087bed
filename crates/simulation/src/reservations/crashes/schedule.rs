//! Random requests, VMs that come and go, and deaths of the daemon; what must hold after each.

use std::collections::BTreeMap;

use timevisor_reservation::{
    Followed, Guarantee, Held, Promise, Request, Reservations, Restore as _, release_all,
};
use timevisor_schedule::Reservation;

use super::change::Change;
use super::host::SimulatedHost;
use super::kernel::{Kernel, Policy, ROOT, Thread, cpuset_of};
use crate::random::Random;

const MS: u64 = 1_000_000;
const VMS: [&str; 3] = ["web", "db", "plc"];
const CORES: usize = 4;
const STEPS: usize = 40;

/// What a schedule did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Reservations that were made or changed.
    pub granted: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// How often the daemon died in the middle of something.
    pub deaths: u64,
    /// How often it found reservations in force when it came back.
    pub continued: u64,
    /// How often everything was undone without a daemon.
    pub without_daemon: u64,
    /// How often a vCPU slept, so that its budget had to wait.
    pub slept: u64,
    /// How often a reservation moved to another core.
    pub moved: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.granted += more.granted;
        self.refused += more.refused;
        self.deaths += more.deaths;
        self.continued += more.continued;
        self.without_daemon += more.without_daemon;
        self.slept += more.slept;
        self.moved += more.moved;
    }
}

/// Runs the schedule of a seed: 40 random steps, after which everything is released.
///
/// # Errors
/// The first thing that did not hold.
pub fn run(seed: u64) -> Result<Counts, String> {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        world.step()?;
        world.check().map_err(|why| format!("seed {seed}, step {step}: {why}"))?;
    }
    world.end().map_err(|why| format!("seed {seed}, at the end: {why}"))?;
    Ok(world.counts)
}

struct World {
    random: Random,
    host: SimulatedHost,
    machine: Reservations<Change>,
    counts: Counts,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::stream(seed, "reservations");
        let mut kernel = Kernel::new(CORES);
        for vm in VMS {
            start(&mut kernel, vm, &mut random);
        }
        let mut host = SimulatedHost::new(kernel);
        let machine = Reservations::start(Ok(Vec::new()), Vec::new(), &mut host);
        Self { random, host, machine, counts: Counts::default() }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.bits() % n
    }

    fn vm(&mut self) -> &'static str {
        VMS[usize::try_from(self.below(3)).unwrap_or(0)]
    }

    fn step(&mut self) -> Result<(), String> {
        if self.random.chance(0.2) {
            self.host.lives_for = Some(1 + u32::try_from(self.below(25)).unwrap_or(0));
        }
        self.host.can_wake = self.random.chance(0.5);
        match self.below(18) {
            16 | 17 => self.relocate(),
            0..=5 => self.apply(),
            6 | 7 => self.release(),
            8 => self.follow(),
            9 => self.come_or_go(),
            10 => self.meddle(),
            11 => self.restart()?,
            _ => self.pass(),
        }
        if self.host.is_dead() {
            self.counts.deaths += 1;
            if self.random.chance(0.5) {
                self.come_or_go();
            }
            let time = self.below(200) * MS;
            self.host.kernel.pass(time);
            self.restart()?;
        }
        self.host.lives_for = None;
        Ok(())
    }

    fn apply(&mut self) {
        let period = [20, 50, 100][usize::try_from(self.below(3)).unwrap_or(0)] * MS;
        let budget = period / 20 * (1 + self.below(16));
        let soft = self.random.chance(0.2).then(|| (budget + period / 10).min(period));
        let promise = match self.below(10) {
            0..=5 => Promise::Core,
            6 => Promise::Global,
            7 => Promise::Fifo,
            _ => Promise::Limit,
        };
        let core = self.below(12);
        let request = Request {
            vm: self.vm().to_owned(),
            vcpu: u32::try_from(self.below(2)).unwrap_or(0),
            budget,
            at_most: soft,
            deadline: None,
            period,
            promise,
            core: usize::try_from(core).ok().filter(|core| *core < CORES),
            alone: self.random.chance(0.15),
            dry_run: self.random.chance(0.1),
        };
        let guests = self.host.kernel.clone();
        match self.machine.apply(&request, &mut self.host, &guests) {
            Ok(_) => self.counts.granted += u64::from(!request.dry_run),
            Err(_) => self.counts.refused += 1,
        }
        let rows = self.machine.rows(&self.host);
        let waits =
            |problem: &Option<String>| problem.as_ref().is_some_and(|p| p.contains("waits"));
        self.counts.slept += u64::from(rows.iter().any(|row| waits(&row.problem)));
    }

    fn relocate(&mut self) {
        let mut of = (self.vm().to_owned(), 0);
        if !self.machine.held().is_empty() {
            let n = self.below(self.machine.held().len() as u64);
            let held = &self.machine.held()[usize::try_from(n).unwrap_or(0)];
            of = (held.vm.clone(), held.vcpu);
        }
        let core = usize::try_from(self.below(CORES as u64)).unwrap_or(0);
        let dry_run = self.random.chance(0.1);
        let guests = self.host.kernel.clone();
        // Without a reservation, from a weaker promise or without room: all of these are refused.
        if self.machine.relocate((&of.0, of.1), core, dry_run, &mut self.host, &guests).is_ok() {
            self.counts.moved += u64::from(!dry_run);
        }
    }

    fn release(&mut self) {
        let vm = self.random.chance(0.8).then(|| self.vm());
        let vcpu = (vm.is_some() && self.random.chance(0.5)).then_some(0);
        // A user may ask for something that does not exist.
        let _ = self.machine.release(vm, vcpu, &mut self.host);
    }

    fn follow(&mut self) {
        let reservation = Reservation::shared(10 * MS, 50 * MS).ok();
        let wanted = reservation.as_ref().filter(|_| self.random.chance(0.7)).map(|r| (r, false));
        let (vm, guests) = (self.vm(), self.host.kernel.clone());
        let on = match self.random.chance(0.5) {
            true => Followed::AnyOf(2),
            false if self.random.chance(0.5) => Followed::One(1),
            false => Followed::Only,
        };
        // A manual reservation, another number of vCPUs, or no room: all of these are refused.
        let _ = self.machine.follow_guest(vm, wanted, on, &mut self.host, &guests);
    }

    fn come_or_go(&mut self) {
        let vm = self.vm();
        if self.host.kernel.vms.contains_key(vm) {
            self.host.kernel.end_vm(vm);
        } else {
            start(&mut self.host.kernel, vm, &mut self.random);
        }
    }

    /// Actions of others: a vCPU is replaced or unplugged, sleeps or wakes; a cpuset balances load again; a
    /// thread loses its policy.
    fn meddle(&mut self) {
        let vm = self.vm();
        let Some(qemu) = self.host.kernel.vms.get(vm).cloned() else { return };
        let vcpu = usize::try_from(self.below(qemu.vcpus.len() as u64)).unwrap_or(0);
        match self.below(7) {
            0 => self.host.kernel.replace_vcpu(vm, vcpu),
            5 => self.host.kernel.replace_vcpu_by_its_id(vm, vcpu),
            6 => {
                let reused = self.random.chance(0.5);
                self.host.kernel.unplug_vcpu(vm, reused);
            }
            1 => {
                if let Some(balance) = self.host.kernel.files.get_mut(&cpuset_of(vm)) {
                    "1".clone_into(balance);
                }
            }
            2 => {
                // A thread that QEMU starts now inherits where its main thread may run.
                self.host.kernel.start_thread(Some(qemu.pid));
            }
            _ => {
                if let Some(thread) = self.host.kernel.threads.get_mut(&qemu.vcpus[vcpu]) {
                    thread.runnable = !thread.runnable;
                }
            }
        }
    }

    fn pass(&mut self) {
        let steps = 1 + self.below(4);
        let time = [3, 30, 400][usize::try_from(self.below(3)).unwrap_or(0)] * MS;
        for _ in 0..steps {
            self.host.kernel.pass(time);
            let guests = self.host.kernel.clone();
            self.machine.on_timer(&mut self.host, &guests);
        }
    }

    /// Starts the next daemon. Or everything is undone without a daemon, and one starts later.
    fn restart(&mut self) -> Result<(), String> {
        self.host.lives_for = None;
        if self.random.chance(0.2) {
            let journal = self.host.kernel.journal.clone();
            let left = release_all(&mut self.host, &journal);
            if !left.is_empty() {
                return Err(format!("not undone without a daemon: {left:?}"));
            }
            self.host.kernel.journal.clear();
            self.counts.without_daemon += 1;
            self.is_unchanged()?;
        }
        let journal = self.host.kernel.journal.clone();
        self.machine = Reservations::start(Ok(journal), Vec::new(), &mut self.host);
        self.counts.continued += u64::from(!self.machine.held().is_empty());
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        if self.random.chance(0.5) {
            self.restart()?;
        }
        let problems = self.machine.release(None, None, &mut self.host);
        let problems = problems.map_err(|refusal| refusal.to_string())?;
        if !problems.is_empty() {
            return Err(format!("not undone: {problems:?}"));
        }
        if !self.host.kernel.journal.is_empty() {
            return Err(format!("the journal still names {:?}", self.host.kernel.journal));
        }
        self.is_unchanged()
    }

    /// Checks that every setting is as before.
    fn is_unchanged(&self) -> Result<(), String> {
        let differences = self.host.kernel.differences();
        if differences.is_empty() { Ok(()) } else { Err(differences.join("; ")) }
    }

    /// The invariants while a daemon is alive.
    fn check(&self) -> Result<(), String> {
        let held = self.machine.held();
        if self.host.kernel.journal != held {
            return Err(format!("journal {:?}, held {held:?}", self.host.kernel.journal));
        }
        if let Some(held) = held.iter().find(|held| !held.leftover.is_empty()) {
            return Err(format!("{} is in the middle of a move", held.name()));
        }
        self.nothing_is_forgotten(held)?;
        no_core_is_overcommitted(held)?;
        self.what_is_told_is_true()
    }

    /// Checks that every changed thread belongs to a reservation.
    fn nothing_is_forgotten(&self, held: &[Held<Change>]) -> Result<(), String> {
        let ours = |(_, thread): &(&u32, &Thread)| thread.stranger.is_none();
        for (tid, thread) in self.host.kernel.threads.iter().filter(ours) {
            let changed = thread.policy != Policy::Other
                || thread.group != ROOT
                || thread.allowed != self.host.kernel.all_cores();
            if changed && !held.iter().any(|held| held.pid == thread.pid) {
                return Err(format!("thread {tid} is forgotten: {thread:?}"));
            }
        }
        if held.is_empty() { self.is_unchanged() } else { Ok(()) }
    }

    /// Checks that a reservation without a problem is in force.
    fn what_is_told_is_true(&self) -> Result<(), String> {
        for row in self.machine.rows(&self.host) {
            let held = row.held;
            if row.problem.is_some() || !self.host.is_alive(held.pid, held.start_time, held.tid) {
                continue;
            }
            // Until the next look.
            let started = held.threads.get(&held.tid).copied();
            if !self.host.is_thread(held.pid, held.tid, started) {
                continue;
            }
            let thread = &self.host.kernel.threads[&held.tid];
            let deadline = Policy::Deadline(held.budget, held.deadline, held.period);
            let in_force = match held.guarantee {
                Guarantee::Core(core) => {
                    let own = format!("timevisor-cpu{core}");
                    thread.policy == deadline && thread.group == own
                }
                Guarantee::Global => thread.policy == deadline,
                Guarantee::Fifo => thread.policy == Policy::Fifo,
                Guarantee::Limit => thread.group == format!("timevisor-limit-{}", held.tid),
            };
            // Deadlines come before everything else: a main thread on that core would starve.
            if let (Some(core), Some(main)) = (held.core(), self.host.kernel.threads.get(&held.pid))
                && main.allowed.contains(&core)
            {
                return Err(format!(
                    "{}: QEMU's main thread may be on its core: {main:?}, {:?}",
                    held.name(),
                    self.machine.held()
                ));
            }
            if !in_force {
                return Err(format!(
                    "{} is told to be in force: {held:?}, {thread:?}",
                    held.name()
                ));
            }
        }
        Ok(())
    }
}

/// Checks that no core is overcommitted, and that a reservation that must be alone is alone.
fn no_core_is_overcommitted(held: &[Held<Change>]) -> Result<(), String> {
    let mut by_core: BTreeMap<usize, Vec<&Held<Change>>> = BTreeMap::new();
    for held in held {
        if let Some(core) = held.core() {
            by_core.entry(core).or_default().push(held);
        }
    }
    for (core, all) in by_core {
        let promised: f64 = all.iter().map(|held| held.budget as f64 / held.period as f64).sum();
        let crowded = all.len() > 1 && all.iter().any(|held| held.alone);
        if promised > 1.0 || crowded {
            return Err(format!("core {core} has {promised} promised: {all:?}"));
        }
    }
    Ok(())
}

fn start(kernel: &mut Kernel, vm: &str, random: &mut Random) {
    let (emulated, joins) = (random.chance(0.3), random.chance(0.3));
    let vcpus = if random.chance(0.3) { 1 } else { 2 };
    kernel.start_vm(vm, vcpus, emulated, joins);
}
