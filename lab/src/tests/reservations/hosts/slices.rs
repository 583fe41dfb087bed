//! systemd's slices with AllowedCPUs=, libvirt's pins, and partitions of others. systemd writes AllowedCPUs= into
//! cpuset.cpus of the unit's cgroup; libvirt writes a vcpupin into that of the vCPU's threaded cgroup, and sets the
//! thread's affinity.

use anyhow::{Context as _, ensure};

use super::FourCores;
use crate::host::mentions;
use crate::scenario::Context;

const SYSTEM: &str = "system.slice/app.service";
const WEB: &str = "machine.slice/machine-qemu-1-web.scope/libvirt";
const DB: &str = "machine.slice/machine-qemu-2-db.scope/libvirt";
const PART: &str = "rt.slice/vm.scope";
const HOME: &str = "own.scope";

pub(crate) fn slices(ctx: &Context) -> anyhow::Result<String> {
    let mut host = FourCores::boot(ctx, "")?;
    host.cgroups(&[SYSTEM, WEB, DB])?;
    host.occupy(SYSTEM)?;
    host.launch("web", WEB)?;
    host.launch("db", DB)?;
    pin(&mut host, "db", DB, "2")?;
    let vms = ["web", "db"];

    // AllowedCPUs=2-3 on machine.slice, 0-1 on system.slice; db's vCPU is pinned to 2.
    host.write("machine.slice", "cpuset.cpus", "2-3")?;
    host.write("system.slice", "cpuset.cpus", "0-1")?;
    let before = host.settings(&vms)?;
    let (tried, others) = host.candidates("db")?;
    ensure!(tried == [2], "{tried:?} {others:?}");
    let (tried, others) = host.candidates("web")?;
    ensure!(tried.first() == Some(&3), "{tried:?} {others:?}");
    mentions(&others[&1], &["not allowed on core 1"])?;
    host.apply("web")?;
    host.in_partition("web", 3)?;
    host.restart()?;
    host.in_partition("web", 3).context("after a restart")?;
    let left = host.read("system.slice", "cpuset.cpus.effective")?;
    ensure!(left == "0-1", "system.slice has {left}");
    host.release(&vms, &before)?;
    // db has its own core, below libvirt's cgroup of the vCPU. Core 3 is left to everybody else in the slice.
    host.apply("db")?;
    host.in_partition("db", 2)?;
    host.release(&vms, &before)?;

    // AllowedCPUs= of machine.slice is reset: web may run on all cores. Core 2 is db's, and 0 and 1 are
    // system.slice's.
    host.write("machine.slice", "cpuset.cpus", "")?;
    let before = host.settings(&vms)?;
    let (tried, others) = host.candidates("web")?;
    ensure!(tried == [3], "{tried:?} {others:?}");
    mentions(&others[&2], &["vcpu0"])?;
    mentions(&others[&1], &["system.slice"])?;
    host.apply("web")?;
    host.in_partition("web", 3)?;
    // AllowedCPUs= changes while it is reserved (`systemctl set-property`).
    host.write("machine.slice", "cpuset.cpus", "1-2")?;
    host.in_partition("web", 3).context("after set-property")?;
    host.write("machine.slice", "cpuset.cpus", "")?;
    host.release(&vms, &before)?;

    partitions(&mut host)?;
    Ok("slices, pins and partitions of others".to_owned())
}

/// `virsh vcpupin VM 0 CPUS`, as libvirt does it.
fn pin(host: &mut FourCores, vm: &str, cgroup: &str, cpus: &str) -> anyhow::Result<()> {
    let (tid, root) = (host.vcpu(vm)?, super::ROOT);
    host.host.sh(&format!(
        "cd {root}/{cgroup}; mkdir emulator vcpu0; echo threaded >emulator/cgroup.type; echo threaded >vcpu0/cgroup.type; \
         echo +cpuset >cgroup.subtree_control; echo {cpus} >vcpu0/cpuset.cpus; \
         for t in $(cat cgroup.threads); do echo $t >emulator/cgroup.threads; done; echo {tid} >vcpu0/cgroup.threads"
    ))?;
    let mask: u32 = super::list(cpus).iter().map(|core| 1 << core).sum();
    host.host.sh(&format!("taskset -p {mask:x} {tid}")).map(drop)
}

/// A partition of others: its cores are nobody else's. A VM further down in it is refused before anything is touched
/// (a grant there would make the partition smaller); one whose cgroup it is gets a part of it.
fn partitions(host: &mut FourCores) -> anyhow::Result<()> {
    host.write("system.slice", "cpuset.cpus", "")?;
    host.cgroups(&[PART, HOME])?;
    host.write("rt.slice", "cpuset.cpus", "3")?;
    host.write("rt.slice", "cpuset.cpus.partition", "root")?;
    ensure!(host.read("rt.slice", "cpuset.cpus.partition")? == "root", "no partition");
    host.occupy(PART)?;
    let (tried, others) = host.candidates("web")?;
    ensure!(!tried.contains(&3), "{tried:?} {others:?}");
    mentions(&others[&3], &["set apart by the partition rt.slice"])?;
    host.refused("web", "--core 3", &["another cgroup's partition has processor 3"])?;
    host.launch("inside", PART)?;
    host.refused("inside", "", &[PART, "inside the partition rt.slice"])?;
    ensure!(
        host.read("rt.slice", "cpuset.cpus.partition")? == "root",
        "it is no partition any more"
    );

    host.host
        .sh(&format!("kill -9 $(cat {root}/{PART}/cgroup.procs); sleep 1", root = super::ROOT))?;
    host.write("rt.slice", "cpuset.cpus.partition", "member")?;
    host.write("rt.slice", "cpuset.cpus", "")?;
    host.write(HOME, "cpuset.cpus", "2-3")?;
    host.write(HOME, "cpuset.cpus.partition", "root")?;
    host.launch("home", HOME)?;
    let before = host.settings(&["home"])?;
    host.apply("home")?;
    host.in_partition("home", 3)?;
    let left = host.read(HOME, "cpuset.cpus.effective")?;
    ensure!(left == "2", "the rest of the partition has {left}");
    host.restart()?;
    host.in_partition("home", 3)?;
    host.release(&["home"], &before)
}
