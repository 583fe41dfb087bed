//! The VM generation counter of a stock guest with QEMU's vmclock device: another one after each load
//! of a snapshot, the same after a live migration and after a restart of timevisord.

use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::KERNEL;
use crate::guest::Guest;
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::migration::pair::Hosts;
use crate::qemu::Delivery;
use crate::scenario::Context;
use crate::snapshots;

/// A load is noticed within milliseconds; the emulated guest is slow to answer.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn generation(ctx: &Context) -> anyhow::Result<String> {
    let mut hosts = Hosts::new(ctx)?;
    let [a, b] = &mut hosts.hosts;
    let mut here = start(ctx, a, "here", false)?;
    a.cli(&["vm", "add", "--qmp", &qmp(a, "here"), "--name", "here", "--resume"])?;
    here.wait_ready()?;
    a.wait_vm("here", "synchronized")?;
    let first = generation_of(&mut here)?;
    ensure!(first != 0, "there is none");

    snapshots::attach(ctx, &mut here, "here")?;
    snapshots::save(&mut here, "s")?;
    let mut seen = vec![first];
    for load in 1..=2 {
        snapshots::load(&mut here, "s")?;
        let another = interrupt::poll_until(PATIENCE, || {
            let found = generation_of(&mut here)?;
            Ok((!seen.contains(&found)).then_some(found))
        })?;
        let another = another.with_context(|| format!("load {load}: still {seen:x?}"))?;
        a.wait_vm("here", "synchronized")?;
        ensure!(generation_of(&mut here)? == another, "it changes without a load");
        seen.push(another);
    }
    let loaded = generation_of(&mut here)?;
    a.terminate()?;
    a.restart()?;
    a.wait_synchronized(500)?;
    a.wait_vm("here", "synchronized")?;
    ensure!(generation_of(&mut here)? == loaded, "a restart of timevisord changed it");
    // A snapshot's disk must not travel.
    drop(here);

    let mut here = start(ctx, a, "away", false)?;
    a.cli(&["vm", "add", "--qmp", &qmp(a, "away"), "--name", "away", "--resume"])?;
    here.wait_ready()?;
    a.wait_vm("away", "synchronized")?;
    let before = generation_of(&mut here)?;
    ensure!(!seen.contains(&before), "another VM has the same: {before:x}");
    let uri = format!("unix:{}", b.directory().join("arrival").display());
    let mut there = start(ctx, b, "there", true)?;
    let add = ["vm", "add", "--qmp", &qmp(b, "there"), "--name", "there", "--resume"];
    b.cli(&[&add[..], &["--incoming", &uri]].concat())?;
    b.wait_until("the destination to await it", |host| {
        Ok(host.vm("there")?["migration"] == "incoming")
    })?;
    let said = a.cli(&["vm", "migrate", "away", "--to", &uri, "--drain", "1"])?;
    mentions(&said, &["runs on the other host"])?;
    b.wait_vm("there", "synchronized")?;
    let after = generation_of(&mut there)?;
    ensure!(after == before, "a live migration changed it: {before:x}, {after:x}");
    let flags = word(&mut there, 0x18)?;
    ensure!(flags & 0b110 == 0, "the notice of the move stays: flags {flags:#x}");
    Ok("another one after each of 2 loads; the same over a restart of timevisord and a live migration".to_owned())
}

fn qmp(host: &Host, name: &str) -> String {
    host.directory().join(format!("{name}.qmp")).display().to_string()
}

fn start(ctx: &Context, host: &Host, name: &str, incoming: bool) -> anyhow::Result<Guest> {
    let kernel = ctx.kernel(KERNEL)?;
    let builder = ctx
        .guest(&ctx.qemu_10()?, &kernel, &ctx.image(&kernel)?)?
        .name(name)
        .delivery(Delivery::VmclockDevice)
        .append("no_timer_check")
        .paused()
        .args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp(host, name))]);
    if incoming { builder.incoming() } else { builder }.start()
}

fn generation_of(guest: &mut Guest) -> anyhow::Result<u64> {
    word(guest, 0x68)
}

/// A word of the guest's page.
fn word(guest: &mut Guest, at: u64) -> anyhow::Result<u64> {
    let skip = at / 8;
    let line = format!("dd if=/dev/vmclock0 bs=8 count=1 skip={skip} 2>/dev/null | od -A n -t x8");
    let text = guest.sh(&line)?;
    u64::from_str_radix(text.trim(), 16).with_context(|| format!("no number: {text:?}"))
}
