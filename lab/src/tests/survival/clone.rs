//! One saved state, two VMs: each has its own page, and no reader can take one for the other.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::client::{self, Client, Launch, Way, compare_many};
use crate::host::Host;
use crate::interrupt;
use crate::qemu::Qemu;
use crate::scenario::Context;

const KERNEL: &str = "trixie-backports";

pub(crate) fn clones(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let device = from_one_file(ctx, &host, &ctx.qemu_10()?, Way::Vmclock, "device")?;
    let nvdimm = from_one_file(ctx, &host, &ctx.qemu()?, Way::Nvdimm, "nvdimm")?;
    Ok(format!(
        "two clones of each, other markers, epochs and ids; device: {device}; nvdimm: {nvdimm}"
    ))
}

fn from_one_file(
    ctx: &Context,
    host: &Host,
    qemu: &Qemu,
    way: Way,
    name: &str,
) -> anyhow::Result<String> {
    let mut original = client::boot(ctx, host, KERNEL, qemu, way, name, "tai")?;
    host.wait_vm(name, "synchronized")?;
    let first = original.reader.ask("read")?;
    let file = ctx.path(&format!("{name}.state"));
    // Saved while it runs, so that the file contains a page that tells the time.
    host.cli(&["vm", "migrate", name, "--to", &format!("exec:cat > {}", file.display())])?;
    ensure!(host.vm(name)?["migration"] == "left", "{}", host.vm(name)?);

    let uri = format!("exec:cat {}", file.display());
    let mut there = Vec::new();
    for number in 1..=2 {
        let clone = format!("{name}-{number}");
        there.push(Launch::new(ctx, host, qemu, way, &clone).incoming(&uri).start()?);
    }
    let mut seen = vec![first];
    for clone in &mut there {
        host.wait_vm(&clone.name, "synchronized")?;
        seen.push(clone.reader.ask("read").context(clone.name.clone())?);
    }
    for (number, read) in seen.iter().enumerate() {
        for other in &seen[..number] {
            for what in ["disruption", "epoch", "vm"] {
                ensure!(
                    read[what] != other[what] && !read[what].is_null(),
                    "{what} is the same in two VMs: {read} and {other}"
                );
            }
        }
    }
    // Each clone is right, and stays right when the other one is stopped and resumed.
    let mut worst = Vec::new();
    for clone in &mut there {
        worst.push(compare_many(host, clone, 10)?.text());
    }
    let before = marker(host, &there[1])?;
    there[0].guest.stop()?;
    host.wait_vm(&there[0].name, "unknown")?;
    compare_many(host, &mut there[1], 5).context("beside a clone that is stopped")?;
    std::thread::sleep(Duration::from_millis(200));
    there[0].guest.cont()?;
    for clone in &mut there {
        interrupt::check()?;
        host.wait_vm(&clone.name, "synchronized")?;
        compare_many(host, clone, 5)?;
    }
    ensure!(marker(host, &there[1])? == before, "one clone's stop disrupts the other");
    let state = original.guest.qmp().execute("query-status", &json!({}))?;
    ensure!(state["status"] == "postmigrate", "the original runs: {state}");
    ensure!(host.vm(name)?["status"] == "unknown", "the original's page tells the time");
    Ok(worst.join(", "))
}

fn marker(host: &Host, client: &Client) -> anyhow::Result<Value> {
    Ok(host.vm(&client.name)?["disruption_marker"].clone())
}
