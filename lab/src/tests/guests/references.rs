//! timevisord inside a guest: the host's page and PHC are references, and they steer the guest's
//! own CLOCK_REALTIME. A guest's kernel is the one place where a test can steer a real clock
//! without disturbing anybody.

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::guest::Guest;
use crate::guest_daemon::{start, wait};
use crate::host::{Host, mentions};
use crate::qemu::Delivery;
use crate::reader::HostPage;
use crate::scenario::Context;

/// The guest has no leap second table. The PHC gives the host's estimate, which the host's bounds
/// put within some 100 us of the truth.
const REFERENCES: &str = r#"run_directory = "/run/timevisor"
[guests]
discover = false
[[reference]]
type = "vmclock"
poll = "200ms"
[[reference]]
type = "phc"
accuracy = "5ms"
poll = "200ms"
"#;
const STEERING: &str = "[clock]\ntai_offset = 37\ndiscipline = true\nstep_threshold = \"10ms\"\n";
const WATCHING: &str = "[clock]\ntai_offset = 37\n";

pub(crate) fn guest(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let mut guest = boot(ctx, &host)?;
    let before = settings(&mut guest)?;

    start(&mut guest, "/etc/steering.toml")?;
    let row = wait(&mut guest, "the guest's clock is synchronized", |status| {
        Ok(status["clock"]["status"] == "synchronized")
    })?;
    let methods = check_references(&row)?;
    check_bounds(&mut guest, &host)?;

    let steered = wait(&mut guest, "CLOCK_REALTIME follows", |status| {
        let discipline = &status["discipline"];
        let near = discipline["offset_ns"].as_i64().is_some_and(|ns| ns.abs() < 20_000);
        Ok(discipline["state"] == "steering" && near)
    })?;
    let apart = check_realtime(&mut guest)?;
    let during = settings(&mut guest)?;
    ensure!(during != before, "nothing was set: {during:?}");

    // At the end, everything is as it was before.
    guest.sh("kill $(pidof timevisord); while pidof timevisord; do sleep 0.1; done")?;
    ensure!(
        settings(&mut guest)? == before,
        "not put back: {:?}, was {before:?}",
        settings(&mut guest)?
    );

    // After kill -9, the next daemon, which does not steer, cleans up.
    start(&mut guest, "/etc/steering.toml")?;
    wait_steering(&mut guest)?;
    guest.sh("kill -9 $(pidof timevisord); while pidof timevisord; do sleep 0.1; done")?;
    ensure!(settings(&mut guest)? != before, "a killed daemon put its settings back");
    start(&mut guest, "/etc/watching.toml")?;
    ensure!(settings(&mut guest)? == before, "the next daemon did not clean up");
    guest.sh("kill $(pidof timevisord); while pidof timevisord; do sleep 0.1; done")?;

    // When somebody else sets the rate, their setting stays.
    start(&mut guest, "/etc/steering.toml")?;
    wait_steering(&mut guest)?;
    guest.sh("adjtimex -q -f 655360")?;
    let gave_up = wait(&mut guest, "the rival is noticed", |status| {
        Ok(status["discipline"]["state"] == "waiting")
    })?;
    mentions(&gave_up["discipline"]["detail"].to_string(), &["another program changed its rate"])?;
    guest.sh("kill $(pidof timevisord); while pidof timevisord; do sleep 0.1; done")?;
    let theirs = settings(&mut guest)?;
    ensure!(
        theirs.iter().any(|l| l.contains("655360")),
        "the rival's rate was taken away: {theirs:?}"
    );
    Ok(format!(
        "{methods}; steered to {} ns by its own word, {apart} ns by phc_ctl's; settings put back after SIGTERM and kill -9",
        steered["discipline"]["offset_ns"]
    ))
}

fn boot(ctx: &Context, host: &Host) -> anyhow::Result<Guest> {
    let kernel = ctx.kernel("trixie-backports")?;
    let mut image = ctx.image(&kernel)?;
    for (package, bin) in [("timevisord", "timevisord"), ("timevisor", "timevisor")] {
        image = image.program(&ctx.program(package, bin)?);
    }
    for (name, lines) in [("steering", STEERING), ("watching", WATCHING)] {
        let path = ctx.path(&format!("{name}.toml"));
        // In TOML, keys after a table header belong to that table, so the plain keys come first.
        let (plain, tables) = REFERENCES.split_once('\n').context("one line")?;
        std::fs::write(&path, format!("{plain}\n{lines}{tables}"))?;
        image = image.file(&path, &format!("/etc/{name}.toml"), 0o644);
    }
    image = image.dynamic_program(Path::new("/usr/sbin/phc_ctl"))?;
    let qmp = host.directory().join("guest.qmp");
    let mut guest = ctx
        .guest(&ctx.qemu_10()?, &kernel, &image)?
        .delivery(Delivery::VmclockDevice)
        .paused()
        .args(["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())])
        .start()?;
    host.cli(&["vm", "add", "--qmp", &qmp.display().to_string(), "--name", "guest", "--resume"])?;
    guest.wait_ready()?;
    host.wait_vm("guest", "synchronized")?;
    Ok(guest)
}

fn wait_steering(guest: &mut Guest) -> anyhow::Result<()> {
    wait(guest, "steering", |status| Ok(status["discipline"]["offset_ns"].is_number())).map(drop)
}

/// Both references are in use, and the PHC is read through one of the kernel's cross timestamps.
fn check_references(status: &Value) -> anyhow::Result<String> {
    let rows = status["references"].as_array().context("no references")?;
    for row in rows {
        let state = row["status"].as_str().unwrap_or_default();
        ensure!(["selected", "reachable"].contains(&state), "{row}");
    }
    let details: Vec<_> = rows.iter().filter_map(|row| row["detail"].as_str()).collect();
    mentions(&details.join("; "), &["the host's Timevisor page", "PTP_SYS_OFFSET"])?;
    Ok(details.join("; "))
}

/// The guest's interval overlaps the host's, read before and after.
fn check_bounds(guest: &mut Guest, host: &Host) -> anyhow::Result<()> {
    let page = HostPage::open(host.directory())?;
    for _ in 0..10 {
        let before = page.read()?;
        let now: Value = serde_json::from_str(&guest.sh("timevisor now --json || [ $? = 1 ]")?)?;
        let after = page.read()?;
        let ns = |name: &str| now[name].as_i64().with_context(|| format!("no {name} in {now}"));
        let (earliest, latest) = (ns("earliest_ns")?, ns("latest_ns")?);
        ensure!(
            earliest <= after.latest.ceil_nanos() && latest >= before.earliest.floor_nanos(),
            "the guest says {earliest}..{latest}, the host {before:?}..{after:?}"
        );
        // The guest's bounds cannot be tighter than the host's.
        let host_width = (before.latest - before.earliest).floor_nanos();
        ensure!(latest - earliest >= host_width / 2, "{now} is narrower than {before:?}");
    }
    Ok(())
}

/// phc_ctl, which knows nothing of us, compares the PHC (TAI) with CLOCK_REALTIME.
fn check_realtime(guest: &mut Guest) -> anyhow::Result<i64> {
    let compared = guest.sh("phc_ctl /dev/ptp0 cmp 2>&1")?;
    let apart =
        compared.split("CLOCK_REALTIME is ").nth(1).and_then(|rest| rest.split("ns").next());
    let apart: i64 = apart.with_context(|| format!("phc_ctl says {compared}"))?.trim().parse()?;
    let error = apart.abs() - 37_000_000_000;
    ensure!(error.abs() < 500_000, "CLOCK_REALTIME is {error} ns from the PHC: {compared}");
    Ok(error)
}

/// What a clock discipline sets, as busybox's adjtimex prints it: frequency, constant, status,
/// tick. The declared errors are left out, because they grow by themselves.
pub(crate) fn settings(guest: &mut Guest) -> anyhow::Result<Vec<String>> {
    let text = guest.sh("adjtimex")?;
    let kept = ["freq.adjust:", "timeconstant:", "status:", "tick:"];
    let lines: Vec<String> = text
        .lines()
        .filter(|line| kept.iter().any(|word| line.contains(word)))
        .map(|line| line.trim().to_owned())
        .collect();
    ensure!(lines.len() == kept.len(), "busybox adjtimex prints {text}");
    Ok(lines)
}
