//! Reservations beside a real libvirtd under KVM and cgroup v2, on a host inside a guest, with
//! systemd's slices.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::host::mentions;
use crate::libvirt::inside;
use crate::nested::NestedHost;
use crate::real_time::prefer;
use crate::scenario::Context;
use crate::tests::reservations::reserve::same;

const VM: &str = "web";
/// The VM's cgroup as libvirt creates it.
const DOMAIN: &str = "/machine.slice/qemu-1-web.libvirt-qemu";
const APPLY: &str = "timevisor reserve apply web --alone --budget 20ms/50ms";

/// Everything that a reservation touches: each thread's policy, priority, processors and cgroup;
/// every cgroup's cpuset; halt polling.
fn settings(host: &mut NestedHost, pid: u64) -> anyhow::Result<BTreeMap<String, String>> {
    let threads = format!(
        "for t in /proc/{pid}/task/*; do echo \"${{t##*/}} $(sed \'s/.*) //\' $t/stat | cut -d \' \' -f 38,39) \
         $(grep Cpus_allowed_list $t/status) $(cat $t/cgroup)\"; done"
    );
    let files = "for f in $(find /sys/fs/cgroup -name \'cpuset.cpus*\') $(find /sys/fs/cgroup -name cgroup.subtree_control) \
                 $(find /sys/fs/cgroup/machine.slice -name cgroup.type) /sys/module/kvm/parameters/halt_poll_ns; \
                 do echo \"$f $(cat $f 2>/dev/null)\"; done";
    let mut all = BTreeMap::new();
    for line in [threads.as_str(), files] {
        for row in host.sh(line)?.lines() {
            let (name, value) = row.split_once(' ').unwrap_or((row, ""));
            all.insert(name.to_owned(), value.to_owned());
        }
    }
    ensure!(all.len() > 20, "nothing was read: {all:?}");
    Ok(all)
}

/// The VM has its core: SCHED_DEADLINE (6), in a valid cpuset partition below libvirt's cgroup of
/// the vCPU.
fn in_force(host: &mut NestedHost) -> anyhow::Result<()> {
    host.wait("the budget", |host| Ok(row(host)?["problem"].is_null()))?;
    let row = row(host)?;
    let (tid, core) = (row["tid"].as_u64().context("no tid")?, &row["core"]);
    ensure!(row["budget_ns"] == 20_000_000 && *core == 1, "{row}");
    let stat = host.sh(&format!("sed \'s/.*) //\' /proc/{tid}/stat | cut -d \' \' -f 39"))?;
    ensure!(stat.trim() == "6", "policy {stat}");
    let cgroup = host.sh(&format!("cat /proc/{tid}/cgroup"))?;
    mentions(&cgroup, &[DOMAIN, "/vcpu0/timevisor-cpu1"])?;
    let own = format!("/sys/fs/cgroup{DOMAIN}/vcpu0/timevisor-cpu1");
    let partition = host.sh(&format!("cat {own}/cpuset.cpus.partition {own}/cpuset.cpus"))?;
    ensure!(partition == "root\n1\n", "{partition}");
    let others = host.sh("cat /sys/fs/cgroup/cpuset.cpus.effective")?;
    ensure!(others.trim() == "0", "others have processors {others}");
    Ok(())
}

fn row(host: &mut NestedHost) -> anyhow::Result<Value> {
    let rows = host.json("timevisor reserve list --json")?;
    rows.get(0).cloned().context("nothing is reserved")
}

/// What an operator does to a VM whose vCPU is reserved.
fn virsh(host: &mut NestedHost) -> anyhow::Result<()> {
    let mut virsh = |words: &str| host.sh(&format!("virsh {words} 2>&1 || true"));
    mentions(&virsh("vcpuinfo web")?, &["CPU:            1", "CPU Affinity:   -y"])?;
    mentions(&virsh("vcpupin web 0 0")?, &["Device or resource busy"])?;
    for words in ["vcpupin web 0 0-1", "emulatorpin web 0", "emulatorpin web 0-1"] {
        let said = virsh(words)?;
        ensure!(said.trim().is_empty(), "{words}: {said}");
    }
    mentions(&virsh("suspend web")?, &["suspended"])?;
    mentions(&virsh("resume web")?, &["resumed"])
}

pub(crate) fn reserve_libvirt_v2(ctx: &Context) -> anyhow::Result<String> {
    let (kernel, qemu) = (ctx.kernel("trixie-backports")?, ctx.qemu_10()?);
    let more = |image| inside::with_libvirt(ctx, image);
    let mut host = NestedHost::boot_with(ctx, &qemu, &qemu, &kernel, more)?;
    prefer(host.guest().pid())?;
    inside::start(&mut host)?;
    inside::create(&mut host, VM)?;
    host.wait_ready(VM, 1)?;
    let pid = host.vm(VM)?["pid"].as_u64().context("no pid")?;
    let without = settings(&mut host, pid)?;
    // libvirt writes these settings into its cpusets; they are not changes by a reservation.
    host.sh("virsh vcpupin web 0 0-1; virsh emulatorpin web 0-1")?;
    let before = settings(&mut host, pid)?;
    ensure!(before != without, "virsh has done nothing");

    host.sh(APPLY)?;
    in_force(&mut host)?;
    virsh(&mut host)?;
    in_force(&mut host).context("after virsh")?;
    // A second VM starts, and the daemon dies.
    inside::create(&mut host, "db")?;
    in_force(&mut host).context("beside VM db")?;
    // The core belongs to nobody else, not even for a moment.
    let refused = host.sh("virsh vcpupin db 0 1 2>&1 || true")?;
    mentions(&refused, &["Invalid argument"])?;
    in_force(&mut host).context("after somebody wanted the core")?;
    host.sh("kill -9 $(pidof timevisord); sleep 1")?;
    host.start_daemon()?;
    in_force(&mut host).context("after a restart")?;
    host.sh("virsh destroy db")?;
    host.sh("timevisor reserve release web")?;
    same(&before, &settings(&mut host, pid)?).context("after the release")?;

    // Released by the VM's end: nothing of it is left in libvirt's tree, and nothing of ours.
    host.sh(APPLY)?;
    in_force(&mut host)?;
    host.sh("virsh destroy web")?;
    host.wait("the core to be given back", |host| {
        let rows = host.json("timevisor reserve list --json")?;
        let left = host.sh("find /sys/fs/cgroup -name \'*web*\' -o -name \'timevisor-*\'")?;
        Ok(rows.as_array().is_some_and(Vec::is_empty) && left.is_empty())
    })?;
    let after = host
        .sh("cd /sys/fs/cgroup; cat cpuset.cpus.effective machine.slice/cpuset.cpus.exclusive; \
         cat /sys/module/kvm/parameters/halt_poll_ns")?;
    let halt_poll = &before["/sys/module/kvm/parameters/halt_poll_ns"];
    ensure!(after == format!("0-1\n\n{halt_poll}\n"), "{after}");
    host.sh("libvirtd --version").map(|said| said.trim().to_owned())
}
