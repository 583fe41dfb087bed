//! Our own programs as tests use them: fully static for guests, so that a busybox image can run
//! them, and dynamic for LD_PRELOAD.
//!
//! [`build_all`] builds every program with one cargo invocation per profile before tests run. Tests
//! only look up paths.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail, ensure};
use timevisor_results::Results;

use crate::command;
use crate::progress;
use crate::scratch;

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// An optimized profile that builds quickly (Cargo.toml).
const PROFILE: &str = "quick";
/// Cargo options that select what is built statically.
const STATIC: &[&str] = &[
    "--bin=timevisor",
    "--bin=timevisord",
    "--bin=timevisor-guest",
    "--bin=lab-*",
    "--bin=arms-*",
    "--bin=clockbound-vmclock",
    "--bin=clockbound-clients",
    "--bin=bench-read",
    "--bin=check-bounds",
    "--example=first",
    "--example=kv",
    "--example=controller",
];
/// What is built dynamically and without optimization: the daemon for LD_PRELOAD, the bus, the
/// metrics, the node of ROS, and the experiments, which share the lab's own build.
const DYNAMIC: &[&str] = &[
    "--bin=timevisor",
    "--bin=timevisord",
    "--bin=timevisor-bus",
    "--bin=timevisor-observe",
    "--bin=timevisor-ros",
    "--bin=timevisor-experiments",
];

/// The root of the workspace from which the lab was built.
///
/// # Errors
/// When that directory is gone.
pub fn workspace() -> anyhow::Result<PathBuf> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the lab has no workspace")?;
    if !root.join("Cargo.toml").exists() {
        bail!("the workspace {} is gone; build the lab again from its sources", root.display());
    }
    Ok(root.to_owned())
}

/// Builds a C program against the C library, statically, with the commands of docs/reference/clients/c.md, but
/// installs into the folder `prefix`.
///
/// # Errors
/// When make, the compiler or pkg-config fails.
pub(crate) fn build_c(source: &Path, prefix: &Path, to: &Path) -> anyhow::Result<()> {
    let mut make = Command::new("make");
    make.arg("-C").arg(workspace()?.join("clients/c")).arg("install");
    command::output(make.arg(format!("PREFIX={}", prefix.display())).arg("PROFILE=dev"))?;
    let script =
        "cc -std=c99 -static -o \"$0\" \"$1\" $(pkg-config --cflags --static --libs timevisor)";
    let mut cc = Command::new("sh");
    cc.args(["-c", script]).arg(to).arg(source);
    command::output(cc.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")))?;
    // The library's debug information alone would fill the guest's memory.
    command::output(Command::new("strip").arg(to)).map(drop)
}

/// Cargo's target directory.
pub(crate) fn target_dir() -> anyhow::Result<PathBuf> {
    let root = workspace()?;
    Ok(std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |dir| root.join(PathBuf::from(dir))))
}

/// Builds every program that tests use, and reports the progress.
///
/// # Errors
/// When cargo fails; its messages go to the terminal.
pub fn build_all() -> anyhow::Result<()> {
    progress::step("building 1 of 2: the programs of guests and hosts (static)", || {
        build_static()
    })?;
    progress::step("building 2 of 2: timevisord, timevisor and the experiments (dynamic)", || {
        build("dev", DYNAMIC).map(drop)
    })
}

/// Builds the static programs.
fn build_static() -> anyhow::Result<()> {
    let mut command = cargo()?;
    // A separate target directory: cargo's own would be locked while an editor runs cargo.
    command
        .args(["--profile", PROFILE, "--target", TARGET, "--workspace"])
        .args(STATIC)
        .arg("--target-dir")
        .arg(target_dir()?.join("static"))
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    finish(&mut command)
}

/// Builds the dynamic programs, and returns the target directory.
fn build(profile: &str, what: &[&str]) -> anyhow::Result<PathBuf> {
    let mut command = cargo()?;
    command.args(["--profile", profile, "--workspace"]).args(what);
    finish(&mut command)?;
    target_dir()
}

fn cargo() -> anyhow::Result<Command> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // `cargo run` sets variables that describe our own package. Build scripts of dependencies
    // (ring) read these variables, so those crates would be rebuilt here, and again by the next
    // `make check`.
    for (name, _) in std::env::vars_os() {
        let told = name.to_string_lossy();
        if told == "OUT_DIR"
            || told.starts_with("CARGO_PKG_")
            || told.starts_with("CARGO_MANIFEST_")
        {
            command.env_remove(name);
        }
    }
    command.current_dir(workspace()?).args(["build", "--quiet"]);
    Ok(command)
}

fn finish(command: &mut Command) -> anyhow::Result<()> {
    let out = command.output().context("cannot run cargo")?;
    ensure!(out.status.success(), "cargo: {}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

/// Fails in a test, which must find what it uses already built.
fn outside_of_tests(what: &str) -> anyhow::Result<()> {
    ensure!(
        !scratch::in_test(),
        "{what} is not built; a test's programs are in lab/src/programs.rs"
    );
    Ok(())
}

/// The path of the static binary `bin`. It is built first, unless a test asks: then [`build_all`]
/// has built it already.
///
/// # Errors
/// When it does not build.
pub fn static_binary(package: &str, bin: &str) -> anyhow::Result<PathBuf> {
    static_file(package, Path::new(bin))
}

/// Like [`static_binary`], for example `name`.
///
/// # Errors
/// As [`static_binary`].
pub fn static_example(package: &str, name: &str) -> anyhow::Result<PathBuf> {
    static_file(package, &Path::new("examples").join(name))
}

fn static_file(package: &str, file: &Path) -> anyhow::Result<PathBuf> {
    // Once in a process: an experiment that asks in the middle measures beside no compiler.
    static IS_BUILT: Mutex<bool> = Mutex::new(false);
    let mut is_built = IS_BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if !scratch::in_test() && !*is_built {
        build_static()?;
        *is_built = true;
    }
    drop(is_built);
    let path = target_dir()?.join("static").join(TARGET).join(PROFILE).join(file);
    ensure!(
        path.exists(),
        "{} of {package} is not built; a test's programs are in lab/src/programs.rs",
        file.display()
    );
    Ok(path)
}

/// The path of the dynamic, unoptimized binary `bin`.
///
/// # Errors
/// As [`static_binary`].
pub fn binary(package: &str, bin: &str) -> anyhow::Result<PathBuf> {
    let path = target_dir()?.join("debug").join(bin);
    if !scratch::in_test() {
        build("dev", &[&format!("--bin={bin}")])?;
    }
    ensure!(path.exists(), "{bin} of {package} is not built");
    Ok(path)
}

/// Like [`binary`], but optimized, for measurements.
///
/// # Errors
/// As [`static_binary`].
pub fn optimized_binary(_package: &str, bin: &str) -> anyhow::Result<PathBuf> {
    outside_of_tests(bin)?;
    Ok(build(PROFILE, &[&format!("--bin={bin}")])?.join(PROFILE).join(bin))
}

/// Writes `target/results/NAME.json`, and prints the path.
///
/// # Errors
/// When it cannot be written.
pub fn write_result(name: &str, rows: &[serde_json::Value]) -> anyhow::Result<()> {
    let path = save_result(name, rows)?;
    println!("written: {}", path.display());
    Ok(())
}

/// Like [`write_result`], but prints nothing; returns the path.
///
/// # Errors
/// When it cannot be written.
pub fn save_result(name: &str, rows: &[serde_json::Value]) -> anyhow::Result<PathBuf> {
    let root = workspace()?;
    let path = timevisor_results::path(&root, name);
    Results::of_checkout(&root, name, rows.to_vec()).write(&path)?;
    Ok(path)
}
