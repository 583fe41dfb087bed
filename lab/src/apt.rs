//! A private apt instance for one suite: resolves and downloads packages without touching the
//! system's apt or dpkg.
//!
//! The mirror comes from the system's own apt configuration. Nothing is installed here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::command;

/// Downloads one file with apt's proxy and transports, and checks it.
const HELPER: &str = "/usr/lib/apt/apt-helper";

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Environment variable that names a Debian mirror, for systems whose apt knows none.
pub const MIRROR_VARIABLE: &str = "TIMEVISOR_LAB_MIRROR";

/// One package file as the suite's signed metadata describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Suite it comes from.
    pub suite: String,
    /// Package name.
    pub name: String,
    /// Exact version.
    pub version: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the file, lower-case hexadecimal.
    pub sha256: String,
}

/// The original tarball of a source package. Unlike a binary package it is pinned here: our changes
/// fit one version only.
#[derive(Debug)]
pub struct Source {
    /// Suite whose mirror has it.
    pub suite: &'static str,
    /// The file, below the mirror's address.
    pub path: &'static str,
    /// SHA-256 of the file, lower-case hexadecimal.
    pub sha256: &'static str,
}

/// A private apt state for one suite.
#[derive(Debug)]
pub struct Apt {
    suite: String,
    dir: PathBuf,
}

impl Apt {
    /// Prepares the state directory of `suite` below `root`, and fetches the package lists if there
    /// are none.
    ///
    /// # Errors
    /// When no mirror or no archive keyring is known, or the lists cannot be fetched.
    pub fn open(root: &Path, suite: &str) -> anyhow::Result<Self> {
        let apt = Self { suite: suite.to_owned(), dir: root.join(suite) };
        if !apt.dir.join("ready").exists() {
            apt.update()?;
        }
        Ok(apt)
    }

    /// Fetches the suite's package lists again.
    ///
    /// # Errors
    /// As [`Apt::open`].
    pub fn update(&self) -> anyhow::Result<()> {
        if !Path::new(KEYRING).exists() {
            bail!("{KEYRING} is missing; install the package debian-archive-keyring");
        }
        fs::create_dir_all(self.dir.join("lists/partial"))?;
        fs::create_dir_all(self.dir.join("cache/archives/partial"))?;
        fs::write(self.dir.join("status"), "")?;
        fs::write(self.dir.join("apt.conf"), self.configuration())?;
        let line =
            format!("deb [arch=amd64 signed-by={KEYRING}] {} {} main\n", mirror()?, self.suite);
        fs::write(self.dir.join("sources.list"), line)?;
        command::output(self.command("apt-get").args(["-q", "update", "--error-on=any"]))
            .with_context(|| format!("cannot read suite {}; check the network", self.suite))?;
        fs::write(self.dir.join("ready"), "")?;
        Ok(())
    }

    /// The metadata of the newest version of `name`.
    ///
    /// # Errors
    /// When the suite has no such package.
    pub fn show(&self, name: &str) -> anyhow::Result<(Package, Vec<String>)> {
        let text =
            command::output(self.command("apt-cache").args(["show", "--no-all-versions", name]))
                .with_context(|| format!("suite {} has no package {name}", self.suite))?;
        let field = |key: &str| {
            text.lines()
                .find_map(|l| l.strip_prefix(key).and_then(|l| l.strip_prefix(": ")))
                .map(str::to_owned)
                .with_context(|| format!("package {name} has no field {key}"))
        };
        let package = Package {
            suite: self.suite.clone(),
            name: field("Package")?,
            version: field("Version")?,
            size: field("Size")?.parse().context("odd Size field")?,
            sha256: field("SHA256")?,
        };
        let depends = field("Depends").unwrap_or_default();
        let first_word = |d: &str| d.split_whitespace().next().map(str::to_owned);
        Ok((package, depends.split(',').filter_map(first_word).collect()))
    }

    /// All package names that start with `prefix`.
    ///
    /// # Errors
    /// When apt-cache fails.
    pub fn names(&self, prefix: &str) -> anyhow::Result<Vec<String>> {
        let text = command::output(self.command("apt-cache").args(["pkgnames", prefix]))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Downloads exactly `package` into `into`; returns the file.
    ///
    /// # Errors
    /// When the mirror no longer has that version.
    pub fn download(&self, package: &Package, into: &Path) -> anyhow::Result<PathBuf> {
        let dir = tempfile::tempdir_in(into)?;
        let exact = format!("{}={}", package.name, package.version);
        command::output(
            self.command("apt-get").args(["-q", "download", &exact]).current_dir(dir.path()),
        )
        .with_context(|| format!("cannot download {exact} from suite {}", self.suite))?;
        let file = fs::read_dir(dir.path())?
            .filter_map(Result::ok)
            .find(|e| e.path().extension().is_some_and(|x| x == "deb"))
            .with_context(|| format!("apt-get download left no file for {exact}"))?;
        let kept = into.join(file.file_name());
        fs::rename(file.path(), &kept)?;
        Ok(kept)
    }

    /// Downloads `source` into `into`; returns the file.
    ///
    /// # Errors
    /// When the mirror does not have it, or has another file in its place.
    pub fn download_source(&self, source: &Source, into: &Path) -> anyhow::Result<PathBuf> {
        let kept = into.join("source.tar.gz");
        let address = format!("{}/{}", mirror()?.trim_end_matches('/'), source.path);
        let (file, sum) = (kept.display().to_string(), format!("SHA256:{}", source.sha256));
        command::output(self.command(HELPER).args(["download-file", &address, &file, &sum]))
            .with_context(|| {
                format!("cannot download {address}; set {MIRROR_VARIABLE} to a mirror that has it")
            })?;
        Ok(kept)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.dir.join("apt.conf")).env("LC_ALL", "C");
        command
    }

    /// The suite's own settings. apt reads them after the system's settings, so that a proxy
    /// configured there stays in force.
    fn configuration(&self) -> String {
        let own = |key: &str, name: &str| format!("{key} \"{}\";\n", self.dir.join(name).display());
        let paths = [
            own("Dir::Etc::sourcelist", "sources.list"),
            own("Dir::State::lists", "lists"),
            own("Dir::State::status", "status"),
            own("Dir::Cache", "cache"),
        ];
        paths.concat() + include_str!("apt.conf")
    }
}

/// The Debian mirror that the system's own apt uses, or the one the environment names.
pub(crate) fn mirror() -> anyhow::Result<String> {
    if let Ok(mirror) = std::env::var(MIRROR_VARIABLE) {
        return Ok(mirror);
    }
    let next =
        format!("set {MIRROR_VARIABLE} to the address of a Debian mirror (the part before /dists)");
    let targets = command::run("apt-get", &["indextargets", "--format", "$(LABEL) $(REPO_URI)"])
        .with_context(|| next.clone())?;
    // The label is empty while apt has no lists, so the address is checked as well.
    targets
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(label, uri)| matches!(*label, "Debian" | "") && !uri.contains("security"))
        .map(|(_, uri)| uri.to_owned())
        .with_context(|| format!("apt knows no Debian mirror; {next}"))
}
