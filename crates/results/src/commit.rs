//! The commit's name.

use std::path::Path;
use std::process::Command;

/// The variable that names the commit where git cannot: for a build, or for a run.
const VARIABLE: &str = "TIMEVISOR_COMMIT";

/// The abbreviated commit of the checkout around `folder`.
///
/// Outside of a checkout of this project, `TIMEVISOR_COMMIT` of the environment counts, then that
/// of the build, as in a guest that has no git; else `unknown`.
#[must_use]
pub fn commit(folder: &Path) -> String {
    checked_out(folder)
        .or_else(|| std::env::var(VARIABLE).ok())
        .unwrap_or_else(|| option_env!("TIMEVISOR_COMMIT").unwrap_or("unknown").to_owned())
}

/// A user may run an installed program inside another project, whose commit says nothing.
fn checked_out(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let root = folder.ancestors().find(|root| root.join("crates/results/Cargo.toml").is_file())?;
    let output =
        Command::new("git").arg("-C").arg(root).args(["rev-parse", "--short", "HEAD"]).output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(folder: &Path, arguments: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        let mut command = Command::new("git");
        let done = command.arg("-C").arg(folder).args(identity).args(arguments).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    #[test]
    fn only_a_checkout_of_this_project_counts() {
        let root = tempfile::tempdir().unwrap();
        git(root.path(), &["init", "-q"]);
        git(root.path(), &["commit", "-q", "--allow-empty", "-m", "x"]);
        assert_eq!(checked_out(root.path()), None);

        let inner = root.path().join("crates/results");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("Cargo.toml"), "").unwrap();
        let name = checked_out(root.path()).unwrap();
        assert!(name.len() >= 4 && name.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
        assert_eq!(checked_out(&inner), Some(name));
    }
}
