//! Timelines against a real timevisord: requirements, admission, leases, the polling rate, many
//! members.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor::{BindError, BindOptions, ChannelAddress, Client, Epoch, Options, Requirement};

use crate::host::{Host, ntp_reference};
use crate::interrupt;
use crate::scenario::Context;

/// `tai`, `utc` and `elapsed` exist even when nobody is bound.
const BUILTIN: usize = 3;

/// Connects as a program on this host.
pub(crate) fn connect(host: &Host) -> anyhow::Result<Client> {
    let channel = ChannelAddress::Unix(host.directory().join("timelines"));
    let page = host.directory().join("clock");
    Ok(Options::new().page(page).channel(channel).name("lab").connect()?)
}

/// One timeline as `timevisor timelines` shows it.
pub(crate) fn row(host: &Host, name: &str) -> anyhow::Result<Value> {
    let rows = host.json(&["timelines"])?;
    let row = rows.as_array().into_iter().flatten().find(|row| row["name"] == name);
    Ok(row.cloned().unwrap_or(Value::Null))
}

fn members(host: &Host, name: &str) -> anyhow::Result<u64> {
    Ok(row(host, name)?["members"].as_u64().unwrap_or(0))
}

/// The time until a reading of a new binding says that its requirement is met.
fn first_qualified(host: &Host) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let client = connect(host)?;
    let binding = client.bind("tai", &Requirement::within(Duration::from_millis(10)))?;
    ensure!(binding.now()?.met(), "the first reading is not qualified");
    Ok(began.elapsed())
}

/// Bind, admission, update, the leases of a killed program, a private timeline, a restart of the
/// daemon.
pub(crate) fn host(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let fastest = (0..20).map(|_| first_qualified(&host)).collect::<anyhow::Result<Vec<_>>>()?;
    let fastest = fastest.into_iter().min().context("no binding")?;

    let client = connect(&host)?;
    let refused = client.bind("tai", &Requirement::within(Duration::from_nanos(5)));
    let achievable = match refused {
        Err(BindError::CannotBeMet { achievable, .. }) => achievable,
        other => anyhow::bail!("5 ns were promised: {other:?}"),
    };
    ensure!(achievable.below_ns.is_some_and(|ns| (5..200_000).contains(&ns)), "{achievable:?}");
    let options = BindOptions {
        requirement: Some(Requirement::within(Duration::from_nanos(5))),
        best_effort: true,
        create: None,
    };
    let effort = client.bind_with("tai", &options)?;
    ensure!(!effort.now()?.met(), "5 ns are said to be met");
    ensure!(row(&host, "tai")?["required"]["below_ns"] == 5, "{}", row(&host, "tai")?);
    effort.update(&Requirement::within(Duration::from_millis(5)))?;
    ensure!(effort.now()?.met() && row(&host, "tai")?["required"]["below_ns"] == 5_000_000);
    effort.unbind()?;
    ensure!(row(&host, "tai")?["required"].is_null(), "a requirement outlived its binding");

    killed_program(&host)?;
    let own = BindOptions { create: Some(Epoch::Local), requirement: None, best_effort: false };
    let cell = client.bind_with("cell7", &own)?;
    let reading = cell.now()?;
    ensure!(
        reading.estimate_ns() < 5_000_000_000 && reading.half_width_ns().is_some_and(|w| w <= 2),
        "a new timeline begins at 0 and is exact here: {reading:?}"
    );
    host.kill();
    host.restart()?;
    ensure!(row(&host, "cell7")?.is_null(), "a timeline outlived the daemon that made it");
    let lost = interrupt::poll_until(Duration::from_secs(20), || {
        Ok((!matches!(cell.lease(), timevisor::Lease::Held)).then_some(()))
    })?;
    ensure!(
        lost.is_some() || cell.now().is_err(),
        "the lease seems held by a daemon that never knew it"
    );
    Ok(format!("first qualified read after {} us; achievable {achievable:?}", fastest.as_micros()))
}

/// A program that is killed leaves nothing behind.
fn killed_program(host: &Host) -> anyhow::Result<()> {
    let mut child = reader(host, "tai", "500us")?;
    host.wait_until("the program's binding", |host| Ok(members(host, "tai")? == 1))?;
    ensure!(row(host, "tai")?["required"]["below_ns"] == 500_000);
    child.kill()?;
    child.wait()?;
    host.wait_until("the lease's end", |host| {
        Ok(members(host, "tai")? == 0 && row(host, "tai")?["required"].is_null())
    })
}

fn reader(host: &Host, timeline: &str, within: &str) -> anyhow::Result<Child> {
    let directory = host.directory();
    Command::new(host.cli_program())
        .arg("--run-directory")
        .arg(directory)
        .args(["bind", timeline, "--within", within, "--every", "1", "--best-effort"])
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run timevisor bind")
}

/// The tightest requirement sets the polling interval at once; when it ends, the configured
/// interval returns.
pub(crate) fn polling(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::new(ctx)?;
    let reference = ntp_reference(&server.address().ip().to_string());
    host.start(&format!("{reference}poll = \"64s\"\n").replacen("poll = \"1s\"\n", "", 1))?;
    host.wait_synchronized(500)?;
    let poll = |host: &Host| -> anyhow::Result<f64> {
        let status = host.json(&["status"])?;
        status["references"][0]["poll_s"].as_f64().with_context(|| format!("no poll_s: {status}"))
    };
    let before = poll(&host)?;
    let client = connect(&host)?;
    let half_width = row(&host, "tai")?["achieved"]["below_ns"].as_u64().context("not achieved")?;
    let tight = Requirement::within(Duration::from_nanos(half_width + half_width / 4));
    let binding = client.bind_with(
        "tai",
        &BindOptions { requirement: Some(tight), best_effort: true, create: None },
    )?;
    let short = interrupt::poll_until(Duration::from_secs(70), || {
        let now = poll(&host)?;
        Ok((now < before).then_some(now))
    })?;
    let short = short.with_context(|| format!("still polled every {before} s"))?;
    binding.unbind()?;
    host.wait_until("the configured interval", |host| Ok((poll(host)? - before).abs() < 0.1))?;
    Ok(format!(
        "polled every {before} s, every {short} s while +-{} us were required",
        half_width / 800
    ))
}

/// 1,000 members on 20 timelines, over many connections, on the host's pages.
pub(crate) fn thousand(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let clients = (0..10).map(|_| connect(&host)).collect::<anyhow::Result<Vec<_>>>()?;
    let requirement = Some(Requirement::within(Duration::from_millis(10)));
    let mut bindings = Vec::new();
    for client in &clients {
        for timeline in 0..20 {
            let epoch = if timeline % 2 == 0 { Epoch::Tai } else { Epoch::Local };
            let options = BindOptions { requirement, best_effort: false, create: Some(epoch) };
            for _ in 0..5 {
                bindings.push(client.bind_with(&format!("line{timeline}"), &options)?);
            }
        }
    }
    for binding in &bindings {
        let reading = binding.now()?;
        ensure!(reading.met(), "{}: {reading:?}", binding.name());
    }
    ensure!(host.directory().join("clock.1").exists(), "20 timelines need a second page");
    let tai = clients[0].timeline("tai")?;
    let same = bindings.iter().find(|b| b.name() == "line18").context("no line18")?;
    let (a, b, c) = (tai.now()?.estimate_ns(), same.now()?.estimate_ns(), tai.now()?.estimate_ns());
    ensure!(a <= b && b <= c, "line18 is not the same clock: {a} {b} {c}");
    drop(bindings);
    host.wait_until("all leases to end", |host| {
        Ok(host.json(&["timelines"])?.as_array().is_some_and(|rows| rows.len() == BUILTIN))
    })?;
    Ok("1,000 members on 20 timelines and 2 pages: all met, all gone".to_owned())
}
