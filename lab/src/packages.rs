//! Installs the Debian packages that the lab needs on the host, by name, without starting their
//! services.
//!
//! Services are not started because a chronyd started by its package would discipline the very
//! clock under test. Kernels and QEMU 10 are never installed; see [`crate::fetch`].

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::command;
use crate::leap;
use crate::scenario::Test;
use crate::tests::FAMILIES;

/// What every test needs: namespaces, a leap second table, servers, a linker, the compiler for the
/// BPF programs, and the keyring that verifies fetched packages.
pub const EVERY_TEST: &[&str] =
    &["iproute2", "tzdata", "chrony", "gcc", "clang", "debian-archive-keyring"];

/// What `make check` and the Python package need in addition to all lab tests.
const CHECKS: &[&str] = &["gcc", "g++", "make", "pkg-config", "python3", "python3-venv"];

/// What these tests need on the host; each package is listed once.
pub fn packages_of(tests: &[Test]) -> Vec<&'static str> {
    let needs = tests.iter().flat_map(|test| test.needs).flat_map(|need| need.packages());
    let all: BTreeSet<&str> = EVERY_TEST.iter().copied().chain(needs).collect();
    all.into_iter().collect()
}

/// What all tests, checks, soaks and experiments need on the host.
pub fn all() -> Vec<&'static str> {
    let tests: Vec<Test> = FAMILIES.iter().flat_map(|family| family.tests).copied().collect();
    let mut all = packages_of(&tests);
    all.extend(CHECKS);
    all.sort_unstable();
    all.dedup();
    all
}

const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Installs the missing packages of `names`; does nothing (and needs no root) if all are there.
///
/// Returns the names that were installed.
///
/// # Errors
/// When not root, when the system has no apt, or when apt fails.
pub fn ensure_installed(names: &[&str]) -> anyhow::Result<Vec<String>> {
    let missing: Vec<&str> = names.iter().copied().filter(|n| !is_installed(n)).collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let list = missing.join(" ");
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("this system has no apt-get; install the equivalents of: {list}");
    }
    if !is_root() {
        bail!(
            "missing packages: {list}; run `apt-get install {list}` as root, or run the lab as root"
        );
    }
    apt_get(&["update"])?;
    let mut args = vec!["install", "-y", "--no-install-recommends"];
    args.extend(&missing);
    apt_get(&args)?;
    Ok(missing.into_iter().map(str::to_owned).collect())
}

/// Installs the missing packages of `names` and reports that; keeps the leap second table valid.
///
/// # Errors
/// As [`ensure_installed`] and [`leap::ensure_valid`].
pub fn install(names: &[&str]) -> anyhow::Result<()> {
    let installed = ensure_installed(names)?;
    if !installed.is_empty() {
        println!("installed {}", installed.join(" "));
    }
    if leap::ensure_valid()? {
        println!("upgraded tzdata: its leap second table had expired");
    }
    Ok(())
}

/// Upgrades one package to the newest available version.
///
/// # Errors
/// As [`ensure_installed`].
pub fn upgrade(name: &str) -> anyhow::Result<()> {
    if !is_root() {
        bail!("{name} is too old; run `apt-get install {name}` as root, or run the lab as root");
    }
    apt_get(&["update"])?;
    apt_get(&["install", "-y", "--no-install-recommends", name])
}

/// Whether dpkg lists `name` as installed.
pub fn is_installed(name: &str) -> bool {
    command::run("dpkg-query", &["-W", "-f", "${db:Status-Status}", name])
        .is_ok_and(|status| status == "installed")
}

/// Whether the process runs as root.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Runs apt-get in a private mount namespace where policy-rc.d forbids starting any service.
///
/// Only the namespace sees the policy, so a killed run leaves nothing behind that could block the
/// administrator's own installations. If the file does not exist, the mount point is an empty file
/// that is not executable.
fn apt_get(args: &[&str]) -> anyhow::Result<()> {
    let dir = tempfile::tempdir().context("cannot create a temporary directory")?;
    let policy = dir.path().join("policy-rc.d");
    fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
    fs::set_permissions(&policy, fs::Permissions::from_mode(0o755))?;
    let placeholder = !Path::new(POLICY).exists();
    if placeholder {
        fs::write(POLICY, "").with_context(|| format!("cannot create {POLICY}"))?;
    }
    let script = r#"mount --bind "$1" "$2" && shift 2 && exec apt-get "$@""#;
    let result = command::output(
        Command::new("unshare")
            .args(["--mount", "--", "sh", "-c", script, "apt"])
            .arg(&policy)
            .arg(POLICY)
            .args(["-q", "-o", "DPkg::Lock::Timeout=120"])
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    );
    if placeholder {
        let _ = fs::remove_file(POLICY);
    }
    result.context("apt-get failed; check the network and /etc/apt, then run again").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::select;

    #[test]
    fn a_test_installs_what_it_needs_and_no_more() {
        let of = |name: &str| packages_of(&select(FAMILIES, &[name.to_owned()]).unwrap());
        let daemon = of("fault-config");
        assert_eq!(BTreeSet::from_iter(daemon), EVERY_TEST.iter().copied().collect());
        let guest = of("clock-vmclock");
        assert!(guest.contains(&"qemu-system-x86") && guest.contains(&"kmod"), "{guest:?}");
        assert!(!guest.contains(&"libvirt-clients") && !guest.contains(&"runc"), "{guest:?}");
        assert!(of("libvirt").contains(&"libvirt-daemon-system"));
        assert!(of("arm").contains(&"gcc-aarch64-linux-gnu"));
        let everything = all();
        for name in of("all").iter().chain(CHECKS) {
            assert!(everything.contains(name), "{name}");
        }
    }
}
