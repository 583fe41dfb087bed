//! CLOCK_REALTIME kept by a program that declares no error, as systemd-timesyncd and phc2sys do.
//! lab/kernel-clock/undeclared.c fakes the kernel's answer in the daemon only, so this machine's
//! clock is not touched.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::command::{self, Tethered};
use crate::host::mentions;
use crate::interrupt;
use crate::programs;
use crate::scenario::Context;
use crate::scratch;

/// Several cycles of the shim: maxerror is 0, 500, 1000 and 1500 us.
const WATCH: Duration = Duration::from_secs(6);

pub(crate) fn undeclared(ctx: &Context) -> anyhow::Result<String> {
    let library = ctx.path("undeclared.so");
    let source = programs::workspace()?.join("lab/kernel-clock/undeclared.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    command::output(compiler.arg(&library).arg(source))?;

    let refused = run(ctx, &library, "refused", "", &[])?;
    let reference = &refused.0["references"][0];
    ensure!(
        reference["status"] == "undeclared" && reference["accepted"] == 0,
        "a clock without a declared error is a reference: {reference}"
    );
    ensure!(refused.0["clock"]["below_ns"].is_null(), "bounds of nothing: {}", refused.0["clock"]);
    mentions(&refused.1, &["declares no error", "assumed_max_error", "[[reference]]", "pool ="])?;

    let still = run(ctx, &library, "still", "", &["MAXERROR_US=737"])?;
    let reference = &still.0["references"][0];
    ensure!(
        reference["status"] == "undeclared" && reference["accepted"] == 0,
        "a maxerror that stands still is believed: {reference}"
    );
    mentions(&still.1, &["stands still at 737 us", "assumed_max_error", "pool ="])?;

    let assumed = "[[reference]]\ntype = \"system\"\nassumed_max_error = \"10ms\"\n";
    let taken = run(ctx, &library, "assumed", assumed, &[])?;
    let (below, above) = (&taken.0["clock"]["below_ns"], &taken.0["clock"]["above_ns"]);
    let holds =
        |side: &Value| side.as_i64().is_some_and(|ns| (9_000_000..11_000_000).contains(&ns));
    ensure!(holds(below) && holds(above), "not +-10 ms: {}", taken.0["clock"]);
    Ok(format!(
        "refused for {WATCH:?}, with the lines to paste; with assumed_max_error -{below} +{above} ns"
    ))
}

/// The status of a daemon that has run for a while, as JSON and as text.
fn run(
    ctx: &Context,
    library: &std::path::Path,
    name: &str,
    lines: &str,
    variables: &[&str],
) -> anyhow::Result<(Value, String)> {
    let directory = scratch::directory()?;
    let config = ctx.path(&format!("{name}.toml"));
    let run = directory.path().join("run");
    fs::write(
        &config,
        format!("run_directory = \"{}\"\n{lines}[guests]\ndiscover = false\n", run.display()),
    )?;
    // LD_PRELOAD has no effect on a static program.
    let daemon = programs::binary("timevisord", "timevisord")?;
    let client = programs::binary("timevisor", "timevisor")?;
    let mut command = command::tethered("env");
    command.arg(format!("LD_PRELOAD={}", library.display())).args(variables).arg(daemon);
    command.arg("--config").arg(&config);
    let log = ctx.path(&format!("{name}.log"));
    let mut daemon = Tethered::spawn(&mut command, "timevisord", &log)?;
    let status = |more: &[&str]| {
        let mut command = Command::new(&client);
        command.arg("--run-directory").arg(&run).arg("status").args(more);
        let out = command.output()?;
        // Exit status 1 and no error: what it shows is not vouched for.
        let is_shown = out.stderr.is_empty() && matches!(out.status.code(), Some(0 | 1));
        ensure!(is_shown, "{}", String::from_utf8_lossy(&out.stderr));
        anyhow::Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let up = interrupt::poll_until(Duration::from_secs(20), || {
        daemon.check_alive()?;
        Ok(status(&["--json"]).is_ok().then_some(()))
    })?;
    up.with_context(|| format!("timevisord does not answer: {}", log.display()))?;
    interrupt::sleep(WATCH)?;
    Ok((serde_json::from_str(&status(&["--json"])?)?, status(&[])?))
}
