//! Cores that go offline and come back.

use anyhow::{Context as _, ensure};

use super::FourCores;
use crate::host::mentions;
use crate::scenario::Context;

const WEB: &str = "machine.slice/web.scope";

/// Writes whether a core is online; returns what the shell says, if it fails.
fn online(host: &mut FourCores, core: u32, is_online: bool) -> anyhow::Result<String> {
    let value = u8::from(is_online);
    host.host.sh(&format!("(echo {value} >/sys/devices/system/cpu/cpu{core}/online) 2>&1 || true"))
}

pub(crate) fn hotplug(ctx: &Context) -> anyhow::Result<String> {
    let mut host = FourCores::boot(ctx, "")?;
    host.cgroups(&[WEB])?;
    host.launch("web", WEB)?;

    // The best core is offline: the next one is taken, and the other one is named.
    let said = online(&mut host, 3, false)?;
    ensure!(said.is_empty(), "core 3 does not go offline: {said}");
    let (tried, others) = host.candidates("web")?;
    ensure!(tried == [2, 1], "{tried:?} {others:?}");
    mentions(&others[&3], &["core 3 is offline"])?;
    host.refused(
        "web",
        "--core 3",
        &["core 3 is offline", "/sys/devices/system/cpu/cpu3/online", "0, 1, 2"],
    )?;
    host.refused("web", "--core 9", &["this host has no core 9", "0, 1, 2"])?;
    let before = host.settings(&["web"])?;
    host.apply("web")?;
    host.in_partition("web", 2)?;
    // A core comes: the reservation stays where it is.
    let said = online(&mut host, 3, true)?;
    ensure!(said.is_empty(), "core 3 does not come back: {said}");
    host.in_partition("web", 2).context("with core 3")?;
    // The kernel lets no core go that has reservations.
    let said = online(&mut host, 2, false)?;
    mentions(&said, &["busy"])?;
    host.in_partition("web", 2).context("after an attempt to take its core")?;
    // Another one may go, and come back.
    let said = online(&mut host, 1, false)?;
    ensure!(said.is_empty(), "core 1 does not go offline: {said}");
    host.in_partition("web", 2).context("without core 1")?;
    host.restart()?;
    host.in_partition("web", 2).context("after a restart")?;
    let said = [online(&mut host, 1, true)?, online(&mut host, 3, false)?].concat();
    ensure!(said.is_empty(), "{said}");
    host.release(&["web"], &before)?;
    online(&mut host, 3, true)?;
    let allowed = host.allowed("web")?;
    ensure!(allowed == "0-3", "QEMU's threads may use {allowed}");
    Ok("core 3 offline, a reserved core stays".to_owned())
}
