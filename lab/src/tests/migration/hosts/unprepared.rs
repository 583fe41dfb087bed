//! Destinations that do not know the time, that know nothing of Timevisor, or that do not hold the
//! guest back until its page is ready.
//!
//! All use QEMU's device: its page travels with the guest, so the guest finds the source's page.

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use timevisor_linux::counter::Tsc;

use crate::chronyd::Chronyd;
use crate::client::{self, Client, Launch, Way};
use crate::host::Host;
use crate::migration::journey::{self, right};
use crate::migration::pair::{Hosts, check, lines};
use crate::netns::Namespace;
use crate::scenario::Context;
use crate::truth::Truth;

/// Migrates a guest from the first host to `uri` while it reads as fast as it can; checks that what
/// it read was true.
fn journey(from: &Host, here: &mut Client, there: &mut Client, uri: &str) -> anyhow::Result<Value> {
    let offset = client::offset(from, &here.name)?;
    let (report, truth) = Truth::around(&Tsc::unchecked(), || {
        here.reader.ask("journey 2000")?;
        std::thread::sleep(std::time::Duration::from_millis(200));
        from.cli(&["vm", "migrate", &here.name, "--to", uri])?;
        journey::report(there)
    })?;
    for never in ["backward", "outside", "errors"] {
        ensure!(report[never] == 0, "{never} reads on the way: {report}");
    }
    // The last reading before the guest no longer knew the time was true on the source.
    let before = if report["gap"]["after"]["disruption"] == report["gap"]["before"]["disruption"] {
        &report["last"]
    } else {
        &report["gap"]["before"]
    };
    check(from, &truth, offset, before)?;
    Ok(report)
}

fn uri(host: &Host) -> String {
    format!("unix:{}", host.directory().join("migration").display())
}

fn knows_nothing(client: &mut Client, status: &[&str]) -> anyhow::Result<()> {
    for _ in 0..20 {
        let reading = client.reader.ask("read")?;
        let said = reading["status"].as_str().unwrap_or_default();
        ensure!(reading["known"] == false && status.contains(&said), "{reading}");
    }
    Ok(())
}

/// The destination's daemon has not had an answer from its server yet.
pub(crate) fn no_time(ctx: &Context) -> anyhow::Result<String> {
    let hosts = Hosts::new(ctx)?;
    let a = &hosts.hosts[0];
    let mut b = Host::further(ctx, "late")?;
    let namespace = Namespace::create()?;
    b.start(&lines(&namespace.address().to_string()))?;
    let (qemu, uri) = (ctx.qemu_10()?, uri(&b));
    let mut here = client::boot(ctx, a, super::KERNEL, &qemu, Way::Vmclock, "guest", "tai")?;
    a.wait_vm("guest", "synchronized")?;
    let mut there = Launch::new(ctx, &b, &qemu, Way::Vmclock, "guest").incoming(&uri).start()?;
    b.wait_until("the destination to await it", |h| Ok(h.vm("guest")?["migration"] == "incoming"))?;
    journey(a, &mut here, &mut there, &uri)?;
    knows_nothing(&mut there, &["initializing", "unknown"])?;
    let row = b.vm("guest")?;
    ensure!(row["status"] != "synchronized", "{row}");
    let _server = Chronyd::start_in(namespace, 123, "late", ctx.log_dir(), "local stratum 1\n")?;
    b.wait_vm("guest", "synchronized")?;
    right(&b, &mut there)?;
    Ok("the guest knows that the time is not known, until its new host does".to_owned())
}

/// Nobody writes the page at the destination, or a daemon does so only after the guest has started
/// to run.
pub(crate) fn no_timevisor(ctx: &Context) -> anyhow::Result<String> {
    let hosts = Hosts::new(ctx)?;
    let [a, b] = &hosts.hosts;
    let (qemu, uri) = (ctx.qemu_10()?, uri(b));
    let mut here = client::boot(ctx, a, super::KERNEL, &qemu, Way::Vmclock, "guest", "tai")?;
    a.wait_vm("guest", "synchronized")?;
    let launch = Launch::new(ctx, b, &qemu, Way::Vmclock, "free");
    let mut free = launch.incoming(&uri).at_once().start()?;
    b.wait_until("the destination to await it", |h| Ok(h.vm("free")?["migration"] == "incoming"))?;
    let report = journey(a, &mut here, &mut free, &uri)?;
    b.wait_vm("free", "synchronized")?;
    right(b, &mut free)?;
    here.guest.kill();

    // Back to a QEMU that no timevisord knows.
    let qemu_there = Launch::new(ctx, &Host::further(ctx, "bare")?, &qemu, Way::Vmclock, "alone")
        .incoming(&uri)
        .unserved()
        .start();
    let mut alone = qemu_there.context("the QEMU without Timevisor")?;
    alone.guest.qmp().execute("migrate-incoming", &json!({"uri": uri}))?;
    journey(b, &mut free, &mut alone, &uri)?;
    knows_nothing(&mut alone, &["unknown"])?;
    Ok(format!(
        "run at once: {} of {} reads said unknown until the page was written, none was wrong; without Timevisor: unknown",
        report["unknown"], report["reads"]
    ))
}
