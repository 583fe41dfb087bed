//! A node with kubelet's static CPU manager. It writes cpuset.cpus of containers' cgroups only: a list of its own for
//! a container that has whole cores, and the *shared pool* for all others, again whenever a pod comes or goes. It
//! makes no partitions, and looks at nothing that others do.

use anyhow::{Context as _, ensure};

use super::FourCores;
use crate::host::mentions;
use crate::scenario::Context;

/// Containers as containerd with systemd's cgroup driver makes them.
const DATABASE: &str = "kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope";
const POOL_VM: &str =
    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2.slice/cri-containerd-2.scope";
const POOL: &str = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod3.slice/cri-containerd-3.scope";
const OWN_VM: &str = "kubepods.slice/kubepods-pod4.slice/cri-containerd-4.scope";
/// A pod that comes later.
const NEW: &str = "kubepods.slice/kubepods-pod5.slice/cri-containerd-5.scope";
/// A VM beside Kubernetes.
const HOST_VM: &str = "machine.slice/machine-qemu-1-host.scope";

/// What kubelet writes when the exclusive cores have changed.
fn pool(node: &mut FourCores, cpus: &str) -> anyhow::Result<()> {
    for container in [POOL_VM, POOL] {
        node.write(container, "cpuset.cpus", cpus)?;
    }
    Ok(())
}

pub(crate) fn kubernetes(ctx: &Context) -> anyhow::Result<String> {
    let mut node = FourCores::boot(ctx, "")?;
    node.cgroups(&[DATABASE, POOL_VM, POOL, OWN_VM, HOST_VM])?;
    node.write(DATABASE, "cpuset.cpus", "3")?;
    pool(&mut node, "0-2")?;
    node.occupy(DATABASE)?;
    node.occupy(POOL)?;
    node.launch("host", HOST_VM)?;
    node.launch("pool", POOL_VM)?;
    let vms = ["host", "pool"];
    let before = node.settings(&vms)?;

    // A VM that is pinned to nothing gets no container's own core, though its number is the highest.
    let (tried, others) = node.candidates("host")?;
    ensure!(tried == [2, 1], "{tried:?} {others:?}");
    mentions(&others[&3], &[DATABASE])?;
    node.apply("host")?;
    node.in_partition("host", 2)?;
    let left = node.read(DATABASE, "cpuset.cpus.effective")?;
    ensure!(left == "3", "the database has {left}");
    // A VM of the pool gets another core of the pool. There is one more, which is everybody's.
    let (tried, others) = node.candidates("pool")?;
    ensure!(tried == [1], "{tried:?} {others:?}");
    node.apply("pool")?;
    node.in_partition("pool", 1)?;
    let left = node.read(POOL, "cpuset.cpus.effective")?;
    ensure!(left == "0", "the rest of the pool has {left}");
    ensure!(node.read(DATABASE, "cpuset.cpus.effective")? == "3", "the database has lost its core");

    // A pod comes and gets core 2: the pool is 0-1, and the reservation of core 2 is in force. It is told.
    node.cgroups(&[NEW])?;
    node.write(NEW, "cpuset.cpus", "2")?;
    node.occupy(NEW)?;
    pool(&mut node, "0-1")?;
    node.host.wait("the conflict to be told", |host| {
        let log = host.sh("cat /run/timevisord.log")?;
        Ok(log.contains("core 2 is reserved for VM host vCPU 0") && log.contains(NEW))
    })?;
    for (vm, core) in [("host", 2), ("pool", 1)] {
        node.in_partition(vm, core).context("after kubelet")?;
    }
    node.restart()?;
    for (vm, core) in [("host", 2), ("pool", 1)] {
        node.in_partition(vm, core).context("after a restart")?;
    }
    // The pod has gone, and kubelet has written what was before.
    node.host.sh(&format!("kill -9 $(cat /sys/fs/cgroup/{NEW}/cgroup.procs); sleep 1"))?;
    node.host.sh(&format!(
        "rmdir -p /sys/fs/cgroup/{NEW} 2>/dev/null || test ! -e /sys/fs/cgroup/{NEW}"
    ))?;
    pool(&mut node, "0-2")?;
    node.in_partition("pool", 1).context("after the pod")?;
    node.release(&vms, &before)?;
    // Its threads follow the pool as ever: nothing has pinned them.
    for cpus in ["0-1", "0-2", "0-3"] {
        pool(&mut node, cpus)?;
        let allowed = node.allowed("pool")?;
        ensure!(allowed == cpus, "the pool is {cpus}, and QEMU's threads may use {allowed}");
    }
    pool(&mut node, "0-2")?;

    own_cores(&mut node)?;
    Ok("no container's own core; the pool rewritten twice".to_owned())
}

/// A VM in a container with two cores of its own, as KubeVirt's dedicatedCpuPlacement makes them; the pool
/// changes meanwhile, and the release gives back what the pool is then.
fn own_cores(node: &mut FourCores) -> anyhow::Result<()> {
    pool(node, "0-1")?;
    node.cgroups(&[OWN_VM])?;
    node.write(DATABASE, "cpuset.cpus", "1")?;
    pool(node, "0")?;
    node.write(OWN_VM, "cpuset.cpus", "2-3")?;
    node.launch("own", OWN_VM)?;
    let (tried, others) = node.candidates("own")?;
    ensure!(tried == [3, 2], "{tried:?} {others:?}");
    mentions(&others[&1], &["not allowed on core 1"])?;
    let before = node.settings(&["own"])?;
    node.apply("own")?;
    node.in_partition("own", 3)?;
    let main = node.pid("own")?;
    let main = node.host.sh(&format!("grep Cpus_allowed_list /proc/{main}/status"))?;
    ensure!(main.trim().ends_with("\t2"), "QEMU's main loop: {main}");
    let kept = node.read(DATABASE, "cpuset.cpus.effective")?;
    ensure!(kept == "1", "the database has {kept}");
    node.restart()?;
    node.in_partition("own", 3)?;
    node.release(&["own"], &before)?;
    // The VM ends while its core is reserved: nothing is left of it.
    node.apply("own")?;
    node.in_partition("own", 3)?;
    let pid = node.pid("own")?;
    node.host.sh(&format!("kill -9 {pid}"))?;
    node.host.wait("the core to be given back", |host| {
        let left = host.sh("find /sys/fs/cgroup -name \"timevisor-*\"")?;
        let all = host.sh("cat /sys/fs/cgroup/cpuset.cpus.effective")?;
        Ok(left.trim().is_empty() && all.trim() == "0-3")
    })
}
