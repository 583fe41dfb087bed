//! A simulated GPIO chip in a guest: lab-pins pulls its lines and compares events and outputs with
//! readings of the guest's page. The cloud kernel has no GPIO; the generic one has gpio-sim.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::client::{Launch, Way};
use crate::host::Host;
use crate::scenario::Context;

/// Makes a chip of four lines, and prints its device's and its own name.
const CHIP: &str = "mount -t configfs none /sys/kernel/config && cd /sys/kernel/config/gpio-sim && mkdir lab && mkdir lab/bank0 \
    && echo 4 >lab/bank0/num_lines && echo 1 >lab/live && cat lab/dev_name lab/bank0/chip_name";
const EDGES: u64 = 200;
const OUTPUTS: u64 = 20;

pub(crate) fn gpio(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let qemu = ctx.qemu_10()?;
    let program = ctx.program("timevisor-lab-guest", "lab-pins")?;
    let mut client = Launch::new(ctx, &host, &qemu, Way::Vmclock, "guest")
        .kernel("trixie-backports:amd64")
        .image(move |image| Ok(image.module("gpio_sim").program(&program)))
        .start()?;
    client.guest.wait_ready()?;
    host.wait_vm("guest", "synchronized")?;

    let names = client.guest.sh(CHIP)?;
    let mut lines = names.lines().map(str::trim);
    let device = lines.next().context("no device")?;
    let chip = lines.next().context("no chip")?;
    let folder = format!("/sys/devices/platform/{device}/{chip}");
    let said = client.guest.sh(&format!("lab-pins /dev/{chip} {folder} {EDGES} {OUTPUTS} 2>&1"))?;
    ctx.log(&said);
    let told: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    ensure!(told["events"]["count"] == EDGES && told["outputs"]["count"] == OUTPUTS, "{told}");
    // An event that waits is known less well: the widths are told, not judged by their size.
    let width = |name: &str| told["events"][name].as_u64().unwrap_or(0);
    ensure!(width("waited_width_ns") > width("width_ns"), "{told}");
    Ok(format!("{EDGES} edges in their intervals, {OUTPUTS} outputs at their times: {told}"))
}
