//! The elapsed clock: across a daemon's death on the host, and across a migration in a guest.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::counter::Tsc;

use crate::client::{self, Launch, Way};
use crate::guest::Guest;
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::migration::pair::Hosts;
use crate::scenario::Context;
use crate::truth::Truth;

/// An age and the time when it was read.
pub(crate) struct Age {
    pub(crate) earliest: i64,
    estimate: i64,
    pub(crate) latest: i64,
    /// UTC, ns.
    true_ns: i64,
    slack: i64,
}

pub(crate) fn age(text: &str, truth: &Truth, offset: i64) -> anyhow::Result<Age> {
    let value: Value = serde_json::from_str(text).with_context(|| text.to_owned())?;
    ensure!(value["timescale"] == "local" && value["status"] == "synchronized", "{value}");
    let ns = |name: &str| value[name].as_i64().with_context(|| format!("no {name}: {value}"));
    let counter = value["counter"].as_u64().context("no counter")?;
    Ok(Age {
        earliest: ns("earliest_ns")?,
        estimate: ns("estimate_ns")?,
        latest: ns("latest_ns")?,
        true_ns: truth.at(counter.wrapping_add_signed(-offset)),
        slack: truth.uncertainty_ns(),
    })
}

/// Checks that the true time between two readings lies within the bounds that the ages give;
/// returns the error of the estimates, us.
pub(crate) fn went_by(before: &Age, after: &Age) -> anyhow::Result<f64> {
    ran(before, after, 0)
}

/// The same for ages that exclude a blackout of `blackout_ns`.
fn ran(before: &Age, after: &Age, blackout_ns: i64) -> anyhow::Result<f64> {
    let truth = after.true_ns - before.true_ns - blackout_ns;
    let slack = before.slack + after.slack + 2;
    let (least, most) = (after.earliest - before.latest, after.latest - before.earliest);
    ensure!(
        least - slack <= truth && truth <= most + slack,
        "{truth} ns went by, and the ages say between {least} and {most}"
    );
    ensure!(after.estimate > before.estimate, "it went back");
    Ok((after.estimate - before.estimate - truth).abs() as f64 / 1e3)
}

fn of_host(host: &Host) -> anyhow::Result<Age> {
    let (text, truth) = Truth::around(&Tsc::unchecked(), || host.cli(&["elapsed", "--json"]))?;
    age(&text, &truth, 0)
}

pub(crate) fn elapsed(ctx: &Context) -> anyhow::Result<String> {
    let mut hosts = Hosts::new(ctx)?;
    let host = &mut hosts.hosts[0];
    let first = of_host(host)?;
    interrupt::sleep(Duration::from_secs(2))?;
    let second = of_host(host)?;
    let alone = went_by(&first, &second)?;
    host.kill();
    interrupt::sleep(Duration::from_secs(1))?;
    host.restart()?;
    host.wait_synchronized(500)?;
    let third = of_host(host)?;
    let restart = went_by(&second, &third)?;
    ensure!(third.latest - third.earliest < 1_000_000, "known to a millisecond at best");

    let [a, b] = &hosts.hosts;
    let (qemu, programs) = (ctx.qemu_10()?, [ctx.program("timevisor", "timevisor")?]);
    let launch = Launch::new(ctx, a, &qemu, Way::Vmclock, "here").programs(&programs);
    let mut here = launch.start()?;
    here.guest.wait_ready()?;
    a.wait_vm("here", "synchronized")?;
    let offset = client::offset(a, "here")?;
    let ask = |guest: &mut Guest, offset: i64| -> anyhow::Result<[Age; 3]> {
        let one = |guest: &mut Guest, more: &str| {
            let command = format!("timevisor elapsed --json {more}");
            let (text, truth) = Truth::around(&Tsc::unchecked(), || guest.sh(&command))?;
            age(text.trim(), &truth, offset)
        };
        Ok([
            one(guest, "")?,
            one(guest, "--since /tmp/counts")?,
            one(guest, "--since /tmp/runs --exclude-blackouts")?,
        ])
    };
    let [born, counts, runs] = ask(&mut here.guest, offset)?;
    let before = offset;
    ensure!(born.estimate < 300_000_000_000, "the VM is younger than its boot: {}", born.estimate);
    let uri = format!("unix:{}", b.directory().join("migration").display());
    let launch = Launch::new(ctx, b, &qemu, Way::Vmclock, "there").programs(&programs);
    let mut there = launch.incoming(&uri).start()?;
    b.wait_until("the destination to await it", |h| Ok(h.vm("there")?["migration"] == "incoming"))?;
    mentions(&a.cli(&["vm", "migrate", "here", "--to", &uri])?, &["runs on the other host"])?;
    b.wait_vm("there", "synchronized")?;
    // The next publication carries the guest's age.
    interrupt::sleep(Duration::from_secs(2))?;
    let offset = client::offset(b, "there")?;
    let [moved, counted, running] = ask(&mut there.guest, offset)?;
    let over = went_by(&born, &moved)?;
    let own = went_by(&counts, &counted)?;
    // A TCG guest's counter stands still during the migration; this machine's does not.
    let ticks =
        u64::try_from(before - offset).context("the guest's counter did not stand still")?;
    let period = timevisor_linux::counter::calibrate(&Tsc::unchecked())?.period;
    let blackout = period.span(ticks).floor_nanos();
    let without = ran(&runs, &running, blackout)?;
    let missing = (running.true_ns - runs.true_ns) - (running.estimate - runs.estimate);
    ensure!(missing > blackout / 2, "{missing} ns excluded of {blackout}");
    mentions(
        &there
            .guest
            .sh("timevisor elapsed --since /tmp/counts --exclude-blackouts 2>&1 || true")?,
        &["leave out --exclude-blackouts"],
    )?;
    Ok(format!(
        "off by {alone:.2} us in 2 s, {restart:.2} us over a daemon's death, {over:.2} us over a migration (known within {} us); \
         an age in a file {own:.2} us; without the blackout of {:.0} ms {without:.2} us (known within {} us)",
        (moved.latest - moved.earliest) / 1000,
        blackout as f64 / 1e6,
        (running.latest - running.earliest) / 1000
    ))
}
