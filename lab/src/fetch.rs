//! Fetches kernels, QEMU 10 and a static busybox as Debian packages, and source packages, and unpacks
//! them into a cache.
//!
//! Nothing is installed, and a second run needs no network. Each artifact has a lock file with the
//! suite, name, version, size and SHA-256 of its packages; a locked file that the mirror has
//! dropped is resolved again. The checksum of a source package is in our code.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::apt::{Apt, Package, Source};
use crate::command;
use crate::interrupt;
use crate::resolve;

/// What most tests need; `timevisor-lab fetch` without arguments fetches these.
pub const DEFAULT_ARTIFACTS: &[&str] =
    &["busybox", "qemu-10", "kernel:trixie-backports", "kernel:bookworm"];

/// The cache of unpacked artifacts.
#[derive(Debug, Clone)]
pub struct Fetcher {
    cache: PathBuf,
}

impl Fetcher {
    /// A cache below `cache`, created on first use.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self { cache: cache.into() }
    }

    /// Makes `artifact` available and returns the root of its unpacked files.
    ///
    /// Artifacts are `busybox`, `qemu-10`, `ntpd-rs`, `systemd`, `source:brickos`,
    /// `kernel:SUITE` and `kernel:SUITE:VERSION`, where VERSION is the beginning of a version, as in
    /// `kernel:trixie-backports:6.17`, or `amd64` for the generic flavour instead of the cloud's.
    ///
    /// # Errors
    /// When the name is unknown, the network fails, or a file does not match its checksum.
    pub fn artifact(&self, artifact: &str) -> anyhow::Result<PathBuf> {
        let dir = self.cache.join(artifact.replace(':', "-"));
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        // Concurrent lab runs share the cache; the second one waits here.
        let lock = File::create(dir.join(".lock"))?;
        lock.lock().context("cannot lock the cache")?;
        self.ensure(artifact, &dir).with_context(|| format!("cannot fetch {artifact}"))?;
        Ok(dir.join("root"))
    }

    /// Whether the cache contains `artifact` as its lock file or its checksum here describes it.
    pub fn is_there(&self, artifact: &str) -> bool {
        let dir = self.cache.join(artifact.replace(':', "-"));
        let lock = resolve::source(artifact)
            .map_or_else(|| fs::read_to_string(dir.join("lock")), |s| Ok(source_line(s)));
        lock.is_ok_and(|text| {
            fs::read_to_string(dir.join("unpacked")).is_ok_and(|done| done == text)
        })
    }

    fn ensure(&self, artifact: &str, dir: &Path) -> anyhow::Result<()> {
        if let Some(source) = resolve::source(artifact) {
            return if self.is_there(artifact) { Ok(()) } else { self.unpack_source(source, dir) };
        }
        let lock_file = dir.join("lock");
        let locked = fs::read_to_string(&lock_file).ok();
        if let Some(text) = &locked {
            if fs::read_to_string(dir.join("unpacked")).is_ok_and(|done| done == *text) {
                return Ok(());
            }
            match parse_lock(text).and_then(|packages| self.unpack(&packages, dir)) {
                Ok(()) => return Ok(fs::write(dir.join("unpacked"), text)?),
                Err(error) => {
                    interrupt::check()?;
                    eprintln!(
                        "{artifact}: resolving again, because the locked packages failed: {error:#}"
                    );
                }
            }
        }
        let packages = resolve::packages(artifact, &self.cache.join("apt"), locked.is_some())?;
        let text: String = packages.iter().map(lock_line).collect();
        fs::write(&lock_file, &text)?;
        self.unpack(&packages, dir)?;
        fs::write(dir.join("unpacked"), text)?;
        Ok(())
    }

    fn unpack(&self, packages: &[Package], dir: &Path) -> anyhow::Result<()> {
        let fresh = fresh_root(dir)?;
        for package in packages {
            let apt = Apt::open(&self.cache.join("apt"), &package.suite)?;
            let file = apt.download(package, dir)?;
            let checked = check(&file, package);
            let unpacked = checked.and_then(|()| {
                command::run("dpkg-deb", &["-x".as_ref(), file.as_os_str(), fresh.as_os_str()])
            });
            fs::remove_file(&file)?;
            unpacked?;
        }
        replace_root(dir, &fresh)
    }

    fn unpack_source(&self, source: &Source, dir: &Path) -> anyhow::Result<()> {
        let fresh = fresh_root(dir)?;
        let apt = Apt::open(&self.cache.join("apt"), source.suite)?;
        let file = apt.download_source(source, dir)?;
        let mut tar = Command::new("tar");
        tar.args(["--strip-components=1", "--no-same-owner", "-xzf"]).arg(&file);
        let unpacked = command::output(tar.arg("-C").arg(&fresh));
        fs::remove_file(&file)?;
        unpacked?;
        replace_root(dir, &fresh)?;
        Ok(fs::write(dir.join("unpacked"), source_line(source))?)
    }
}

/// An empty directory beside the artifact's root, for the next one.
fn fresh_root(dir: &Path) -> anyhow::Result<PathBuf> {
    let fresh = dir.join("root.new");
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(&fresh)?;
    Ok(fresh)
}

fn replace_root(dir: &Path, fresh: &Path) -> anyhow::Result<()> {
    let root = dir.join("root");
    let _ = fs::remove_dir_all(&root);
    Ok(fs::rename(fresh, &root)?)
}

fn source_line(s: &Source) -> String {
    format!("{} {} {}\n", s.suite, s.path, s.sha256)
}

fn lock_line(p: &Package) -> String {
    format!("{} {} {} {} {}\n", p.suite, p.name, p.version, p.size, p.sha256)
}

fn parse_lock(text: &str) -> anyhow::Result<Vec<Package>> {
    let parse = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [suite, name, version, size, sha256] => Ok(Package {
            suite: suite.into(),
            name: name.into(),
            version: version.into(),
            size: size.parse()?,
            sha256: sha256.into(),
        }),
        _ => bail!("odd lock line {line:?}"),
    };
    text.lines().map(parse).collect()
}

fn check(file: &Path, package: &Package) -> anyhow::Result<()> {
    let bytes = fs::read(file)?;
    let sum: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    if bytes.len() as u64 != package.size || sum != package.sha256 {
        bail!("{} is not the locked file: {} bytes, SHA-256 {sum}", file.display(), bytes.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_round_trip() {
        let line = "bookworm seabios 1.16.2-1 178700 00ff\n";
        let packages = parse_lock(line).unwrap();
        assert_eq!(packages.iter().map(lock_line).collect::<String>(), line);
        assert!(parse_lock("one two three\n").is_err());
    }
}
