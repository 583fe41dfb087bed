//! Determines the packages of an artifact from its suite's metadata. Downloads no package.

use std::path::Path;

use anyhow::{Context as _, bail};

use crate::apt::{Apt, Package, Source};

/// brickOS without the parts that Debian does not distribute. The checksum is the one in bookworm's
/// signed index.
const BRICKOS: Source = Source {
    suite: "bookworm",
    path: "pool/main/b/brickos/brickos_0.9.0.dfsg.orig.tar.gz",
    sha256: "a7613d48b701645666df188ced350fdbd0bd3f8c1e4905acb0208bac654e4994",
};

/// The source package that `artifact` names.
pub(crate) fn source(artifact: &str) -> Option<&'static Source> {
    (artifact == "source:brickos").then_some(&BRICKOS)
}

/// The newest packages of `artifact`; `refresh` fetches the suites' lists again.
pub(crate) fn packages(
    artifact: &str,
    apt_dir: &Path,
    refresh: bool,
) -> anyhow::Result<Vec<Package>> {
    let open = |suite: &str| {
        let apt = Apt::open(apt_dir, suite)?;
        if refresh {
            apt.update()?;
        }
        anyhow::Ok(apt)
    };
    let mut parts = artifact.split(':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("busybox"), None, None, None) => {
            Ok(vec![open("bookworm")?.show("busybox-static")?.0])
        }
        (Some("qemu-10"), None, None, None) => {
            let backports = open("bookworm-backports")?;
            let names = ["qemu-system-x86", "qemu-system-common", "qemu-system-data"];
            let mut all = Vec::new();
            for name in names {
                all.push(backports.show(name)?.0);
            }
            // The firmware is a separate package that is not in backports.
            all.push(open("bookworm")?.show("seabios")?.0);
            Ok(all)
        }
        (Some("ntpd-rs"), None, None, None) => {
            // With its own suite's C library, which is newer than bookworm's.
            let trixie = open("trixie")?;
            let names = ["ntpd-rs", "libc6", "libgcc-s1"];
            names.iter().map(|name| Ok(trixie.show(name)?.0)).collect()
        }
        (Some("systemd"), None, None, None) => {
            resolve_tree(&open("trixie")?, &["systemd", "udev", "kmod"])
        }
        (Some("kernel"), Some(suite), version, None) => resolve_kernel(&open(suite)?, version),
        _ => bail!(
            "unknown artifact {artifact:?}; known: busybox, qemu-10, ntpd-rs, systemd, source:brickos, kernel:SUITE, kernel:SUITE:VERSION, kernel:SUITE:amd64"
        ),
    }
}

/// These packages and all that they depend on, by the first alternative each.
fn resolve_tree(apt: &Apt, names: &[&str]) -> anyhow::Result<Vec<Package>> {
    let mut queue: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut found: Vec<Package> = Vec::new();
    while let Some(name) = queue.pop() {
        let name = name.split(':').next().unwrap_or_default();
        if found.iter().any(|p| p.name == name) {
            continue;
        }
        let (package, depends) = apt.show(name)?;
        found.push(package);
        queue.extend(depends);
    }
    Ok(found)
}

/// Follows the cloud kernel's metapackage to the packages that contain its image and modules; as
/// `amd64` the generic kernel's, which is five times as large and has modules that clouds do not need.
///
/// Since 7.x these are split into linux-binary-*, linux-modules-* and linux-base-*.
fn resolve_kernel(apt: &Apt, version: Option<&str>) -> anyhow::Result<Vec<Package>> {
    let mut queue = match version {
        None => vec!["linux-image-cloud-amd64".to_owned()],
        Some("amd64") => vec!["linux-image-amd64".to_owned()],
        Some(version) => vec![kernel_of_version(apt, version)?],
    };
    let mut found: Vec<Package> = Vec::new();
    while let Some(name) = queue.pop() {
        if found.iter().any(|p| p.name == name) {
            continue;
        }
        let (package, depends) = apt.show(&name)?;
        found.push(package);
        let kinds = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];
        let versioned = |d: &str| {
            kinds
                .iter()
                .filter_map(|k| d.strip_prefix(k))
                .any(|d| d.starts_with(|c: char| c.is_ascii_digit()))
        };
        queue.extend(depends.into_iter().filter(|d| versioned(d)));
    }
    Ok(found)
}

fn kernel_of_version(apt: &Apt, version: &str) -> anyhow::Result<String> {
    let prefix = format!("linux-image-{version}");
    let mut names = apt.names(&prefix)?;
    names.retain(|n| n.ends_with("-cloud-amd64") && n[prefix.len()..].starts_with(['.', '+', '-']));
    // Within one suite, the numeric order of the name's numbers is the version order.
    names.sort_by_key(|n| {
        n.split(|c: char| !c.is_ascii_digit())
            .filter_map(|p| p.parse::<u64>().ok())
            .collect::<Vec<_>>()
    });
    names.pop().with_context(|| format!("the suite has no cloud kernel {version}"))
}
