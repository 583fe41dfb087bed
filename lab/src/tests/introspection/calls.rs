//! What introspection has to tell of lab-calls, however it came about.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::client::{Client, Launch, Way};
use crate::host::Host;
use crate::image::Image;
use crate::scenario::Context;

pub(crate) const JOBS: usize = 20;
pub(crate) const YIELDS: usize = 50;

/// A guest "web" that QEMU emulates, with our plugin, these programs and these further arguments;
/// its page is there.
pub(crate) fn emulated(
    ctx: &Context,
    host: &Host,
    programs: &[PathBuf],
    more: &[String],
) -> anyhow::Result<Client> {
    emulated_on(ctx, host, "trixie-backports", programs, more)
}

/// The same with this suite's kernel.
pub(crate) fn emulated_on(
    ctx: &Context,
    host: &Host,
    kernel: &str,
    programs: &[PathBuf],
    more: &[String],
) -> anyhow::Result<Client> {
    let programs = programs.to_vec();
    let image = move |image: Image| Ok(programs.iter().fold(image, |image, p| image.program(p)));
    let guest = booted(ctx, host, kernel, image, more)?;
    host.wait_vm("web", "synchronized")?;
    Ok(guest)
}

/// The same with anything in its image; its page may say nothing yet.
pub(crate) fn booted(
    ctx: &Context,
    host: &Host,
    kernel: &str,
    image: impl Fn(Image) -> anyhow::Result<Image> + 'static,
    more: &[String],
) -> anyhow::Result<Client> {
    let (qemu, plugin) = (ctx.qemu_10()?, ctx.introspection_plugin()?);
    let socket = host.directory().join("web.introspect");
    let plugin = format!("{},socket={}", plugin.display(), socket.display());
    let launch = Launch::new(ctx, host, &qemu, Way::Vmclock, "web").kernel(kernel).image(image);
    let more = more.to_vec();
    let launch = launch.builder(move |builder| {
        let named = "web,debug-threads=on".to_owned();
        let builder = builder.args(["-plugin".into(), plugin.clone(), "-name".into(), named]);
        builder.args(more.clone())
    });
    let mut guest = launch.start()?;
    guest.guest.wait_ready()?;
    Ok(guest)
}

/// Runs it in a guest's shell.
pub(crate) fn line() -> String {
    format!("lab-calls {JOBS} {YIELDS}; [ $? = 3 ]")
}

/// What timevisord tells of the only guest.
pub(crate) fn row(host: &Host) -> anyhow::Result<Value> {
    host.json(&["introspect", "list"])?.get(0).cloned().context("nothing is introspected")
}

/// From the event of this number on, all of the program that said this, when it has ended.
pub(crate) fn told(host: &Host, from: u64, said: &Value) -> anyhow::Result<Vec<Value>> {
    let from = from.to_string();
    let words = ["introspect", "trace", "web", "--once", "--json", "--from", &from];
    let mut events = Vec::new();
    host.wait_until("the program's end", |host| {
        let found = of_program(&host.cli(&words)?, said)?;
        let ended = found.is_some();
        events = found.unwrap_or_default();
        Ok(ended)
    })?;
    Ok(events)
}

/// Of all events that `trace --json` printed, those of the program that said this; none while its
/// end is not among them.
pub(crate) fn of_program(told: &str, said: &Value) -> anyhow::Result<Option<Vec<Value>>> {
    let all = told.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let events: Vec<Value> =
        all.into_iter().filter(|e| e["thread"]["tid"] == said["pid"]).collect();
    let ended = events.last().is_some_and(|event| event["kind"] == "exit");
    Ok(ended.then_some(events))
}

/// Every call, with its arguments, and its time between these two moments. How many events.
pub(crate) fn exact(events: &[Value], before: i64, after: i64) -> anyhow::Result<usize> {
    for event in events {
        let at = |bound: &str| event[bound].as_i64().with_context(|| format!("no time: {event}"));
        let (earliest, latest) = (at("earliest_ns")?, at("latest_ns")?);
        ensure!(before <= latest && earliest <= after, "not in {before} to {after}: {event}");
    }
    counts(events)
}

/// The same without times.
pub(crate) fn counts(events: &[Value]) -> anyhow::Result<usize> {
    let count = |kind: &str| events.iter().filter(|event| event["kind"] == kind).count();
    ensure!(count("yield") == JOBS + YIELDS, "{} yields of {}", count("yield"), JOBS + YIELDS);
    ensure!(count("sleep") == 3 && count("set_scheduler") >= 2, "{events:?}");
    let first = events.iter().find(|event| event["kind"] == "set_scheduler").context("none")?;
    let asked = &first["attributes"];
    ensure!(asked["runtime_ns"] == 2_000_000 && asked["period_ns"] == 20_000_000, "{asked}");
    ensure!(events.last().is_some_and(|event| event["status"] == 3 << 8), "{events:?}");
    Ok(events.len())
}
