//! `timevisord --csv` under network and clock simulators in LD_PRELOAD: our own, which permits only
//! the calls in lab/simulator/calls.c, and clknetsim if it is available.

mod clknetsim;
mod score;

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, bail, ensure};

pub(crate) use self::clknetsim::clknetsim;
use self::score::Score;
use crate::command;
use crate::programs;
use crate::scenario::Context;

const SIGABRT: i32 = 6;
const SIGTERM: i32 = 15;
/// The apparent address of our simulator's server; any address would do.
const SERVER: &str = "192.168.123.1";

/// A run under our simulator: what to simulate, and the expected results.
struct Run {
    name: &'static str,
    seconds: u32,
    settings: &'static [(&'static str, &'static str)],
    /// Errors count from this time on, in true seconds.
    settled: f64,
    /// The largest RMS error and median half-width, in microseconds.
    limits: (f64, f64),
    /// How many lines may be empty at the start.
    unknown: usize,
}

/// Any sound estimator stays within a run's limits: they are there to find broken plumbing. The
/// quality of the estimate belongs to `make bench-sync`.
const RUNS: &[Run] = &[
    Run {
        name: "lan",
        seconds: 7200,
        settings: &[],
        settled: 1800.0,
        limits: (5.0, 150.0),
        unknown: 2,
    },
    Run {
        name: "loss",
        seconds: 7200,
        settings: &[
            ("SIMULATOR_LOSS", "0.2"),
            ("SIMULATOR_WANDER", "1e-8"),
            ("SIMULATOR_FREQUENCY", "-80e-6"),
            ("SIMULATOR_SEED", "2"),
        ],
        settled: 1800.0,
        limits: (25.0, 250.0),
        unknown: 30,
    },
];

pub(crate) fn own(ctx: &Context) -> anyhow::Result<String> {
    let simulator = compile(ctx)?;
    let daemon = programs::binary("timevisord", "timevisord")?;
    refuses(ctx, &simulator, &daemon)?;
    let mut said = Vec::new();
    for run in RUNS {
        let score = simulate(ctx, run, &simulator, &daemon)
            .with_context(|| format!("run {}: {}", run.name, ctx.log_dir().display()))?;
        said.push(format!("{}: {}", run.name, score.text()));
    }
    Ok(said.join("; "))
}

/// The simulator must be able to refuse: the full daemon uses calls that it does not permit.
fn refuses(ctx: &Context, simulator: &Path, daemon: &Path) -> anyhow::Result<()> {
    let config = ctx.path("daemon.toml");
    let run_directory = ctx.path("run");
    std::fs::write(&config, format!("run_directory = \"{}\"\n", run_directory.display()))?;
    let log = ctx.path("daemon.log");
    let mut command = Command::new(daemon);
    command.args(["--counter", "monotonic-raw", "--config"]).arg(&config);
    command.env("SIMULATOR_LOG", ctx.path("daemon.offset.log"));
    let status = under(&mut command, simulator, &ctx.path("daemon.csv"), &log)?;
    let said = std::fs::read_to_string(&log)?;
    ensure!(
        status.signal() == Some(SIGABRT) && said.contains("simulator: forbidden: "),
        "the simulator let the whole daemon run ({status}): {}",
        command::tail(&said, 3)
    );
    Ok(())
}

fn simulate(ctx: &Context, run: &Run, simulator: &Path, daemon: &Path) -> anyhow::Result<Score> {
    let path = |suffix: &str| ctx.path(&format!("{}.{suffix}", run.name));
    let (csv, log, offsets) = (path("csv"), path("log"), path("offset.log"));
    let mut command = Command::new(daemon);
    command.args(["--csv", "--counter", "monotonic-raw", "--server", SERVER]);
    command.env("SIMULATOR_LOG", &offsets).env("SIMULATOR_SECONDS", run.seconds.to_string());
    command.envs(run.settings.iter().copied()).env("RUST_LOG", "debug");
    let status = under(&mut command, simulator, &csv, &log)?;
    let said = std::fs::read_to_string(&log)?;
    ensure!(
        status.signal() == Some(SIGTERM),
        "timevisord did not last until the end ({status}): {}",
        command::tail(&said, 3)
    );
    check_waits(&said, run.seconds)?;
    if let Some(line) = said.lines().find(|line| line.contains("rejected")) {
        bail!("the simulated server is always right, but {line}");
    }
    let score = Score::of(&csv, &offsets, run.settled)?;
    ctx.log(&format!("{}: {}", run.name, score.text()));
    check(&score, run)?;
    Ok(score)
}

fn check(score: &Score, run: &Run) -> anyhow::Result<()> {
    let seconds = usize::try_from(run.seconds)?;
    ensure!(
        score.lines.abs_diff(seconds) <= 2,
        "{} lines in {seconds} seconds: not one a second",
        score.lines
    );
    let (least, most) = score.spacing;
    ensure!(least > 0.99 && most < 1.01, "lines are {least} s to {most} s apart");
    ensure!(score.unknown <= run.unknown, "{} lines have no estimate", score.unknown);
    if let Some(first) = &score.first_outside {
        bail!("{} lines exclude the truth, the first in {first}", score.outside);
    }
    let (rms, half_width) = run.limits;
    ensure!(
        score.rms_us <= rms && score.half_width_us <= half_width,
        "{}; the limits are {rms} and {half_width} us",
        score.text()
    );
    Ok(())
}

/// A loop that polls without letting time pass would use up a processor in reality. Per second,
/// there may be one wait for the line and a few for each request.
fn check_waits(said: &str, seconds: u32) -> anyhow::Result<()> {
    let counts = said.lines().rev().find_map(|line| line.strip_prefix("simulator: waits "));
    let (waits, idle) =
        counts.and_then(|c| c.split_once(" idle ")).context("the simulator did not count waits")?;
    let (waits, idle): (u32, u32) = (waits.parse()?, idle.parse()?);
    ensure!(
        waits <= 2 * seconds && idle <= seconds / 100,
        "{waits} waits in {seconds} s, {idle} of them in vain"
    );
    Ok(())
}

/// Runs `command` to its end with the library preloaded.
fn under(
    command: &mut Command,
    library: &Path,
    stdout: &Path,
    stderr: &Path,
) -> anyhow::Result<ExitStatus> {
    command.env("LD_PRELOAD", library).stdin(std::process::Stdio::null());
    command.stdout(File::create(stdout)?).stderr(File::create(stderr)?);
    command.status().with_context(|| format!("cannot run {}", command::describe(command)))
}

fn compile(ctx: &Context) -> anyhow::Result<PathBuf> {
    let sources = programs::workspace()?.join("lab/simulator");
    let library = ctx.path("simulator.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&library);
    for file in ["world.c", "server.c", "calls.c", "forbidden.c"] {
        compiler.arg(sources.join(file));
    }
    command::output(compiler.args(["-lm", "-ldl"]))?;
    Ok(library)
}
