//! A host inside a guest, with a guest under the real KVM, which the inner timevisord introspects.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::image::Image;
use crate::nested::{NestedHost, PERIODIC};
use crate::scenario::Context;

/// The inner guest's name.
pub const VM: &str = "web";
/// The parameter that enables KVM's forced emulation prefix.
pub(crate) const SWITCH: &str = "/sys/module/kvm/parameters/force_emulation_prefix";

/// The backend that uses KVM's forced emulation prefix, as `--backend` names it.
pub const PREFIX: &str = "kvm";
/// The backend that uses writes to an I/O port.
pub const PORT: &str = "port";

/// Processors of the inner host. With two, its guest was reset occasionally, and once the host
/// itself was, before anything was attached; with one, neither happened. This points to TCG's
/// multi-threaded emulation of SVM. The guest's two vCPUs take turns and never run at the same
/// moment.
const PROCESSORS: u32 = 1;

/// A host with the kernel of this suite, and a guest on it.
///
/// # Errors
/// When either does not boot.
pub fn host_with_guest(
    ctx: &Context,
    suite: &str,
    more: impl FnOnce(Image) -> anyhow::Result<Image>,
) -> anyhow::Result<NestedHost> {
    host_with_guest_booted(ctx, suite, PERIODIC, more)
}

/// Like [`host_with_guest`], with these arguments for the host's kernel.
///
/// # Errors
/// As [`host_with_guest`].
pub(crate) fn host_with_guest_booted(
    ctx: &Context,
    suite: &str,
    append: &str,
    more: impl FnOnce(Image) -> anyhow::Result<Image>,
) -> anyhow::Result<NestedHost> {
    let qemu = ctx.qemu_10()?;
    let kernels = [ctx.kernel(suite)?, ctx.kernel("trixie-backports")?];
    let mut host =
        NestedHost::boot_for(ctx, &qemu, &qemu, kernels.each_ref(), PROCESSORS, append, more)?;
    host.launch(VM, "vmclock", 2)?;
    host.qmp(VM, "cont")?;
    host.wait_ready(VM, 1)?;
    Ok(host)
}

/// Attaches introspection to the guest with this backend, and waits for the trap points.
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

/// Detaches, and waits until nothing is left in the guest.
///
/// # Errors
/// When something is left.
pub fn detach(host: &mut NestedHost) -> anyhow::Result<()> {
    host.sh("timevisor introspect detach web")?;
    host.wait("nothing to be in place", |host| Ok(!switch(host)? && in_place(host)? == 0))
}

/// What timevisord reports about the only guest.
pub(crate) fn row(host: &mut NestedHost) -> anyhow::Result<Value> {
    let rows = host.json("timevisor introspect list --json")?;
    rows.get(0).cloned().context("nothing is introspected")
}

/// Whether the prefix is forced now.
pub(crate) fn switch(host: &mut NestedHost) -> anyhow::Result<bool> {
    let said = host.sh(&format!("cat {SWITCH}"))?;
    Ok(!["N", "0"].contains(&said.trim()))
}

/// Number of VMs with trap points in place, according to the file on disk.
pub(crate) fn in_place(host: &mut NestedHost) -> anyhow::Result<usize> {
    let kept = host.json("cat /run/timevisor/introspection.json")?;
    Ok(kept["vms"].as_array().context("no list")?.len())
}
