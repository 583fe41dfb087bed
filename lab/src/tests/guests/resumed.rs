//! Boots a guest for a test of timevisor-guest: QEMU waits with its vCPUs until timevisord knows the VM and lets it
//! run, and the guest's clock begins six years off.

use std::path::PathBuf;

use crate::builder::GuestBuilder;
use crate::guest::Guest;
use crate::host::Host;
use crate::qemu::Delivery;
use crate::scenario::Context;

/// The guest, with these programs, once its page says that the host is synchronized. `more` is added to QEMU's
/// arguments.
pub(super) fn boot(
    ctx: &Context,
    host: &Host,
    name: &str,
    programs: &[PathBuf],
    more: impl FnOnce(GuestBuilder) -> GuestBuilder,
) -> anyhow::Result<Guest> {
    let kernel = ctx.kernel("trixie-backports")?;
    let image = programs.iter().fold(ctx.image(&kernel)?, |image, program| image.program(program));
    let qmp = host.directory().join("guest.qmp");
    let builder = ctx
        .guest(&ctx.qemu_10()?, &kernel, &image)?
        .delivery(Delivery::VmclockDevice)
        .append("no_timer_check")
        .paused()
        .args(["-rtc".into(), "base=2020-01-01T00:00:00".to_owned()])
        .args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())]);
    let mut guest = more(builder).start()?;
    host.cli(&["vm", "add", "--qmp", &qmp.display().to_string(), "--name", name, "--resume"])?;
    guest.wait_ready()?;
    host.wait_vm(name, "synchronized")?;
    Ok(guest)
}
