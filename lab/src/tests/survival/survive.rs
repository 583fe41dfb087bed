//! What happens to a guest's clock when the guest is stopped, when the daemon dies or ends, and
//! when the guest has neither driver nor agent.

use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;

use crate::client::{self, Client, Way, compare_many};
use crate::host::{Host, mentions};
use crate::qemu::{Delivery, NVDIMM_ADDRESS};
use crate::reader::HostPage;
use crate::scenario::Context;

fn served_guest(
    ctx: &Context,
    way: Way,
) -> anyhow::Result<(Host, Client, crate::chronyd::Chronyd)> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let qemu = if way == Way::Vmclock { ctx.qemu_10()? } else { ctx.qemu()? };
    let client = client::boot(ctx, &host, "trixie-backports", &qemu, way, "guest", "tai")?;
    host.wait_vm("guest", "synchronized")?;
    Ok((host, client, server))
}

/// Under TCG, stop and cont freeze the guest's counter. The first read after the resume must be
/// right or say nothing.
pub(crate) fn stop_cont(ctx: &Context) -> anyhow::Result<String> {
    let (host, mut client, _server) = served_guest(ctx, Way::Vmclock)?;
    let marker = client.reader.ask("read")?["disruption"].clone();
    let page = HostPage::open(host.directory())?;
    let (mut unknown, mut right) = (0, 0);
    for _ in 0..5 {
        client.guest.stop()?;
        host.wait_until("the page to be withdrawn", |h| Ok(h.vm("guest")?["status"] == "unknown"))?;
        std::thread::sleep(Duration::from_millis(300));
        client.guest.cont()?;
        // From the very first answer until the time is known again.
        for _ in 0..50 {
            let before = page.read()?;
            let answer = client.reader.ask("read")?;
            let after = page.read()?;
            if answer["known"] == false {
                unknown += 1;
                ensure!(answer["status"] != "synchronized", "unknown, but synchronized: {answer}");
                continue;
            }
            right += 1;
            let (earliest, latest) = (ns(&answer, "earliest_ns")?, ns(&answer, "latest_ns")?);
            ensure!(
                earliest <= after.latest.ceil_nanos() && latest >= before.earliest.floor_nanos(),
                "after a resume the guest reads {earliest}..{latest}, the host {before:?}..{after:?}"
            );
        }
    }
    let now = client.reader.ask("read")?["disruption"].clone();
    ensure!(now != marker, "the disruption marker did not change");
    let worst = compare_many(&host, &mut client, 20)?;
    Ok(format!(
        "5 stops: {right} answers right, {unknown} honest about not knowing, none wrong; then {}",
        worst.text()
    ))
}

/// kill -9 while a guest reads as fast as it can, then a restart; ten times.
pub(crate) fn kill_daemon(ctx: &Context) -> anyhow::Result<String> {
    let (mut host, mut client, _server) = served_guest(ctx, Way::Nvdimm)?;
    let mut reads = 0;
    for round in 0..10 {
        host.kill();
        // Nobody writes: the guest's page must keep working, with bounds that grow.
        let run = client.reader.ask("run 0.3")?;
        ensure_never(&run, &["backward", "outside"])?;
        let first = client.reader.ask("read")?;
        let second = client.reader.ask("read")?;
        ensure!(
            width(&second)? >= width(&first)?,
            "bounds shrank without a daemon: {first} {second}"
        );
        host.restart()?;
        host.wait_vm("guest", "synchronized")?;
        let run = client.reader.ask("run 0.3")?;
        ensure_never(&run, &["backward", "outside", "errors"])?;
        reads += run["reads"].as_u64().unwrap_or(0);
        ctx.log(&format!("round {round}: {run}; {}", host.log_text()));
        ensure!(
            host.log_text().contains("resuming from the lines"),
            "no recovery: {}",
            host.log_text()
        );
    }
    let worst = compare_many(&host, &mut client, 20)?;
    Ok(format!("10 kills and restarts, {reads} reads after them, none back; then {}", worst.text()))
}

/// SIGTERM: the page is free running with bounds that grow; it is never left as synchronized.
pub(crate) fn end_daemon(ctx: &Context) -> anyhow::Result<String> {
    let (mut host, mut client, _server) = served_guest(ctx, Way::Nvdimm)?;
    host.terminate()?;
    let first = client.reader.ask("read")?;
    std::thread::sleep(Duration::from_secs(2));
    let second = client.reader.ask("read")?;
    for answer in [&first, &second] {
        ensure!(answer["status"] == "freerunning" && answer["known"] == true, "{answer}");
        ensure!(
            answer["vmclock"]["status"] == "freerunning",
            "a stock driver is told otherwise: {answer}"
        );
    }
    let grown = width(&second)? - width(&first)?;
    ensure!(grown > 0, "the bounds do not grow");
    let page = HostPage::open(host.directory())?.read()?;
    ensure!(page.status().name() == "freerunning", "the host's page says {}", page.status().name());
    let ptp = second["ptp"]["ns"].as_i64().is_some();
    ensure!(ptp, "the stock driver refuses a free running clock: {second}");
    Ok(format!("freerunning on host and guest, width grew by {grown} ns in 2 s; /dev/ptp0 goes on"))
}

/// A kernel without the driver: there is no device, nothing else is disturbed, and the daemon's
/// list is not affected.
pub(crate) fn no_driver(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    let answer = host.cli(&["vm", "args", "--name", "old", "--memory", "256"])?;
    mentions(&answer, &["-acpitable", "nvdimm"])?;
    let folder = host.directory().join("vms/old");
    let delivery = Delivery::Nvdimm {
        page: folder.join("page"),
        ssdt: folder.join("vmclock.aml"),
        address: NVDIMM_ADDRESS,
    };
    let kernel = ctx.kernel("bookworm")?;
    let mut guest = ctx
        .guest(&ctx.qemu()?, &kernel, &ctx.image(&kernel)?)?
        .name("old")
        .delivery(delivery)
        .start()?;
    guest.wait_ready()?;
    let devices = guest.sh("ls /dev/vmclock0 /dev/ptp0 2>&1 || true")?;
    ensure!(devices.matches("No such file").count() == 2, "a device without a driver? {devices}");
    // The guest was started without -name, so its process identifies it.
    let list = host.json(&["vm", "list"])?;
    ensure!(list.as_array().is_some_and(|l| l.len() == 1), "{list}");
    Ok("Linux 6.1 boots as ever, has no /dev/vmclock0, and is served all the same".to_owned())
}

fn ns(answer: &Value, name: &str) -> anyhow::Result<i64> {
    answer[name].as_i64().ok_or_else(|| anyhow::anyhow!("no {name} in {answer}"))
}

fn width(answer: &Value) -> anyhow::Result<i64> {
    Ok(ns(answer, "latest_ns")? - ns(answer, "earliest_ns")?)
}

fn ensure_never(run: &Value, names: &[&str]) -> anyhow::Result<()> {
    for name in names {
        ensure!(run[*name] == 0, "{name} reads in the guest: {run}");
    }
    Ok(())
}
