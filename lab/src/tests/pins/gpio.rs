//! A simulated GPIO chip in a guest: lab-pins pulls its lines and compares events and outputs with
//! readings of the guest's page; then a C and a Python program do so with the same words. The cloud
//! kernel has no GPIO; the generic one has gpio-sim.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::client::{Launch, Way};
use crate::host::Host;
use crate::programs;
use crate::python::Python;
use crate::scenario::Context;

/// Makes a chip of four lines, and prints its device's and its own name.
const CHIP: &str = "mount -t configfs none /sys/kernel/config && cd /sys/kernel/config/gpio-sim && mkdir lab && mkdir lab/bank0 \
    && echo 4 >lab/bank0/num_lines && echo 1 >lab/live && cat lab/dev_name lab/bank0/chip_name";
const EDGES: u64 = 200;
const OUTPUTS: u64 = 20;
/// An emulated guest is slow.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn gpio(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let qemu = ctx.qemu_10()?;
    let folder = programs::workspace()?.join("lab/src/tests/pins");
    let c = ctx.path("pins-c");
    programs::build_c(&folder.join("pins.c"), &ctx.path("prefix"), &c)?;
    let script = ctx.path("pins.py");
    fs::copy(folder.join("pins.py"), &script)?;
    let python = Python::archive(ctx.log_dir())?;
    let program = ctx.program("timevisor-lab-guest", "lab-pins")?;
    let files = [program, c, script, python.archive.clone()];
    let mut client = Launch::new(ctx, &host, &qemu, Way::Vmclock, "guest")
        .kernel("trixie-backports:amd64")
        .image(move |image| {
            let image = image.module("gpio_sim");
            Ok(files.iter().fold(image, |image, file| image.program(file)))
        })
        .builder(|builder| builder.memory_mib(512))
        .start()?;
    client.guest.wait_ready()?;
    host.wait_vm("guest", "synchronized")?;

    let names = client.guest.sh(CHIP)?;
    let mut lines = names.lines().map(str::trim);
    let device = lines.next().context("no device")?;
    let chip = lines.next().context("no chip")?;
    let folder = format!("/sys/devices/platform/{device}/{chip}");
    let pins = format!("lab-pins /dev/{chip} {folder} {EDGES} {OUTPUTS} 2>&1");
    let said = client.guest.sh_within(&pins, PATIENCE)?;
    ctx.log(&said);
    let told: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    ensure!(told["events"]["count"] == EDGES && told["outputs"]["count"] == OUTPUTS, "{told}");
    let unpack = "tar -xzf /bin/python.tar.gz -C / && rm /bin/python.tar.gz";
    client.guest.sh_within(unpack, PATIENCE)?;
    for program in ["pins-c".to_owned(), format!("{} /bin/pins.py", python.interpreter.display())] {
        let line = format!("{program} /dev/{chip} {folder} 2>&1");
        let said = client.guest.sh_within(&line, PATIENCE)?;
        ensure!(said.trim() == "fine", "{program}: {said}");
    }
    Ok(format!("{EDGES} edges in their intervals, {OUTPUTS} outputs at their times: {told}"))
}
