//! The steps that need the network or build something: done once, before the first test starts.

use std::collections::BTreeSet;
use std::path::Path;

use crate::arm::ArmToolchain;
use crate::brickos;
use crate::debs;
use crate::disk;
use crate::fetch::Fetcher;
use crate::freertos;
use crate::introspection;
use crate::programs;
use crate::progress;
use crate::python;
use crate::qemu::Qemu;
use crate::scenario::{Need, Test};
use crate::venv;

/// Fetches and builds what `tests` need.
///
/// # Errors
/// When something cannot be fetched or does not build.
pub fn prepare(tests: &[Test], lab_dir: &Path) -> anyhow::Result<()> {
    let needs = |need| tests.iter().any(|test| test.needs.contains(&need));
    let fetched: BTreeSet<&str> = tests
        .iter()
        .flat_map(|test| test.needs)
        .filter_map(|need| if let Need::Fetched(artifact) = need { Some(*artifact) } else { None })
        .collect();
    let fetcher = Fetcher::new(lab_dir.join("cache"));
    let system_is_new = Qemu::system().is_ok_and(|qemu| qemu.version >= (10, 0));
    for artifact in fetched {
        if artifact == "qemu-10" && system_is_new || fetcher.is_there(artifact) {
            continue;
        }
        progress::step(&format!("fetching {artifact}"), || fetcher.artifact(artifact))?;
    }
    if needs(Need::ArmToolchain) {
        progress::step("fetching Rust for 64-bit Arm", || ArmToolchain::open(lab_dir))?;
    }
    programs::build_all()?;
    for suite in ["bookworm", "trixie"] {
        if needs(Need::Disk(suite)) {
            progress::step(&format!("a disk with {suite}"), || disk::prepare(lab_dir, suite))?;
        }
    }
    if needs(Need::Packages) {
        progress::step("building Debian packages", || debs::build(lab_dir))?;
    }
    if needs(Need::Plugin) {
        progress::step("building QEMU's plugin", || introspection::plugin(lab_dir))?;
    }
    if needs(Need::FlatPrograms) {
        progress::step("building FreeRTOS", || {
            freertos::build(lab_dir, "periodic")?;
            freertos::build(lab_dir, "segments")
        })?;
    }
    if needs(Need::BrickOs) {
        progress::step("building brickOS", || brickos::build(lab_dir))?;
    }
    if needs(Need::Rclpy) {
        progress::step("rclpy, in an environment of its own", venv::rclpy)?;
    }
    if needs(Need::Wheel) {
        progress::step("building the Python wheel", python::wheel)?;
    }
    Ok(())
}
