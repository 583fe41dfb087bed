//! A short run of the experiments' machinery: `timevisor-experiments smoke NAME` judges it.

use std::fs::File;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::command;
use crate::programs;
use crate::runner::Outcome;
use crate::scenario::Context;

const PROGRAM: &str = "timevisor-experiments";

/// Compares four clocks with the same truth.
pub(crate) fn quartzv(ctx: &Context) -> anyhow::Result<String> {
    smoke(ctx, "quartzv-sync")
}

/// A dependent clock without a rate.
pub(crate) fn sawtooth(ctx: &Context) -> anyhow::Result<String> {
    smoke(ctx, "vebt-sawtooth")
}

/// A few random task sets in the reservations that their plans recommend.
pub(crate) fn promises(ctx: &Context) -> anyhow::Result<String> {
    smoke(ctx, "rtvm-promises")
}

/// Runs the experiment in this test's namespaces and process group, so that Ctrl-C reaches it and
/// it is never left behind. The last line of its output is its verdict.
fn smoke(ctx: &Context, name: &str) -> anyhow::Result<String> {
    let log = ctx.path("smoke.log");
    let output = File::create(&log)?;
    let mut command = Command::new(programs::binary(PROGRAM, PROGRAM)?);
    command.arg("--dir").arg(ctx.lab_dir()).args(["smoke", name]);
    command.arg("--logs").arg(ctx.path("smoke")).args(ctx.kvm_usable().then_some("--kvm"));
    command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
    let status = command.status().with_context(|| format!("cannot start {PROGRAM}"))?;
    let said = std::fs::read_to_string(&log)?;
    let outcome = said.lines().rev().find_map(Outcome::parse).with_context(|| {
        format!("{PROGRAM} ended without a verdict ({status}): {}", command::tail(&said, 12))
    })?;
    let result = outcome.into_result();
    if result.is_ok() && !status.success() {
        anyhow::bail!("{PROGRAM} ended with {status} after its verdict");
    }
    result
}
