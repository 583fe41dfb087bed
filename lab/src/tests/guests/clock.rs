//! The main case: a stock guest reads the host's time through each delivery, alone and beside other
//! guests.

use anyhow::{Context as _, ensure};

use crate::client::{Client, Way, boot, compare_many, launch_four};
use crate::host::Host;
use crate::qemu::Qemu;
use crate::scenario::Context;

/// Reads as fast as the guest can: time never goes back, the estimate is never outside its bounds,
/// and there is no gap and no disruption.
pub(crate) fn check_run(client: &mut Client, seconds: u32) -> anyhow::Result<u64> {
    let run = client.reader.ask(&format!("run {seconds}"))?;
    for never in ["backward", "outside", "errors", "unknown", "disruptions"] {
        ensure!(run[never] == 0, "{never} reads in the guest: {run}");
    }
    run["reads"].as_u64().filter(|n| *n > 1000).with_context(|| format!("too few reads: {run}"))
}

fn one_guest(
    ctx: &Context,
    kernel: &str,
    qemu: &Qemu,
    way: Way,
    time_type: &str,
) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let mut client = boot(ctx, &host, kernel, qemu, way, "guest", time_type)?;
    let worst = compare_many(&host, &mut client, 100)?;
    let reads = check_run(&mut client, 3)?;
    let row = host.vm("guest")?;
    ensure!(row["accelerator"] == "tcg" && row["status"] == "synchronized", "{row}");
    let status = client.guest.sh("dmesg | grep -c 'vmclock0: registered'")?;
    ensure!(status.trim() == "1", "the stock driver did not register: {status}");
    Ok(format!("{}; {reads} more reads, none back", worst.text()))
}

pub(crate) fn vmclock(ctx: &Context) -> anyhow::Result<String> {
    one_guest(ctx, "trixie-backports", &ctx.qemu_10()?, Way::Vmclock, "tai")
}

pub(crate) fn nvdimm(ctx: &Context) -> anyhow::Result<String> {
    one_guest(ctx, "trixie-backports", &ctx.qemu()?, Way::Nvdimm, "tai")
}

pub(crate) fn older_kernel(ctx: &Context) -> anyhow::Result<String> {
    one_guest(ctx, "trixie-backports:6.17", &ctx.qemu()?, Way::Nvdimm, "utc")
}

pub(crate) fn four_guests(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let mut clients = launch_four(ctx, &host)?;
    let mut texts = Vec::new();
    for client in &mut clients {
        let worst = compare_many(&host, client, 25)?;
        texts.push(format!("{}: {}", client.name, worst.text()));
    }
    // One guest ends; the others must not notice.
    clients[0].guest.kill();
    let gone = clients[0].name.clone();
    host.wait_until("the dead VM's row to go", |host| Ok(host.vm(&gone).is_err()))?;
    for client in &mut clients[1..] {
        compare_many(&host, client, 5)?;
    }
    Ok(texts.join("; ") + "; after one was killed the other three go on")
}
