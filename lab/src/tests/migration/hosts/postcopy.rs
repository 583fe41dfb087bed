//! Post-copy: the guest runs on the new host before its memory, including the page, has arrived.

use std::io;
use std::os::unix::net::UnixListener;

use anyhow::{Context as _, ensure};
use serde_json::json;
use timevisor_linux::counter::Tsc;

use crate::client::{self, Client, Launch, Way};
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::migration::journey::{self, right};
use crate::migration::pair::{Hosts, check};
use crate::qemu::Qemu;
use crate::scenario::Context;
use crate::truth::Truth;

fn allow(client: &mut Client) -> anyhow::Result<()> {
    let on = json!({"capabilities": [{"capability": "postcopy-ram", "state": true}]});
    client.guest.qmp().execute("migrate-set-capabilities", &on).map(drop)
}

pub(crate) fn postcopy(ctx: &Context) -> anyhow::Result<String> {
    let mut hosts = Hosts::new(ctx)?;
    for (name, qemu) in [("old", ctx.qemu()?), ("new", ctx.qemu_10()?)] {
        refused(ctx, &mut hosts, &qemu, name).context("with an nvdimm")?;
    }
    let device = with_device(ctx, &hosts)?;
    Ok(format!("{device}; with an nvdimm refused on either side, by either QEMU"))
}

/// QEMU supports post-copy or memory that it does not copy (x-ignore-shared), but not both; without
/// the latter, the destination would crash.
fn refused(ctx: &Context, hosts: &mut Hosts, qemu: &Qemu, name: &str) -> anyhow::Result<()> {
    let [a, b] = &hosts.hosts;
    let uri = format!("unix:{}", b.directory().join(format!("{name}.migration")).display());
    let socket = |host: &Host| host.directory().join(format!("{name}.qmp")).display().to_string();
    let told = |host: &Host| {
        host.wait_until("the reason", |host| {
            let row = host.vm(name)?;
            Ok(row["reason"].as_str().is_some_and(|why| why.contains("x-ignore-shared")))
        })
    };
    let mut here = client::boot(ctx, a, super::KERNEL, qemu, Way::Nvdimm, name, "tai")?;
    a.wait_vm(name, "synchronized")?;
    let text = format!("{:#}", allow(&mut here).err().context("the source allows post-copy")?);
    mentions(&text, &["ignore-shared"])?;

    // Somebody enables post-copy before timevisord knows the VM.
    let launch = Launch::new(ctx, b, qemu, Way::Nvdimm, name);
    let mut there = launch.incoming(&uri).unserved().start()?;
    if let Err(error) = allow(&mut there) {
        // QEMU cannot post-copy into files unless they are on a tmpfs, and the lab's pages are not.
        mentions(&format!("{error:#}"), &["TMPFS"])?;
    } else {
        let incoming = ["--resume", "--incoming", &uri];
        b.cli(&[&["vm", "add", "--qmp", &socket(b), "--name", name][..], &incoming].concat())?;
        told(b)?;
        let info = there.guest.qmp().run("query-migrate")?;
        ensure!(info["status"].is_null(), "it is awaited: {info}");
    }

    a.cli(&["vm", "remove", name])?;
    let copied = json!({"capabilities": [{"capability": "x-ignore-shared", "state": false}]});
    here.guest.qmp().execute("migrate-set-capabilities", &copied)?;
    allow(&mut here)?;
    a.cli(&["vm", "add", "--qmp", &socket(a), "--name", name])?;
    told(a)?;
    let said = a.cli(&["vm", "migrate", name, "--to", &uri]);
    let text = format!("{:#}", said.err().context("it migrates")?);
    mentions(&text, &["must not migrate", "postcopy-ram off"])?;
    // A migration that an operator starts directly in QEMU is cancelled.
    here.guest.qmp().execute("migrate-set-parameters", &json!({"max-bandwidth": 1_000_000}))?;
    let sink = a.directory().join(format!("{name}.sink"));
    let listener = UnixListener::bind(&sink)?;
    // QEMU 10.0 stops answering when it is told to cancel a migration to `exec:`.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| io::copy(&mut stream, &mut io::sink()));
        }
    });
    let migrate = |here: &mut Client| -> anyhow::Result<()> {
        let uri = format!("unix:{}", sink.display());
        here.guest.qmp().execute("migrate", &json!({ "uri": uri })).map(drop)
    };
    migrate(&mut here)?;
    cancelled(&mut here).context("an operator's migration goes on")?;
    a.wait_vm(name, "synchronized")?;
    right(a, &mut here)?;

    // So is one that began while no daemon ran: no event of it will come.
    let [a, _] = &mut hosts.hosts;
    a.kill();
    migrate(&mut here)?;
    let active = interrupt::poll_until(std::time::Duration::from_secs(20), || {
        Ok((here.guest.qmp().run("query-migrate")?["status"] == "active").then_some(()))
    })?;
    active.context("the migration does not begin")?;
    a.restart()?;
    cancelled(&mut here).context("a migration that began without a daemon goes on")?;
    a.wait_vm(name, "synchronized")?;
    right(a, &mut here)
}

fn cancelled(client: &mut Client) -> anyhow::Result<()> {
    let mut last = serde_json::Value::Null;
    let ended = interrupt::poll_until(std::time::Duration::from_secs(20), || {
        last = client.guest.qmp().run("query-migrate")?;
        Ok((last["status"] == "cancelled").then_some(()))
    })?;
    ended.with_context(|| format!("QEMU says {last}"))
}

fn with_device(ctx: &Context, hosts: &Hosts) -> anyhow::Result<String> {
    let [a, b] = &hosts.hosts;
    let (way, qemu, name) = (Way::Vmclock, &ctx.qemu_10()?, "guest");
    let mut here = client::boot(ctx, a, super::KERNEL, qemu, way, name, "tai")?;
    a.wait_vm(name, "synchronized")?;
    let uri = format!("unix:{}", b.directory().join(format!("{name}.migration")).display());
    let launch = Launch::new(ctx, b, qemu, way, name);
    // timevisord starts the incoming migration at once, so the capability must be set before.
    let mut there = launch.incoming(&uri).unserved().start()?;
    allow(&mut here)?;
    allow(&mut there)?;
    let qmp = b.directory().join(format!("{name}.qmp")).display().to_string();
    b.cli(&["vm", "add", "--qmp", &qmp, "--name", name, "--resume", "--incoming", &uri])?;
    b.wait_until("the destination to await it", |h| Ok(h.vm(name)?["migration"] == "incoming"))?;
    // First so slow that the memory must be post-copied; fast again right afterwards.
    let limit = |bytes: u64| json!({"max-bandwidth": bytes});
    here.guest.qmp().execute("migrate-set-parameters", &limit(1_000_000))?;

    let offset = client::offset(a, name)?;
    let (report, truth) = Truth::around(&Tsc::unchecked(), || {
        here.reader.ask("journey 2000")?;
        here.guest.qmp().execute("migrate", &json!({"uri": uri}))?;
        let active = interrupt::poll_until(std::time::Duration::from_secs(20), || {
            let status = here.guest.qmp().run("query-migrate")?;
            Ok((status["status"] == "active").then_some(()))
        })?;
        active.context("the migration does not begin")?;
        here.guest.qmp().run("migrate-start-postcopy")?;
        here.guest.qmp().execute("migrate-set-parameters", &limit(1 << 30))?;
        journey::report(&mut there)
    })?;
    for never in ["backward", "outside", "errors"] {
        ensure!(report[never] == 0, "{never} reads on the way: {report}");
    }
    let (before, after) = (&report["gap"]["before"], &report["gap"]["after"]);
    ensure!(before["disruption"] != after["disruption"], "the marker did not change: {report}");
    check(a, &truth, offset, before)?;
    check(b, &truth, client::offset(b, name)?, after)?;
    b.wait_vm(name, "synchronized")?;
    right(b, &mut there)?;
    ensure!(a.vm(name)?["status"] == "unknown", "the old page still tells the time");
    Ok(format!("{} reads, none back, {} said unknown", report["reads"], report["unknown"]))
}
