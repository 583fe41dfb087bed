//! What moves along with a guest: its age, its timescale, and its programs' requirements.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::counter::Tsc;

use crate::client::{self, Client, Launch, Way};
use crate::host::{Host, mentions};
use crate::migration::journey::right;
use crate::migration::pair::Hosts;
use crate::qemu::Qemu;
use crate::scenario::Context;
use crate::tests::elapsed::truth::{age, went_by};
use crate::tests::timelines::guest::AGENT_IS_UP;
use crate::tests::timelines::host::row;
use crate::truth::Truth;

/// A program that runs on as if nothing had happened.
const PROGRAM: &str = "timevisor bind tai --within 7ms --every 0.2 --json >/tmp/program.log 2>&1 &";

pub(crate) fn carried(ctx: &Context) -> anyhow::Result<String> {
    let hosts = Hosts::new(ctx)?;
    let cases = [(Way::Vmclock, ctx.qemu_10()?), (Way::Nvdimm, ctx.qemu()?)];
    let mut told = Vec::new();
    for (way, qemu) in &cases {
        let said = one(ctx, &hosts.hosts, *way, qemu);
        told.push(format!("{way:?}: {}", said.with_context(|| format!("{way:?}"))?));
    }
    Ok(told.join("; "))
}

fn one(ctx: &Context, hosts: &[Host; 2], way: Way, qemu: &Qemu) -> anyhow::Result<String> {
    let [a, b] = hosts;
    let programs = [
        ctx.program("timevisor", "timevisor")?,
        ctx.program("timevisor-guest", "timevisor-guest")?,
    ];
    let names = [format!("{way:?}-here").to_lowercase(), format!("{way:?}-there").to_lowercase()];
    let mut here = Launch::new(ctx, a, qemu, way, &names[0]).programs(&programs).start()?;
    here.guest.wait_ready()?;
    a.wait_vm(&names[0], "synchronized")?;
    here.guest.sh("timevisor-guest >/tmp/agent.log 2>&1 &")?;
    here.guest.sh(AGENT_IS_UP)?;
    here.guest.sh(PROGRAM)?;
    a.wait_until("the program's binding", is_required)?;
    let ask = |client: &mut Client, host: &Host| {
        let offset = client::offset(host, &client.name)?;
        let command = || client.guest.sh("timevisor elapsed --json || [ $? = 1 ]");
        let (text, truth) = Truth::around(&Tsc::unchecked(), command)?;
        age(text.trim(), &truth, offset)
    };
    let born = ask(&mut here, a)?;

    let uri = format!("unix:{}", b.directory().join(format!("{}.migration", names[1])).display());
    let launch =
        Launch::new(ctx, b, qemu, way, &names[1]).programs(&programs).incoming(&uri).unserved();
    // The page that the destination has prepared has another timescale than the one that the
    // guest's driver has seen.
    let mut there = launch.prepared_as("utc").held().start()?;
    let qmp = b.directory().join(format!("{}.qmp", names[1])).display().to_string();
    let add = ["vm", "add", "--qmp", &qmp, "--name", &names[1], "--resume", "--incoming", &uri];
    let since = a.vm(&names[0])?["elapsed_since"].as_str().context("no birth")?.to_owned();
    let handed = ["--time-type", "tai", "--elapsed-since", &since];
    if way == Way::Vmclock {
        let refused = b.cli(&[&add[..], &handed].concat());
        let text = format!("{:#}", refused.err().context("a birth beside the page's was taken")?);
        mentions(&text, &["brings the VM's age along"])?;
        b.cli(&add)?;
    } else {
        b.cli(&[&add[..], &handed].concat())?;
    }
    b.wait_until("the destination to await it", |host| {
        Ok(host.vm(&names[1])?["migration"] == "incoming")
    })?;
    mentions(&a.cli(&["vm", "migrate", &names[0], "--to", &uri])?, &["runs on the other host"])?;
    let moved_at = Instant::now();
    b.wait_vm(&names[1], "synchronized")?;
    ensure!(b.vm(&names[1])?["time_type"] == "tai", "{}", b.vm(&names[1])?);
    right(b, &mut there)?;
    b.wait_until("the program to bind again", is_required)?;
    let bound = moved_at.elapsed();
    let moved = ask(&mut there, b)?;
    let off = went_by(&born, &moved)?;
    let line = there.guest.sh("sleep 0.5; tail -n 1 /tmp/program.log")?;
    let last: Value = serde_json::from_str(line.trim()).with_context(|| line.clone())?;
    ensure!(last["met"] == true && last["status"] == "synchronized", "the program: {last}");
    there.guest.kill();
    b.wait_until("the bindings to end with the guest", |host| Ok(!is_required(host)?))?;
    Ok(format!(
        "the age was off by {off:.1} us, known within {} us; the program was bound again within {:.1} s",
        (moved.latest - moved.earliest) / 1000,
        bound.as_secs_f64()
    ))
}

fn is_required(host: &Host) -> anyhow::Result<bool> {
    let tai = row(host, "tai")?;
    Ok(tai["members"] == 1 && tai["required"]["below_ns"] == 7_000_000)
}
