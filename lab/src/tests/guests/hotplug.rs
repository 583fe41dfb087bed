//! A VM that has memory of its own to plug: a DIMM on its line and one that is plugged while it runs
//! are where they would be without the page, and the page stays where it is.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::client::{Client, Launch, Way, compare_many};
use crate::host::Host;
use crate::interrupt;
use crate::qemu::NVDIMM_ADDRESS;
use crate::scenario::Context;

/// Linux takes whole sections of 128 MiB, from addresses that are multiples of it.
const SECTION: u64 = 128 << 20;
const PLUGGED: u64 = 2 * SECTION;
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn hotplug(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let qemu = ctx.qemu()?;
    let mut client = Launch::new(ctx, &host, &qemu, Way::Nvdimm, "guest")
        .builder(|builder| {
            builder.append("memhp_default_state=online").args([
                "-object",
                "memory-backend-ram,id=m0,size=128M",
                "-device",
                "pc-dimm,memdev=m0,id=d0",
            ])
        })
        .start()?;
    client.guest.wait_ready()?;
    client.reader.ask("read")?;
    let before = compare_many(&host, &mut client, 20)?;
    let small = total_kib(&mut client)?;

    let qmp = client.guest.qmp();
    qmp.execute(
        "object-add",
        &json!({"qom-type": "memory-backend-ram", "id": "m1", "size": PLUGGED}),
    )?;
    qmp.execute("device_add", &json!({"driver": "pc-dimm", "id": "d1", "memdev": "m1"}))?;
    let devices = qmp.run("query-memory-devices")?;
    let grown = interrupt::poll_until(PATIENCE, || {
        let large = total_kib(&mut client)?;
        Ok((large >= small + PLUGGED / 1024 * 9 / 10).then_some(large))
    })?;
    let large = grown.context("the guest does not take the memory that was plugged")?;
    let after = compare_many(&host, &mut client, 20)?;
    check_places(&devices)?;
    Ok(format!(
        "{} MiB, then {} MiB; {}; after a DIMM was plugged {}",
        small / 1024,
        large / 1024,
        before.text(),
        after.text()
    ))
}

fn total_kib(client: &mut Client) -> anyhow::Result<u64> {
    let text = client.guest.sh("grep MemTotal /proc/meminfo")?;
    text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).context(text)
}

/// Both DIMMs begin a section, below the page, one after the other.
fn check_places(devices: &Value) -> anyhow::Result<()> {
    let mut dimms = Vec::new();
    for device in devices.as_array().context("no devices")? {
        let address = device["data"]["addr"].as_u64().context("no addr")?;
        match device["type"].as_str() {
            Some("nvdimm") => ensure!(address == NVDIMM_ADDRESS, "the page: {device}"),
            _ => dimms.push(address),
        }
    }
    dimms.sort_unstable();
    let four_gib = 4 << 30;
    ensure!(dimms == [four_gib, four_gib + SECTION], "DIMMs at {dimms:x?}");
    Ok(())
}
