//! The kernel's programs (bpf/elapsed.bpf.c), run by BPF_PROG_TEST_RUN on this kernel, against
//! `ElapsedClock`: the same events, the same ages. Where the kernel refuses them, the refusal and
//! its next step.
//!
//! The world has true time and counters that follow their cores' frequencies. The programs get what
//! they would see: on their own core its counter, from another core only that core's word and the
//! kernel's clock. The model gets the truth.
#![cfg(target_arch = "x86_64")]
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test, of small numbers, on 64 bits"
)]

use std::collections::HashMap;

use timevisor_estimate::elapsed::{Age, Rate};
use timevisor_estimate::{ElapsedClock, RateLimits};
use timevisor_linux::affinity;
use timevisor_linux::bpf::record::{Core, FineAge, Place};
use timevisor_linux::bpf::{BpfError, ElapsedBpf, Event};
use timevisor_linux::clock::monotonic_raw_nanos;
use timevisor_time::{Duration, Period};

/// Divisors of 10^6 * 2^32, so that periods are exact in 2^-32 ns.
const KHZ: [u64; 5] = [800_000, 1_000_000, 1_600_000, 2_000_000, 3_200_000];
const SCALE: u64 = 1_000_000 << 32;
/// What differs is rounding: a tick where another core's report is consolidated, 2^-64 s in the
/// model.
const TOLERANCE_NS: f64 = 3.0;
const EVENTS: u32 = 6000;

/// A small generator of numbers (Knuth's MMIX): the same events in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn rate(khz: u64) -> Rate {
    // 1/kHz in 2^-84 s, rounded down.
    let period = Period::from_hz(khz * 1000).unwrap();
    Rate::new(period, RateLimits { shortest: period, longest: period }).unwrap()
}

fn exactly(span: Duration) -> Age {
    Age { earliest: span, estimate: span, latest: span }
}

/// How much later than the model's the programs' age is, ns.
fn off(programs: FineAge, model: Duration) -> f64 {
    let model = (model.to_bits() * 1_000_000_000) >> 32;
    (i128::try_from(programs.0).unwrap() - model) as f64 / 4_294_967_296.0
}

struct WorldCore {
    count: u64,
    khz: u64,
    model: ElapsedClock,
    /// The model as it was before a change that another core reported, until that is consolidated:
    /// what readers go on seeing.
    shown: Option<ElapsedClock>,
    running: Option<u32>,
}

struct WorldTask {
    core: usize,
    place: u32,
    model: Option<ElapsedClock>,
    /// The model, the counter and the time when it stopped running.
    left: Option<(ElapsedClock, u64, u64)>,
    moved: bool,
    last: Option<FineAge>,
}

struct World {
    programs: ElapsedBpf,
    now: u64,
    cores: Vec<WorldCore>,
    tasks: HashMap<u32, WorldTask>,
    excess: f64,
    compared: u32,
}

impl World {
    fn new(programs: ElapsedBpf, cores: usize, tasks: u32) -> Self {
        let core = |index: usize| {
            // Counters that nobody has synchronized; the last one wraps.
            let count =
                (index as u64 * 1_000_000_007).wrapping_sub(5_000_000_000 * (index as u64 / 2));
            let khz = KHZ[index % KHZ.len()];
            let state = Core { base: count, period: SCALE / khz, scale: SCALE, ..Core::default() };
            programs.set_core(u32::try_from(index).unwrap(), &state);
            let model = ElapsedClock::new(count, Age::ZERO, rate(khz));
            WorldCore { count, khz, model, shown: None, running: None }
        };
        let cores: Vec<_> = (0..cores).map(core).collect();
        let task = |index: u32| {
            let pid = 1000 + index;
            let place = programs.register(pid, FineAge::default()).unwrap();
            let core = index as usize % cores.len();
            let (model, left, last) = (None, None, None);
            (pid, WorldTask { core, place, model, left, moved: false, last })
        };
        let tasks = (0..tasks).map(task).collect();
        Self { programs, now: 1_000_000, cores, tasks, excess: 0.0, compared: 0 }
    }

    fn pass(&mut self, ns: u64) {
        self.now += ns;
        for core in &mut self.cores {
            core.count = core.count.wrapping_add(ns * core.khz / 1_000_000);
        }
    }

    /// What is ahead of the truth once it is consolidated stays ahead: an age never goes back.
    fn consolidate(&mut self, index: usize) {
        let core = &mut self.cores[index];
        let Some(shown) = core.shown.take() else { return };
        let ahead = shown.at(core.count).estimate - core.model.at(core.count).estimate;
        if ahead > Duration::ZERO {
            core.model.skip(exactly(ahead));
            self.excess += ahead.as_secs_f64() * 1e9;
            for task in self.tasks.values_mut().filter(|task| task.core == index && !task.moved) {
                if let Some(model) = &mut task.model {
                    model.skip(exactly(ahead));
                }
            }
        }
    }

    fn frequency(&mut self, of: usize, by: usize, khz: u64) {
        let count = self.cores[by].count;
        self.programs
            .feed(&Event::Frequency {
                khz,
                of: u32::try_from(of).unwrap(),
                by: u32::try_from(by).unwrap(),
                count,
                now: self.now,
            })
            .unwrap();
        if of == by {
            self.consolidate(of);
        }
        let core = &mut self.cores[of];
        if of != by && core.shown.is_none() {
            core.shown = Some(core.model);
        }
        core.khz = khz;
        core.model.change_rate(core.count, rate(khz));
        for task in self.tasks.values_mut().filter(|task| task.core == of && !task.moved) {
            if let Some(model) = &mut task.model {
                model.change_rate(core.count, rate(khz));
            }
        }
    }

    fn migrate(&mut self, pid: u32, to: usize) {
        self.programs.feed(&Event::Migrate { pid }).unwrap();
        let task = self.tasks.get_mut(&pid).unwrap();
        task.core = to;
        task.moved = true;
    }

    fn switch(&mut self, index: usize, to: Option<u32>) {
        let from = self.cores[index].running;
        self.programs
            .feed(&Event::Switch {
                from: from.unwrap_or(0),
                to: to.unwrap_or(0),
                core: u32::try_from(index).unwrap(),
                count: self.cores[index].count,
                now: self.now,
            })
            .unwrap();
        self.consolidate(index);
        let core = &mut self.cores[index];
        core.running = to;
        if let Some(pid) = from {
            let task = self.tasks.get_mut(&pid).unwrap();
            task.left = task.model.map(|model| (model, core.count, self.now));
        }
        let Some(pid) = to else { return };
        let task = self.tasks.get_mut(&pid).unwrap();
        match (task.model, task.left) {
            (None, _) => {
                task.model = Some(ElapsedClock::new(core.count, Age::ZERO, rate(core.khz)));
            }
            (Some(_), Some((mut model, count, at))) if task.moved => {
                model.change_counter(count, core.count, rate(core.khz));
                model.skip(exactly(Duration::from_nanos(i64::try_from(self.now - at).unwrap())));
                task.model = Some(model);
            }
            _ => {}
        }
        task.moved = false;
    }

    /// Everything that is known without waiting for a consolidation is what the model says; running
    /// threads' ages increase.
    fn compare(&mut self) {
        for (index, core) in self.cores.iter().enumerate() {
            let known = self.programs.core(u32::try_from(index).unwrap()).unwrap();
            assert_eq!(known.missed, 0);
            assert_eq!(known.pending_khz != 0, core.shown.is_some(), "core {index}: {known:?}");
            let age = known.age_at(core.count);
            if core.shown.is_none() {
                let off = off(age, core.model.at(core.count).estimate);
                assert!(off.abs() < TOLERANCE_NS, "core {index} is off by {off} ns: {known:?}");
                self.compared += 1;
            }
            let Some(pid) = core.running else { continue };
            let world = self.tasks.get_mut(&pid).unwrap();
            let task = self.programs.task(world.place).unwrap();
            assert_eq!((task.place, task.core, task.missed), (Place::Here, index as u64, 0));
            let age = task.age_at(age);
            // Time has passed since the comparison before.
            let last = world.last.replace(age);
            assert!(Some(age) > last, "thread {pid} went back: {age:?} after {last:?}");
            if core.shown.is_none() {
                let off = off(age, world.model.unwrap().at(core.count).estimate);
                assert!(off.abs() < TOLERANCE_NS, "thread {pid} is off by {off} ns: {task:?}");
                self.compared += 1;
            }
        }
    }
}

/// Perf events that come and go disturb those that are there: one of these tests at a time.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn programs() -> Option<ElapsedBpf> {
    match ElapsedBpf::load() {
        Ok(programs) => Some(programs),
        Err(
            error @ (BpfError::NotBuilt(_) | BpfError::NotPermitted { .. } | BpfError::NoTypes),
        ) => {
            let text = error.to_string();
            let next = ["install clang", "run as root", "CONFIG_DEBUG_INFO_BTF"];
            assert!(next.iter().any(|step| text.contains(step)), "no next step: {text}");
            println!("refused: {text}");
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn the_same_events_give_the_same_ages() {
    let Some(programs) = programs() else { return };
    let mut world = World::new(programs, 3, 4);
    let mut numbers = Numbers(42);
    let (mut migrations, mut reports) = (0, 0);
    for _ in 0..EVENTS {
        world.pass(1000 * (1 + numbers.below(5000)));
        let core = numbers.below(3) as usize;
        match numbers.below(6) {
            0 => {
                let khz = KHZ[numbers.below(KHZ.len() as u64) as usize];
                let by = numbers.below(3) as usize;
                reports += u32::from(by != core);
                world.frequency(core, by, khz);
            }
            1 => {
                let asleep = |w: &World, pid: &u32| w.cores.iter().all(|c| c.running != Some(*pid));
                let pid = 1000 + u32::try_from(numbers.below(4)).unwrap();
                // Before its first run a move is no move of an age.
                if asleep(&world, &pid)
                    && world.tasks[&pid].core != core
                    && world.tasks[&pid].model.is_some()
                {
                    world.migrate(pid, core);
                    migrations += 1;
                }
            }
            _ => {
                let ready: Vec<u32> = (1000..1004)
                    .filter(|pid| {
                        world.tasks[pid].core == core && world.cores[core].running != Some(*pid)
                    })
                    .collect();
                let next = numbers.below(ready.len() as u64 + 1) as usize;
                world.switch(core, ready.get(next).copied());
            }
        }
        world.compare();
    }
    let counted: u64 =
        world.tasks.values().map(|task| world.programs.task(task.place).unwrap().migrations).sum();
    assert_eq!(counted, migrations);
    assert!(migrations > 100 && reports > 100 && world.compared > EVENTS, "too little happened");
    // What the programs themselves say that they are ahead of the truth by.
    let said: u64 = (0..3).map(|core| world.programs.core(core).unwrap().excess_ns).sum();
    assert!(
        (said as f64 - world.excess).abs() < f64::from(reports) * TOLERANCE_NS,
        "{said} {}",
        world.excess
    );
    println!(
        "{EVENTS} events, {migrations} migrations, {reports} changes that another core reported: {} ages compared, all within \
         {TOLERANCE_NS} ns; ages of cores are ahead by {said} ns in all, as told",
        world.compared
    );
}

/// The programs that are attached, with this machine's counters: an announced frequency is
/// consolidated at the core's counter, where that follows frequencies.
#[test]
fn the_attached_programs_read_the_counters() {
    let _alone = alone();
    if programs().is_none() {
        return;
    }
    let mut programs = ElapsedBpf::start().unwrap();
    let own = programs.register_self(FineAge::default()).unwrap();
    let mut last = own.read().unwrap();
    for _ in 0..100_000 {
        let age = own.read().unwrap();
        assert!(age > last, "{age:?} after {last:?}");
        last = age;
    }
    drop(own);
    let before = programs.core(0).unwrap();
    assert!(before.base > 0 && before.period > 0, "{before:?}");
    // The records are the programs' alone by now.
    programs.set_core(0, &Core { scale: before.period * 1_000_000, ..before });
    assert_eq!(programs.core(0).unwrap().scale, before.scale);
    let khz = if before.scale == 0 { 2_000_000 } else { before.scale / before.period * 2 };
    programs.announce_frequency(khz, 0, 0).unwrap();
    let after = programs.core(0).unwrap();
    // Whether the counter follows the frequency is this machine's. (The lab test elapsed-bpf has
    // one that does.)
    if before.scale == 0 {
        assert_eq!((after.changes, after.period), (before.changes, before.period));
        return;
    }
    assert_eq!((after.changes, after.period), (before.changes + 1, before.period / 2));
    assert!(after.base > before.base, "the program did not read the counter: {after:?}");
    assert_eq!(after.age, before.age_at(after.base), "consolidated with the old period");
}

/// A thread that moves between two cores of this machine all the time, as the kernel's own
/// scheduler tells the programs.
#[test]
fn a_thread_that_moves_has_one_age() {
    const MOVES: u64 = 200;
    let _alone = alone();
    if programs().is_none() {
        return;
    }
    let cores = affinity::online().unwrap();
    let [first, second, ..] = cores[..] else { return println!("one core: nowhere to move") };
    let programs = ElapsedBpf::start().unwrap();
    affinity::pin(first).unwrap();
    let own = programs.register_self(FineAge::default()).unwrap();
    let before = (monotonic_raw_nanos(), own.read().unwrap());
    let mut last = before.1;
    for turn in 0..MOVES {
        affinity::pin(if turn % 2 == 0 { second } else { first }).unwrap();
        for _ in 0..1000 {
            let age = own.read().unwrap();
            assert!(age > last, "{age:?} after {last:?}");
            last = age;
        }
    }
    let after = (own.read().unwrap(), monotonic_raw_nanos());
    let task = own.task().unwrap();
    assert_eq!((task.migrations, task.missed), (MOVES, 0));
    let (age, raw) = (after.0.nanos() - before.1.nanos(), after.1 - before.0);
    let apart = (age as f64 / raw as f64 - 1.0).abs();
    // The calibration's error is a thousandth of this; a time that was left out or counted twice is
    // many times as much.
    assert!(apart < 0.01, "the age is {age} ns, and {raw} ns went by");
    println!(
        "{MOVES} moves: {:.0} ppm from CLOCK_MONOTONIC_RAW in {raw} ns, {:.1} % of it between cores, {} arrivals missed",
        apart * 1e6,
        task.bridged_ns as f64 / age as f64 * 100.0,
        own.missed()
    );
}
