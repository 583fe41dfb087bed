//! Builds our own programs: for the guest fully static, so that a busybox image can run them; for LD_PRELOAD not.
//!
//! Only programs of this workspace; the static ones' target directory is apart, so that a running cargo is not disturbed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use timevisor_results::Results;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The root of the workspace the lab was built from.
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

/// Builds binary `bin` of package `package` statically (a no-op when it is up to date) and returns its path.
///
/// # Errors
/// When cargo fails; its messages are in the text.
pub fn static_binary(package: &str, bin: &str, lab_dir: &Path) -> anyhow::Result<PathBuf> {
    Ok(static_build(package, "--bin", bin, lab_dir)?.join(bin))
}

/// The same for example `name`.
///
/// # Errors
/// As [`static_binary`].
pub fn static_example(package: &str, name: &str, lab_dir: &Path) -> anyhow::Result<PathBuf> {
    Ok(static_build(package, "--example", name, lab_dir)?.join("examples").join(name))
}

/// Returns where cargo has put it.
fn static_build(package: &str, kind: &str, bin: &str, lab_dir: &Path) -> anyhow::Result<PathBuf> {
    let target_dir = lab_dir.join("static");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .current_dir(workspace()?)
        .args(["build", "--quiet", "--profile", "lab", "--target", TARGET])
        .args(["-p", package, kind, bin, "--target-dir"])
        .arg(&target_dir)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .context("cannot run cargo")?;
    if !out.status.success() {
        bail!("cargo could not build {bin} of {package}: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(target_dir.join(TARGET).join("lab"))
}

/// Builds binary `bin` of package `package` linked to the system's libc, and returns its path. Not optimized: `make unit` has built all
/// of it but the last step.
///
/// # Errors
/// As [`static_binary`].
pub fn binary(package: &str, bin: &str) -> anyhow::Result<PathBuf> {
    Ok(build(package, bin, "dev")?.join("debug").join(bin))
}

/// The same, optimized: for what is measured.
///
/// # Errors
/// As [`static_binary`].
pub fn optimized_binary(package: &str, bin: &str) -> anyhow::Result<PathBuf> {
    Ok(build(package, bin, "lab")?.join("lab").join(bin))
}

/// Returns the target directory.
fn build(package: &str, bin: &str, profile: &str) -> anyhow::Result<PathBuf> {
    let root = workspace()?;
    let target_dir = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |dir| root.join(PathBuf::from(dir)));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .current_dir(&root)
        .args(["build", "--quiet", "--profile", profile, "-p", package, "--bin", bin])
        .arg("--target-dir")
        .arg(&target_dir)
        .output()
        .context("cannot run cargo")?;
    if !out.status.success() {
        bail!("cargo could not build {bin} of {package}: {}", String::from_utf8_lossy(&out.stderr));
    }
    Ok(target_dir)
}

/// Writes `target/results/NAME.json`, and says so.
///
/// # Errors
/// When it cannot be written.
pub fn write_result(name: &str, rows: &[serde_json::Value]) -> anyhow::Result<()> {
    let path = save_result(name, rows)?;
    println!("written: {}", path.display());
    Ok(())
}

/// The same without a word; returns the path.
///
/// # Errors
/// When it cannot be written.
pub fn save_result(name: &str, rows: &[serde_json::Value]) -> anyhow::Result<PathBuf> {
    let root = workspace()?;
    let path = timevisor_results::path(&root, name);
    Results::of_checkout(&root, name, rows.to_vec()).write(&path)?;
    Ok(path)
}
