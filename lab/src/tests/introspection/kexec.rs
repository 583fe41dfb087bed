//! A guest that boots another kernel with kexec: timevisord notices by itself and examines the new
//! kernel.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::client::Client;
use crate::host::Host;
use crate::interrupt::{self, Late};
use crate::introspection::emulated::{booted, row};
use crate::scenario::Context;
use crate::tests::introspection::calls::{counts, line, told};

const KEXEC: &str = "/sbin/kexec";
/// The kernel that the guest boots, and the one that it starts with kexec.
const KERNELS: [&str; 2] = ["trixie-backports", "bookworm-backports"];
/// Time for an emulated boot.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn kexec(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let calls = ctx.program("timevisor-lab-guest", "lab-calls")?;
    let second = ctx.kernel(KERNELS[1])?;
    let initramfs = ctx.image(&second)?.program(&calls).write(&ctx.path("second.cpio"))?;
    let image = second.image.clone();
    let mut guest = booted(
        ctx,
        &host,
        KERNELS[0],
        move |first| {
            let first = first.program(&calls).dynamic_program(KEXEC.as_ref())?;
            let first = first.file(image.clone(), "/lab/second/kernel", 0o644);
            Ok(first.file(initramfs.clone(), "/lab/second/initramfs", 0o644))
        },
        &[],
    )?;
    host.cli(&["introspect", "attach", "web"])?;
    host.wait_until("the trap points", |host| Ok(row(host)?["state"] == "attached"))?;
    let before = events(&host, &mut guest)?;
    let first = row(&host)?["guest"].clone();

    let load = "kexec -s -l /lab/second/kernel --initrd=/lab/second/initramfs --reuse-cmdline";
    guest.guest.sh(load)?;
    guest.guest.sh("(sleep 0.2; kexec -e) >/dev/null 2>&1 &")?;
    let booted = interrupt::poll_until(PATIENCE, || {
        let ready = guest.guest.serial_text().matches("LAB-READY").count();
        Ok((ready == 2).then_some(()))
    })?;
    booted.context(Late).context("the second kernel does not boot")?;
    host.wait_until("the second kernel's trap points", |host| {
        let row = row(host)?;
        Ok(row["guest"] != first && row["state"] == "attached")
    })?;
    let after = events(&host, &mut guest)?;
    ensure!(before == after, "{before} events, then {after}");
    let second = row(&host)?["guest"].clone();
    guest.guest.kill();
    Ok(format!("{before} events of a program in {first}, {after} in {second}"))
}

/// Checks that every call of a program is reported; returns the number of events.
fn events(host: &Host, guest: &mut Client) -> anyhow::Result<usize> {
    let from = row(host)?["events"].as_u64().context("no count")?;
    let said = guest.guest.sh(&line())?;
    let said: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    let found = row(host)?;
    ensure!(found["dropped"] == 0 && found["senseless"] == 0, "{found}");
    counts(&told(host, from, &said)?)
}
