//! Faults of the configuration, of the counter, and between several daemons; also the helpers that
//! the other fault tests share.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use timevisor_clock_page::Reading;
use timevisor_linux::clock::realtime;
use timevisor_time::{Duration as Span, Instant, Local};

use crate::command::{self, Tethered};
use crate::host::{Host, discovering_roots, mentions};
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::programs;
use crate::reader::HostPage;
use crate::scenario::Context;

/// A reference that is polled ten times a second.
pub(crate) fn reference(address: &str) -> String {
    format!(
        "[[reference]]\ntype = \"ntp\"\naddress = \"{address}\"\npoll = \"100ms\"\nburst_spacing = \"100ms\"\n"
    )
}

/// Starts a daemon in `host`'s run directory through another program, such as setpriv or unshare.
pub(crate) fn start_through(
    ctx: &Context,
    host: &Host,
    wrapper: &[&str],
    lines: &str,
) -> anyhow::Result<Tethered> {
    let lines = discovering_roots(lines);
    let config = write_config(ctx, "wrapped", host.directory(), &lines)?;
    let mut command = command::tethered(wrapper.first().context("no wrapper")?);
    command.args(&wrapper[1..]).arg(host.daemon_program()).arg("--config").arg(&config);
    let mut daemon = Tethered::spawn(&mut command, "timevisord", &ctx.path("wrapped.log"))?;
    let up = interrupt::poll_until(Duration::from_secs(20), || {
        daemon.check_alive()?;
        Ok(host.cli(&["status", "--json"]).is_ok().then_some(()))
    })?;
    up.context("the wrapped timevisord does not answer")?;
    Ok(daemon)
}

fn write_config(
    ctx: &Context,
    name: &str,
    directory: &Path,
    lines: &str,
) -> anyhow::Result<std::path::PathBuf> {
    let path = ctx.path(&format!("{name}.toml"));
    fs::write(&path, format!("run_directory = \"{}\"\n{lines}", directory.display()))?;
    Ok(path)
}

/// Starts a daemon that must refuse to start; returns its message.
pub(crate) fn refusal(ctx: &Context, host: &Host, lines: &str) -> anyhow::Result<String> {
    let config = write_config(ctx, "refused", host.directory(), lines)?;
    let mut command = command::tethered(host.daemon_program());
    command.arg("--config").arg(config);
    let mut daemon = Tethered::spawn(&mut command, "timevisord", &ctx.path("refused.log"))?;
    interrupt::poll_until(Duration::from_secs(20), || Ok(daemon.has_ended()?.then_some(())))?
        .with_context(|| format!("it started with: {lines}"))?;
    let said = match daemon.check_alive() {
        Ok(()) => bail!("it runs again"),
        Err(error) => format!("{error:#}"),
    };
    mentions(&said, &["exit status: 1"])?;
    Ok(said)
}

/// The message of `timevisor ARGUMENTS`, which must fail: with status 1, or 3 where nobody is there to ask.
pub(crate) fn complaint(host: &Host, arguments: &[&str]) -> anyhow::Result<String> {
    let out = host.cli_output(arguments)?;
    ensure!(
        matches!(out.status.code(), Some(1 | 3)),
        "timevisor {}: {} instead of a failure: {}{}",
        arguments.join(" "),
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8_lossy(&out.stderr).into_owned())
}

/// This machine's clock in TAI, as the lab's honest servers serve it.
pub(crate) fn truth() -> Instant<Local> {
    (realtime() + Span::from_secs(37)).relabel()
}

/// A reading whose interval must contain the truth.
pub(crate) fn honest_reading(page: &HostPage) -> anyhow::Result<Reading> {
    reading_holds(page, Span::ZERO)
}

/// A reading whose interval must contain a time this much ahead of the truth.
pub(crate) fn reading_holds(page: &HostPage, ahead: Span) -> anyhow::Result<Reading> {
    let before = truth() + ahead;
    let reading = page.read()?;
    let after = truth() + ahead;
    ensure!(
        reading.earliest <= after && reading.latest >= before,
        "{} page [{}, {}] does not hold {} (all in s)",
        reading.status().name(),
        reading.earliest - before,
        reading.latest - before,
        after - before
    );
    Ok(reading)
}

/// The report on one reference in `status --json`.
pub(crate) fn reference_row(host: &Host, name: &str) -> anyhow::Result<serde_json::Value> {
    let status = host.json(&["status"])?;
    let rows = status["references"].as_array().into_iter().flatten();
    rows.into_iter()
        .find(|row| row["name"] == name)
        .cloned()
        .with_context(|| format!("no reference {name} in {status}"))
}

/// Configurations that must be refused, and what the message must mention.
const BAD: &[(&str, &[&str])] = &[
    ("countr = \"tsc\"", &["countr", "counter"]),
    ("[clock]\nvalidty = \"10s\"", &["validty"]),
    ("[guests]\ndiscovery = true", &["discovery"]),
    ("[[reference]]\ntype = \"ntp\"\naddress = \"a\"\niburst = true", &["iburst"]),
    ("[[reference]]\ntype = \"gps\"", &["gps", "ntp"]),
    ("[[reference]]\ntype = \"ntp\"", &["address"]),
    ("[[reference]]\ntype = \"ntp\"\naddress = \"\"", &["address"]),
    ("[[reference]]\ntype = \"ntp\"\naddress = \"a\"\npoll = \"0s\"", &["poll"]),
    ("[[reference]]\ntype = \"ntp\"\naddress = \"a\"\nburst = 17", &["burst", "16"]),
    ("[[reference]]\ntype = \"system\"\npoll = \"1ms\"", &["poll", "10ms"]),
    ("reference = []", &["reference"]),
    ("counter = \"hpet\"", &["hpet", "monotonic-raw"]),
    ("[clock]\npublish_interval = \"1ms\"", &["publish_interval", "10ms"]),
    ("[clock]\nvalidity = \"soon\"", &["validity"]),
    ("[clock]\nvalidity = \"1s\"", &["validity", "3 publish intervals"]),
    ("[clock]\nstale_after = \"0s\"", &["stale_after"]),
    ("[oscillator]\nmeasured_rate_ppm = 200", &["measured_rate"]),
    ("[oscillator]\nunmeasured_rate_ppm = 1", &["unmeasured_rate", "50 ppm"]),
    ("[oscillator]\nwander = 0", &["oscillator.wander", "crystal"]),
    ("[clock]\nmeasured_rate_ppm = 15", &["oscillator.measured_rate_ppm"]),
    ("[guests]\ndiscover_interval = \"0s\"", &["discover_interval"]),
    ("[guests]\ntime_type = \"gps\"", &["time_type"]),
    ("[guests.vm.\"../x\"]\ntime_type = \"tai\"", &["../x"]),
    ("[clock", &["clock"]),
];

pub(crate) fn config(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    let packaged = programs::workspace()?.join("packaging/timevisord.toml");
    let good = check(&host, &packaged)?;
    ensure!(good.status.success(), "the packaged file: {}", String::from_utf8_lossy(&good.stderr));
    mentions(&String::from_utf8_lossy(&good.stdout), &["timevisord.toml: ok, 1 reference"])?;
    let missing = said(&check(&host, Path::new("/nowhere/timevisord.toml"))?)?;
    mentions(&missing, &["cannot read /nowhere/timevisord.toml", "No such file"])?;
    let option = Command::new(host.daemon_program()).arg("--chek").output()?;
    ensure!(option.status.code() == Some(2), "an unknown option: {}", option.status);

    host.start(&reference(&server.address()))?;
    host.wait_synchronized(10_000)?;
    let before = host.json(&["status"])?;
    let other = Host::further(ctx, "other")?;
    for (lines, parts) in BAD {
        let path = write_config(ctx, "bad", other.directory(), lines)?;
        let text = said(&check(&host, &path)?).with_context(|| format!("--check: {lines}"))?;
        mentions(&text, parts)?;
        mentions(&text, &["bad.toml is not usable"])?;
    }
    let relative = ctx.path("relative.toml");
    fs::write(&relative, "run_directory = \"run\"\n")?;
    mentions(&said(&check(&host, &relative)?)?, &["run_directory", "absolute"])?;
    // Where `--check` refuses a configuration, so does the daemon, even while another daemon runs.
    mentions(&refusal(ctx, &host, BAD[0].0)?, &["countr"])?;
    mentions(&refusal(ctx, &other, BAD[0].0)?, &["countr"])?;
    ensure!(!other.directory().join("clock").exists(), "a refused daemon made a page");
    // A running daemon that is told to read it again keeps what it has.
    fs::write(ctx.path("timevisord.toml"), BAD[0].0)?;
    command::run("kill", &["-HUP", &host.pid()?.to_string()])?;
    host.wait_until("the refusal is in the log", |h| {
        Ok(mentions(&h.log_text(), &["nothing has changed", "countr"]).is_ok())
    })?;
    let after = host.json(&["status"])?;
    ensure!(
        after["pid"] == before["pid"] && after["clock"]["status"] == "synchronized",
        "the running daemon was affected: {after}"
    );
    Ok(format!("{} bad files refused by name, a running daemon unaffected", BAD.len() + 2))
}

fn check(host: &Host, file: &Path) -> anyhow::Result<Output> {
    let mut command = Command::new(host.daemon_program());
    command.arg("--check").arg("--config").arg(file).output().context("cannot run timevisord")
}

fn said(out: &Output) -> anyhow::Result<String> {
    ensure!(out.status.code() == Some(1), "{} instead of a refusal", out.status);
    ensure!(out.stdout.is_empty(), "it says: {}", String::from_utf8_lossy(&out.stdout));
    Ok(String::from_utf8_lossy(&out.stderr).into_owned())
}

pub(crate) fn counter(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let lines = reference(&server.address());
    let mut host = Host::new(ctx)?;
    let refused = refusal(ctx, &host, &format!("counter = \"cntvct\"\n{lines}"))?;
    mentions(&refused, &["not 64-bit Arm", "counter = \"auto\""])?;
    host.start(&format!("counter = \"monotonic-raw\"\n{lines}"))?;
    host.wait_synchronized(10_000)?;
    ensure!(host.json(&["status"])?["counter"]["name"] == "monotonic-raw", "another counter");
    mentions(&host.cli(&["status"])?, &["monotonic-raw, by configuration"])?;
    let page = HostPage::open(host.directory())?;
    let width = honest_reading(&page)?.half_width();
    mentions(&host.cli(&["now"])?, &["synchronized"])?;
    let prepared = complaint(&host, &["vm", "args", "--name", "web", "--memory", "128"])?;
    mentions(&prepared, &["monotonic-raw", "no guest can read", "counter = \"tsc\""])?;
    let mut vm = crate::tests::faults::qemu::Bare::vmclock(ctx, "web", &[])?;
    let added = complaint(&host, &["vm", "add", "--pid", &vm.pid()])?;
    mentions(&added, &["monotonic-raw", "no guest can read"])?;
    host.wait_until("discovery says why", |h| Ok(h.log_text().contains("no guest can read")))?;
    vm.check_alive()?;
    let restarted = "the counter was monotonic-raw then";
    host.kill();
    host.start(&lines)?;
    ensure!(host.log_text().contains(restarted), "another counter took over: {}", host.log_text());
    host.wait_vm("web", "synchronized")?;
    Ok(format!("monotonic-raw: host page +-{width}, VMs refused with the reason"))
}

pub(crate) fn two_daemons(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let lines = reference(&server.address());
    let mut first = Host::new(ctx)?;
    first.start(&lines)?;
    first.wait_synchronized(10_000)?;
    let mut vm = crate::tests::faults::qemu::Bare::vmclock(ctx, "web", &[])?;
    first.wait_vm("web", "synchronized")?;
    let before = (first.pid()?, first.vm("web")?["disruption_marker"].clone());
    let directory = first.directory().display().to_string();
    let refused = refusal(ctx, &first, &lines)?;
    mentions(&refused, &["another timevisord serves", &directory, "another run_directory"])?;
    first.cli(&["now"])?;

    // A second daemon with another run directory: the first one holds the lock on the VM's page.
    let mut second = Host::further(ctx, "second")?;
    second.start(&lines)?;
    second.wait_synchronized(10_000)?;
    let holder = format!("(pid {})", before.0);
    let locked = complaint(&second, &["vm", "add", "--pid", &vm.pid()])?;
    mentions(&locked, &["already written by timevisord", &holder, "stop that one first"])?;
    ensure!(second.vm("web").is_err(), "the second serves it too");
    // The same holds for an nvdimm's page, though this case needs nested run directories.
    let nested = directory.clone() + "/vms/nested";
    let mut inner = Host::further(ctx, "inner")?;
    inner.start(&format!("[guests]\ndiscover = false\n{lines}"))?;
    let page = Path::new(&nested).join("page");
    first.cli(&["vm", "args", "--name", "nested", "--memory", "128"])?;
    let held = inner_refusal(&inner, &page)?;
    mentions(&held, &["one file under several names", "may have another writer"])?;

    let after = (first.pid()?, first.vm("web")?["disruption_marker"].clone());
    ensure!(before == after, "the first was disturbed: {before:?}, then {after:?}");
    first.wait_vm("web", "synchronized")?;
    vm.check_alive()?;
    // Once the first daemon is gone, the second may serve the VM.
    first.terminate()?;
    second.cli(&["vm", "add", "--pid", &vm.pid()])?;
    second.wait_vm("web", "synchronized")?;
    Ok("directory and both deliveries' pages have one writer, whose pid is named".to_owned())
}

/// Links a page of `first` into another daemon's run directory.
fn inner_refusal(inner: &Host, page: &Path) -> anyhow::Result<String> {
    let folder = inner.directory().join("vms/linked");
    fs::create_dir_all(&folder)?;
    fs::hard_link(page, folder.join("page"))?;
    complaint(inner, &["vm", "args", "--name", "linked", "--memory", "128"])
}
