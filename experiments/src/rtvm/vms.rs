//! Three VMs on one core at once, each in its reservation of one plan (`reserve plan --vms`), beside a busy host: two
//! with real-time tasks and one with Apache under traffic. What "Real-Time Virtual Machines" promises of several VMs
//! is that none is late because of another: no job may be late inside its promise, and Apache answers as fast
//! beside the two as with its reservation alone, for the same work.
//!
//! The rule for jobs is that of [`Judgement`]; a core that the other reserved VMs use is not lost.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use serde_json::{Value, json};
use timevisor_lab::client::Client;
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::real_time::costs::{self, Run};
use timevisor_lab::real_time::judge::{self, Declared, Judgement, Promise};
use timevisor_lab::real_time::runtimes::{Recording, Runtimes};
use timevisor_lab::real_time::witness::{Stalls, Witness};
use timevisor_lab::real_time::{self, Load, Restore};
use timevisor_lab::scenario::Context;
use timevisor_linux::affinity::online;
use timevisor_linux::scheduling::schedstat;

use super::super::report;
use super::{PERIOD, apache, promises};

const NAME: &str = "rtvm-vms";
const ROUNDS: u64 = 4;
/// The VMs with tasks; cost and period of each task in us and ms, the most urgent one first.
const VMS: [(&str, [(u64, u64); 2]); 2] =
    [("drive", [(4_000, 80), (8_000, 200)]), ("camera", [(6_000, 120), (6_000, 240)])];
const WEB: &str = "web";
/// Of [`PERIOD`].
const WEB_BUDGET: &str = "10ms";
/// Clients at the same time.
const CLIENTS: usize = 4;
const SHIFT_MS: u64 = 7;

/// What Apache did in a time.
#[derive(Default)]
struct Served {
    /// The response time of each request, s.
    seconds: Vec<f64>,
    /// Processor time of its vCPU, s.
    ran: f64,
}

impl Served {
    fn average(&self) -> f64 {
        self.seconds.iter().sum::<f64>() / self.seconds.len() as f64
    }

    /// Of one request, s.
    fn cost(&self) -> f64 {
        self.ran / self.seconds.len() as f64
    }

    fn and(mut self, more: Self) -> Self {
        self.seconds.extend(more.seconds);
        self.ran += more.ran;
        self
    }
}

/// A VM with tasks.
struct Tasked {
    name: &'static str,
    guest: Client,
    turns: u64,
    tasks: Vec<Declared>,
    promise: Promise,
}

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let seconds = (span.as_secs() / ROUNDS).max(10);
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let plan = plan(ctx, &host)?;
    let vcpus = vcpus(&plan)?;
    let mut vms = Vec::new();
    for (name, tasks) in VMS {
        let tasks = tasks.map(|(us, ms)| Declared { cost: us * 1000, deadline: ms * 1_000_000 });
        let mut guest = real_time::guest(ctx, &host, name)?;
        let turns = costs::calibrate(&host, &mut guest, name)?;
        let vcpu = of_vm(&vcpus, name)?;
        let promise = Promise::beside_others(&plan, vcpu, promises::with_margins(&tasks))?;
        vms.push(Tasked { name, guest, turns, tasks: tasks.to_vec(), promise });
    }
    apache::install()?;
    let rotate = ctx.program("timevisor-lab-guest", "lab-rotate")?;
    let (port, web) = apache::guest(ctx, &host, WEB, rotate)?;

    println!(
        "  {ROUNDS} rounds of {seconds} s; every second one beside a busy thread in each guest with tasks\n"
    );
    println!("round  VM      jobs  late  lost  longer  worst of deadline");
    let (mut alone, mut beside) = (Served::default(), Served::default());
    let (mut rows, mut all) = (Vec::new(), Judgement::default());
    for round in 0..ROUNDS {
        interrupt::check()?;
        let _load = Load::start()?;
        apply(&host, of_vm(&vcpus, WEB)?)?;
        alone = alone.and(
            serve(port, web.guest.pid(), |done| {
                std::thread::sleep(Duration::from_secs(seconds / 2));
                done.store(true, Ordering::Relaxed);
                Ok(())
            })?
            .0,
        );
        for vm in &vms {
            apply(&host, of_vm(&vcpus, vm.name)?)?;
        }
        let hog = round % 2 == 1;
        let (served, judged) = together(&host, &mut vms, (port, &web), seconds, hog)?;
        beside = beside.and(served);
        host.cli(&["reserve", "release", "--all"])?;
        for (name, judged) in judged {
            println!(
                "{:>5}  {name:<6}  {:>4}  {:>4}  {:>4}  {:>6}  {:>17.3}",
                round + 1,
                judged.jobs,
                judged.broken.len(),
                judged.lost,
                judged.longer,
                judged.most_of_deadline
            );
            for broken in &judged.broken {
                println!("     late inside the promise: {broken}");
            }
            rows.push(json!({
                "round": round + 1, "vm": name, "busy_guest": hog, "jobs": judged.jobs,
                "late_inside_promise": judged.broken.len(), "lost": judged.lost, "longer": judged.longer,
                "most_of_deadline": judged.most_of_deadline,
            }));
            all = all.and(judged);
        }
    }
    let same_work = beside.average() / beside.cost() / (alone.average() / alone.cost());
    println!("\n{all}");
    println!(
        "Apache, {WEB_BUDGET} of {PERIOD}: alone on its core {:.2} s of {} requests, beside both {:.2} s of {}; for the same work {same_work:.2}",
        alone.average(),
        alone.seconds.len(),
        beside.average(),
        beside.seconds.len(),
    );
    rows.push(json!({
        "vm": WEB, "alone_s": alone.seconds, "alone_ran_s": alone.ran, "beside_s": beside.seconds,
        "beside_ran_s": beside.ran, "beside_of_alone_for_same_work": same_work,
    }));
    report::write(NAME, rows)?;
    all.check()
}

/// The plan for all three on the last processor.
fn plan(ctx: &Context, host: &Host) -> anyhow::Result<Value> {
    let core = online()?.last().copied().context("no processor")?;
    let mut fleet = format!("cores = [{core}]\n");
    // Writing to a String does not fail.
    for (name, tasks) in VMS {
        let tasks = tasks.map(|(us, ms)| Declared { cost: us * 1000, deadline: ms * 1_000_000 });
        std::fs::write(ctx.path(&format!("{name}.toml")), promises::file(&tasks))?;
        let _ = write!(
            fleet,
            "[[vm]]\nname = \"{name}\"\ncgroup = \"/\"\ntasks = \"{name}.toml\"\nperiod = \"{PERIOD}\"\n"
        );
    }
    let _ = write!(
        fleet,
        "[[vm]]\nname = \"{WEB}\"\ncgroup = \"/\"\nbudget = \"{WEB_BUDGET}\"\nperiod = \"{PERIOD}\"\n"
    );
    let path = ctx.path("fleet.toml");
    std::fs::write(&path, fleet)?;
    let plan = host.json(&["reserve", "plan", "--vms", &path.display().to_string()])?;
    ensure!(plan["schedulable"] == true, "{plan}");
    Ok(plan)
}

/// Each VM's only vCPU in the plan.
fn vcpus(plan: &Value) -> anyhow::Result<Vec<(String, Value)>> {
    let one = |vm: &Value| Some((vm["name"].as_str()?.to_owned(), vm["vcpus"].get(0)?.clone()));
    let found = plan["vms"].as_array().into_iter().flatten().map(one);
    found.collect::<Option<_>>().with_context(|| format!("odd plan: {plan}"))
}

fn of_vm<'a>(vcpus: &'a [(String, Value)], name: &str) -> anyhow::Result<&'a Value> {
    let found = vcpus.iter().find(|(vm, _)| vm == name);
    found.map(|(_, vcpu)| vcpu).with_context(|| format!("{name} is not in the plan"))
}

/// Runs the command that the plan prints, and waits until it is in force.
fn apply(host: &Host, vcpu: &Value) -> anyhow::Result<()> {
    let command = vcpu["apply"].as_str().context("no command")?;
    host.cli(&command.split_whitespace().skip(1).collect::<Vec<_>>())?;
    host.wait_until("the reservation", |host| {
        let rows = host.json(&["reserve", "list"])?;
        let all = rows.as_array().context("no list")?;
        Ok(all.iter().all(|row| row["problem"].is_null() && !row["audit"].is_null()))
    })
}

/// All three at once.
fn together(
    host: &Host,
    vms: &mut [Tasked],
    (port, web): (u16, &Client),
    seconds: u64,
    hog: bool,
) -> anyhow::Result<(Served, Vec<(&'static str, Judgement)>)> {
    let audits = |host: &Host| host.json(&["reserve", "audit"]);
    let before = audits(host)?;
    let core = before[0]["core"].as_u64().with_context(|| before.to_string())?;
    let core = usize::try_from(core)?;
    let witness = Witness::start(core);
    // QEMU's main loops, which deliver a guest's timers, run on the other cores.
    let others = online()?.into_iter().filter(|other| *other != core).map(Witness::start);
    let others: Vec<Witness> = others.collect();
    let of_web = Recording::start(costs::vcpu(web.guest.pid())?)?;
    let (served, runs) = serve(port, web.guest.pid(), |done| {
        let runs = std::thread::scope(|scope| {
            let run = |vm: &mut Tasked| {
                let words: Vec<String> = vm.tasks.iter().map(promises::word).collect();
                costs::run_tasks(&mut vm.guest, (vm.turns, seconds), hog, SHIFT_MS, &words)
            };
            let all: Vec<_> = vms.iter_mut().map(|vm| scope.spawn(move || run(vm))).collect();
            all.into_iter().map(joined).collect::<anyhow::Result<Vec<Run>>>()
        });
        done.store(true, Ordering::Relaxed);
        runs
    })?;
    let reserved = runs.iter().fold(of_web.end()?, |all, run| all.and(&run.on));
    let after = audits(host)?;
    let stalls = witness.end(&reserved)?;
    ensure!(stalls.watched, "the core could not be watched");
    let nobody = Runtimes::default();
    let others: Vec<Stalls> =
        others.into_iter().map(|other| other.end(&nobody)).collect::<anyhow::Result<_>>()?;
    for row in after.as_array().into_iter().flatten() {
        let of_before = before.as_array().into_iter().flatten().find(|old| old["vm"] == row["vm"]);
        let of_before = of_before.with_context(|| format!("no {row} before"))?;
        judge::owes_nothing(&of_before["audit"], &row["audit"], &stalls)
            .with_context(|| row["vm"].to_string())?;
    }
    let judge = |(vm, run): (&Tasked, &Run)| {
        let judged = Judgement::of(run, &vm.promise, &stalls)?;
        if !judged.broken.is_empty() {
            explain(vm, run, &reserved, &others);
        }
        Ok((vm.name, judged))
    };
    let judged = vms.iter().zip(&runs).map(judge).collect::<anyhow::Result<_>>()?;
    Ok((served, judged))
}

/// Prints of each late job what happened meanwhile.
fn explain(vm: &Tasked, run: &Run, reserved: &Runtimes, others: &[Stalls]) {
    for (jobs, task) in run.jobs.iter().zip(&vm.tasks) {
        let deadline = i64::try_from(task.deadline).unwrap_or(i64::MAX);
        for job in jobs.iter().filter(|job| job.end - job.release > deadline) {
            let ms = |ns: u64| ns as f64 / 1e6;
            let (from, to) = (job.release, job.end);
            let lost: u64 = others.iter().map(|stalls| stalls.within(from, to)).sum();
            println!(
                "     {}: released, began {:.1} ms and ended {:.1} ms later; its vCPU ran {:.1} ms, all reserved ones {:.1} ms; the other \
                 cores lost {:.1} ms",
                vm.name,
                ms((job.begin - from).unsigned_abs()),
                ms((to - from).unsigned_abs()),
                ms(run.on.within(from, to)),
                ms(reserved.within(from, to)),
                ms(lost)
            );
        }
    }
}

/// Clients ask one after the other until `meanwhile` has set its flag.
fn serve<T>(
    port: u16,
    pid: u32,
    meanwhile: impl FnOnce(&AtomicBool) -> anyhow::Result<T>,
) -> anyhow::Result<(Served, T)> {
    let (done, tid) = (AtomicBool::new(false), costs::vcpu(pid)?);
    let before = schedstat(pid, tid)?.ran;
    let (answers, value) = std::thread::scope(|scope| {
        let client = || {
            let mut all = Vec::new();
            while !done.load(Ordering::Relaxed) {
                all.push(apache::request(port)?);
            }
            Ok(all)
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let value = meanwhile(&done);
        done.store(true, Ordering::Relaxed);
        (clients.into_iter().map(joined).collect::<anyhow::Result<Vec<_>>>(), value)
    });
    let seconds: Vec<f64> = answers?.concat();
    ensure!(!seconds.is_empty(), "Apache has answered nobody");
    Ok((Served { seconds, ran: (schedstat(pid, tid)?.ran - before) as f64 / 1e9 }, value?))
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}
