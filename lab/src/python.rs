//! Debian's Python and our wheel as one tar archive, for guests and containers that have neither.
//!
//! The interpreter is the host's own package, as `apt-get install python3` installs it on any
//! Debian 12, with the C library that it needs. The wheel is built and installed as
//! docs/reference/clients/python.md describes, into Debian's directory for such packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::command;
use crate::nested::libraries;
use crate::programs;
use crate::scratch;

/// Debian's interpreter, whose path depends on the version.
const PYTHON: &str = "/usr/bin/python3";
/// The directory where Debian's Python looks for packages that Debian does not ship.
const PACKAGES: &str = "usr/lib/python3/dist-packages";

/// A Python installation that can be unpacked anywhere.
#[derive(Debug)]
pub struct Python {
    /// The archive, with paths relative to the root.
    pub archive: PathBuf,
    /// The interpreter's path, which is the same on the host and where the archive is unpacked.
    pub interpreter: PathBuf,
    /// The folder on the host that holds our package, for PYTHONPATH.
    pub packages: PathBuf,
}

impl Python {
    /// Builds the wheel, and an archive in `directory` with interpreter, library and wheel.
    ///
    /// # Errors
    /// When the wheel cannot be built or the interpreter is not Debian's.
    pub fn archive(directory: &Path) -> anyhow::Result<Self> {
        let interpreter = fs::canonicalize(PYTHON).context("install the package python3")?;
        let root = directory.join("python");
        let packages = root.join(PACKAGES);
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&packages)?;
        let wheel = wheel()?;
        command::output(
            Command::new(PYTHON).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&packages),
        )?;

        let mut files = installed(&interpreter)?;
        let modules = files.iter().filter(|file| file.extension().is_some_and(|e| e == "so"));
        let mut wanted: Vec<PathBuf> = libraries(&interpreter)?;
        for module in modules {
            // Some modules need no libraries beyond the interpreter's; an error is expected then.
            wanted.extend(libraries(module).unwrap_or_default());
        }
        wanted.extend(libraries(&packages.join("timevisor/_timevisor.abi3.so"))?);
        files.extend(wanted);
        files.sort();
        files.dedup();
        let list = directory.join("python.files");
        let names: Vec<String> =
            files.iter().map(|f| f.display().to_string().trim_start_matches('/').into()).collect();
        fs::write(&list, names.join("\n"))?;
        let archive = directory.join("python.tar.gz");
        // A link on the host may point to a file that is not in the archive.
        let mut tar = Command::new("tar");
        tar.args(["--create", "--gzip", "--dereference", "--file"]).arg(&archive);
        tar.args(["-C", "/", "--no-recursion", "--files-from"]).arg(&list);
        command::output(tar.arg("-C").arg(&root).args(["--recursion", "usr"]))?;
        Ok(Self { archive, interpreter, packages })
    }
}

/// The wheel in the workspace's target folder. It is built first, unless a test asks: then the
/// runner has built it already.
///
/// # Errors
/// When it does not build.
pub fn wheel() -> anyhow::Result<PathBuf> {
    if scratch::in_test() {
        let built = programs::workspace()?.join("target/python/wheels");
        let mut files = fs::read_dir(&built).into_iter().flatten().flatten();
        let file = files.find(|file| file.path().extension().is_some_and(|e| e == "whl"));
        return Ok(file.with_context(|| format!("no wheel in {}", built.display()))?.path());
    }
    let mut build = Command::new(programs::workspace()?.join("clients/python/test.sh"));
    let text = command::output(build.env("WHEEL_ONLY", "1").env("PYTHON", PYTHON))?;
    text.lines().last().map(PathBuf::from).context("the wheel's build says nothing")
}

/// The files of the interpreter and its standard library.
fn installed(interpreter: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let version = interpreter.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let packages = [
        format!("{version}-minimal"),
        format!("lib{version}-minimal"),
        format!("lib{version}-stdlib"),
    ];
    let mut dpkg = Command::new("dpkg-query");
    let text = command::output(dpkg.arg("--listfiles").args(&packages))?;
    let ours = ["/usr/bin/", "/usr/lib/", "/lib/"];
    let wanted = |line: &&str| ours.iter().any(|folder| line.starts_with(folder));
    Ok(text.lines().filter(wanted).map(PathBuf::from).filter(|path| path.is_file()).collect())
}
