//! Virtual environments of Python with pinned versions, which stay until a requirement changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::{command, programs, scratch};

/// What rclpy needs.
const RCLPY: &str = "lab/src/tests/groups/ros-requirements.txt";

/// The interpreter of an environment with rclpy, which is made before tests run: they reach no package index.
///
/// # Errors
/// As [`ready`].
pub fn rclpy() -> anyhow::Result<PathBuf> {
    let venv = programs::target_dir()?.join("lab/ros-venv");
    if scratch::in_test() {
        return Ok(venv.join("bin/python"));
    }
    ready(&venv, &programs::workspace()?.join(RCLPY))
}

/// Makes the environment `venv` unless it is there as the file `requirements` says, and returns its interpreter.
/// Needs Debian's package python3-venv.
///
/// # Errors
/// When pip cannot install something.
pub fn ready(venv: &Path, requirements: &Path) -> anyhow::Result<PathBuf> {
    let wanted = fs::read_to_string(requirements)?;
    let (program, stamp) = (venv.join("bin/python"), venv.join("requirements.txt"));
    if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(program);
    }
    println!("making {} (a minute)", venv.display());
    let _ = fs::remove_dir_all(venv);
    command::output(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "-r"]).arg(requirements);
    let what = || format!("pip cannot install {}", requirements.display());
    command::output(&mut pip).with_context(what)?;
    fs::write(&stamp, wanted)?;
    Ok(program)
}
