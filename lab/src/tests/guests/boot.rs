//! Boots stock kernels with each delivery of the page. The daemon's tests check what the page says.

use anyhow::{Context as _, ensure};

use crate::guest::Guest;
use crate::qemu::{Delivery, NVDIMM_ADDRESS};
use crate::scenario::Context;
use crate::ssdt;
use crate::tests::guests::page;

pub(crate) fn without_driver(ctx: &Context) -> anyhow::Result<String> {
    let kernel = ctx.kernel("bookworm")?;
    let mut guest = ctx.guest(&ctx.qemu()?, &kernel, &ctx.image(&kernel)?)?.start()?;
    let boot = guest.wait_ready()?;
    ensure!(!has_device(&mut guest, "vmclock0")?, "/dev/vmclock0 exists without a driver");
    Ok(format!("{} booted in {:.1} s", kernel.version, boot.as_secs_f64()))
}

pub(crate) fn vmclock_device(ctx: &Context) -> anyhow::Result<String> {
    let kernel = ctx.kernel("trixie-backports")?;
    let mut guest = ctx
        .guest(&ctx.qemu_10()?, &kernel, &ctx.image(&kernel)?)?
        .delivery(Delivery::VmclockDevice)
        .paused()
        .start()?;
    let status = guest.qmp().run("query-status")?;
    ensure!(status["status"] == "prelaunch", "QEMU -S should wait in prelaunch: {status}");
    guest.cont()?;
    let boot = guest.wait_ready()?;
    let registered = registration(&mut guest)?;
    ensure!(has_device(&mut guest, "vmclock0")?, "no /dev/vmclock0, though: {registered}");
    Ok(format!("{} booted in {:.1} s, {registered}", kernel.version, boot.as_secs_f64()))
}

pub(crate) fn nvdimm(ctx: &Context) -> anyhow::Result<String> {
    let page = page::write_minimal(&ctx.path("page"), 0)?;
    let kernel = ctx.kernel("trixie-backports")?;
    let mut guest = ctx
        .guest(&ctx.qemu()?, &kernel, &ctx.image(&kernel)?)?
        .delivery(Delivery::Nvdimm {
            page,
            ssdt: ssdt::compile(NVDIMM_ADDRESS, ctx.log_dir())?,
            address: NVDIMM_ADDRESS,
        })
        .start()?;
    let boot = guest.wait_ready()?;
    let registered = registration(&mut guest)?;
    for device in ["vmclock0", "ptp0"] {
        ensure!(has_device(&mut guest, device)?, "no /dev/{device}, though: {registered}");
    }
    let magic = guest.sh("dd if=/dev/vmclock0 bs=4 count=1 2>/dev/null")?;
    ensure!(magic == "VCLK", "the guest reads {magic:?} at the start of the page, not VCLK");
    Ok(format!("{} booted in {:.1} s, {registered}", kernel.version, boot.as_secs_f64()))
}

fn has_device(guest: &mut Guest, name: &str) -> anyhow::Result<bool> {
    Ok(guest.sh(&format!("[ -c /dev/{name} ] && echo yes || echo no"))?.trim() == "yes")
}

/// The driver's own line in the guest's kernel log.
fn registration(guest: &mut Guest) -> anyhow::Result<String> {
    let log = guest.sh("dmesg | grep -i vmclock || true")?;
    log.lines()
        .find_map(|line| line.find("vmclock0: registered").map(|at| line[at..].to_owned()))
        .with_context(|| format!("the guest's kernel registered no vmclock; its log says: {log:?}"))
}
