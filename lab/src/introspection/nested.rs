//! A host inside a guest, with a guest under the real KVM that its timevisord introspects.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::image::Image;
use crate::nested::NestedHost;
use crate::scenario::Context;

/// The inner guest's name.
pub const VM: &str = "web";
/// The switch of KVM's forced emulation prefix.
pub(crate) const SWITCH: &str = "/sys/module/kvm/parameters/force_emulation_prefix";

/// By KVM's forced emulation prefix, as `--backend` names it.
pub const PREFIX: &str = "kvm";
/// By writes to a port.
pub const PORT: &str = "port";

/// Of the host inside. With two, its guest was reset now and then, and once the host itself was,
/// before anything was attached; with one neither was. That speaks for TCG's emulation of SVM on
/// several threads. The guest's two vCPUs take turns, and are never inside at the same moment.
const PROCESSORS: u32 = 1;

/// The host's timer is periodic, and its ticks come anyway: beside a guest TCG loses an interrupt
/// of the timer now and then, and one that is set anew by each interrupt stands still then (seen
/// with Linux 7.3: a soft lockup of 112 to 114 s, three times, also while nothing of ours ran).
const APPEND: &str = "nohz=off highres=off";

/// A host with the kernel of this suite, and a guest in it.
///
/// # Errors
/// When either does not boot.
pub fn host_with_guest(
    ctx: &Context,
    suite: &str,
    more: impl FnOnce(Image) -> anyhow::Result<Image>,
) -> anyhow::Result<NestedHost> {
    let qemu = ctx.qemu_10()?;
    let kernels = [ctx.kernel(suite)?, ctx.kernel("trixie-backports")?];
    let mut host =
        NestedHost::boot_for(ctx, &qemu, &qemu, kernels.each_ref(), PROCESSORS, APPEND, more)?;
    host.launch(VM, "vmclock", 2)?;
    host.qmp(VM, "cont")?;
    host.wait_ready(VM, 1)?;
    Ok(host)
}

/// Has the guest introspected this way, and waits for the trap points.
///
/// # Errors
/// When they cannot be put in place.
pub fn attach(host: &mut NestedHost, way: &str) -> anyhow::Result<()> {
    host.sh(&format!("timevisor introspect attach {VM} --backend {way}"))?;
    attached(host)
}

/// Waits for the trap points.
pub(crate) fn attached(host: &mut NestedHost) -> anyhow::Result<()> {
    host.wait("the trap points", |host| {
        let row = row(host)?;
        ensure!(row["state"] == "attached", "{row}");
        Ok(true)
    })
}

/// Ends it, and waits until nothing is left in the guest.
///
/// # Errors
/// When something stays.
pub fn detach(host: &mut NestedHost) -> anyhow::Result<()> {
    host.sh("timevisor introspect detach web")?;
    host.wait("nothing to be in place", |host| Ok(!switch(host)? && in_place(host)? == 0))
}

/// What timevisord tells of the only guest.
pub(crate) fn row(host: &mut NestedHost) -> anyhow::Result<Value> {
    let rows = host.json("timevisor introspect list --json")?;
    rows.get(0).cloned().context("nothing is introspected")
}

/// The prefix is forced now.
pub(crate) fn switch(host: &mut NestedHost) -> anyhow::Result<bool> {
    let said = host.sh(&format!("cat {SWITCH}"))?;
    Ok(!["N", "0"].contains(&said.trim()))
}

/// How many VMs have something in place, by what is on disk.
pub(crate) fn in_place(host: &mut NestedHost) -> anyhow::Result<usize> {
    let kept = host.json("cat /run/timevisor/introspection.json")?;
    Ok(kept["vms"].as_array().context("no list")?.len())
}
