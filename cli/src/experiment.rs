//! `timevisor experiment`: hands over to `timevisor-lab`, which boots guests and is never shipped.
//!
//! It only finds that program: beside this one, or in the build directory of a checkout.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use clap::Args;

const PROGRAM: &str = "timevisor-lab";

#[derive(Args)]
pub(crate) struct Options {
    /// The experiment, or `list`
    name: String,
    /// How long it measures, without the boots [default: 2 to 8, see `list`]
    #[arg(long)]
    minutes: Option<u32>,
}

/// Returns only when the lab cannot be started.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let here = std::env::current_exe().context("cannot find this program's own path")?;
    let Some(lab) = find(&here, &std::env::current_dir()?) else {
        bail!(
            "experiments need {PROGRAM}, which is not installed with {}; in a checkout of the sources, build it with `cargo \
             build -p {PROGRAM}` and run this again there, or use `make experiment NAME={}`",
            here.display(),
            options.name
        )
    };
    let mut command = Command::new(&lab);
    command.arg("experiment").arg(&options.name);
    if let Some(minutes) = options.minutes {
        command.arg("--minutes").arg(minutes.to_string());
    }
    Err(command.exec()).with_context(|| format!("cannot run {}", lab.display()))
}

/// Beside `program`; else the newest build in the `target` directory that holds `program`, or of
/// the checkout around `directory`.
fn find(program: &Path, directory: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    let beside = folder.join(PROGRAM);
    if beside.is_file() {
        return Some(beside);
    }
    let own = folder.ancestors().find(|dir| dir.file_name() == Some(OsStr::new("target")));
    let checkout = directory.ancestors().find(|dir| dir.join("lab/Cargo.toml").is_file());
    let targets = own.map(Path::to_owned).into_iter().chain(checkout.map(|dir| dir.join("target")));
    targets.filter_map(|target| newest(&target)).next()
}

fn newest(target: &Path) -> Option<PathBuf> {
    let builds = std::fs::read_dir(target).ok()?.filter_map(Result::ok);
    let programs = builds.map(|build| build.path().join(PROGRAM));
    // A directory of that name has its own build time but cannot be run.
    let dated = programs
        .filter(|p| p.is_file())
        .filter_map(|p| Some((p.metadata().ok()?.modified().ok()?, p)));
    dated.max().map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn the_lab_is_beside_or_in_a_checkout_or_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let (bin, checkout) = (root.path().join("usr/bin"), root.path().join("src"));
        let (installed, built) = (bin.join("timevisor"), checkout.join("target/debug/timevisor"));
        file(&installed);
        file(&built);
        assert_eq!(find(&installed, root.path()), None);
        assert_eq!(find(&built, root.path()), None);

        // A build of another profile, found from the build directory and from within the checkout.
        let lab = checkout.join("target/release/timevisor-lab");
        file(&lab);
        file(&checkout.join("lab/Cargo.toml"));
        std::fs::create_dir_all(checkout.join("target/zzz/timevisor-lab")).unwrap();
        assert_eq!(find(&built, root.path()), Some(lab.clone()));
        assert_eq!(find(&installed, &checkout.join("docs")), Some(lab));

        let beside = bin.join("timevisor-lab");
        file(&beside);
        assert_eq!(find(&installed, &checkout), Some(beside));
    }
}
