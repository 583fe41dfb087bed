//! timevisord's introspection of an emulated guest, as users drive it: attach, list, trace, detach.

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::client::{Client, Launch, Way};
use crate::host::{Host, mentions};
use crate::introspection::emulated::row;
use crate::real_time::Restore;
use crate::scenario::Context;
use crate::tests::introspection::calls::{exact, line, told};

pub(crate) fn daemon(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let refused = |host: &Host, arguments: &[&str], parts: &[&str]| -> anyhow::Result<()> {
        let said = host.cli(&[&["introspect"], arguments].concat());
        mentions(&format!("{:#}", said.err().context("it was done")?), parts)
    };
    refused(&host, &["attach", "nobody"], &["there is no VM nobody", "vm list"])?;

    let (qemu, plugin) = (ctx.qemu_10()?, ctx.introspection_plugin()?);
    let programs = [
        ctx.program("timevisor-lab-guest", "lab-calls")?,
        ctx.program("timevisor-lab-guest", "lab-dl")?,
        ctx.program("timevisor", "timevisor")?,
    ];
    let plain = Launch::new(ctx, &host, &qemu, Way::Vmclock, "plain").start()?;
    refused(&host, &["attach", "plain"], &["without our plugin", "-plugin"])?;
    drop(plain);

    let socket = host.directory().join("web.introspect");
    let plugin = format!("{},socket={}", plugin.display(), socket.display());
    let launch = Launch::new(ctx, &host, &qemu, Way::Vmclock, "web").programs(&programs);
    let launch = launch.builder(move |builder| {
        let named = "web,debug-threads=on".to_owned();
        builder.args(["-plugin".into(), plugin.clone(), "-name".into(), named])
    });
    // Attaching before the guest's kernel has booted: the daemon waits for it.
    let mut guest = launch.start()?;
    host.cli(&["introspect", "attach", "web"])?;
    guest.guest.wait_ready()?;
    host.wait_vm("web", "synchronized")?;
    let attached = |host: &Host| Ok(row(host)?["state"] == "attached");
    host.wait_until("the trap points", attached)?;
    let first = calls(&host, &mut guest)?;

    // A new daemon does not know of the attachment; the guest is unharmed and can be attached
    // again.
    host.kill();
    guest.guest.sh(&line())?;
    host.restart()?;
    host.wait_vm("web", "synchronized")?;
    ensure!(host.json(&["introspect", "list"])? == Value::Array(Vec::new()), "it is known still");
    refused(&host, &["trace", "web"], &["is not introspected"])?;
    host.cli(&["introspect", "attach", "web"])?;
    host.wait_until("the trap points again", attached)?;
    let second = calls(&host, &mut guest)?;
    ensure!(first == second, "{first} events, then {second}");

    host.cli(&["introspect", "detach", "web"])?;
    refused(&host, &["detach", "web"], &["is not introspected"])?;
    guest.guest.sh(&line())?;
    let trouble = "WARNING:|BUG:|Oops|Call Trace|stall|general protection|segfault";
    let said = guest.guest.sh(&format!("dmesg | grep -E '{trouble}' || true"))?;
    ensure!(said.is_empty(), "the guest's kernel complains: {said}");
    let reserved = follows(&host, &mut guest)?;
    host.cli(&["introspect", "attach", "web", "--reserve"])?;
    guest.guest.kill();
    host.wait_until("the end of its introspection", |host| {
        Ok(host.json(&["introspect", "list"])? == Value::Array(Vec::new()))
    })?;
    Ok(format!("{first} events of a program, twice, each with its time; reserved: {reserved}"))
}

/// A reservation follows the guest's tasks: it appears, grows, shrinks and disappears. An excessive
/// demand is refused and changes nothing.
fn follows(host: &Host, guest: &mut Client) -> anyhow::Result<String> {
    let held = |host: &Host| -> anyhow::Result<Value> {
        Ok(host.json(&["reserve", "list"])?.get(0).cloned().unwrap_or(Value::Null))
    };
    let budget =
        |host: &Host| -> anyhow::Result<u64> { Ok(held(host)?["budget_ns"].as_u64().unwrap_or(0)) };
    let start = |guest: &mut Client, name: &str, task: &str| {
        let line = format!("(lab-dl {task} >/run/{name} 2>&1) & echo $! >/run/{name}.pid");
        guest.guest.sh(&line).map(drop)
    };
    let end = |guest: &mut Client, name: &str| {
        // The task is the shell's child, not the shell itself.
        guest
            .guest
            .sh(&format!("pkill -P $(cat /run/{name}.pid) || kill $(cat /run/{name}.pid)"))
            .map(drop)
    };
    // This task starts before anybody attaches.
    start(guest, "early", "20 100")?;
    let early = guest.guest.sh(
        "until [ \"$(cut -d' ' -f41 /proc/$(pidof lab-dl)/stat)\" = 6 ]; do sleep 0.1; done; pidof lab-dl",
    )?;
    host.cli(&["introspect", "attach", "web", "--reserve", "--alone"])?;
    host.wait_until("a reservation for what had begun", |host| Ok(budget(host)? > 0))?;
    begun(&row(host)?, early.trim().parse()?)?;
    end(guest, "early")?;
    host.wait_until("its end", |host| Ok(held(host)?.is_null()))?;
    ensure!(row(host)?["tasks"] == Value::Array(Vec::new()), "{}", row(host)?);
    start(guest, "one", "20 100")?;
    host.wait_until("a reservation", |host| Ok(budget(host)? > 0))?;
    let first = budget(host)?;
    ensure!(held(host)?["period_ns"] == 50_000_000, "{}", held(host)?);
    // Not told after a retry, whose delay would be ours.
    let after = |host: &Host| -> anyhow::Result<Option<u64>> {
        Ok(row(host)?["reserved"]["after_ns"].as_u64())
    };
    let mut took = vec![after(host)?];
    start(guest, "two", "20 100")?;
    host.wait_until("it to grow", |host| Ok(budget(host)? > first))?;
    let second = budget(host)?;
    took.push(after(host)?);
    // The guest admits it; this host does not.
    start(guest, "three", "53 100")?;
    host.wait_until("a refusal", |host| Ok(row(host)?["reserved"]["refused"].is_string()))?;
    ensure!(budget(host)? == second, "a refused change changed something");
    end(guest, "three")?;
    end(guest, "two")?;
    host.wait_until("it to shrink", |host| Ok(budget(host)? == first))?;
    ensure!(row(host)?["reserved"]["refused"].is_null(), "{}", row(host)?);
    end(guest, "one")?;
    host.wait_until("nothing to be reserved", |host| Ok(held(host)?.is_null()))?;
    // A reservation made by hand stays.
    host.cli(&["reserve", "apply", "web", "--budget", "10ms/50ms"])?;
    start(guest, "four", "20 100")?;
    host.wait_until("a refusal", |host| Ok(row(host)?["reserved"]["refused"].is_string()))?;
    ensure!(budget(host)? == 10_000_000, "{}", held(host)?);
    host.cli(&["reserve", "release", "web"])?;
    end(guest, "four")?;
    host.cli(&["introspect", "detach", "web"])?;
    let ms = |ns: u64| ns as f64 / 1e6;
    let took: Vec<String> = took.into_iter().flatten().map(|ns| format!("{:.0}", ms(ns))).collect();
    ensure!(!took.is_empty(), "how long it took is told of no reservation");
    let took = took.join(" and ");
    Ok(format!(
        "{:.1}, then {:.1} of 50 ms, {took} ms after the guest asked",
        ms(first),
        ms(second)
    ))
}

/// Exactly one task, with the parameters it was given before the attachment and no observations.
fn begun(row: &Value, tid: u32) -> anyhow::Result<()> {
    let [task] = &row["tasks"].as_array().context("no tasks")?[..] else {
        bail!("not one task: {row}")
    };
    let asked = &task["attributes"];
    let ns = ["runtime_ns", "deadline_ns", "period_ns"].map(|key| asked[key].as_u64());
    ensure!(ns == [Some(20_000_000), Some(100_000_000), Some(100_000_000)], "{task}");
    ensure!(asked["policy"] == "deadline" && task["thread"]["policy"] == "deadline", "{task}");
    ensure!(task["thread"]["tid"] == tid && task["thread"]["comm"] == "lab-dl", "{task}");
    ensure!(task["jobs"] == 0 && task["counter"].is_null(), "{task}");
    ensure!(row["problem"].is_null(), "{row}");
    Ok(())
}

/// Reads the guest's own clock.
fn now(guest: &mut Client, bound: &str) -> anyhow::Result<i64> {
    let said = guest.guest.sh("timevisor now --json || [ $? = 1 ]")?;
    let said: Value = serde_json::from_str(said.trim()).with_context(|| said.clone())?;
    said[bound].as_i64().with_context(|| format!("the guest does not know the time: {said}"))
}

/// Runs lab-calls and returns the number of its events; every event's time lies within the run, by
/// the guest's clock.
fn calls(host: &Host, guest: &mut Client) -> anyhow::Result<usize> {
    let begin = row(host)?["events"].as_u64().context("no count")?;
    let before = now(guest, "earliest_ns")?;
    let said = guest.guest.sh(&line())?;
    let after = now(guest, "latest_ns")?;
    let said: Value = serde_json::from_str(said.trim())?;
    let count = exact(&told(host, begin, &said)?, before, after)?;
    let row = row(host)?;
    ensure!(row["dropped"] == 0 && row["senseless"] == 0, "{row}");
    Ok(count)
}
