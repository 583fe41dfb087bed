//! A vCPU that is unplugged: its reservation ends by itself, and is made again, as configured, when it is
//! plugged again.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use timevisor_linux::affinity::allowed_of;
use timevisor_linux::scheduling::{Attributes, Policy, threads};

use crate::builder::GuestBuilder;
use crate::client::{Client, Launch, Way};
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::real_time::Restore;
use crate::scenario::Context;
use crate::tests::faults::common::reference;

const CONFIGURED: &str =
    "[[guests.vm.guest.reserve]]\nvcpu = 1\nbudget = \"5ms\"\nperiod = \"50ms\"\n";
/// A guest under emulation is slow.
const PATIENCE: Duration = Duration::from_secs(60);

fn vcpus(guest: &mut Client) -> anyhow::Result<usize> {
    let all = guest.guest.qmp().run("query-cpus-fast")?;
    Ok(all.as_array().context("no vCPUs")?.len())
}

fn plug(guest: &mut Client) -> anyhow::Result<()> {
    let slots = guest.guest.qmp().run("query-hotpluggable-cpus")?;
    let slots = slots.as_array().context("no slots")?;
    // The lowest free one is vCPU 1.
    let place = |slot: &&Value| {
        ["socket-id", "core-id", "thread-id"].map(|name| slot["props"][name].as_u64().unwrap_or(0))
    };
    let free = slots.iter().filter(|slot| slot["qom-path"].is_null()).min_by_key(place);
    let free = free.context("no free slot")?;
    let mut device = free["props"].clone();
    device["driver"] = free["type"].clone();
    device["id"] = json!("more");
    guest.guest.qmp().execute("device_add", &device)?;
    Ok(())
}

fn unplug(guest: &mut Client) -> anyhow::Result<()> {
    let asked = json!({"id": "more"});
    let gone = interrupt::poll_until(PATIENCE, || {
        // A guest that is still bringing it up does not hear the first request.
        let _ = guest.guest.qmp().execute("device_del", &asked);
        interrupt::sleep(Duration::from_secs(1))?;
        Ok((vcpus(guest)? == 1).then_some(()))
    })?;
    gone.context("the guest does not let go of the vCPU")
}

fn rows(host: &Host) -> anyhow::Result<Vec<Value>> {
    Ok(host.json(&["reserve", "list"])?.as_array().cloned().unwrap_or_default())
}

fn in_force(host: &Host) -> anyhow::Result<bool> {
    let rows = rows(host)?;
    Ok(rows.iter().any(|row| row["vcpu"] == 1 && row["problem"].is_null()))
}

pub(crate) fn unplug_ends(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let lines = reference(&server.address());
    let mut host = Host::new(ctx)?;
    host.start(&lines)?;
    host.wait_synchronized(10_000)?;
    let _restore = Restore::of(&host);
    let qemu = ctx.qemu_10()?;
    // Under TCG, QEMU 10 ends itself when more vCPUs have been plugged in all than there may be at once.
    let more = |builder: GuestBuilder| {
        builder.args(
            ["-name", "guest,debug-threads=on", "-smp", "cpus=1,maxcpus=8"].map(str::to_owned),
        )
    };
    let mut guest = Launch::new(ctx, &host, &qemu, Way::Vmclock, "guest").builder(more).start()?;
    guest.guest.wait_ready()?;
    host.wait_vm("guest", "synchronized")?;
    let pid = guest.guest.pid();

    // By hand.
    plug(&mut guest)?;
    ensure!(vcpus(&mut guest)? == 2, "it was not plugged");
    host.wait_until("the vCPU's thread to have its name", |_| {
        Ok(threads(pid)?.iter().any(|thread| thread.name.starts_with("CPU 1/")))
    })?;
    host.cli(&["reserve", "apply", "guest", "--vcpu", "1", "--budget", "5ms/50ms"])?;
    ensure!(in_force(&host)?, "{:?}", rows(&host)?);
    unplug(&mut guest)?;
    host.wait_until("the reservation to end by itself", |host| Ok(rows(host)?.is_empty()))?;
    mentions(
        &host.log_text(),
        &["VM guest vCPU 1 was unplugged", "its reservation is given back"],
    )?;
    ordinary(pid)?;

    // Configured: there again whenever the vCPU is.
    host.rewrite(&format!("{lines}\n{CONFIGURED}"))?;
    host.terminate()?;
    host.restart()?;
    plug(&mut guest)?;
    host.wait_until("the configured reservation", in_force)?;
    unplug(&mut guest)?;
    host.wait_until("the reservation to end by itself", |host| Ok(rows(host)?.is_empty()))?;
    plug(&mut guest)?;
    host.wait_until("the configured reservation again", in_force)?;
    host.cli(&["reserve", "release", "guest"])?;
    ordinary(pid)?;
    let ended = host.log_text().matches("was unplugged").count();
    ensure!(ended == 1, "said {ended} times since the restart");
    Ok("unplugged twice: the reservation ended by itself, said so, and came again as configured"
        .to_owned())
}

/// No thread has anything left.
fn ordinary(pid: u32) -> anyhow::Result<()> {
    let online = timevisor_linux::affinity::online()?;
    for thread in threads(pid)? {
        let (policy, allowed) = (Attributes::of(thread.tid)?.policy, allowed_of(thread.tid)?);
        ensure!(policy == Policy::OTHER && allowed == online, "{thread:?}: {policy:?} {allowed:?}");
    }
    Ok(())
}
