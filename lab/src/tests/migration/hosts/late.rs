//! A destination whose timevisord is dead when the VM arrives, and what it knows of the VM later.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::json;
use timevisor_linux::counter::Tsc;

use crate::client::{self, Client, Launch, Way};
use crate::comparison::compare;
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::migration::pair::Hosts;
use crate::qemu::Qemu;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::elapsed::truth::{Age, age, went_by};
use crate::tests::timelines::guest::AGENT_IS_UP;
use crate::truth::Truth;

pub(crate) fn late_daemon(ctx: &Context) -> anyhow::Result<String> {
    let mut hosts = Hosts::new(ctx)?;
    let cases = [(Way::Vmclock, ctx.qemu_10()?), (Way::Nvdimm, ctx.qemu()?)];
    let mut told = Vec::new();
    for (way, qemu) in &cases {
        let said = one(ctx, &mut hosts.hosts, *way, qemu);
        told.push(format!("{way:?}: {}", said.with_context(|| format!("{way:?}"))?));
    }
    Ok(told.join("; "))
}

/// A guest on UTC goes from `a` to `b`, whose VMs are on TAI and whose daemon is dead.
fn one(ctx: &Context, hosts: &mut [Host; 2], way: Way, qemu: &Qemu) -> anyhow::Result<String> {
    let [a, b] = hosts;
    let programs = [
        ctx.program("timevisor", "timevisor")?,
        ctx.program("timevisor-guest", "timevisor-guest")?,
    ];
    let [here, there] = ["here", "there"].map(|side| format!("{way:?}-{side}").to_lowercase());
    let launch = Launch::new(ctx, a, qemu, way, &here).programs(&programs).time_type("utc");
    let mut source = launch.start()?;
    source.guest.wait_ready()?;
    a.wait_vm(&here, "synchronized")?;
    source.guest.sh("timevisor-guest >/tmp/agent.log 2>&1 &")?;
    source.guest.sh(AGENT_IS_UP)?;
    // Newer drivers give TAI, whatever the page is on; what counts is that this stays.
    let scale = ptp_scale(a, &mut source)?;
    let born = ask(a, &mut source)?;

    let uri = format!("unix:{}", b.directory().join(format!("{there}.migration")).display());
    let launch = Launch::new(ctx, b, qemu, way, &there).programs(&programs).incoming(&uri);
    let mut moved = launch.unserved().held().start()?;
    b.kill();
    if way == Way::Nvdimm {
        let shared = [json!({"capability": "x-ignore-shared", "state": true})];
        let capabilities = json!({"capabilities": shared});
        moved.guest.qmp().execute("migrate-set-capabilities", &capabilities)?;
    }
    moved.guest.qmp().execute("migrate-incoming", &json!({"uri": uri}))?;
    mentions(&a.cli(&["vm", "migrate", &here, "--to", &uri])?, &["runs on the other host"])?;
    let since = a.vm(&here)?["elapsed_since"].as_str().context("no birth")?.to_owned();
    moved.guest.cont()?;
    for _ in 0..20 {
        let reading = moved.reader.ask("read")?;
        ensure!(reading["known"] == false, "nobody serves it: {reading}");
    }

    b.restart()?;
    b.wait_synchronized(500)?;
    let qmp = b.directory().join(format!("{there}.qmp")).display().to_string();
    let add = ["vm", "add", "--qmp", &qmp, "--name", &there];
    if way == Way::Nvdimm {
        unknown_until_told(b, &mut moved, &add, &since)?;
    } else {
        b.cli(&add)?;
        let refused = b.cli(&[&add[..], &["--time-type", "tai"]].concat());
        let text = format!("{:#}", refused.err().context("another timescale was taken")?);
        mentions(&text, &["has run already"])?;
    }
    let mut ages = vec![born];
    let mut goes_on = |b: &Host, moved: &mut Client, after: &str| {
        let same = |found: i64| ensure_same(found, scale);
        goes_on(b, moved, &mut ages, same).with_context(|| format!("after {after}"))
    };
    goes_on(b, &mut moved, "a late daemon")?;
    b.kill();
    b.restart()?;
    goes_on(b, &mut moved, "its restart")?;
    b.cli(&["vm", "remove", &there])?;
    b.cli(&add)?;
    goes_on(b, &mut moved, "a removal")?;
    let last = ages.last().context("no age")?;
    Ok(format!(
        "UTC and its age of {:.0} s kept over a late daemon, its death, and a removal; known within {} us",
        last.latest as f64 / 1e9,
        (last.latest - last.earliest) / 1000
    ))
}

/// The page of an nvdimm does not come along: what it said there an operator has to say here.
fn unknown_until_told(
    b: &Host,
    moved: &mut Client,
    add: &[&str],
    since: &str,
) -> anyhow::Result<()> {
    b.cli(add)?;
    b.wait_vm(&moved.name, "synchronized")?;
    interrupt::sleep(Duration::from_secs(2))?;
    let row = b.vm(&moved.name)?;
    ensure!(row["elapsed_since"].is_null(), "an age that nobody told: {row}");
    let said = moved.guest.sh("timeout 20 timevisor elapsed --json 2>&1; true")?;
    if said.contains("\"estimate_ns\":") && !said.contains("\"estimate_ns\":null") {
        bail!("an age that nobody told: {said}");
    }
    b.cli(&[add, &["--time-type", "utc", "--elapsed-since", since]].concat())?;
    Ok(())
}

fn goes_on(
    host: &Host,
    client: &mut Client,
    ages: &mut Vec<Age>,
    same_scale: impl Fn(i64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    host.wait_vm(&client.name, "synchronized")?;
    let row = host.vm(&client.name)?;
    ensure!(row["time_type"] == "utc", "{row}");
    same_scale(ptp_scale(host, client)?)?;
    // The next publication carries the guest's age.
    interrupt::sleep(Duration::from_secs(2))?;
    let next = ask(host, client)?;
    let last = ages.last().context("no age")?;
    went_by(last, &next)?;
    ages.push(next);
    Ok(())
}

fn ensure_same(found: i64, before: i64) -> anyhow::Result<()> {
    ensure!(found == before, "/dev/ptp0 was {before} s from UTC, and is {found} s from it");
    Ok(())
}

/// How many seconds /dev/ptp0 in the guest is ahead of UTC; the page and the rest of it have to be right.
fn ptp_scale(host: &Host, client: &mut Client) -> anyhow::Result<i64> {
    let page = HostPage::open(host.directory())?;
    let offset = client::offset(host, &client.name)?;
    let mut scale = None;
    for _ in 0..10 {
        let compared = compare(&page, &mut client.reader, offset)?;
        ensure!(compared.overlaps(), "the page is wrong: {compared:?}");
        let ptp = compared.ptp.context("the guest's kernel gives no /dev/ptp0")?;
        let seconds = (ptp.error + 500_000_000).div_euclid(1_000_000_000);
        let rest = (ptp.error - seconds * 1_000_000_000).abs();
        ensure!(rest < 1_000_000 + ptp.slack, "/dev/ptp0 is wrong: {ptp:?}");
        ensure_same(seconds, *scale.get_or_insert(seconds))?;
    }
    scale.context("nothing was read")
}

fn ask(host: &Host, client: &mut Client) -> anyhow::Result<Age> {
    let offset = client::offset(host, &client.name)?;
    let command = || client.guest.sh("timevisor elapsed --json || [ $? = 1 ]");
    let (text, truth) = Truth::around(&Tsc::unchecked(), command)?;
    age(text.trim(), &truth, offset)
}
