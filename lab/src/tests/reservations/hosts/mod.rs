//! Hosts with four cores, a kernel of their own (7.3) and cgroup v2, on which others have divided the cores: a
//! reservation takes the right core, and everything is as before afterwards.
//!
//! | file | the cores are divided by |
//! | --- | --- |
//! | `isolcpus.rs` | the kernel's command line |
//! | `kubernetes.rs` | kubelet's static CPU manager |
//! | `slices.rs` | systemd's AllowedCPUs=, libvirt's vcpupin, partitions |
//! | `hotplug.rs` | nobody: cores go offline |
//!
//! The VMs are QEMU's under TCG inside the emulated host, with a firmware that only spins: what matters here is
//! where their threads are.

pub(crate) mod hotplug;
pub(crate) mod isolcpus;
pub(crate) mod kubernetes;
pub(crate) mod slices;

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::host::mentions;
use crate::nested::{NestedHost, PERIODIC};
use crate::scenario::Context;
use crate::tests::reservations::reserve::same;

const ROOT: &str = "/sys/fs/cgroup";

/// A host with four cores.
pub(crate) struct FourCores {
    pub(crate) host: NestedHost,
}

impl FourCores {
    /// Boots it, with more arguments for its kernel.
    pub(crate) fn boot(ctx: &Context, append: &str) -> anyhow::Result<Self> {
        let (kernel, qemu) = (ctx.kernel("trixie-backports")?, ctx.qemu_10()?);
        let append = format!("{PERIODIC} {append}");
        let kernels = [&kernel, &kernel];
        let mut host = NestedHost::boot_for(ctx, &qemu, &qemu, kernels, 4, append.trim_end(), Ok)?;
        host.sh(&format!(
            "mount -t cgroup2 none {ROOT}; echo +cpuset +cpu +memory +pids >{ROOT}/cgroup.subtree_control"
        ))?;
        // A firmware that never ends: jmp to itself at the reset vector.
        host.sh(
            "(head -c 65520 /dev/zero; printf \"\\353\\376\"; head -c 14 /dev/zero) >/run/spin.bin",
        )?;
        Ok(Self { host })
    }

    /// Makes cgroups below the root, with the controllers that systemd and the container runtimes enable in those
    /// above them.
    pub(crate) fn cgroups(&mut self, paths: &[&str]) -> anyhow::Result<()> {
        for path in paths {
            let parts: Vec<&str> = path.split('/').collect();
            for end in 1..parts.len() {
                let above = parts[..end].join("/");
                self.host.sh(&format!(
                    "mkdir -p {ROOT}/{above}; echo +cpuset +cpu +memory +pids >{ROOT}/{above}/cgroup.subtree_control"
                ))?;
            }
            self.host.sh(&format!("mkdir -p {ROOT}/{path}"))?;
        }
        Ok(())
    }

    /// Writes one of a cgroup's files.
    pub(crate) fn write(&mut self, cgroup: &str, file: &str, text: &str) -> anyhow::Result<()> {
        self.host.sh(&format!("echo {text} >{ROOT}/{cgroup}/{file}")).map(drop)
    }

    /// Reads one of them.
    pub(crate) fn read(&mut self, cgroup: &str, file: &str) -> anyhow::Result<String> {
        Ok(self.host.sh(&format!("cat {ROOT}/{cgroup}/{file}"))?.trim().to_owned())
    }

    /// Starts a VM in this cgroup, whose one vCPU is always busy.
    pub(crate) fn launch(&mut self, name: &str, cgroup: &str) -> anyhow::Result<()> {
        let options = format!(
            "-name {name},debug-threads=on -accel tcg -smp 1 -machine q35 -m 64M -display none -nodefaults -no-user-config \
             -bios /run/spin.bin"
        );
        self.host.sh(&format!(
            "(echo 'echo $$ >{ROOT}/{cgroup}/cgroup.procs || exit 1; exec qemu-system-x86_64 {options} ' \\\\; \
             timevisor vm args --name {name} --memory 64 --delivery vmclock) >/run/{name}.sh; \
             sh /run/{name}.sh >/run/{name}-qemu.log 2>&1 &"
        ))?;
        self.host.wait("the VM to be found", |host| Ok(host.vm(name).is_ok()))
    }

    /// Starts another program in this cgroup: a container's.
    pub(crate) fn occupy(&mut self, cgroup: &str) -> anyhow::Result<()> {
        self.host.sh(&format!(
            "sh -c 'echo $$ >{ROOT}/{cgroup}/cgroup.procs; exec sleep 100000' >/dev/null 2>&1 &"
        ))?;
        self.host.wait("the program to be there", |host| {
            Ok(host.sh(&format!("cat {ROOT}/{cgroup}/cgroup.procs"))?.trim() != "")
        })
    }

    /// QEMU's process.
    pub(crate) fn pid(&mut self, name: &str) -> anyhow::Result<u64> {
        self.host.vm(name)?["pid"].as_u64().context("no pid")
    }

    /// The thread of the VM's vCPU.
    pub(crate) fn vcpu(&mut self, name: &str) -> anyhow::Result<String> {
        let pid = self.pid(name)?;
        let line = format!("grep -l CPU /proc/{pid}/task/*/comm | cut -d / -f 5");
        Ok(self.host.sh(&line)?.trim().to_owned())
    }

    /// The processors on which a VM's threads may run, each said once.
    pub(crate) fn allowed(&mut self, name: &str) -> anyhow::Result<String> {
        let pid = self.pid(name)?;
        let line =
            format!("cat /proc/{pid}/task/*/status | grep Cpus_allowed_list | cut -f 2 | sort -u");
        Ok(self.host.sh(&line)?.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Everything that a reservation of these VMs touches: each thread's policy, priority, processors and cgroup,
    /// every cgroup's cpuset, type and controllers, and halt polling.
    pub(crate) fn settings(&mut self, vms: &[&str]) -> anyhow::Result<BTreeMap<String, String>> {
        let mut lines = vec![format!(
            "for f in $(find {ROOT} -name \"cpuset.cpus*\") $(find {ROOT} -name cgroup.subtree_control) \
             $(find {ROOT} -name cgroup.type) /sys/module/kvm/parameters/halt_poll_ns; do echo \"$f $(cat $f 2>/dev/null)\"; done"
        )];
        for vm in vms {
            let pid = self.pid(vm)?;
            lines.push(format!(
                "for t in /proc/{pid}/task/*; do echo \"${{t##*/}} $(sed \"s/.*) //\" $t/stat | cut -d \" \" -f 38,39) \
                 $(grep Cpus_allowed_list $t/status) $(cat $t/cgroup)\"; done"
            ));
        }
        let mut all = BTreeMap::new();
        for line in lines {
            for row in self.host.sh(&line)?.lines() {
                let (name, value) = row.split_once(' ').unwrap_or((row, ""));
                all.insert(name.to_owned(), value.to_owned());
            }
        }
        ensure!(all.len() > 10 * vms.len(), "nothing was read: {all:?}");
        Ok(all)
    }

    /// `reserve apply` with these arguments, which must succeed.
    pub(crate) fn apply(&mut self, arguments: &str) -> anyhow::Result<()> {
        self.host.sh(&format!("timevisor reserve apply {arguments} --budget 20ms/50ms")).map(drop)
    }

    /// `reserve apply` with these arguments, which must be refused with words that have these parts, and nothing
    /// must be changed.
    pub(crate) fn refused(
        &mut self,
        vm: &str,
        arguments: &str,
        parts: &[&str],
    ) -> anyhow::Result<()> {
        let before = self.settings(&[vm])?;
        let said = self.host.sh(&format!(
            "timevisor reserve apply {vm} {arguments} --budget 20ms/50ms 2>&1 && echo ACCEPTED || true"
        ))?;
        ensure!(!said.contains("ACCEPTED"), "not refused: {said}");
        mentions(&said, parts)?;
        same(&before, &self.settings(&[vm])?).with_context(|| format!("after: {said}"))
    }

    /// The VM's vCPU has this core: SCHED_DEADLINE (6) there, nowhere else, and no complaint. Returns the cgroup of
    /// its thread.
    pub(crate) fn in_force(&mut self, vm: &str, core: u32) -> anyhow::Result<String> {
        self.host.wait("the budget", |host| Ok(row(host, vm)?["problem"].is_null()))?;
        let row = row(&mut self.host, vm)?;
        ensure!(row["core"] == core && row["budget_ns"] == 20_000_000, "not core {core}: {row}");
        let tid = row["tid"].as_u64().context("no tid")?;
        // Field 39 of proc_pid_stat(5) is where it ran last, 41 its policy.
        let stat =
            self.host.sh(&format!("sed \"s/.*) //\" /proc/{tid}/stat | cut -d \" \" -f 37,39"))?;
        ensure!(stat.trim() == format!("{core} 6"), "ran last, policy: {stat}");
        let allowed = self.host.sh(&format!("grep Cpus_allowed_list /proc/{tid}/status"))?;
        ensure!(allowed.trim().ends_with(&format!("\t{core}")), "{allowed}");
        let cgroup = self.host.sh(&format!("cat /proc/{tid}/cgroup"))?;
        let cgroup = cgroup.trim().trim_start_matches("0::/").to_owned();
        ensure!(cgroup.ends_with(&format!("timevisor-cpu{core}")), "{cgroup}");
        Ok(cgroup)
    }

    /// The same, in a valid partition.
    pub(crate) fn in_partition(&mut self, vm: &str, core: u32) -> anyhow::Result<()> {
        let cgroup = self.in_force(vm, core)?;
        let partition = self.read(&cgroup, "cpuset.cpus.partition")?;
        ensure!(partition == "root", "{cgroup}: {partition}");
        let others = self.read("", "cpuset.cpus.effective")?;
        ensure!(!list(&others).contains(&core), "others have {others}");
        Ok(())
    }

    /// What nobody but the reservation may see: with the daemon killed and started again, it is still in force.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.host.sh("kill -9 $(pidof timevisord); sleep 1")?;
        self.host.start_daemon()
    }

    /// Releases all, and compares with what was before.
    pub(crate) fn release(
        &mut self,
        vms: &[&str],
        before: &BTreeMap<String, String>,
    ) -> anyhow::Result<()> {
        self.host.sh("timevisor reserve release --all")?;
        same(before, &self.settings(vms)?).context("after the release")
    }

    /// `reserve plan --host`: the cores that would be tried, in order; and why each other one would not.
    pub(crate) fn candidates(
        &mut self,
        arguments: &str,
    ) -> anyhow::Result<(Vec<u64>, BTreeMap<u64, String>)> {
        let rows = self.host.json(&format!("timevisor reserve plan --host {arguments} --json"))?;
        let rows = rows.as_array().context("no rows")?;
        ensure!(rows.len() == 4, "not four cores: {rows:?}");
        let (mut tried, mut others) = (Vec::new(), BTreeMap::new());
        for row in rows {
            let core = row["core"].as_u64().context("no core")?;
            match row["why_not"].as_str() {
                None => {
                    tried.push(core);
                    ensure!(row["place"] == tried.len(), "{row}");
                }
                Some(why) => drop(others.insert(core, why.to_owned())),
            }
        }
        Ok((tried, others))
    }
}

/// The reservation of a VM, as `reserve list` shows it.
fn row(host: &mut NestedHost, vm: &str) -> anyhow::Result<Value> {
    let rows = host.json("timevisor reserve list --json")?;
    let found = rows.as_array().into_iter().flatten().find(|row| row["vm"] == vm);
    found.cloned().with_context(|| format!("nothing is reserved for {vm}: {rows}"))
}

/// A list of processors as the kernel writes it.
fn list(text: &str) -> Vec<u32> {
    let number = |text: &str| text.parse().unwrap_or(u32::MAX);
    let run = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        number(first)..=number(last)
    };
    text.split(',').filter(|part| !part.is_empty()).flat_map(run).collect()
}
