//! A host that keeps cores 2 and 3 from the scheduler and the tick (isolcpus, nohz_full), for those that are pinned
//! to them.

use anyhow::{Context as _, ensure};

use super::FourCores;
use crate::host::mentions;
use crate::scenario::Context;

const WEB: &str = "machine.slice/web.scope";
const DB: &str = "machine.slice/db.scope";
/// A container with one isolated core.
const POD: &str = "kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope";

pub(crate) fn isolcpus(ctx: &Context) -> anyhow::Result<String> {
    let mut host = FourCores::boot(ctx, "isolcpus=2-3 nohz_full=2-3")?;
    let isolated =
        host.host.sh("cat /sys/devices/system/cpu/isolated /sys/devices/system/cpu/nohz_full")?;
    ensure!(isolated == "2-3\n2-3\n", "{isolated}");
    host.cgroups(&[WEB, DB, POD])?;
    host.launch("web", WEB)?;
    host.launch("db", DB)?;
    let vms = ["web", "db"];

    // A VM that is pinned to nothing gets none of them.
    let (tried, others) = host.candidates("web")?;
    ensure!(tried == [1], "{tried:?} {others:?}");
    mentions(&others[&3], &["isolated (isolcpus)", "not pinned"])?;
    // The kernel (7.3) lets bystanders onto the isolated cores when a partition ends: see
    // docs/explanation/reservations.md. The VM's own threads are as before.
    let before = host.settings(&["web"])?;
    host.apply("web")?;
    host.in_partition("web", 1)?;
    host.restart()?;
    host.in_partition("web", 1).context("after a restart")?;
    host.release(&["web"], &before)?;

    // One whose vCPU is pinned to one gets that one.
    let vcpu = host.vcpu("web")?;
    host.host.sh(&format!("taskset -p 8 {vcpu}"))?;
    let (tried, others) = host.candidates("web")?;
    ensure!(tried == [3], "{tried:?} {others:?}");
    let before = host.settings(&vms)?;
    host.apply("web")?;
    let cgroup = host.in_force("web", 3)?;
    ensure!(cgroup == format!("{WEB}/timevisor-cpu3"), "{cgroup}");
    // The kernel supplies the budget there, and no more: 20 of 50 ms.
    let share = share(&mut host, &vcpu)?;
    ensure!((35.0..=45.0).contains(&share), "the busy vCPU ran for {share:.1} % of the time");
    // Another budget, in place; and another vCPU on the other isolated core, at the same time.
    host.host.sh("timevisor reserve apply web --budget 10ms/50ms")?;
    let row = super::row(&mut host.host, "web")?;
    ensure!(row["budget_ns"] == 10_000_000 && row["problem"].is_null(), "{row}");
    host.apply("web")?;
    host.in_force("web", 3).context("changed in place")?;
    let other = host.vcpu("db")?;
    host.host.sh(&format!("taskset -p 4 {other}"))?;
    host.apply("db")?;
    host.in_force("db", 2)?;
    host.in_force("web", 3).context("beside db")?;
    host.restart()?;
    for (vm, core) in [("web", 3), ("db", 2)] {
        host.in_force(vm, core).context("after a restart")?;
    }
    host.host.sh("timevisor reserve release db")?;
    host.host.sh(&format!("taskset -p f {other}"))?;
    host.in_force("web", 3).context("after db")?;
    host.release(&vms, &before)?;

    // All of these cores are one root domain: who may use one of them only cannot have a deadline there.
    host.write(POD, "cpuset.cpus", "3")?;
    host.launch("pod", POD)?;
    host.refused("pod", "", &["isolated processors 2-3", POD, "nohz_full"])?;
    Ok(format!("{share:.1} % of core 3"))
}

/// How much of four seconds a thread runs, in percent.
fn share(host: &mut FourCores, tid: &str) -> anyhow::Result<f64> {
    let line = format!("cut -d \" \" -f 1 /proc/{tid}/schedstat; cut -d \" \" -f 1 /proc/uptime");
    let said = host.host.sh(&format!("{line}; sleep 4; {line}"))?;
    let all: Vec<f64> = said.lines().map(|line| line.trim().parse().unwrap_or(f64::NAN)).collect();
    let [ran, at, ran_then, then] = all[..] else { anyhow::bail!("{said}") };
    Ok(100.0 * (ran_then - ran) / 1e9 / (then - at))
}
