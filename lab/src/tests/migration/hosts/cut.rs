//! Moves during which the process that speaks QMP is killed, sooner or later, on either side.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use timevisor_linux::counter::Tsc;

use crate::client::{self, Client, Launch, Way};
use crate::command;
use crate::host::Host;
use crate::interrupt;
use crate::migration::journey::{report, right};
use crate::migration::pair::{Hosts, check};
use crate::qemu::Qemu;
use crate::scenario::Context;
use crate::truth::Truth;

/// From the command to the death, ms. A guest of the lab's size moves in a third of a second.
const DELAYS: [u64; 8] = [0, 20, 60, 100, 150, 200, 300, 600];

pub(crate) fn cut(ctx: &Context) -> anyhow::Result<String> {
    let hosts = Hosts::new(ctx)?;
    let qemu = ctx.qemu_10()?;
    let name = |stay: usize| format!("guest-{stay}");
    let first = name(0);
    let [a, _] = &hosts.hosts;
    let mut here = client::boot(ctx, a, super::KERNEL, &qemu, Way::Vmclock, &first, "tai")?;
    a.wait_vm(&first, "synchronized")?;
    let (mut reads, mut killed) = (0, 0);
    for (n, delay) in DELAYS.into_iter().enumerate() {
        interrupt::check()?;
        let (from, to) = (&hosts.hosts[n % 2], &hosts.hosts[(n + 1) % 2]);
        let next = name(n + 1);
        let uri = format!("unix:{}", to.directory().join(format!("{next}.migration")).display());
        let mut there = Launch::new(ctx, to, &qemu, Way::Vmclock, &next).incoming(&uri).start()?;
        to.wait_until("the destination to await it", |h| {
            Ok(h.vm(&next)?["migration"] == "incoming")
        })?;
        // Both sides, in turn; at the end both at once.
        let victims = match n {
            _ if n + 1 == DELAYS.len() => vec![from, to],
            _ if n.is_multiple_of(2) => vec![from],
            _ => vec![to],
        };
        let moved = one(from, to, &mut here, &mut there, &uri, &victims, delay);
        reads += moved.with_context(|| format!("move {}, cut after {delay} ms", n + 1))?;
        killed += victims.len();
        here.guest.kill();
        here = there;
    }
    let stayed = cancelled_unheard(ctx, &hosts, &mut here, &qemu)?;
    Ok(format!(
        "{} moves with {killed} helpers killed, {reads} reads, none back or outside; {stayed}",
        DELAYS.len()
    ))
}

fn one(
    from: &Host,
    to: &Host,
    here: &mut Client,
    there: &mut Client,
    uri: &str,
    victims: &[&Host],
    delay: u64,
) -> anyhow::Result<u64> {
    let old_offset = client::offset(from, &here.name)?;
    let (said, truth) = Truth::around(&Tsc::unchecked(), || {
        let begun = here.reader.ask("journey 1500")?;
        ensure!(begun["begun"] == true, "{begun}");
        std::thread::scope(|scope| {
            let killing = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(delay));
                victims.iter().try_for_each(|host| kill_helpers(host))
            });
            // The first to die is the one that is to be told.
            let left = loop {
                match from.cli(&["vm", "migrate", &here.name, "--to", uri]) {
                    Err(error) if format!("{error:#}").contains("no QMP socket that answers") => {
                        interrupt::sleep(Duration::from_millis(200))?;
                    }
                    left => break left,
                }
            };
            killing.join().map_err(|_| anyhow::anyhow!("the killing panicked"))??;
            left.context("the command that moves it")
        })?;
        report(there)
    })?;
    to.wait_vm(&there.name, "synchronized")?;
    for never in ["backward", "outside", "errors"] {
        ensure!(said[never] == 0, "{never} reads on the way: {said}");
    }
    let (before, after) = (&said["gap"]["before"], &said["gap"]["after"]);
    let new_offset = client::offset(to, &there.name)?;
    check(from, &truth, old_offset, before)?;
    check(to, &truth, new_offset, after)?;
    // Both daemons know it, with or without having heard of it.
    from.wait_until("the source to know", |h| Ok(h.vm(&here.name)?["migration"] == "left"))?;
    to.wait_until("the destination to know", |h| Ok(h.vm(&there.name)?["migration"].is_null()))?;
    ensure!(from.vm(&here.name)?["status"] == "unknown", "the old page still tells the time");
    right(to, there)?;
    said["reads"].as_u64().context("no reads")
}

/// Somebody else cancels the move while nobody listens to QEMU: it was leaving for good before.
fn cancelled_unheard(
    ctx: &Context,
    hosts: &Hosts,
    here: &mut Client,
    qemu: &Qemu,
) -> anyhow::Result<String> {
    let (from, to) = (&hosts.hosts[DELAYS.len() % 2], &hosts.hosts[(DELAYS.len() + 1) % 2]);
    let uri = format!("unix:{}", to.directory().join("cancelled").display());
    let there = Launch::new(ctx, to, qemu, Way::Vmclock, "cancelled").incoming(&uri).start()?;
    to.wait_until("the destination to await it", |h| {
        Ok(h.vm("cancelled")?["migration"] == "incoming")
    })?;
    let slow = serde_json::json!({"max-bandwidth": 100_000});
    here.guest.qmp().execute("migrate-set-parameters", &slow)?;
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| from.cli_output(&["vm", "migrate", &here.name, "--to", &uri]));
        let guest = &mut here.guest;
        let active = interrupt::poll_until(Duration::from_secs(10), || {
            Ok((guest.qmp().run("query-migrate")?["status"] == "active").then_some(()))
        })?;
        active.context("the migration does not begin")?;
        kill_helpers(from)?;
        guest.qmp().run("migrate_cancel")?;
        let said = moving.join().map_err(|_| anyhow::anyhow!("the move panicked"))??;
        ensure!(!said.status.success(), "it has left: {said:?}");
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        crate::host::mentions(&text, &["stays here", "cancelled"])
    })?;
    drop(there);
    from.wait_vm(&here.name, "synchronized")?;
    right(from, here)?;
    Ok("one that somebody cancels meanwhile stays, and is known to".to_owned())
}

/// Kills the helpers that speak QMP for a host's timevisord.
fn kill_helpers(host: &Host) -> anyhow::Result<()> {
    let daemon = host.pid()?;
    let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children"))?;
    let mut killed = 0;
    for child in children.split_whitespace() {
        let line = fs::read(Path::new("/proc").join(child).join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains("qmp-helper") {
            command::run("kill", &["-9", child])?;
            killed += 1;
        }
    }
    ensure!(killed > 0, "no helper speaks QMP for {daemon}: {children}");
    Ok(())
}
