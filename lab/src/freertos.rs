//! Builds guests with a single flat address space from lab/freertos. A crate contains FreeRTOS's
//! source: cargo fetches it, checks it against the lock file, and keeps it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use crate::command;
use crate::programs;

/// The crate with the source, and the path inside it.
const CRATE: &str = "freertos-next";
const KERNEL: &str = "FreeRTOS-Kernel";

/// Builds `periodic` or `segments` (a no-op when it is up to date) and returns its path.
///
/// # Errors
/// When the source cannot be fetched, or the build fails.
pub fn build(lab_dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let (source, out) = (programs::workspace()?.join("lab/freertos"), lab_dir.join("freertos"));
    let kernel = kernel(&source.join("kernel/Cargo.toml"))?;
    let source = source.display().to_string();
    let kernel = format!("KERNEL={}", kernel.display());
    let out_is = format!("OUT={}", out.display());
    command::run("make", &["--silent", "-C", &source, &kernel, &out_is])?;
    Ok(out.join(format!("{name}.elf")))
}

/// The directory in which cargo keeps FreeRTOS's source.
fn kernel(manifest: &Path) -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut metadata = Command::new(cargo);
    metadata.args(["metadata", "--quiet", "--locked", "--format-version", "1", "--manifest-path"]);
    let said = command::output(metadata.arg(manifest)).context("cannot fetch FreeRTOS's source")?;
    let said: Value = serde_json::from_str(&said)?;
    let packages = said["packages"].as_array().into_iter().flatten();
    let carrier = packages.filter(|package| package["name"] == CRATE);
    let path = carrier.filter_map(|package| package["manifest_path"].as_str()).next();
    let folder = path.and_then(|path| Path::new(path).parent());
    Ok(folder.with_context(|| format!("cargo does not know {CRATE}"))?.join(KERNEL))
}
