//! Other guest kernels: the same program gives the same events. A kernel that traces itself is left
//! alone as long as it does.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::client::Client;
use crate::host::Host;
use crate::introspection::emulated::{emulated_on, row};
use crate::scenario::Context;
use crate::tests::introspection::calls::{exact, line, told};

/// Debian suites whose kernels differ from the one in all other tests.
const SUITES: [&str; 2] = ["bookworm", "bookworm-backports"];

pub(crate) fn kernels(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let programs = [ctx.program("timevisor-lab-guest", "lab-calls")?];
    let mut all = Vec::new();
    for suite in SUITES {
        let mut guest = emulated_on(ctx, &host, suite, &programs, &[])?;
        host.cli(&["introspect", "attach", "web"])?;
        host.wait_until("the trap points", |host| Ok(row(host)?["state"] == "attached"))?;
        let release = guest.guest.sh("uname -r")?;
        let found = row(&host)?;
        let named = found["guest"].as_str().is_some_and(|name| name.contains(release.trim()));
        ensure!(named, "{release} is not in {found}");
        // Without a driver for the page, the guest itself does not know the time.
        let now = |bound: &str| -> anyhow::Result<i64> {
            host.json(&["now"])?[bound].as_i64().context("the host does not know the time")
        };
        let before = now("earliest_ns")?;
        let said = guest.guest.sh(&line())?;
        let after = now("latest_ns")?;
        let said: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
        let count = exact(&told(&host, 0, &said)?, before, after)?;
        let found = row(&host)?;
        ensure!(found["dropped"] == 0 && found["senseless"] == 0, "{found}");
        own_tracer(&host, &mut guest)?;
        all.push(format!("{}: {count} events", release.trim()));
        guest.guest.kill();
        host.wait_until("the end of its introspection", |host| {
            Ok(host.json(&["introspect", "list"])? == Value::Array(Vec::new()))
        })?;
    }
    Ok(all.join(", "))
}

/// The kernel's own tracer occupies the place of a trap point.
fn own_tracer(host: &Host, guest: &mut Client) -> anyhow::Result<()> {
    host.cli(&["introspect", "detach", "web"])?;
    let tracing = "/sys/kernel/tracing";
    guest.guest.sh(&format!(
        "mount -t tracefs none {tracing} 2>/dev/null; echo do_exit >{tracing}/set_ftrace_filter && echo function >{tracing}/current_tracer"
    ))?;
    host.cli(&["introspect", "attach", "web"])?;
    host.wait_until("a refusal", |host| {
        Ok(row(host)?["problem"].as_str().is_some_and(|text| text.contains("do_exit begins with")))
    })?;
    ensure!(row(host)?["state"] == "waiting", "{}", row(host)?);
    guest.guest.sh(&format!("echo nop >{tracing}/current_tracer"))?;
    host.wait_until("the trap points again", |host| Ok(row(host)?["state"] == "attached"))
}
