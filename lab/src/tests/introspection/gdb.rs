//! QEMU's gdb stub as a way to trap: slow, but it gives the same events.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::client::Client;
use crate::host::{Host, mentions};
use crate::introspection::emulated::{emulated, row};
use crate::scenario::Context;
use crate::tests::introspection::calls::{self, counts, line};

pub(crate) fn gdb(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let socket = format!("unix:{},server=on,wait=off", host.directory().join("web.gdb").display());
    let programs = [ctx.program("timevisor-lab-guest", "lab-calls")?];
    let mut guest = emulated(ctx, &host, &programs, &["-gdb".to_owned(), socket])?;

    let stub = told(&host, &mut guest, "gdb")?;
    let plugin = told(&host, &mut guest, "tcg")?;
    ensure!(stub == plugin, "the stub: {stub:?}\nthe plugin: {plugin:?}");

    // The daemon's end must not stop the guest: no breakpoint is left that would halt it for ever.
    attach(&host, "gdb")?;
    host.kill();
    for _ in 0..3 {
        guest.guest.sh(&line())?;
    }
    host.restart()?;
    host.wait_vm("web", "synchronized")?;
    let again = told(&host, &mut guest, "gdb")?;
    ensure!(again == stub, "{again:?}");
    attach(&host, "gdb")?;
    guest
        .guest
        .sh("(sleep 1; lab-calls 20 20000 >/dev/null; echo $? >/run/ended) >/dev/null 2>&1 &")?;
    host.wait_until("an event", |host| Ok(row(host)?["events"].as_u64() > Some(0)))?;
    // Most likely in the middle of a hit.
    host.kill();
    let ended = guest.guest.sh("while [ ! -s /run/ended ]; do sleep 0.1; done; cat /run/ended")?;
    ensure!(ended.trim() == "3", "the program ended with {ended}");
    let trouble = "WARNING:|BUG:|Oops|Call Trace|general protection|segfault";
    let said = guest.guest.sh(&format!("dmesg | grep -E '{trouble}' || true"))?;
    ensure!(said.is_empty(), "the guest's kernel complains: {said}");
    Ok(format!("{} events of a program, the same as the plugin's; kill -9 twice", stub.len()))
}

fn attach(host: &Host, backend: &str) -> anyhow::Result<()> {
    let said = host.cli(&["introspect", "attach", "web", "--backend", backend])?;
    mentions(&said, &[backend])?;
    host.wait_until("the breakpoints", |host| Ok(row(host)?["state"] == "attached"))
}

/// What a program did, as this backend reports it: each event without its time, its place and its
/// thread names.
fn told(host: &Host, guest: &mut Client, backend: &str) -> anyhow::Result<Vec<Value>> {
    attach(host, backend)?;
    let begin = row(host)?["events"].as_u64().context("no count")?;
    let said = guest.guest.sh(&line())?;
    let said: Value = serde_json::from_str(said.trim())?;
    let events = calls::told(host, begin, &said)?;
    counts(&events)?;
    let row = row(host)?;
    ensure!(row["dropped"] == 0 && row["senseless"] == 0 && row["backend"] == backend, "{row}");
    host.cli(&["introspect", "detach", "web"])?;
    let kept = ["kind", "attributes", "clock", "absolute", "ns", "status"];
    let kept = |event: &Value| {
        let mut all: Vec<Value> = kept.iter().map(|key| event[key].clone()).collect();
        all.push(event["thread"]["policy"].clone());
        Value::Array(all)
    };
    Ok(events.iter().map(kept).collect())
}
