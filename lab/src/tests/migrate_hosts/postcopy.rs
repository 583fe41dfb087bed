//! Post-copy: the guest runs on the new host before its memory is there, the page's memory too.

use anyhow::{Context as _, ensure};
use serde_json::json;
use timevisor_linux::counter::Tsc;

use super::hosts::{Hosts, check};
use super::journey::right;
use crate::client::{self, Client, Launch, Way};
use crate::experiments::truth::Truth;
use crate::interrupt;
use crate::scenario::Context;

fn allow(client: &mut Client) -> anyhow::Result<()> {
    let on = json!({"capabilities": [{"capability": "postcopy-ram", "state": true}]});
    client.guest.qmp().execute("migrate-set-capabilities", &on).map(drop)
}

pub(in crate::tests) fn postcopy(ctx: &Context) -> anyhow::Result<String> {
    let hosts = Hosts::new(ctx)?;
    let [a, b] = &hosts.hosts;
    let qemu = ctx.qemu_10()?;
    let mut here = client::boot(ctx, a, super::KERNEL, &qemu, Way::Vmclock, "guest", "tai")?;
    a.wait_vm("guest", "synchronized")?;
    let uri = format!("unix:{}", b.directory().join("migration").display());
    let launch = Launch::new(ctx, b, &qemu, Way::Vmclock, "guest");
    // timevisord begins to listen at once, and the capability must be there before.
    let mut there = launch.incoming(&uri).unserved().start()?;
    allow(&mut here)?;
    allow(&mut there)?;
    let qmp = b.directory().join("guest.qmp").display().to_string();
    b.cli(&["vm", "add", "--qmp", &qmp, "--name", "guest", "--resume", "--incoming", &uri])?;
    b.wait_until("the destination to await it", |h| Ok(h.vm("guest")?["migration"] == "incoming"))?;
    // So slow that it must be post-copied; at once fast again.
    let limit = |bytes: u64| json!({"max-bandwidth": bytes});
    here.guest.qmp().execute("migrate-set-parameters", &limit(1_000_000))?;

    let offset = client::offset(a, "guest")?;
    let (report, truth) = Truth::around(&Tsc::unchecked(), || {
        here.reader.ask("journey 6000")?;
        here.guest.qmp().execute("migrate", &json!({"uri": uri}))?;
        let active = interrupt::poll_until(std::time::Duration::from_secs(20), || {
            let status = here.guest.qmp().run("query-migrate")?;
            Ok((status["status"] == "active").then_some(()))
        })?;
        active.context("the migration does not begin")?;
        here.guest.qmp().run("migrate-start-postcopy")?;
        here.guest.qmp().execute("migrate-set-parameters", &limit(1 << 30))?;
        there.reader.answer()
    })?;
    for never in ["backward", "outside", "errors"] {
        ensure!(report[never] == 0, "{never} reads on the way: {report}");
    }
    let (before, after) = (&report["gap"]["before"], &report["gap"]["after"]);
    ensure!(before["disruption"] != after["disruption"], "the marker did not change: {report}");
    check(a, &truth, offset, before)?;
    check(b, &truth, client::offset(b, "guest")?, after)?;
    b.wait_vm("guest", "synchronized")?;
    right(b, &mut there)?;
    ensure!(a.vm("guest")?["status"] == "unknown", "the old page still tells the time");
    Ok(format!("{} reads, none back, {} said unknown", report["reads"], report["unknown"]))
}
