//! A guest of two vCPUs, each with a reservation, on a host inside with four cores, the real KVM, Linux 7.3 and
//! cgroup v2: what `reserve plan` prints is run as it is printed, in the host and in the guest, and each job is judged
//! by what was planned. Then the same for a guest that divides its tasks by itself, and for two VMs at once.
//!
//! The emulated cores lose time, on a busy machine in every job's time. Those jobs are told, late or not; what is
//! judged are the commands, the settings, the audit, and every job that had its core.
//!
//! Everything takes ten times as long as in the other tests: the emulated cores share two real ones with whatever
//! else this machine does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::nested::NestedHost;
use crate::real_time::costs::{self, Job, pair};
use crate::real_time::judge::{Declared, Judgement, Promise};
use crate::real_time::witness::{DelayWitness, Stalls};
use crate::real_time::{arguments, prefer, responses, turns};
use crate::scenario::Context;
use crate::tests::reservations::kvm::settings_of;
use crate::tests::reservations::reserve::same;

/// Tasks of one program by name, with the command that pins it and the vCPU it is pinned to.
type Group<'a> = (Option<(String, u64)>, Vec<&'a str>);
/// The jobs of each task of a program.
type JobsOfTasks = Vec<Vec<Job>>;

const VM: &str = "guest";
const OTHER: &str = "db";
const CORES: u32 = 4;
/// The reservations'.
const PERIOD: &str = "500ms";
/// The most urgent one first: cost and period, ms.
const TASKS: [(&str, u64, u64); 4] =
    [("a", 150, 1000), ("b", 225, 1500), ("c", 150, 1000), ("d", 225, 1500)];
/// How long the tasks run, s: 66 jobs.
const SECONDS: u64 = 20;
/// After each common multiple of the periods, releases meet the reservations' periods at another moment; ms.
const SHIFT_MS: u64 = 70;
/// What jobs need of what is declared: nobody can measure a job's cost through two hypervisors.
const COST_PER_MILLE: u64 = 800;
/// One second in the VM may take several seconds.
const PATIENCE: Duration = Duration::from_secs(600);
/// SCHED_DEADLINE.
const DEADLINE: &str = "6";

/// The host, and how fast its guest is.
struct Bench {
    host: NestedHost,
    turns: u64,
}

/// The reservation of each vCPU, by VM and number, as `reserve list` shows it.
type Rows = BTreeMap<(String, u64), Value>;

pub(crate) fn smp(ctx: &Context) -> anyhow::Result<String> {
    let (kernel, qemu) = (ctx.kernel("trixie-backports")?, ctx.qemu_10()?);
    let host = NestedHost::boot_for(ctx, &qemu, &qemu, [&kernel, &kernel], CORES, "", Ok)?;
    prefer(host.guest().pid())?;
    let mut bench = Bench { host, turns: 0 };
    bench.host.sh("mount -t cgroup2 none /sys/fs/cgroup")?;
    bench.start(VM, 2)?;
    bench.calibrate()?;
    let pid = bench.host.vm(VM)?["pid"].as_u64().context("no pid")?;
    let before = settings_of(&mut bench.host, pid)?;

    let mut told = vec![format!("pinned: {}", bench.pinned()?)];
    bench.release()?;
    same(&before, &settings_of(&mut bench.host, pid)?).context("after the pinned tasks")?;
    told.push(format!("not pinned: {}", bench.global()?));
    bench.release()?;
    same(&before, &settings_of(&mut bench.host, pid)?).context("after those that are not")?;
    bench.start(OTHER, 1)?;
    told.push(bench.fleet()?);
    bench.release()?;
    same(&before, &settings_of(&mut bench.host, pid)?).context("after two VMs")?;
    Ok(told.join("; "))
}

impl Bench {
    fn start(&mut self, vm: &str, vcpus: u32) -> anyhow::Result<()> {
        self.host.launch(vm, "vmclock", vcpus)?;
        self.host.qmp(vm, "cont")?;
        self.host.wait_ready(vm, 1)
    }

    fn release(&mut self) -> anyhow::Result<()> {
        self.host.sh("timevisor reserve release --all").map(drop)
    }

    /// Measures how long a job takes where nothing else needs the processor.
    fn calibrate(&mut self) -> anyhow::Result<()> {
        self.turns = turns(&self.host.inner_sh(VM, "lab-rt calibrate", PATIENCE)?)?;
        // Interrupts are expensive here, and a job's cost includes them.
        for _ in 0..2 {
            let words = arguments(self.turns, 6, false, 0, &["150/1000".to_owned()]).join(" ");
            let found =
                responses(&self.host.inner_sh(VM, &format!("lab-rt {words}"), PATIENCE)?)?;
            let ms = &found[0].ms;
            let took = Duration::from_secs_f64(ms[ms.len() * 9 / 10] / 1e3).as_micros();
            self.turns = self.turns * 150_000 / u64::try_from(took)?.max(1);
        }
        self.turns = self.turns * COST_PER_MILLE / 1000;
        Ok(())
    }

    /// The tasks stay on their vCPUs, as the plan says.
    fn pinned(&mut self) -> anyhow::Result<String> {
        let plan = self.plan(&TASKS.map(|(name, ..)| (name, None)), "--vcpus 2")?;
        let vcpus = plan["vcpus"].as_array().with_context(|| format!("no plan: {plan}"))?;
        ensure!(vcpus.len() == 2 && plan["schedulable"] == true, "{plan}");
        let commands =
            vcpus.iter().map(|vcpu| text(&vcpu["apply"])).collect::<anyhow::Result<_>>()?;
        let rows = self.apply(commands)?;
        let mut runs = Vec::new();
        for vcpu in vcpus {
            let number = vcpu["vcpu"].as_u64().context("no vcpu")?;
            let names: Vec<&str> = vcpu["tasks"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|task| task["name"].as_str())
                .collect();
            let (pin, whose) = vcpu["in_the_guest"]
                .as_str()
                .and_then(|said| said.split_once(", of "))
                .with_context(|| format!("nothing to do in the guest: {vcpu}"))?;
            ensure!(whose == names.join(", "), "{vcpu}");
            let core = core_of(&rows, number)?;
            runs.push((
                Some((pin.to_owned(), number)),
                names,
                core,
                Promise::planned(vcpu, declared(vcpu)?)?,
            ));
        }
        let asked: Vec<_> =
            runs.iter().map(|(pin, names, ..)| (pin.clone(), names.clone())).collect();
        let (jobs, stalls) = self.run(&asked, &runs.iter().map(|run| run.2).collect::<Vec<_>>())?;
        let mut judged = Judgement::default();
        for ((jobs, stalls), (.., promise)) in jobs.iter().zip(stalls).zip(&runs) {
            judged = judged.and(Judgement::of_jobs(jobs, promise, &stalls));
        }
        judged.is_kept()?;
        self.audited(&rows)?;
        Ok(format!("{judged}; at most {:.0} % of a deadline", judged.most_of_deadline * 100.0))
    }

    /// The guest runs the tasks on either vCPU.
    fn global(&mut self) -> anyhow::Result<String> {
        let plan = self.plan(&TASKS.map(|(name, ..)| (name, None)), "--vcpus 2 --global")?;
        ensure!(plan["schedulable"] == true, "{plan}");
        let commands = plan["apply"].as_array().context("no commands")?;
        ensure!(commands.len() == 2, "{plan}");
        let rows = self.apply(commands.iter().map(text).collect::<anyhow::Result<_>>()?)?;
        let promise = Promise::planned(&plan, declared(&plan)?)?;
        let cores = [core_of(&rows, 0)?, core_of(&rows, 1)?];
        let names = TASKS.map(|(name, ..)| name).to_vec();
        let (jobs, stalls) = self.run(&[(None, names)], &cores)?;
        let stalls = stalls.into_iter().reduce(Stalls::and).context("no core")?;
        let judged = Judgement::of_jobs_anywhere(&jobs[0], &promise, &stalls);
        judged.is_kept()?;
        self.audited(&rows)?;
        Ok(format!("{judged}; at most {:.0} % of a deadline", judged.most_of_deadline * 100.0))
    }

    /// Two VMs are planned at once, and each gets what was planned where it was planned.
    fn fleet(&mut self) -> anyhow::Result<String> {
        self.tasks(&[("a", Some(0)), ("c", Some(0)), ("b", Some(1)), ("d", Some(1))])?;
        // Both are in the cgroup at the top.
        let file = format!(
            "cores = 3\n[[vm]]\nname = \"{VM}\"\ncgroup = \"/\"\ntasks = \"tasks.toml\"\nperiod = \"{PERIOD}\"\n\
             [[vm]]\nname = \"{OTHER}\"\ncgroup = \"/\"\nbudget = \"50ms\"\nperiod = \"{PERIOD}\"\n"
        );
        self.write("fleet.toml", &file)?;
        let plan = self.host.json("timevisor reserve plan --vms /run/fleet.toml --json")?;
        ensure!(plan["schedulable"] == true, "{plan}");
        let vms = plan["vms"].as_array().into_iter().flatten();
        let planned: Vec<(String, Value)> = vms
            .flat_map(|vm| {
                let vcpus = vm["vcpus"].as_array().cloned().unwrap_or_default();
                vcpus
                    .into_iter()
                    .map(|vcpu| (vm["name"].as_str().unwrap_or_default().to_owned(), vcpu))
            })
            .collect();
        ensure!(planned.len() == 3, "{plan}");
        let rows = self.apply(
            planned.iter().map(|(_, vcpu)| text(&vcpu["apply"])).collect::<anyhow::Result<_>>()?,
        )?;
        let mut cores = Vec::new();
        for (vm, vcpu) in &planned {
            let row = rows.get(&(vm.clone(), vcpu["vcpu"].as_u64().context("no vcpu")?));
            let row = row.with_context(|| format!("{vcpu} is not in {rows:?}"))?;
            for key in ["core", "budget_ns", "period_ns", "alone"] {
                ensure!(row[key] == vcpu[key], "{key} of {row} is not that of {vcpu}");
            }
            cores.push(format!("{vm}/{} on {}", vcpu["vcpu"], row["core"]));
        }
        Ok(format!("two VMs as planned: {}", cores.join(", ")))
    }

    /// The plan for these tasks, and the vCPU of each that has one.
    fn plan(&mut self, tasks: &[(&str, Option<u32>)], more: &str) -> anyhow::Result<Value> {
        self.tasks(tasks)?;
        self.host.json(&format!(
            "timevisor reserve plan /run/tasks.toml --alone --period {PERIOD} {more} --json"
        ))
    }

    fn tasks(&mut self, tasks: &[(&str, Option<u32>)]) -> anyhow::Result<()> {
        let mut file = "policy = \"listed\"\n".to_owned();
        for (name, vcpu) in tasks {
            let (cost, period) = task(name)?;
            // Writing to a String does not fail.
            let _ = write!(
                file,
                "[[task]]\nname = \"{name}\"\ncost = \"{cost}ms\"\nperiod = \"{period}ms\"\n"
            );
            if let Some(vcpu) = vcpu {
                let _ = writeln!(file, "vcpu = {vcpu}");
            }
        }
        self.write("tasks.toml", &file)
    }

    fn write(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        let line = text.replace('\n', "\\n");
        self.host.sh(&format!("printf '{line}' >/run/{name}")).map(drop)
    }

    /// Runs these commands, and returns what is then in force: each vCPU under SCHED_DEADLINE on its core.
    fn apply(&mut self, commands: Vec<String>) -> anyhow::Result<Rows> {
        let count = commands.len();
        for command in commands {
            self.host.sh(&command.replace(" VM ", &format!(" {VM} ")))?;
        }
        let mut rows = Rows::new();
        self.host.wait("all of them to be in force", |host| {
            let all = host.json("timevisor reserve list --json")?;
            rows.clear();
            for row in all.as_array().into_iter().flatten().filter(|row| row["problem"].is_null()) {
                let vm = row["vm"].as_str().context("no VM")?.to_owned();
                rows.insert((vm, row["vcpu"].as_u64().context("no vCPU")?), row.clone());
            }
            Ok(rows.len() == count)
        })?;
        for row in rows.values() {
            let (tid, core) = (&row["tid"], &row["core"]);
            // Fields 39 and 41 of proc_pid_stat(5).
            let stat =
                self.host.sh(&format!("sed 's/.*) //' /proc/{tid}/stat | cut -d ' ' -f 37,39"))?;
            ensure!(stat.trim() == format!("{core} {DEADLINE}"), "{stat}, not core {core}: {row}");
        }
        Ok(rows)
    }

    /// Runs groups of tasks in the guest, each beside a busy thread without priority, and those that have a command
    /// for it on their vCPU. Returns the jobs of each group, and what each core lost meanwhile.
    fn run(
        &mut self,
        groups: &[Group<'_>],
        cores: &[u64],
    ) -> anyhow::Result<(Vec<JobsOfTasks>, Vec<Stalls>)> {
        let distinct: BTreeSet<&u64> = cores.iter().collect();
        ensure!(distinct.len() == 2, "not two cores: {cores:?}");
        let mut line = String::new();
        for (index, (pin, names)) in groups.iter().enumerate() {
            let tasks: Vec<String> = names
                .iter()
                .map(|name| task(name).map(|(cost, period)| format!("{cost}/{period}")))
                .collect::<anyhow::Result<_>>()?;
            let words = arguments(self.turns, SECONDS, true, SHIFT_MS, &tasks).join(" ");
            // The command is for a process: this one, before it becomes the tasks.
            let pin = pin.as_ref().map_or(String::new(), |(command, vcpu)| {
                let command = command.replace("PID", "\\$\\$");
                format!("{command} >/dev/null && grep -q list:.{vcpu}\\$ /proc/\\$\\$/status && ")
            });
            let _ = write!(line, "sh -c \"{pin}exec lab-rt {words}\" >/run/jobs{index} & ");
        }
        let files: Vec<String> = (0..groups.len()).map(|n| format!("/run/jobs{n}")).collect();
        let line = format!("{line}wait; cat {}", files.join(" "));
        let pid = self.host.guest().pid();
        let threads = timevisor_linux::scheduling::threads(pid)?;
        let witness = |core: &u64| {
            let name = format!("CPU {core}/");
            let thread = threads.iter().find(|thread| thread.name.starts_with(&name));
            let tid = thread.with_context(|| format!("no {name} among {threads:?}"))?.tid;
            anyhow::Ok(DelayWitness::start(pid, tid))
        };
        let witnesses = cores.iter().map(witness).collect::<anyhow::Result<Vec<_>>>()?;
        let before = pair();
        let said = self.host.inner_sh(VM, &line, PATIENCE)?;
        let here = [before, pair()];
        let stalls = witnesses.into_iter().map(DelayWitness::end).collect::<anyhow::Result<_>>()?;
        let reports: Vec<&str> = said.lines().filter(|line| line.starts_with('{')).collect();
        ensure!(reports.len() == groups.len(), "{said}");
        let jobs = reports.into_iter().map(|line| {
            let report: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            costs::jobs(&report, here)
        });
        Ok((jobs.collect::<anyhow::Result<_>>()?, stalls))
    }

    /// A busy guest used up each budget, so that its jobs had no more than what was planned.
    fn audited(&mut self, rows: &Rows) -> anyhow::Result<()> {
        let all = self.host.json("timevisor reserve audit --json")?;
        let all = all.as_array().context("no audit")?;
        ensure!(all.len() == rows.len(), "{all:?}");
        let exhausted = |row: &Value| row["audit"]["exhausted"].as_u64().is_some_and(|n| n > 0);
        ensure!(all.iter().all(exhausted), "a budget was not used up: {all:?}");
        Ok(())
    }
}

/// Cost and period of a task, ms.
fn task(name: &str) -> anyhow::Result<(u64, u64)> {
    let found = TASKS.iter().find(|(known, ..)| *known == name);
    found.map(|(_, cost, period)| (*cost, *period)).with_context(|| format!("no task {name}"))
}

fn text(command: &Value) -> anyhow::Result<String> {
    Ok(command.as_str().with_context(|| format!("no command: {command}"))?.to_owned())
}

fn core_of(rows: &Rows, vcpu: u64) -> anyhow::Result<u64> {
    let row = rows.get(&(VM.to_owned(), vcpu)).with_context(|| format!("no vCPU {vcpu}"))?;
    row["core"].as_u64().context("no core")
}

/// The tasks of a plan.
fn declared(plan: &Value) -> anyhow::Result<Vec<Declared>> {
    let tasks = plan["tasks"].as_array().with_context(|| format!("no tasks: {plan}"))?;
    let of = |task: &Value| {
        let ns = |key: &str| task[key].as_u64();
        Some(Declared { cost: ns("cost_ns")?, deadline: ns("deadline_ns")? })
    };
    tasks.iter().map(of).collect::<Option<_>>().with_context(|| format!("odd tasks: {plan}"))
}
