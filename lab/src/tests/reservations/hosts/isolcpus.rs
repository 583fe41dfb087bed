//! A host that keeps cores 2 and 3 from the scheduler and the tick (isolcpus, nohz_full), for those that are pinned
//! to them.

use std::collections::BTreeMap;

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

    // A VM that is pinned to nothing gets none of them, and no other one either: that would leave a trace
    // ([`partitions_spill`]).
    let (tried, others) = host.candidates("web")?;
    ensure!(tried.is_empty(), "{tried:?} {others:?}");
    mentions(&others[&3], &["isolated (isolcpus)", "not pinned"])?;
    mentions(&others[&1], &["isolated processors 2-3", "pin the vCPU to one of 2-3"])?;
    let bystanders = everybody(&mut host)?;
    for core in ["", "--core 1"] {
        host.refused(
            "web",
            core,
            &["as before afterwards", "isolated processors 2-3", "nohz_full"],
        )?;
    }
    let now = everybody(&mut host)?;
    let changed = changed(&bystanders, &now);
    ensure!(changed.is_empty(), "a refusal has changed processors: {changed:?}");

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
    // As it was: isolcpus keeps new programs away from 2 and 3.
    host.host.sh(&format!("taskset -p 3 {other}"))?;
    host.in_force("web", 3).context("after db")?;
    host.release(&vms, &before)?;

    moves(&mut host)?;

    // All of these cores are one root domain: who may use one of them only cannot have a deadline there.
    host.write(POD, "cpuset.cpus", "3")?;
    host.launch("pod", POD)?;
    host.refused("pod", "", &["isolated processors 2-3", POD, "nohz_full"])?;
    let spilt = partitions_spill(&mut host)?;
    Ok(format!("{share:.1} % of core 3; {spilt}"))
}

/// One moves to an isolated core that another one has, and each can be changed there; VMs of one cgroup, and of two.
fn moves(host: &mut FourCores) -> anyhow::Result<()> {
    host.launch("web2", WEB)?;
    for other in ["db", "web2"] {
        let vms = ["web", other];
        let before = host.settings(&vms)?;
        for (vm, core) in [("web", 3), (other, 2)] {
            host.apply(&format!("{vm} --core {core}"))?;
            host.in_force(vm, core)?;
        }
        host.host.sh(&format!("timevisor reserve move {other} --core 3"))?;
        for vm in ["web", other] {
            host.in_force(vm, 3).with_context(|| format!("{other} has moved"))?;
        }
        for vm in [other, "web", other] {
            host.host.sh(&format!("timevisor reserve apply {vm} --budget 10ms/50ms"))?;
            let row = super::row(&mut host.host, vm)?;
            ensure!(row["budget_ns"] == 10_000_000 && row["problem"].is_null(), "{row}");
            host.apply(vm)?;
            host.in_force(vm, 3).with_context(|| format!("{vm} was changed beside {other}"))?;
        }
        host.host.sh(&format!("timevisor reserve move {other} --core 2"))?;
        host.in_force(other, 2).context("back")?;
        host.apply("web")?;
        host.release(&vms, &before)?;
    }
    Ok(())
}

/// The processors of every program that is no thread of the kernel, by process.
fn everybody(host: &mut FourCores) -> anyhow::Result<BTreeMap<String, String>> {
    // Those have no program.
    let line = "for p in /proc/[0-9]*; do [ -e $p/exe ] && echo ${p##*/} $(cut -d \" \" -f 2 $p/stat) \
                $(grep Cpus_allowed_list $p/status | cut -f 2); done; true";
    let said = host.host.sh(line)?;
    let rows = said.lines().filter_map(|row| row.rsplit_once(' '));
    // The shell that looks is gone when it is looked again.
    let rows = rows.filter(|(name, _)| !name.contains("(sh)"));
    let all: BTreeMap<_, _> = rows.map(|(name, list)| (name.to_owned(), list.to_owned())).collect();
    ensure!(all.len() > 3, "{said}");
    Ok(all)
}

/// Whose processors have changed, of those that are there both times.
fn changed(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let of = |(name, was): (&String, &String)| {
        let is = after.get(name).filter(|is| *is != was)?;
        Some(format!("{name}: {was}, and now {is}"))
    };
    before.iter().filter_map(of).collect()
}

/// Why no other core is reserved on such a host: a partition, made and ended by hand, leaves everybody on the isolated
/// cores, and meanwhile takes those that ran on its core there. Once this fails, the kernel is better, and
/// `CpusetError::Spills` can go.
fn partitions_spill(host: &mut FourCores) -> anyhow::Result<String> {
    host.host.sh("for n in 1 2 3 4; do sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $! >>/run/busy; done; sleep 2")?;
    let cores = "for p in $(cat /run/busy); do sed \"s/.*) //\" /proc/$p/stat | cut -d \" \" -f 37; done | sort | xargs";
    let before = everybody(host)?;
    let ran = host.host.sh(cores)?;
    host.host.sh("cd /sys/fs/cgroup; mkdir probe; echo 1 >probe/cpuset.cpus; echo root >probe/cpuset.cpus.partition; sleep 1")?;
    let runs = host.host.sh(cores)?;
    host.host.sh("echo member >/sys/fs/cgroup/probe/cpuset.cpus.partition; rmdir /sys/fs/cgroup/probe; sleep 1")?;
    let after = everybody(host)?;
    host.host.sh("kill $(cat /run/busy)")?;
    let changed = changed(&before, &after);
    ensure!(!changed.is_empty(), "a partition leaves no trace: {after:?}");
    Ok(format!(
        "a partition leaves {} of {} programs on other processors than before ({}); busy programs on cores {} were then on {}",
        changed.len(),
        before.len(),
        changed[0],
        ran.trim(),
        runs.trim()
    ))
}

/// How much of four seconds a thread runs, in percent.
fn share(host: &mut FourCores, tid: &str) -> anyhow::Result<f64> {
    let line = format!("cut -d \" \" -f 1 /proc/{tid}/schedstat; cut -d \" \" -f 1 /proc/uptime");
    let said = host.host.sh(&format!("{line}; sleep 4; {line}"))?;
    let all: Vec<f64> = said.lines().map(|line| line.trim().parse().unwrap_or(f64::NAN)).collect();
    let [ran, at, ran_then, then] = all[..] else { anyhow::bail!("{said}") };
    Ok(100.0 * (ran_then - ran) / 1e9 / (then - at))
}
