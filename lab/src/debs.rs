//! Debian packages of this workspace as tests install them: by `packaging/debs`, from the static programs of
//! [`crate::programs`] instead of a release build, and a second version of the same for upgrades.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::command;
use crate::programs;

const PACKAGES: &[&str] =
    &["timevisor", "timevisor-guest", "timevisor-bus", "libtimevisor0", "libtimevisor-dev"];

/// Where the packages are: `first/` and `second/` below this.
pub(crate) fn folder(lab_dir: &Path) -> PathBuf {
    lab_dir.join("packages")
}

/// Builds both versions.
///
/// # Errors
/// When the C library or a package does not build.
pub(crate) fn build(lab_dir: &Path) -> anyhow::Result<()> {
    let root = programs::workspace()?;
    let out = folder(lab_dir);
    let _ = std::fs::remove_dir_all(&out);
    let libraries = out.join("c");
    let mut make = Command::new("make");
    make.args(["--silent", "-C"]).arg(root.join("clients/c")).arg("install");
    make.args(["PROFILE=dev", "PREFIX=", "LIBDIR="]);
    make.arg(format!("DESTDIR={}", libraries.display()));
    command::output(&mut make).context("libtimevisor")?;
    let quick = programs::static_binary("timevisord", "timevisord")?;
    let quick = quick.parent().context("no folder")?.to_owned();
    let programs =
        format!("{} {}", quick.display(), programs::target_dir()?.join("debug").display());
    for (name, version) in [("first", None), ("second", Some("0.1.0+next"))] {
        let mut debs = Command::new(root.join("packaging/debs"));
        // The library's file is named by its version, and an upgrade is the daemon's.
        let packages = if version.is_some() { &PACKAGES[..1] } else { PACKAGES };
        debs.arg(out.join(name)).args(packages);
        debs.env("PROGRAMS", &programs).env("C_FILES", &libraries).env("COMPRESS", "none");
        // Any time in the past: files of a package that is built again have the same one.
        debs.env("SOURCE_DATE_EPOCH", "1700000000");
        if let Some(version) = version {
            debs.env("VERSION", version);
        }
        command::output(&mut debs)?;
    }
    Ok(())
}
