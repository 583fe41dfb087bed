//! The same test under clknetsim (<https://github.com/mlichvar/clknetsim>), with a real chronyd as
//! the server: a day on a LAN.
//!
//! clknetsim is not part of this repository. `CLKNETSIM` names a directory with its `clknetsim` and
//! `clknetsim.so`, whose `clock_gettime` must support CLOCK_MONOTONIC_RAW (upstream's does not;
//! docs/how-to/simulate-a-network.md says what to add).

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use super::score::Score;
use super::{SERVER, SIGABRT};
use crate::command;
use crate::programs;
use crate::scenario::Context;
use crate::scratch;

const SECONDS: u32 = 86_400;
/// As in every table of the traces, the first two hours count as convergence.
const SETTLED: f64 = 7200.0;
const SEEDS: [u32; 3] = [1, 2, 3];
/// These limits find broken plumbing; they do not measure quality: see `super::RUNS`.
const LIMITS: (f64, f64) = (4.0, 120.0);

/// The traces' LAN: 30 us of delay plus 20 us of exponential queueing in each direction, 20 ppm, 1
/// ppb of wander per square root of a second.
const WORLD: &str = "\
node2_offset = 0.01
node2_freq = (+ 20e-6 (sum (* 1e-9 (normal))))
node1_delay2 = (+ 30e-6 (* 20e-6 (exponential)))
node2_delay1 = (+ 30e-6 (* 20e-6 (exponential)))
";

pub(crate) fn clknetsim(ctx: &Context) -> anyhow::Result<String> {
    let home = std::env::var_os("CLKNETSIM").map(PathBuf::from).context(
        "CLKNETSIM is not set; build clknetsim and run `CLKNETSIM=/its/directory make lab TEST=clknetsim`",
    )?;
    let home = fs::canonicalize(&home).with_context(|| format!("no {}", home.display()))?;
    let daemon = programs::binary("timevisord", "timevisord")?;
    let mut said = Vec::new();
    for seed in SEEDS {
        let score = simulate(ctx, seed, &home, &daemon)
            .with_context(|| format!("seed {seed}: {}", ctx.log_dir().display()))?;
        ctx.log(&format!("seed {seed}: {}", score.text()));
        said.push(format!("seed {seed}: {}", score.text()));
    }
    Ok(said.join("; "))
}

fn simulate(ctx: &Context, seed: u32, home: &Path, daemon: &Path) -> anyhow::Result<Score> {
    // The simulator's socket needs a short path, and chronyd needs a copy outside its AppArmor
    // profile.
    let dir = scratch::directory()?;
    let chronyd = dir.path().join("chronyd");
    fs::copy("/usr/sbin/chronyd", &chronyd)
        .context("cannot copy /usr/sbin/chronyd; install the package chrony")?;
    let (world, server) = (dir.path().join("world"), dir.path().join("chrony.conf"));
    fs::write(&world, WORLD)?;
    let pid = dir.path().join("pid");
    let lines = "local stratum 1\nallow\ncmdport 0\nbindcmdaddress /\n";
    fs::write(&server, format!("{lines}pidfile {}\n", pid.display()))?;

    let path = |suffix: &str| ctx.path(&format!("seed-{seed}.{suffix}"));
    let (csv, log, offsets) = (path("csv"), path("log"), path("offset.log"));
    let node = |number: u32, program: &Path| {
        // `env` sets the variable for the program alone: setpriv makes calls that clknetsim does
        // not support.
        let mut command = command::tethered("env");
        command.arg(format!("LD_PRELOAD={}", home.join("clknetsim.so").display())).arg(program);
        command
            .env("CLKNETSIM_NODE", number.to_string())
            .env("CLKNETSIM_SOCKET", dir.path().join("s"))
            .env("CLKNETSIM_RANDOM_SEED", seed.to_string())
            .stdin(Stdio::null());
        command
    };
    let mut server_command = node(1, &chronyd);
    server_command.args(["-d", "-u", "root", "-f"]).arg(&server);
    let mut serving = spawn(&mut server_command, &path("chronyd.out"), &path("chronyd.log"))?;
    let mut client_command = node(2, daemon);
    client_command.args(["--csv", "--counter", "monotonic-raw", "--server", SERVER]);
    let mut asking = spawn(&mut client_command, &csv, &log)?;
    let simulated = command::output(
        Command::new(home.join("clknetsim"))
            .args(["-l", &SECONDS.to_string(), "-s"])
            .arg(dir.path().join("s"))
            .arg("-o")
            .arg(&offsets)
            .arg(&world)
            .arg("2")
            .env("CLKNETSIM_RANDOM_SEED", seed.to_string()),
    );
    if simulated.is_err() {
        // Otherwise a program that still waits for the simulator would wait for ever.
        let _ = serving.kill();
    }
    serving.wait()?;
    let ended = asking.wait()?;
    if ended.signal() == Some(SIGABRT) {
        let said = fs::read_to_string(&log)?;
        bail!("timevisord was aborted; does this clknetsim know CLOCK_MONOTONIC_RAW? {said}");
    }
    simulated?;
    judge(&Score::of(&csv, &offsets, SETTLED)?)
}

fn judge(score: &Score) -> anyhow::Result<Score> {
    ensure!(
        score.lines.abs_diff(usize::try_from(SECONDS)?) <= 2,
        "{}: not one line a second",
        score.text()
    );
    if let Some(first) = &score.first_outside {
        bail!("{}; the first in {first}", score.text());
    }
    ensure!(
        score.rms_us <= LIMITS.0 && score.half_width_us <= LIMITS.1,
        "{}; the limits are {LIMITS:?} us",
        score.text()
    );
    Ok(score.clone())
}

fn spawn(command: &mut Command, stdout: &Path, stderr: &Path) -> anyhow::Result<Child> {
    command.stdout(File::create(stdout)?).stderr(File::create(stderr)?);
    command.spawn().with_context(|| format!("cannot start {}", command::describe(command)))
}
