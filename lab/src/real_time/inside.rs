//! A VM under the real KVM and SCHED_DEADLINE with cgroup v2, on a host inside a guest
//! ([`NestedHost`]).
//!
//! The other processor of that host is always busy: two processors of this machine may share
//! execution units, so that one is faster while the other one sleeps. That host also has priority
//! over everything else on this machine, as far as nice values allow.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::costs::{self, Job, pair};
use super::witness::{DelayWitness, Stalls};
use super::{Responses, arguments, responses, tasks, turns};
use crate::nested::NestedHost;
use crate::scenario::Context;

/// The VM's name.
pub const VM: &str = "guest";
/// One second in the VM may take several seconds.
const PATIENCE: Duration = Duration::from_secs(600);
/// After every common multiple of their periods, releases shift by this amount relative to the
/// reservation's period of 50 ms.
const SHIFT_MS: u64 = 7;

/// The processor of that host whose thread is watched. Reservations go there, because the busy
/// process is on the other one.
const CORE: usize = 1;
/// The actual cost of a job relative to its declared cost, per mille. Job costs cannot be measured
/// through two hypervisors, so no job can be excused for taking longer; the remaining fifth is the
/// margin for that.
const COST_PER_MILLE: u64 = 800;

/// The result of running the tasks.
#[derive(Debug)]
pub struct Observed {
    /// The responses of each task.
    pub found: Vec<Responses>,
    /// The jobs of each task, by this machine's CLOCK_MONOTONIC.
    pub jobs: Vec<Vec<Job>>,
    /// What the host's processor 1 lost during the run.
    pub stalls: Stalls,
}

/// The host and its VM.
#[derive(Debug)]
pub struct Inside {
    /// The host.
    pub host: NestedHost,
    turns: u64,
}

impl Inside {
    /// Boots both.
    ///
    /// # Errors
    /// When one does not boot.
    pub fn boot(ctx: &Context) -> anyhow::Result<Self> {
        let (kernel, qemu) = (ctx.kernel("trixie-backports")?, ctx.qemu_10()?);
        let mut host = NestedHost::boot(ctx, &qemu, &qemu, &kernel)?;
        prefer(host.guest().pid())?;
        host.sh("mount -t cgroup2 none /sys/fs/cgroup")?;
        host.sh("taskset 1 sh -c 'while :; do :; done' >/dev/null 2>&1 &")?;
        host.launch(VM, "vmclock", 1)?;
        host.qmp(VM, "cont")?;
        host.wait_ready(VM, 1)?;
        let mut inside = Self { host, turns: 0 };
        inside.calibrate()?;
        Ok(inside)
    }

    /// Measures how long a job takes when nothing else needs the processor.
    ///
    /// # Errors
    /// When lab-rt fails.
    pub fn calibrate(&mut self) -> anyhow::Result<()> {
        self.turns = turns(&self.host.inner_sh(VM, "lab-rt calibrate", PATIENCE)?)?;
        // Interrupts are expensive here, and a job's cost includes them.
        for _ in 0..2 {
            let found = self.run_tasks(6, false, 0, &["30/150".to_owned()])?;
            let ms = &found[0].ms;
            let took = Duration::from_secs_f64(ms[ms.len() * 9 / 10] / 1e3).as_micros();
            self.turns = self.turns * 30_000 / u64::try_from(took)?.max(1);
        }
        self.turns = self.turns * COST_PER_MILLE / 1000;
        Ok(())
    }

    /// Busy processes, twelve for each processor: a slice comes round every 34 ms (2.8 ms each), so a
    /// job of several slices is late even where this machine was slow during the calibration and the
    /// jobs are shorter than declared.
    ///
    /// # Errors
    /// When the host does not answer.
    pub fn load(&mut self) -> anyhow::Result<()> {
        let one = "sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $! >>/run/load;";
        self.host.sh(&one.repeat(24)).map(drop)
    }

    /// Ends the busy processes.
    ///
    /// # Errors
    /// When the host does not answer.
    pub fn unload(&mut self) -> anyhow::Result<()> {
        self.host.sh("kill $(cat /run/load); rm /run/load").map(drop)
    }

    /// Makes a reservation for the VM's only vCPU, alone on its core; times in us.
    ///
    /// # Errors
    /// When that is refused.
    pub fn reserve(&mut self, budget: u64, period: u64) -> anyhow::Result<String> {
        self.host
            .sh(&format!("timevisor reserve apply {VM} --alone --budget {budget}us/{period}us"))
    }

    /// Releases the reservation.
    ///
    /// # Errors
    /// When that fails.
    pub fn release(&mut self) -> anyhow::Result<()> {
        self.host.sh(&format!("timevisor reserve release {VM}")).map(drop)
    }

    /// Runs the paper's tasks in the VM.
    ///
    /// # Errors
    /// When lab-rt fails.
    pub fn run(&mut self, seconds: u64, hog: bool) -> anyhow::Result<Observed> {
        let words = self.arguments(seconds, hog, SHIFT_MS, &tasks());
        let pid = self.host.guest().pid();
        let name = format!("CPU {CORE}/");
        let threads = timevisor_linux::scheduling::threads(pid)?;
        let thread = threads.iter().find(|thread| thread.name.starts_with(&name));
        let tid = thread.with_context(|| format!("no {name} among {threads:?}"))?.tid;
        let witness = DelayWitness::start(pid, tid);
        let before = pair();
        let said = self.host.inner_sh(VM, &words, PATIENCE)?;
        let here = [before, pair()];
        let stalls = witness.end()?;
        let report: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
        Ok(Observed { found: responses(&said)?, jobs: costs::jobs(&report, here)?, stalls })
    }

    fn arguments(&self, seconds: u64, hog: bool, shift_ms: u64, tasks: &[String]) -> String {
        format!("lab-rt {}", arguments(self.turns, seconds, hog, shift_ms, tasks).join(" "))
    }

    /// Runs these tasks in the VM, the most urgent one first.
    ///
    /// # Errors
    /// When lab-rt fails.
    pub fn run_tasks(
        &mut self,
        seconds: u64,
        hog: bool,
        shift_ms: u64,
        tasks: &[String],
    ) -> anyhow::Result<Vec<Responses>> {
        let words = self.arguments(seconds, hog, shift_ms, tasks);
        responses(&self.host.inner_sh(VM, &words, PATIENCE)?)
    }
}

/// Gives all threads of a process the lowest possible nice value.
///
/// # Errors
/// When the process has ended, or permission is missing.
pub fn prefer(pid: u32) -> anyhow::Result<()> {
    for thread in timevisor_linux::scheduling::threads(pid)? {
        crate::command::run("renice", &["-n", "-20", "-p", &thread.tid.to_string()])?;
    }
    Ok(())
}
