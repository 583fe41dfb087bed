//! One saved state, two VMs or a hundred: each has its own page, and no reader can take one for the
//! other.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::client::{self, Client, Launch, Way, compare_many};
use crate::host::Host;
use crate::interrupt;
use crate::qemu::Qemu;
use crate::scenario::{Context, number};

const KERNEL: &str = "trixie-backports";

pub(crate) fn clones(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let device = from_one_file(ctx, &host, &ctx.qemu_10()?, Way::Vmclock, "device", 2)?;
    let nvdimm = from_one_file(ctx, &host, &ctx.qemu()?, Way::Nvdimm, "nvdimm", 2)?;
    Ok(format!(
        "two clones of each, other markers, epochs and ids; device: {}; nvdimm: {}",
        device.join(", "),
        nvdimm.join(", ")
    ))
}

/// A hundred of one saved state (CLONES).
pub(crate) fn hundred(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let count = usize::try_from(number("CLONES", 100)?)?;
    let told = from_one_file(ctx, &host, &ctx.qemu_10()?, Way::Vmclock, "device", count)?;
    Ok(format!(
        "{} clones, other markers, epochs and ids, as old as their original; the last: {}",
        told.len(),
        told.last().context("no clone")?
    ))
}

fn from_one_file(
    ctx: &Context,
    host: &Host,
    qemu: &Qemu,
    way: Way,
    name: &str,
    count: usize,
) -> anyhow::Result<Vec<String>> {
    let mut original = client::boot(ctx, host, KERNEL, qemu, way, name, "tai")?;
    host.wait_vm(name, "synchronized")?;
    let first = original.reader.ask("read")?;
    host.wait_until("its birth to be known", |host| Ok(birth(host, name)?.is_some()))?;
    let born = birth(host, name)?;
    let file = ctx.path(&format!("{name}.state"));
    // Saved while it runs, so that the file contains a page that tells the time.
    host.cli(&["vm", "migrate", name, "--to", &format!("exec:cat > {}", file.display())])?;
    ensure!(host.vm(name)?["migration"] == "left", "{}", host.vm(name)?);

    let uri = format!("exec:cat {}", file.display());
    let mut there = Vec::new();
    for number in 1..=count {
        interrupt::check()?;
        let clone = format!("{name}-{number}");
        there.push(Launch::new(ctx, host, qemu, way, &clone).incoming(&uri).start()?);
    }
    let mut seen = vec![first];
    for clone in &mut there {
        host.wait_vm(&clone.name, "synchronized")?;
        seen.push(clone.reader.ask("read").context(clone.name.clone())?);
        // The page of the device carries its birth; an nvdimm's says nothing, and nobody has told.
        let wanted = if way == Way::Vmclock { born.clone() } else { None };
        ensure!(birth(host, &clone.name)? == wanted, "{}", host.vm(&clone.name)?);
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
    Ok(worst)
}

/// The instant from which a VM's age counts, without its error.
fn birth(host: &Host, name: &str) -> anyhow::Result<Option<String>> {
    let row = host.vm(name)?;
    let since = row["elapsed_since"].as_str().and_then(|since| since.split('~').next());
    Ok(since.map(str::to_owned))
}

fn marker(host: &Host, client: &Client) -> anyhow::Result<Value> {
    Ok(host.vm(&client.name)?["disruption_marker"].clone())
}
