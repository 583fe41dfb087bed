//! ptp4l in a guest: it steers the guest's CLOCK_REALTIME by software stamps over virtio-net, and
//! timevisord in the guest imports what it measures. Then the guest's PHC is unplugged and comes
//! back.
//!
//! The master announces PTP time although its stamps are those of this machine's CLOCK_REALTIME: so
//! PTP time is what CLOCK_REALTIME shows here, and UTC in the guest is what ptp4l makes of it with
//! its own offset, 36 s, for which nobody vouches. The guest's leap table says 37 s. Only if the
//! offset that ptp4l applied is taken back does the guest know PTP time.

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::client;
use crate::guest::Guest;
use crate::guest_daemon::{self, CPU, KEYS, readings, start, wait};
use crate::host::{Host, mentions};
use crate::lan::Lan;
use crate::ptp4l::{COMMON, PTP4L, Ptp4l};
use crate::qemu::Delivery;
use crate::scenario::Context;
use crate::scratch;

const READINGS: usize = 40;

const IMPORT: &str = "[[reference]]\ntype = \"ptp\"\ndevice = \"realtime\"\nsocket = \"/run/ptp4l\"\npoll = \"200ms\"\n";
const PHC: &str = "[[reference]]\ntype = \"phc\"\naccuracy = \"5ms\"\npoll = \"200ms\"\n";

pub(crate) fn guest(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let lan = Lan::before(ctx, server.namespace())?;
    let dir = scratch::directory()?;
    let master = Ptp4l::master(ctx, server.namespace(), dir.path(), "master", "utc_offset 36\n")?;
    master.announce_ptp_time(36, false)?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let mut guest = boot(ctx, &host, &lan)?;
    let offset = client::offset(&host, "guest")?;
    guest.sh(&lan.guest_setup(0))?;
    guest.sh("mkdir -p /var/run; ptp4l -f /etc/ptp4l.conf -i eth0 -m >/run/ptp4l.log 2>&1 &")?;

    start(&mut guest, "/etc/import.toml")?;
    // From the first statement on, while the servo converges.
    wait(&mut guest, "the guest's clock is synchronized", |status| {
        Ok(status["clock"]["status"] == "synchronized")
    })?;
    let first = readings(&mut guest, (offset, 0), READINGS)
        .or_else(|error| explained(&mut guest, error))?;
    let status = wait(&mut guest, "ptp4l has locked", |status| {
        Ok(detail(status).is_some_and(|text| text.contains("ptp4l is SLAVE")))
    })?;
    let last = readings(&mut guest, (offset, 0), READINGS)
        .or_else(|error| explained(&mut guest, error))?;
    let detail = detail(&status).unwrap_or_default();
    mentions(&detail, &["TAI - UTC = 36 s", "does not vouch for", "the leap table says 37 s"])?;
    guest_daemon::end(&mut guest)?;

    let unplugged = unplug(&mut guest)?;
    Ok(format!(
        "truth inside {} times; half-width {} us at first and {} us locked, errors {} and {} us; {detail}; {unplugged}",
        2 * READINGS,
        first.half_ns / 1000,
        last.half_ns / 1000,
        first.worst_ns / 1000,
        last.worst_ns / 1000
    ))
}

fn boot(ctx: &Context, host: &Host, lan: &Lan) -> anyhow::Result<Guest> {
    let kernel = ctx.kernel("trixie-backports")?;
    let mut image = ctx.image(&kernel)?.module("virtio_net");
    for (package, bin) in [("timevisord", "timevisord"), ("timevisor", "timevisor")] {
        image = image.program(&ctx.program(package, bin)?);
    }
    let own = "slaveOnly 1\nutc_offset 36\nuds_address /run/ptp4l\n";
    let files = [
        ("import.toml", format!("{KEYS}{IMPORT}")),
        ("phc.toml", format!("{KEYS}{PHC}")),
        ("ptp4l.conf", format!("{COMMON}{own}")),
    ];
    for (name, text) in files {
        let path = ctx.path(name);
        std::fs::write(&path, text)?;
        image = image.file(&path, &format!("/etc/{name}"), 0o644);
    }
    image = image.dynamic_program(Path::new(PTP4L))?;
    let qmp = host.directory().join("guest.qmp");
    let mut guest = ctx
        .guest(&ctx.qemu_10()?, &kernel, &image)?
        .delivery(Delivery::VmclockDevice)
        .paused()
        .args(CPU)
        .args(lan.arguments(0, false)?)
        .args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())])
        .start()?;
    host.cli(&["vm", "add", "--qmp", &qmp.display().to_string(), "--name", "guest", "--resume"])?;
    guest.wait_ready()?;
    host.wait_vm("guest", "synchronized")?;
    Ok(guest)
}

fn detail(status: &Value) -> Option<String> {
    status["references"][0]["detail"].as_str().map(str::to_owned)
}

fn word(status: &Value) -> &str {
    status["references"][0]["status"].as_str().unwrap_or_default()
}

/// The error with what the guest says of its clock, its references and its TSC.
fn explained<T>(guest: &mut Guest, error: anyhow::Error) -> anyhow::Result<T> {
    let told = guest
        .sh("dmesg | grep -i -e tsc -e clocksource | tail -n 8; cat /run/ptp4l.log | tail -n 12; \
         cat /run/timevisord.log | tail -n 12; timevisor status --json");
    Err(error.context(format!("the guest's logs:\n{}", told.unwrap_or_default())))
}

/// The driver of the guest's PHC lets go of it, and takes it again, while the daemon has it open.
fn unplug(guest: &mut Guest) -> anyhow::Result<String> {
    start(guest, "/etc/phc.toml")?;
    let usable = |status: &Value| Ok(["selected", "reachable"].contains(&word(status)));
    wait(guest, "the PHC is read", usable)?;
    let device = "/sys/class/ptp/ptp0/device";
    let place = guest.sh(&format!("readlink -f {device}; readlink -f {device}/driver"))?;
    let mut lines = place.lines().map(str::trim);
    let (device, driver) = (lines.next().context("no device")?, lines.next().context("no driver")?);
    let name = Path::new(device).file_name().context("no name")?.to_string_lossy().into_owned();
    guest.sh(&format!("echo {name} >{driver}/unbind"))?;
    let gone =
        wait(guest, "the unplugged PHC is noticed", |status| Ok(word(status) == "no-device"))?;
    mentions(&detail(&gone).unwrap_or_default(), &["/dev/ptp0", "ls /sys/class/ptp"])?;
    let before = gone["references"][0]["accepted"].as_u64().unwrap_or(0);
    // States are compared with the log once a second.
    guest.sh("i=0; while ! grep -q 'is no-device' /run/timevisord.log && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done")?;
    guest.sh(&format!("echo {name} >{driver}/bind"))?;
    wait(guest, "the PHC is read again", |status| {
        let accepted = status["references"][0]["accepted"].as_u64().unwrap_or(0);
        Ok(usable(status)? && accepted > before)
    })?;
    let log = guest.sh("cat /run/timevisord.log")?;
    let told = log.matches("is no-device").count();
    ensure!(told == 1, "the log tells of the missing device {told} times:\n{log}");
    guest_daemon::end(guest)?;
    Ok("a PHC that was unplugged is read again when it is back".to_owned())
}
